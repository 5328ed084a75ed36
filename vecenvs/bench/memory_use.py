"""The memory that a candidate takes, measured in a fresh process, where no freed memory can be used again."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from vecenvs.bench.child import Child
from vecenvs.bench.workloads import BadRequest
from vecenvs.worker import descendants

if TYPE_CHECKING:
    from vecenvs.bench.contest import Candidate


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of memory. `total` counts each page once, even if several processes share it.

    total      of a process and all of its descendants together (the sum of PSS)
    workers    that only one of the descendants uses (the sum of USS)
    parent     that the process itself maps, shared arrays included (RSS)
    processes  the number of descendants
    """

    total: int
    workers: int
    parent: int
    processes: int

    def __sub__(self, before: MemoryUse) -> MemoryUse:
        return MemoryUse(
            self.total - before.total,
            self.workers - before.workers,
            self.parent - before.parent,
            self.processes - before.processes,
        )


def weigh(candidate: Candidate, num_envs: int) -> MemoryUse | None:
    """Return what the candidate's envs, made and reset, add to a process that has loaded the libraries.

    Return None if the candidate cannot be made in a process of its own, for example because it needs an MPI job. Its
    turns show whether it can be made at all.
    """
    child = Child(_serve, candidate, num_envs)
    try:
        found: MemoryUse = child.receive()
        return found
    except BadRequest:
        return None
    finally:
        child.close()


def footprint() -> MemoryUse:
    """Return the footprint of this process and its descendants. Only Linux knows PSS; elsewhere USS replaces it."""
    import psutil

    own = psutil.Process()
    info = own.memory_full_info()
    total, workers, processes = getattr(info, "pss", info.uss), 0, 0
    for process in own.children(recursive=True):
        try:
            if descendants.__file__ in process.cmdline():  # which stays for the next VecEnv
                continue
            private = process.memory_full_info()
        except psutil.Error:  # it has ended meanwhile, or may not be looked at
            continue
        total += getattr(private, "pss", private.uss)
        workers += private.uss
        processes += 1
    return MemoryUse(total, workers, info.rss, processes)


def _serve(connection: Connection, candidate: Candidate, num_envs: int) -> None:
    try:
        with contextlib.suppress(Exception):  # some candidates need more than one env
            candidate.make(1).close()
        gc.collect()
        before = footprint()
        stepper = candidate.make(num_envs)
        try:
            added = footprint() - before
        finally:
            stepper.close()
    except Exception as error:
        connection.send(repr(error))
        return
    connection.send(added)
