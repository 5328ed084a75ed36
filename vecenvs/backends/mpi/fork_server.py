"""What a rank's fork server loads besides `hosting`, so that it can remove the folder of its socket when it ends.

A rank may be killed, and MPI has it end without Python's own clearing up. The server ends after its rank and
what it has forked, by the end of a pipe; so it is in no process group that a launcher kills.
"""

from __future__ import annotations

import atexit
import os
import shutil

FOLDER = "VECENVS_FORK_SERVER_FOLDER"

if (_folder := os.environ.pop(FOLDER, None)) is not None:
    os.setpgid(0, 0)
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
