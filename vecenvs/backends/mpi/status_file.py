"""Reports of rank 0 to the launcher `python -m vecenvs.mpi -n`: a file with a line for each.

mpirun alone is not enough: Open MPI's ends with exit code 0 when a node is lost, and drops what rank 0 prints then.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import NamedTuple

# One of these is set in each process that mpirun has started, before MPI is initialised.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")

_path: Path | None = None  # None: this process is not rank 0, or has no launcher of ours beside it


class Status(NamedTuple):
    """The reports of rank 0 so far.

    `succeeded`: its script has ended without an error; `ending`: it has done all but finalise MPI, which may wait for
    others; `incomplete`: it does not finalise it, as ranks are lost; `lost`: which workers' connections have ended
    without an explanation.
    """

    pid: int | None
    succeeded: bool
    ending: bool
    incomplete: bool
    lost: list[str]
    placed: list[str]


def begin(path: str) -> None:
    """Report that rank 0 has begun. Does nothing on other ranks, nor on a host without the launcher."""
    global _path  # noqa: PLW0603  a fact about the process
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), None)
    if rank == "0" and Path(path).exists():
        _path = Path(path)
        _say("pid", os.getpid())


def succeed() -> None:
    """Report that the script has ended without an error."""
    _say("succeeded")


def ending() -> None:
    """Report that nothing is left to do but to finalise MPI."""
    _say("ending")


def incomplete() -> bool:
    """Report that ranks are lost for which MPI would wait; tell whether there is a launcher which reads this."""
    return _say("incomplete")


def has_reader() -> bool:
    """Tell whether there is a launcher which reads the reports."""
    return _path is not None


def note_placed(text: str) -> None:
    """Report where a worker on another host is, and with which envs."""
    _say("placed", text)


def note_hang_up(number: int, text: str) -> None:
    """Report that the connection of worker `number` has ended, and what is lost if nothing explains it."""
    _say("hung-up", number, text)


def explain(number: int) -> None:
    """Report that worker `number` has ended by itself, as its rank has reported."""
    if _path is not None:
        _say("explained", number, time.monotonic())


def read(path: Path, explained_until: float = math.inf) -> Status:
    """Return the reports so far: the launcher's side. Explanations count up to a time of the monotonic clock."""
    said = [line.partition(" ")[::2] for line in path.read_text().splitlines()]
    words = {word for word, _ in said}
    pid = next((int(text) for word, text in said if word == "pid"), None)
    reasons = [text.partition(" ")[::2] for word, text in said if word == "explained"]
    explained = {number for number, when in reasons if float(when) < explained_until}
    hung_up = [text.partition(" ")[::2] for word, text in said if word == "hung-up"]
    lost = [text for number, text in hung_up if number not in explained]
    placed = [text for word, text in said if word == "placed"]
    return Status(pid, "succeeded" in words, "ending" in words, "incomplete" in words, lost, placed)


def _say(*what: object) -> bool:
    if _path is None:
        return False
    try:
        with os.fdopen(os.open(_path, os.O_WRONLY | os.O_APPEND), "w") as file:
            file.write(" ".join(map(str, what)) + "\n")
    except OSError:  # the launcher has gone
        return False
    return True
