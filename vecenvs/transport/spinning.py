"""How long to try a semaphore before sleeping in the kernel: decided here for every engine."""

from __future__ import annotations

from typing import NamedTuple


class Spin(NamedTuple):
    """Seconds to try: `least`, and up to `most` while waits are usually shorter than that.

    A sleep costs both sides more than a short wait does. Beside a learner, or programs that take the cores, waits are
    longer than `most`, and trying through them would take from those that compute.
    """

    least: float
    most: float


NEVER = Spin(0.0, 0.0)
# With a core for everybody, trying bridges the unevenness of shards.
ALONE = Spin(1e-4, 1e-3)
# Where the caller, once awake, needs the core of a worker that tries: the time between two steps and no more.
SHARED = Spin(2e-4, 2e-4)


def spins(spare: int) -> tuple[Spin, Spin]:
    """Give the caller's and the workers', where `spare` cores are left beside one for each worker process.

    Nobody tries when there are more processes to run than cores.
    """
    if spare > 0:
        return ALONE, ALONE
    return NEVER, SHARED if spare == 0 else NEVER
