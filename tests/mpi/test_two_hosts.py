"""Two hosts: namespaces of this machine if we may make them; MPICH's two cliques in any case."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hosts import NAMES, can_make_hosts, two_hosts
from jobs import MPIS, PROGRAMS, job, launched, run

TRAIN = str(PROGRAMS / "train.py")


def test_two_cliques() -> None:
    """MPICH takes every second rank for one of another node: those get packed messages."""
    output = run(launched("mpich", 4, TRAIN), MPIR_CVAR_NUM_CLIQUES="2")
    assert "all is equal 3 [False, True]" in output
    assert "['messages', 'shared']" in output


if can_make_hosts():  # else there is nothing to collect: cliques are what this user can have

    @pytest.mark.parametrize("mpi", MPIS)
    def test_trajectories_across_hosts(mpi: str, tmp_path: Path) -> None:
        with two_hosts(tmp_path) as hosts:
            flags = [f"--mpirun-args={hosts.mpirun_args(mpi, (2, 2))}"]
            for transport, ways in (("auto", ["messages", "shared"]), ("mpi", ["mpi"])):
                output = run(hosts.on(0, *launched(mpi, 4, TRAIN, transport, flags=flags)))
                assert "all is equal 3 [False, True]" in output
                assert all(name in output for name in NAMES)
                assert str(ways) in output

    @pytest.mark.parametrize("mpi", MPIS)
    @pytest.mark.parametrize("victim", ["rank2", "launcher", "rank0"])
    def test_a_kill_across_hosts(mpi: str, victim: str, tmp_path: Path) -> None:
        with two_hosts(tmp_path) as hosts:
            flags = [f"--mpirun-args={hosts.mpirun_args(mpi, (2, 1))}"]
            program = (str(PROGRAMS / "endless.py"), str(tmp_path))
            with job(hosts.on(0, *launched(mpi, 3, *program, flags=flags))) as running:
                running.pid_of("rank0", tmp_path)
                os.kill(running.pid_of(victim, tmp_path), signal.SIGKILL)
                running.finish(30.0)
            assert running.process.returncode != 0
