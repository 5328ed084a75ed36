"""`bench` measures MPI in jobs that it starts itself."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import pytest

from vecenvs.__main__ import main
from vecenvs.bench import candidates, contest, mpi_job, workloads
from vecenvs.bench.memory_use import weigh
from vecenvs.errors import BackendUnavailable, VecEnvError

NOTHING = workloads.workload("spin:0us")


class EndsItsProcess:
    """An env function whose env ends its process at the first step."""

    def __call__(self) -> gym.Env[Any, Any]:
        env = NOTHING()
        env.step = lambda action: os._exit(7)  # type: ignore[method-assign]
        return env


class Breaks:
    def __call__(self) -> gym.Env[Any, Any]:
        raise ValueError("no such\ngame")


def job_of(env_fn: Any, backend: str = "mpi:w=1") -> candidates.VecCandidate:
    return mpi_job.candidate(candidates.parse(backend), candidates.from_env_fn(env_fn))


@pytest.mark.long
@pytest.mark.timeout(180)
def test_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "CartPole-v1", "--num-envs", "3", "--backends", "mpi", "dummy", "--seconds", "0.1"]
    file = tmp_path / "out.json"
    assert main([*command, "--repeats", "1", "--no-chart", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "unavailable" not in out
    assert "mpi: ranks of an MPI job step the envs" in out
    data = json.loads(file.read_text())
    (row,) = [row for row in data["results"] if row["candidate"] == "mpi"]
    assert row["rate"]["median"] > 0
    assert row["memory"]["processes"] >= 3, "a rank that steps, and at least one worker with its launcher"


@pytest.mark.long
def test_a_turn_is_timed_by_rank_0() -> None:
    turn = contest.take_turn(job_of(NOTHING), 2, 0.1)
    assert turn.failure is None
    assert turn.timing is not None
    assert turn.timing.steps > 0
    assert 0.1 <= turn.timing.seconds < 5.0


@pytest.mark.long
@pytest.mark.parametrize(
    ("env_fn", "backend", "says"),
    [
        (Breaks(), "mpi:w=1", "ValueError: no such game|EnvError.*no such"),
        pytest.param(EndsItsProcess(), "mpi:w=1", "VecEnvError: ", marks=pytest.mark.long),
        pytest.param(NOTHING, "mpi:w=1,transport=pigeons", "ValueError: .*transport", marks=pytest.mark.long),
    ],
)
def test_what_fails_is_the_result_of_the_turn(env_fn: Any, backend: str, says: str) -> None:
    turn = contest.take_turn(job_of(env_fn, backend), 2, 0.1)
    assert turn.timing is None
    assert not turn.unavailable
    with pytest.raises(VecEnvError, match=says):
        raise VecEnvError(turn.failure)


def test_without_mpi_it_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BackendUnavailable, match="pip install mpi4py"):
        mpi_job.MpiJob(2)
    assert contest.take_turn(job_of(NOTHING), 2, 0.1).unavailable


def test_rank_0_finds_what_its_caller_can_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that lies on the caller's path alone; rank 0 steps by it, and ends with the connection."""
    (tmp_path / "only_here.py").write_text(
        "class Candidate:\n"
        "    def make(self, num_envs):\n        self.num_envs = num_envs\n        return self\n"
        "    def step(self, count):\n        return self.num_envs * count\n"
        "    def close(self):\n        print('closed', self.num_envs)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    candidate = importlib.import_module("only_here").Candidate()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen(1)
        server.settimeout(60.0)
        program = [sys.executable, "-m", "vecenvs.bench.mpi_job", str(tmp_path / "socket")]
        with subprocess.Popen(program, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
            with Connection(server.accept()[0].detach()) as connection:
                connection.send(sys.path)
                for asked in ((candidate, 3), 0.01):
                    connection.send_bytes(cloudpickle.dumps(asked))
                    kind, answer = connection.recv()
                    assert kind == "ok", answer
            assert answer.steps > 0
            assert answer.steps % 3 == 0
            assert process.communicate(timeout=60.0)[0] == "closed 3\n"


@pytest.mark.long
@pytest.mark.timeout(180)
def test_what_cannot_be_made_weighs_nothing() -> None:
    assert weigh(job_of(Breaks()), 2) is None


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_job_ends_with_its_caller() -> None:
    code = (
        "import os, signal\nfrom vecenvs.bench import candidates, mpi_job, workloads\n"
        "make = candidates.from_env_fn(workloads.workload('spin:0us'))\n"
        "job = mpi_job.candidate(candidates.parse('mpi:w=1'), make).make(2)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert run.returncode == -9  # the fixture `no_leaks` waits for the processes of the job


def test_on_the_ranks_of_a_job_there_is_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_RANK", "0")
    assert type(job_of(NOTHING)) is candidates.VecCandidate
