"""What rank 0 tells its launcher, `python -m vecenvs.mpi -n`: one file, replaced as a whole at each change.

mpirun alone is not enough: Open MPI's ends with exit code 0 when a node is lost, and drops what rank 0 prints then.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

# One of these is set in each process that mpirun has started, before MPI is initialised.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


class Status(NamedTuple):
    """What is known of rank 0: its process, if it is on the launcher's host, and the exit code once all is done.

    `exit_code` is the script's, written when nothing is left to do but to finalise MPI, which may wait for others.
    `workers` are the workers on other hosts, by number, with their envs; `lost`, those whose connections have ended
    although the workers were not told to end.
    """

    pid: int | None = None
    exit_code: int | None = None
    workers: dict[str, str] = {}  # noqa: RUF012  never changed in place
    lost: list[str] = []  # noqa: RUF012  the same


_path: Path | None = None  # None: this process is not rank 0, or has no launcher of ours beside it
_status = Status()
_exit_code = 1  # of the script; an exception that nothing handles ends it with 1


def begin(path: str) -> None:
    """Say that rank 0 has begun. Does nothing on other ranks, nor on a host without the launcher."""
    global _path  # noqa: PLW0603  a fact about the process
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), None)
    if rank == "0" and Path(path).exists():
        _path = Path(path)
        _write(pid=os.getpid())


def note_worker(number: int, text: str) -> None:
    """Say where a worker on another host is, and with which envs."""
    _write(workers=_status.workers | {str(number): text})


def forget_worker(number: int) -> None:
    """Say that a worker has ended, or is about to, for a reason of its own."""
    _write(workers={key: text for key, text in _status.workers.items() if key != str(number)})


def note_lost(number: int) -> None:
    """Say that the connection of a worker has ended, and nothing explains it."""
    text = _status.workers.get(str(number))
    if text is not None and text not in _status.lost:
        _write(lost=[*_status.lost, text])


def script_ends(code: int) -> None:
    """Note the exit code of the script, for `end`."""
    global _exit_code  # noqa: PLW0603
    _exit_code = code


def end() -> None:
    """Say that this process is done: its launcher ends with the exit code of the script, not with that of mpirun."""
    _write(exit_code=_exit_code)


def say_no_more() -> None:
    """Leave the file as it is: this process was told to end, and whatever ends from now on ends for that reason."""
    global _path  # noqa: PLW0603
    _path = None


def has_reader() -> bool:
    """Tell whether there is a launcher which reads this."""
    return _path is not None


def read(path: Path) -> Status:
    """Return what rank 0 has said so far: the launcher's side."""
    text = path.read_text()
    return Status(**json.loads(text)) if text else Status()


def _write(**changed: Any) -> None:
    global _status  # noqa: PLW0603
    if _path is None:
        return
    _status = _status._replace(**changed)
    with contextlib.suppress(OSError):  # the launcher has gone
        new = _path.with_suffix(".new")
        new.write_text(json.dumps(_status._asdict()))
        new.replace(_path)
