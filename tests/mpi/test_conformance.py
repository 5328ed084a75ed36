"""The whole contract under mpirun: both MPIs, several numbers of ranks, and every way to a worker.

By default the whole contract once by shared memory and once by messages over connections, what matters for a relay by
MPI messages, and trajectories for the other combinations; with VECENVS_TEST_MPI=all the whole contract for all of them.
"""

from __future__ import annotations

import os

import pytest
from jobs import MPIS, job, launched

PYTEST = ("-m", "pytest", "tests/mpi/contract.py", "-q", "-p", "no:cacheprovider")
CHOICE = os.environ.get("VECENVS_TEST_MPI", "some")
RANKS = (2, 3, 5)
TRANSPORTS = ("auto", "messages", "mpi")
SOME = [
    ("openmpi", 3, "auto", "TestContract"),
    ("mpich", 3, "messages", "TestContract"),
    ("openmpi", 3, "mpi", "TestRelay"),
    *((mpi, ranks, "auto", "TestWorlds") for mpi in MPIS for ranks in RANKS),
    *((mpi, 3, transport, "TestWorlds") for mpi in MPIS for transport in ("messages", "mpi")),
]
ALL = [
    (mpi, ranks, transport, which)
    for mpi in MPIS
    for ranks in RANKS
    for transport in TRANSPORTS
    for which in ("TestContract", "TestWorlds")
]


def test_the_choice_is_known() -> None:
    assert CHOICE in ("some", "all"), f"VECENVS_TEST_MPI={CHOICE}: give it the value all, or leave it out"


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("mpi", "ranks", "transport", "which"), ALL if CHOICE == "all" else SOME)
def test_contract(mpi: str, ranks: int, transport: str, which: str) -> None:
    with job(launched(mpi, ranks, *PYTEST, "-k", which), VECENVS_MPI_TRANSPORT=transport) as running:
        output = running.finish(390.0)
    assert running.process.returncode == 0, output
    assert " passed" in output
