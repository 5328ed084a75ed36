"""The whole contract under mpirun: both MPIs, several numbers of ranks, shared memory and packed messages."""

from __future__ import annotations

import pytest
from jobs import MPIS, job, launched

PYTEST = ("-m", "pytest", "tests/mpi/contract.py", "-q", "-p", "no:cacheprovider")
WORLDS = ("-k", "TestWorlds")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("mpi", "ranks", "shared", "which"),
    [
        ("openmpi", 3, True, ("-k", "TestContract")),
        ("mpich", 3, False, ("-k", "TestContract")),
        *((mpi, ranks, True, WORLDS) for mpi in MPIS for ranks in (2, 3, 5)),
        *((mpi, 3, False, WORLDS) for mpi in MPIS),
    ],
)
def test_contract(mpi: str, ranks: int, shared: bool, which: tuple[str, ...]) -> None:
    with job(launched(mpi, ranks, *PYTEST, *which), VECENVS_MPI_SHARED=str(int(shared))) as running:
        output = running.finish(390.0)
    assert running.process.returncode == 0, output
    assert " passed" in output
