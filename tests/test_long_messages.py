"""Long messages about several envs of one worker: every row is its own env's, whichever call brings it."""

from __future__ import annotations

import functools
import time
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.testing.envs import CountingEnv
from vecenvs.transport.ring import PIECE
from vecenvs.vec_env import VecEnv

SIZES = (PIECE - 50, PIECE + 1, 3 * PIECE)


class TalkativeEnv(gym.Env[str, int]):
    """Says its number and step, over and over, in observations and infos. Its calls take as long as a portion may."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, index: int, size: int) -> None:
        self.observation_space = gym.spaces.Text(size, charset="0123456789:. ")
        self.index, self.size, self.step_number = index, size, 0

    def _row(self) -> tuple[str, dict[str, Any]]:
        time.sleep(0.0005)
        text = f"{self.index}:{self.step_number}. "
        self.step_number += 1
        whole = (text * (self.size // len(text) + 1))[: self.size]
        return whole, {"mask": np.frombuffer(whole.encode(), np.uint8)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return self._row()

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        obs, info = self._row()
        return obs, 1.0, self.step_number % 4 == 0, False, info


def rows_of(vec: VecEnv, how: str) -> list[tuple[int, str, bytes, str]]:
    """Play, and return the slot, observation, info and terminal observation of all rows, those of a slot in order."""
    rows = [
        (slot, obs, bytes(info["mask"]), "")
        for slot, (obs, info) in enumerate(zip(vec.reset(), vec.reset_infos, strict=True))
    ]
    for _ in range(6):
        if how == "step":
            slots, (obs, _, _, infos) = range(vec.num_envs), vec.step([0] * vec.num_envs)
        else:
            vec.send([0] * vec.num_envs)
            batch = vec.recv(indices=range(vec.num_envs))
            slots, obs, infos = batch.indices.tolist(), batch.obs, batch.infos
        for slot, row, info in zip(slots, obs, infos, strict=True):
            rows.append((slot, row, bytes(info.get("mask", b"")), info.get("terminal_observation", "")))
    return sorted(rows, key=lambda row: row[0])


@pytest.mark.parametrize("how", ["step", "send"])
@pytest.mark.parametrize("size", SIZES)
def test_rows_are_their_own_envs(size: int, how: str) -> None:
    fns = [lambda i=i: TalkativeEnv(i, size) for i in range(4)]
    with DummyVecEnv(fns) as bare, SubprocVecEnv(fns, 1) as vec:
        assert rows_of(vec, how) == rows_of(bare, how)


class Talking(CountingEnv):
    """An env whose infos have so many bytes, after so many seconds."""

    def __init__(self, size: int, seconds: float) -> None:
        super().__init__()
        self.size, self.seconds = size, seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "text": "x" * self.size}


@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_a_long_answer_beside_a_worker_that_hangs(size: int) -> None:
    """The answer waits for room while the other worker is waited for: its own is not late."""
    fns = [functools.partial(Talking, size, 0.0), functools.partial(Talking, 0, 30.0)]
    with SubprocVecEnv(fns, 2, step_timeout=0.7, on_failure="restart") as vec:
        vec.reset()
        infos = vec.step([0, 0])[3]
        assert ("worker_restarted" in infos[0], "worker_restarted" in infos[1]) == (False, True)
        assert len(infos[0]["text"]) == size
        assert vec.stats()["restarts"] == 1
