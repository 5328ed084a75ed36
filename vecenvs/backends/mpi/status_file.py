"""What rank 0 tells its launcher, `python -m vecenvs.mpi -n`: an anonymous file with a line of JSON for each change.

mpirun alone is not enough: Open MPI's ends with exit code 0 when a node is lost, and drops what rank 0 prints then.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from typing import NamedTuple

# One of these is set in each process that mpirun has started, before MPI is initialised.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")

_file: int | None = None  # None: this process is not rank 0, or has no launcher of ours beside it
_exit_code = 1  # of the script; an exception that nothing handles ends it with 1


class Status(NamedTuple):
    """What is known of rank 0: its process, if it is on the launcher's host, and the exit code once all is done.

    `exit_code` is the script's, said when nothing is left to do but to finalise MPI, which may wait for others.
    `workers` are the workers on other hosts, by number, with their envs; `lost`, those whose connections have ended
    although the workers were not told to end.
    """

    pid: int | None
    exit_code: int | None
    workers: dict[int, str]
    lost: list[str]


def new() -> tuple[int, str]:
    """Make the file: the launcher's side. Return its descriptor, and for `begin` where other processes find it."""
    if not hasattr(os, "memfd_create"):  # not Linux: rank 0 has no way to it, and says nothing
        return os.open(os.devnull, os.O_RDONLY), ""
    name = f"vecenvs-mpi-{secrets.token_hex(8)}"
    descriptor = os.memfd_create(name)
    return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}={name}"


def begin(where: str) -> None:
    """Say that rank 0 has begun. Does nothing on other ranks, nor on a host without the launcher."""
    global _file  # noqa: PLW0603  a fact about the process
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), None)
    path, _, name = where.partition("=")
    with contextlib.suppress(OSError):  # the launcher is on another host, or was killed
        if rank == "0" and os.readlink(path) == f"/memfd:{name} (deleted)":  # and not another program's file
            _file = os.open(path, os.O_WRONLY | os.O_APPEND)
    _say(pid=os.getpid())


def note_worker(number: int, text: str) -> None:
    """Say where a worker on another host is, and with which envs."""
    _say(worker=number, text=text)


def forget_worker(number: int) -> None:
    """Say that a worker is about to end because it is told to."""
    _say(ended=number, lost=False)


def note_lost(number: int) -> None:
    """Say that the connection of a worker has ended, and nothing explains it."""
    _say(ended=number, lost=True)


def script_ends(code: int) -> None:
    """Note the exit code of the script, for `end`."""
    global _exit_code  # noqa: PLW0603
    _exit_code = code


def end() -> None:
    """Say that this process is done: its launcher ends with the exit code of the script, not with that of mpirun."""
    _say(exit_code=_exit_code)


def say_no_more() -> None:
    """Leave the file as it is: this process was told to end, and whatever ends from now on ends for that reason."""
    global _file  # noqa: PLW0603
    _file = None


def has_reader() -> bool:
    """Tell whether there is a launcher which reads this."""
    return _file is not None


def read(descriptor: int) -> Status:
    """Return what rank 0 has said so far: the launcher's side."""
    said: dict[str, int] = {}
    workers: dict[int, str] = {}
    lost: list[str] = []
    for line in os.pread(descriptor, os.fstat(descriptor).st_size, 0).splitlines():
        try:
            what = json.loads(line)
        except ValueError:  # a kill or a full disk has cut it short
            continue
        if "worker" in what:
            workers[what["worker"]] = what["text"]
        elif "ended" in what:
            text = workers.pop(what["ended"], None)
            if what["lost"] and text is not None:
                lost.append(text)
        else:
            said |= what
    return Status(said.get("pid"), said.get("exit_code"), workers, lost)


def _say(**what: object) -> None:
    if _file is not None:
        with contextlib.suppress(OSError):  # no space
            os.write(_file, json.dumps(what).encode() + b"\n")
