"""Whatever fails: no hang, no orphan, and a message that says what it was."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from jobs import MPIS, OPEN_MPI_FLAGS, PROGRAMS, PYTHONS, ROOT, SHORT_ON_ONE, job, launched, mpirun, run

TRAIN = str(PROGRAMS / "train.py")
ENDLESS = str(PROGRAMS / "endless.py")


@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS)
def test_exception_in_the_script(mpi: str) -> None:
    assert "the script's own mistake" in run(launched(mpi, 3, TRAIN, "fail"), expect=1)
    assert "the script's own mistake" in run(mpirun(mpi, 3, TRAIN, "fail"), expect=1, **OPEN_MPI_FLAGS)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mpi", "victim"),
    [
        ("openmpi", "rank2"),
        *(pytest.param("openmpi", victim, marks=pytest.mark.long) for victim in ("rank0", "launcher")),
        *(pytest.param("mpich", victim, marks=pytest.mark.long) for victim in ("rank0", "rank2", "launcher")),
    ],
)
def test_a_kill(mpi: str, victim: str, tmp_path: Path) -> None:
    with job(launched(mpi, 3, ENDLESS, str(tmp_path))) as running:
        running.pid_of("rank0", tmp_path)
        os.kill(running.pid_of(victim, tmp_path), signal.SIGKILL)
        output = running.finish()
    assert running.process.returncode != 0
    assert "the end" not in output
    if (mpi, victim) == ("openmpi", "rank2"):
        assert "rank 2" in output
        assert "with envs 2, 3" in output


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_the_script_does_not_handle(mpi: str, number: int, tmp_path: Path) -> None:
    """Ctrl-C, or a terminal that is closed: the job ends."""
    with job(launched(mpi, 3, ENDLESS, str(tmp_path))) as running:
        running.pid_of("rank0", tmp_path)
        running.process.send_signal(number)
        running.finish()
    assert running.process.returncode != 0


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGHUP, marks=pytest.mark.long)])
def test_a_checkpoint_before_the_end_of_an_allocation(mpi: str, number: int, tmp_path: Path) -> None:
    """Signals to the launcher end no rank before the script has had the time to save; its exit code is the job's."""
    with job(launched(mpi, 3, str(PROGRAMS / "preempted.py"), str(tmp_path))) as running:
        running.pid_of("ready", tmp_path)
        running.process.send_signal(number)
        running.pid_of("saved", tmp_path)
        running.process.send_signal(signal.SIGTERM)
        output = running.finish()
    assert f"checkpoint for [{int(number)}] of envs 4" in output.replace("<Signals.", "")
    assert "checkpoint for [15] of envs 4" in output
    assert running.process.returncode == 7, output


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_preempted_jobs_go_on_bit_for_bit(mpi: str, tmp_path: Path) -> None:
    """By SIGUSR1 to the launcher, with another number of ranks each time, and in one process at the end."""
    script, at = str(ROOT / "tests" / "scripts" / "saved_run.py"), 0
    (tmp_path / "whole").mkdir()
    for ranks in (3, 2, 5):
        with job(launched(mpi, ranks, script, str(tmp_path), "mpi", "1000000")) as running:
            running.wait_for_line(f"{at + random.randrange(1, 40)}")
            running.process.send_signal(signal.SIGUSR1)
            *_, last, end = running.finish().split()
        assert (end, running.process.returncode) == ("preempted", 0)
        at = int(last)
    ends = [
        run([PYTHONS[mpi], script, str(folder), "dummy", str(at + 20)]).split()[-1]
        for folder in (tmp_path, tmp_path / "whole")
    ]
    assert ends[0] == ends[1]


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_signals_of_plain_mpirun_end_no_worker(mpi: str, tmp_path: Path) -> None:
    """By mpirun SIGUSR1 goes to all ranks, but only the script is to act upon it."""
    with job(mpirun(mpi, 3, str(PROGRAMS / "preempted.py"), str(tmp_path)), **OPEN_MPI_FLAGS) as running:
        running.pid_of("ready", tmp_path)
        running.process.send_signal(signal.SIGUSR1)
        # Not until it has come through: mpirun, once it is interrupted, may pass on nothing more.
        running.wait_for_line("checkpoint for [10] of envs 4")
        running.process.send_signal(signal.SIGINT)
        running.finish()


