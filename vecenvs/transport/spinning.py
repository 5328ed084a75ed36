"""How long every engine tries a semaphore before it sleeps in the kernel."""

from __future__ import annotations

from typing import NamedTuple


class Spin(NamedTuple):
    """Seconds to try: `least`, and up to `most` while waits are usually shorter than that.

    A sleep and a wake-up cost both sides more than a short wait does. Waits are longer beside a learner, or beside
    other programs. To try through those would take time from the processes that compute.
    """

    least: float
    most: float


NEVER = Spin(0.0, 0.0)
# With a core for each process: bridges the differences between shards.
ALONE = Spin(1e-4, 1e-3)
# Where the caller, once awake, needs the core of a worker that tries: no longer than between two steps.
SHARED = Spin(2e-4, 2e-4)


def spins(spare: int) -> tuple[Spin, Spin]:
    """Return the caller's and the workers', where `spare` cores are left beside one for each worker process.

    No process tries when there are more of them than cores.
    """
    if spare > 0:
        return ALONE, ALONE
    return NEVER, SHARED if spare == 0 else NEVER
