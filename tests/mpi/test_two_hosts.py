"""Two hosts: namespaces of this machine if we may make them; MPICH's two cliques in any case."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from jobs import MPIS, PROGRAMS, Job, job, launched, run
from virtual_hosts import Hosts, can_make_hosts, virtual_hosts

pytestmark = pytest.mark.long

TRAIN = str(PROGRAMS / "train.py")


def test_two_cliques() -> None:
    """MPICH takes every second rank for one of another node: those get packed messages."""
    output = run(launched("mpich", 4, TRAIN), MPIR_CVAR_NUM_CLIQUES="2")
    assert "all is equal 3 [False, True]" in output
    assert "['messages', 'shared']" in output


# MPICH's network module that a cut link concerns (OFI) sometimes fails in MPI_Init between namespaces.
CUT = ["openmpi", pytest.param("mpich", marks=pytest.mark.release)]

if can_make_hosts():  # else there is nothing to collect: cliques are what this user can have

    @pytest.mark.parametrize("mpi", MPIS)
    def test_trajectories_across_hosts(mpi: str, tmp_path: Path) -> None:
        with virtual_hosts(tmp_path, 2) as hosts:
            flags = [f"--mpirun-args={hosts.mpirun_args(mpi, (2, 2))}"]
            output = run(hosts.on(0, *launched(mpi, 4, TRAIN, flags=flags)))
            assert "all is equal 3 [False, True]" in output
            assert all(name in output for name in hosts.names)
            assert "['messages', 'shared']" in output

    def test_the_benchmark_of_several_hosts() -> None:
        program = str(Path(__file__).parents[2] / "benchmarks/hosts.py")
        output = run([sys.executable, program, "--only", "2x2", "--rounds", "1", "--seconds", "0.05"])
        assert output.count("round 1: 2 x 2") == 4
        assert "connections: caller_cpu" in output

    @pytest.mark.parametrize("mpi", MPIS)
    @pytest.mark.parametrize("victim", ["rank2", "launcher", "rank0"])
    def test_a_kill_across_hosts(mpi: str, victim: str, tmp_path: Path) -> None:
        with virtual_hosts(tmp_path, 2) as hosts:
            flags = [f"--mpirun-args={hosts.mpirun_args(mpi, (2, 1))}"]
            program = (str(PROGRAMS / "endless.py"), str(tmp_path))
            with job(hosts.on(0, *launched(mpi, 3, *program, flags=flags))) as running:
                running.pid_of("rank0", tmp_path)
                os.kill(running.pid_of(victim, tmp_path), signal.SIGKILL)
                running.finish()
            assert running.process.returncode != 0

    @contextmanager
    def stepping(
        mpi: str, folder: Path, *program: str, flags: Sequence[str] = (), by_link: bool = True
    ) -> Iterator[tuple[Hosts, Job]]:
        """Have rank 0 and rank 1 step envs 0 and 1 on the first host, rank 2 envs 2 and 3 on the second."""
        with virtual_hosts(folder, 2) as hosts:
            flags = [f"--mpirun-args={hosts.mpirun_args(mpi, (2, 1), by_link=by_link)}", *flags]
            line = hosts.on(0, *launched(mpi, 3, str(PROGRAMS / "endless.py"), str(folder), *program, flags=flags))
            with job(line, node_lost=True) as running:
                try:
                    running.pid_of("rank0", folder)
                    yield hosts, running
                finally:
                    hosts.kill(1)

    def finish_after_cut(hosts: Hosts, running: Job) -> str:
        running.process.wait(80.0)
        hosts.kill(1)  # else its processes hold the output open: they have it from their launcher, as by no real ssh
        return running.finish()

    @pytest.mark.parametrize("policy", ["uncaught", "restart"])
    @pytest.mark.parametrize(("mpi", "flags"), [("openmpi", ()), ("openmpi", ("--fault-tolerant",)), ("mpich", ())])
    def test_a_node_is_killed(mpi: str, flags: Sequence[str], policy: str, tmp_path: Path) -> None:
        """The launcher ends the job; Open MPI's with exit code 0."""
        with stepping(mpi, tmp_path, policy, flags=flags, by_link=False) as (hosts, running):
            hosts.kill(1)
            output = running.finish()
        assert running.process.returncode != 0, output
        # It is gone, or where rank 0 was killed before it could see that, it was used.
        assert re.search(r"vecenvs\.mpi: .*rank 2 on vecenvs-b \(pid \d+\), with envs 2, 3", output), output

    @pytest.mark.timeout(120)
    @pytest.mark.parametrize("mpi", CUT)
    def test_a_cut_link(mpi: str, tmp_path: Path) -> None:
        """The job ends, although mpirun cannot reach the node."""
        with stepping(mpi, tmp_path, "uncaught") as (hosts, running):
            hosts.cut(1)
            output = finish_after_cut(hosts, running)
        assert running.process.returncode != 0, output
        assert "WorkerDied: worker 1 on rank 2 of vecenvs-b with envs 2, 3 died" in output
        assert "vecenvs: rank 2 on vecenvs-b" in output

    @pytest.mark.timeout(120)
    @pytest.mark.parametrize("mpi", CUT)
    def test_going_on_after_a_cut_link(mpi: str, tmp_path: Path) -> None:
        """The other envs live, and new VecEnvs leave the ranks out that cannot be reached."""
        with stepping(mpi, tmp_path, "raise") as (hosts, running):
            hosts.cut(1)
            output = finish_after_cut(hosts, running)
        assert running.process.returncode == 0, output  # the script has come to its end
        assert "the others: [0]" in output
        assert "again on [' on rank 1 of vecenvs-a']" in output

    @pytest.mark.timeout(120)
    @pytest.mark.parametrize(
        ("mpi", "flags"),
        [
            ("openmpi", ()),
            ("openmpi", ("--fault-tolerant",)),
            pytest.param("mpich", (), marks=pytest.mark.release),
        ],
    )
    def test_restart_after_a_cut_link(mpi: str, flags: Sequence[str], tmp_path: Path) -> None:
        with stepping(mpi, tmp_path, "restart", flags=flags) as (hosts, running):
            hosts.cut(1)
            output = finish_after_cut(hosts, running)
        assert running.process.returncode == 0, output
        assert "restarted: [2, 3] [' on rank 1 of vecenvs-a']" in output
        assert "the end" in output
