"""Whatever fails: no hang, no orphan, and a message that says what it was."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from jobs import MPIS, OPEN_MPI_FLAGS, PROGRAMS, job, launched, mpirun, run

TRAIN = str(PROGRAMS / "train.py")
ENDLESS = str(PROGRAMS / "endless.py")


@pytest.mark.parametrize("mpi", MPIS)
def test_exception_in_the_script(mpi: str) -> None:
    assert "the script's own mistake" in run(launched(mpi, 3, TRAIN, "fail"), expect=1)
    assert "the script's own mistake" in run(mpirun(mpi, 3, TRAIN, "fail"), expect=1, **OPEN_MPI_FLAGS)


@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize("victim", ["rank0", "rank2", "launcher"])
def test_a_kill(mpi: str, victim: str, tmp_path: Path) -> None:
    with job(launched(mpi, 3, ENDLESS, str(tmp_path))) as running:
        running.pid_of("rank0", tmp_path)
        os.kill(running.pid_of(victim, tmp_path), signal.SIGKILL)
        output = running.finish(20.0)
    assert running.process.returncode != 0
    assert "the end" not in output
    if (mpi, victim) == ("openmpi", "rank2"):
        assert "rank 2" in output
        assert "with envs 2, 3" in output


@pytest.mark.parametrize("mpi", MPIS)
def test_ctrl_c(mpi: str, tmp_path: Path) -> None:
    with job(launched(mpi, 3, ENDLESS, str(tmp_path))) as running:
        running.pid_of("rank0", tmp_path)
        running.process.send_signal(signal.SIGINT)
        running.finish(20.0)
    assert running.process.returncode != 0


@pytest.mark.parametrize("mpi", MPIS)
def test_a_hosted_process_dies(mpi: str, tmp_path: Path) -> None:
    """That costs its envs, not the job, whatever the MPI."""
    with job(launched(mpi, 3, ENDLESS, str(tmp_path))) as running:
        running.pid_of("rank0", tmp_path)
        os.kill(running.pid_of("hosted", tmp_path), signal.SIGKILL)
        output = running.finish(20.0)
    assert running.process.returncode == 0, output
    assert "died: worker 0 on rank 1 of" in output
    assert "with envs 0, 1 died (signal 9, SIGKILL)" in output
    assert "the others: [0]" in output


def test_a_killed_rank_when_fault_tolerant(tmp_path: Path) -> None:
    with job(launched("openmpi", 4, ENDLESS, str(tmp_path), flags=["--fault-tolerant"])) as running:
        running.pid_of("rank0", tmp_path)
        os.kill(running.pid_of("rank1", tmp_path), signal.SIGKILL)
        output = running.finish(30.0)
    assert "died: worker 0 on rank 1 of" in output
    assert "the others: [0]" in output
    assert "again on [' on rank 2 of" in output
    assert "the end" in output


def test_a_killed_rank_is_replaced(tmp_path: Path) -> None:
    with job(launched("openmpi", 3, ENDLESS, str(tmp_path), "restart", flags=["--fault-tolerant"])) as running:
        running.pid_of("rank0", tmp_path)
        os.kill(running.pid_of("rank1", tmp_path), signal.SIGKILL)
        output = running.finish(30.0)
    assert "restarted: [0, 1] [' on rank 2 of" in output
    assert "the end" in output


def test_fault_tolerance_needs_open_mpi() -> None:
    assert "needs Open MPI" in run(launched("mpich", 2, TRAIN, flags=["--fault-tolerant"]), expect=1)


@pytest.mark.parametrize("mpi", MPIS)
def test_processes_beside_mpi(mpi: str) -> None:
    output = run(launched(mpi, 2, str(PROGRAMS / "neighbours.py"), flags=["--spmd"]))
    assert output.count("neighbours live") == 1
