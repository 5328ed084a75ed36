"""The contract under mpirun: both MPIs, several numbers of ranks, and every transport.

The short tier has trajectories by messages on one MPI; the long one has the whole contract by the usual transport;
`release` by each.
"""

from __future__ import annotations

import pytest
from conftest import NO_ENVPOOL
from jobs import MPIS, job, launched
from waiting_rules import WaitingRows

PYTEST = ("-m", "pytest", "tests/mpi/contract.py", "-q", "-p", "no:cacheprovider")
WHOLE = [f"TestContract --part {part}/5" for part in range(5)]  # in one job it takes too long beside other tests
TRANSPORTS = ("auto", "messages")
ENVPOOL = pytest.mark.skipif(NO_ENVPOOL, reason="no wheel for this Python")  # MPICH's environment has none, either
WORLDS = "TestWorlds and not HalfCheetah"  # for which each rank would import MuJoCo
WAIT = tuple(zip(TRANSPORTS, ("TestWaitingThreads", "TestWaitingCoroutines"), strict=True))
OF_ROWS = " or ".join(name for name in dir(WaitingRows) if name.startswith("test_"))
SHORT = [("mpich", 3, "messages", WORLDS)]
LONG = [
    pytest.param("openmpi", 3, "messages", WORLDS, marks=pytest.mark.long),
    pytest.param("mpich", 3, "auto", WORLDS, marks=pytest.mark.long),
    pytest.param("openmpi", 3, "auto", "TestEnds", marks=pytest.mark.long),
    pytest.param("mpich", 3, "messages", "TestEnds", marks=pytest.mark.long),
    pytest.param("openmpi", 3, "auto", "TestWorlds", marks=pytest.mark.long),
    pytest.param("mpich", 3, "messages", "TestWorlds", marks=pytest.mark.long),
    *(pytest.param(mpi, ranks, "auto", "TestWorlds", marks=pytest.mark.long) for mpi in MPIS for ranks in (2, 5)),
    *(pytest.param(mpi, 3, "auto", part, marks=pytest.mark.long) for part in WHOLE for mpi in MPIS),
    *(
        pytest.param("openmpi", 3, way, f"{kind} and ({OF_ROWS})", marks=pytest.mark.long, id=f"{kind}-rows")
        for way, kind in WAIT
    ),
    *(pytest.param("openmpi", 3, way, "TestEnvPool", marks=[pytest.mark.long, ENVPOOL]) for way in TRANSPORTS),
]
RELEASE = [
    pytest.param(mpi, ranks, way, part, marks=[pytest.mark.long, pytest.mark.release])
    for part in WHOLE
    for mpi in MPIS
    for ranks in (2, 3, 5)
    for way in TRANSPORTS
    if (ranks, way) != (3, "auto")
] + [
    pytest.param("openmpi", 3, way, f"{kind} --part {part}/5", marks=[pytest.mark.long, pytest.mark.release])
    for way, kind in WAIT
    for part in range(5)
]


@pytest.mark.timeout(560)
@pytest.mark.parametrize(("mpi", "ranks", "transport", "which"), [*SHORT, *LONG, *RELEASE])
def test_contract(mpi: str, ranks: int, transport: str, which: str) -> None:
    names, *part = which.split(" --part ")
    line = launched(mpi, ranks, *PYTEST, "-k", names, *(["--part", *part] if part else []))
    with job(line, VECENVS_MPI_TRANSPORT=transport) as running:
        output = running.finish(550.0)
    assert running.process.returncode == 0, output
    assert " passed" in output
