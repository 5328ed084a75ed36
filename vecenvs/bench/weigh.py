"""How much memory a contestant takes, weighed in a fresh process, where no freed memory can be taken up again."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from vecenvs.bench.child import Child
from vecenvs.bench.workloads import BadRequest

if TYPE_CHECKING:
    from vecenvs.bench.measure import Contestant


@dataclass(frozen=True)
class Footprint:
    """Bytes of memory. `total` counts each page once, however many processes share it.

    total     what a process and all its descendants take together (the sum of PSS)
    workers   what the descendants have to themselves (the sum of USS)
    parent    what the process itself maps, shared arrays included (RSS)
    processes how many descendants there are
    """

    total: int
    workers: int
    parent: int
    processes: int

    def __sub__(self, before: Footprint) -> Footprint:
        return Footprint(
            self.total - before.total,
            self.workers - before.workers,
            self.parent - before.parent,
            self.processes - before.processes,
        )


def weigh(contestant: Contestant, num_envs: int) -> Footprint | None:
    """Tell what its envs, made and reset, add to a process that has had one before (its libraries are loaded).

    None if it cannot be made there: as a rank of an MPI job, say. Its turns then tell whether it can be made at all.
    """
    child = Child(_serve, contestant, num_envs)
    try:
        found: Footprint = child.receive()
        return found
    except BadRequest:
        return None
    finally:
        child.close()


def footprint() -> Footprint:
    """Weigh this process and its descendants. Where the system knows no PSS (all but Linux), USS stands in for it."""
    import psutil

    own = psutil.Process()
    info = own.memory_full_info()
    total, workers, processes = getattr(info, "pss", info.uss), 0, 0
    for process in own.children(recursive=True):
        try:
            private = process.memory_full_info()
        except psutil.Error:  # gone meanwhile, or not ours to look at
            continue
        total += getattr(private, "pss", private.uss)
        workers += private.uss
        processes += 1
    return Footprint(total, workers, info.rss, processes)


def _serve(connection: Connection, contestant: Contestant, num_envs: int) -> None:
    try:
        with contextlib.suppress(Exception):  # one env is too few for some
            contestant.make(1).close()
        gc.collect()
        before = footprint()
        stepper = contestant.make(num_envs)
        try:
            added = footprint() - before
        finally:
            stepper.close()
    except Exception as error:
        connection.send(repr(error))
        return
    connection.send(added)
