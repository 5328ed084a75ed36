"""A job that is aborted: the launcher has read what was printed before it hears of the end."""

from __future__ import annotations

import select
import subprocess
import sys

import pytest

PROGRAM = """
import os
from vecenvs.backends.mpi import abort

class Comm:
    def Abort(self, code):
        os._exit(4 + code)

abort.PATIENCE = {patience}
print("why", end="")
abort.abort(Comm())
"""


def started(patience: float) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM.format(patience=patience)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert select.select([child.stdout], [], [], 60)[0]
    return child


def test_waits_until_it_is_read() -> None:
    with started(patience=60) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        assert child.communicate(timeout=60)[0] == b"why"
        assert child.returncode == 5


def test_waits_for_nobody_for_ever() -> None:
    with started(patience=0.1) as child:
        assert child.wait(60) == 5