@pytest.mark.long  # it waits for 20 s
def test_a_program_in_which_every_rank_learns() -> None:
    """Without --spmd its first collective call waits for ranks that run no script, and one of these says so."""
    with job(launched("openmpi", 3, "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()")) as running:
        assert running.process.stdout is not None
        line = running.process.stdout.readline().decode()
        running.process.terminate()
        rest = running.finish()
    assert "A program in which every rank learns needs --spmd" in line
    assert "needs --spmd" not in rest


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_a_hosted_process_dies(mpi: str, tmp_path: Path) -> None:
    """That costs its envs, not the job, whatever the MPI."""
    with job(launched(mpi, 3, ENDLESS, str(tmp_path))) as running:
        running.pid_of("rank0", tmp_path)
        os.kill(running.pid_of("hosted", tmp_path), signal.SIGKILL)
        output = running.finish()
    assert running.process.returncode == 0, output
    assert "died: worker 0 on rank 1 of" in output
    assert "with envs 0, 1 died (signal 9, SIGKILL)" in output
    assert "the others: [0]" in output


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_a_leader(mpi: str) -> None:
    """A worker's death costs its own envs, the leader's those of its node; a step is one message each way."""
    output = run(launched(mpi, 2, str(PROGRAMS / "leaders.py")))
    assert "a worker: (2, 3) [0, 0]" in output
    assert "a worker restarted: [2, 3]" in output
    assert "the leader's node restarted: [0, 1, 2, 3, 4, 5]" in output
    assert "the leader: worker" in output
    assert "messages: 50 True" in output


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_an_exception_at_any_bytecode_loses_no_message(mpi: str) -> None:
    output = run(mpirun(mpi, 1, str(PROGRAMS / "interrupted.py")), **OPEN_MPI_FLAGS)
    assert "send was interrupted True\nreceive was interrupted True" in output


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_a_worker_that_nothing_refers_to_is_stopped(mpi: str, tmp_path: Path) -> None:
    assert "it runs: True\nit has ended" in run(launched(mpi, 2, str(PROGRAMS / "abandoned.py"), str(tmp_path)))


@pytest.mark.long
def test_hosted_processes_that_are_overdue(tmp_path: Path) -> None:
    """The end of one that has ended is said as any other, and costs the rank nothing; what its env has started ends.

    One that hangs is told to end, as its envs may have something to save, before it is killed.
    """
    output = run([PYTHONS["openmpi"], str(PROGRAMS / "overdue.py"), str(tmp_path)])
    assert "[('exited', 7, -9)] {} False\n('exited', 8, 1) True\n" in output


@pytest.mark.long
def test_a_killed_rank_when_fault_tolerant(tmp_path: Path) -> None:
    with job(launched("openmpi", 4, ENDLESS, str(tmp_path), flags=["--fault-tolerant"])) as running:
        running.pid_of("rank0", tmp_path)
        os.kill(running.pid_of("rank1", tmp_path), signal.SIGKILL)
        output = running.finish()
    assert "died: worker 0 on rank 1 of" in output
    assert "the others: [0]" in output
    assert "again on [' on rank 2 of" in output
    assert "the end" in output


@pytest.mark.long
def test_a_killed_rank_is_replaced(tmp_path: Path) -> None:
    with job(launched("openmpi", 3, ENDLESS, str(tmp_path), "restart", flags=["--fault-tolerant"])) as running:
        running.pid_of("rank0", tmp_path)
        os.kill(running.pid_of("rank1", tmp_path), signal.SIGKILL)
        output = running.finish()
    assert "restarted: [0, 1] [' on rank 2 of" in output
    assert "the end" in output


@pytest.mark.long
@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_a_killed_rank_that_the_launcher_lets_pass(policy: str, tmp_path: Path) -> None:
    """As srun does: the job goes on without the rank, and ends as failed, since MPI cannot be finalised any more."""
    line = mpirun("openmpi", 4, ENDLESS, str(tmp_path), policy)
    with job([line[0], "--enable-recovery", *line[1:]], **OPEN_MPI_FLAGS) as running:
        running.pid_of("rank0", tmp_path)
        os.kill(running.pid_of("rank2", tmp_path), signal.SIGKILL)
        output = running.finish()
    assert running.process.returncode != 0
    told = {"raise": "died: worker 1 on rank 2 of", "restart": "restarted: [2] [' on rank 1 of"}
    assert told[policy] in output
    assert "the end" in output
    assert "has lost a rank" in output


@pytest.mark.long
def test_a_killed_rank_0_that_the_launcher_lets_pass(tmp_path: Path) -> None:
    line = mpirun("openmpi", 3, ENDLESS, str(tmp_path))
    with job([line[0], "--enable-recovery", *line[1:]], **OPEN_MPI_FLAGS) as running:
        os.kill(running.pid_of("rank0", tmp_path), signal.SIGKILL)
        running.finish()
    assert running.process.returncode != 0


def test_fault_tolerance_needs_open_mpi() -> None:
    assert "needs Open MPI" in run(launched("mpich", 2, TRAIN, flags=["--fault-tolerant"]), expect=1)


@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS)
def test_processes_beside_mpi(mpi: str) -> None:
    output = run(launched(mpi, 2, str(PROGRAMS / "neighbours.py"), flags=["--spmd"]))
    assert output.count("neighbours live") == 1
