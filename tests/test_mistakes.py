"""Mistakes that newcomers make, each with an error that names the remedy. Others are in the conformance suite.

tests/test_preload.py has a script without a guard, tests/mpi/test_launching.py mpirun of another MPI, and
tests/ray/test_ray_manners.py an address that nobody answers.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from vecenvs import DummyVecEnv, SubprocVecEnv, VecEnvError, WorkerDied, make_vec_env
from vecenvs.testing.envs import counting_fns
from vecenvs.transport import memory


@pytest.mark.parametrize(
    ("env_id", "meant"),
    [
        ("CartPol-v1", "'CartPole-v1'"),
        ("cartpole-v1", "'CartPole-v1'"),
        ("MountainCar-Continuous-v0", "'MountainCarContinuous-v0'"),
        ("HalfCheeta-v5", "'HalfCheetah-v5'"),
        ("Pong-v5", "'ALE/Pong-v5'"),
        ("BreakoutNoFrameSkip-v4", "'BreakoutNoFrameskip-v4'"),
    ],
)
def test_an_unknown_id_names_close_ones(env_id: str, meant: str) -> None:
    with pytest.raises(gym.error.UnregisteredEnv, match=f"unknown env id '{env_id}': did you mean .*{meant}"):
        make_vec_env(env_id, num_env=2)


def test_an_id_like_no_other_says_how_packages_are_named() -> None:
    with pytest.raises(gym.error.NameNotFound, match="no id that is known here is like it.*'package:Qwxyz-v0'"):
        make_vec_env("Qwxyz-v0")


@pytest.mark.parametrize(("env_id", "way"), [("LunarLander-v2", "LunarLander-v3"), ("HalfCheetah-v9", "v5")])
def test_an_unknown_version_names_those_there_are(env_id: str, way: str) -> None:
    with pytest.raises(gym.error.Error, match=way):
        make_vec_env(env_id)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(ImportError, match="env_id 'mygames:Go-v0': No module named 'mygames'. Install it, or start in"):
        make_vec_env("mygames:Go-v0")


@pytest.mark.parametrize(("backend", "library"), [("mpi", "mpi4py"), ("ray", "ray")])
def test_a_missing_extra(backend: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")  # as if mpirun had started this
    with pytest.raises(ImportError, match=f"pip install {library}"):
        make_vec_env(counting_fns(2), backend=backend)


def test_more_workers_than_envs() -> None:
    with pytest.raises(ValueError, match="num_workers=5 for 2 envs: give 1 to 2, or None for one per usable core"):
        make_vec_env(counting_fns(2), backend="subproc", num_workers=5)


class Large(gym.Env[Any, Any]):
    """An env with observations of 1 MiB."""

    observation_space = gym.spaces.Box(0, 255, (1024, 1024), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros((1024, 1024), np.uint8), {}


class TestTooMuchMemory:
    def test_shared_columns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The system itself would kill processes once the memory is written to."""
        monkeypatch.setattr(memory, "free_memory", lambda: 50 << 20)
        with pytest.raises(VecEnvError, match="SubprocVecEnv what 70 envs.*of shared memory.*take fewer, or raise its"):
            SubprocVecEnv([Large] * 70, 2)
        with SubprocVecEnv(counting_fns(2), 2) as vec:  # small ones are not looked at
            vec.reset()

    def test_columns_in_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: Any) -> Any:
            raise MemoryError("Unable to allocate 64.0 GiB")

        monkeypatch.setattr(DummyVecEnv, "_lay_out", refuse)
        with pytest.raises(VecEnvError, match=r"what 2 envs.*Unable to allocate 64.0 GiB\): take fewer"):
            DummyVecEnv(counting_fns(2))

    def test_what_is_free_is_known_on_linux(self) -> None:
        assert (1 << 20) < memory.free_memory() < (1 << 60)

    def test_a_worker_that_the_system_kills(self) -> None:
        with SubprocVecEnv(counting_fns(2), 2) as vec:
            vec.reset()
            (pid, _) = vec.call(_pid, None)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerDied, match=r"SIGKILL\)\. Its envs are lost.* the memory was used up: take fewer"):
                vec.step([0, 0])


def _pid(_: Any) -> int:
    return os.getpid()
