"""The whole contract under mpirun: both MPIs, several numbers of ranks, shared memory and packed messages.

By default the whole contract for one of each, and trajectories for the others; with VECENVS_TEST_MPI=all the whole
contract for every combination.
"""

from __future__ import annotations

import os

import pytest
from jobs import MPIS, job, launched

PYTEST = ("-m", "pytest", "tests/mpi/contract.py", "-q", "-p", "no:cacheprovider")
CHOICE = os.environ.get("VECENVS_TEST_MPI", "some")
RANKS = (2, 3, 5)
SOME = [
    ("openmpi", 3, True, "TestContract"),
    ("mpich", 3, False, "TestContract"),
    *((mpi, ranks, True, "TestWorlds") for mpi in MPIS for ranks in RANKS),
    *((mpi, 3, False, "TestWorlds") for mpi in MPIS),
]
ALL = [
    (mpi, ranks, shared, which)
    for mpi in MPIS
    for ranks in RANKS
    for shared in (True, False)
    for which in ("TestContract", "TestWorlds")
]


def test_the_choice_is_known() -> None:
    assert CHOICE in ("some", "all"), f"VECENVS_TEST_MPI={CHOICE}: give it the value all, or leave it out"


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("mpi", "ranks", "shared", "which"), ALL if CHOICE == "all" else SOME)
def test_contract(mpi: str, ranks: int, shared: bool, which: str) -> None:
    with job(launched(mpi, ranks, *PYTEST, "-k", which), VECENVS_MPI_SHARED=str(int(shared))) as running:
        output = running.finish(390.0)
    assert running.process.returncode == 0, output
    assert " passed" in output
