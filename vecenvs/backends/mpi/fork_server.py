"""Loaded by a rank's fork server, so that it removes the folder of its socket when it ends.

A rank itself may be killed, and MPI ends it without Python's exit handlers. The server ends after its rank and the
processes that it has forked, when a pipe is closed. So it must be in no process group that a launcher kills.
"""

from __future__ import annotations

import atexit
import os
import shutil

FOLDER = "VECENVS_FORK_SERVER_FOLDER"

if (_folder := os.environ.pop(FOLDER, None)) is not None:
    os.setpgid(0, 0)
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
