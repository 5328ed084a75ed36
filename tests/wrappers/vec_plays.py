"""Play the same envs and actions through a wrapper of ours and that of Stable-Baselines3, and on other paths."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from conftest import sb3
from gymnasium import spaces

from vecenvs import DummyVecEnv, VecEnv
from vecenvs.backends import backend_class
from vecenvs.testing.envs import SampledEnv

IMAGE = spaces.Box(0, 255, (6, 5, 3), np.uint8)
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float64)
DICT = spaces.Dict({"image": IMAGE, "vector": VECTOR})
SPACES = {
    "vector": VECTOR,
    "float32": spaces.Box(-1.0, 1.0, (2, 4), np.float32),
    "image": IMAGE,
    "first": spaces.Box(0, 255, (3, 6, 5), np.uint8),
    "dict": DICT,
    "unsorted": spaces.Dict(vector=VECTOR, image=IMAGE),
}
PATHS = [
    (backend, play, mode)
    for backend in ("dummy", "subproc")
    for play in ("step", "recv")
    for mode in ("same_step", "next_step", "async", "disabled")
    if backend == "dummy" or (play, mode) in [("step", "same_step"), ("recv", "async"), ("step", "async")]
]
MODES = ("same_step", "next_step", "async", "disabled")


def env_fns(space: spaces.Space[Any], n: int = 3) -> list[Callable[[], SampledEnv]]:
    # Each samples from a space of its own: async mode resets envs in threads.
    return [partial(SampledEnv, deepcopy(space), end=0.25) for _ in range(n)]


def for_sb3(space: spaces.Space[Any]) -> Any:
    """Return envs with a space object each: SB3's VecNormalize writes into the one that it finds."""

    def declared(make: Callable[[], Any]) -> gymnasium.Wrapper:
        env: gymnasium.Wrapper = gymnasium.Wrapper(make())
        env.observation_space = deepcopy(space)
        return env

    return sb3().DummyVecEnv([partial(declared, make) for make in env_fns(space)])


def make(space: spaces.Space[Any], backend: str, mode: str) -> VecEnv:
    kwargs: dict[str, Any] = {"num_workers": 2} if backend == "subproc" else {}
    return backend_class(backend)(env_fns(space), autoreset=mode, **kwargs)


def play(path: str, vec: VecEnv, steps: int) -> list[list[Any]]:
    return (rows_by_step if path == "step" else rows_by_recv)(vec, steps)


def compare_with_sb3(
    space: spaces.Space[Any], ours: Callable[[VecEnv], VecEnv], theirs: Callable[[Any], Any], steps: int = 40
) -> None:
    """Play both; rows, terminal observations and rewards must be equal, floats to the last digits of float32."""
    mine, upstream = ours(DummyVecEnv(env_fns(space))), theirs(for_sb3(space))
    try:
        mine.seed(3)
        upstream.seed(3)
        equal(mine.reset(), upstream.reset())
        for t in range(steps):
            actions = np.arange(3) + t
            obs, rewards, dones, infos = mine.step(actions % 4)
            their_obs, their_rewards, their_dones, their_infos = upstream.step(actions % 4)
            equal(obs, their_obs)
            equal(rewards, their_rewards)
            equal(dones, their_dones)
            for info, their_info in zip(infos, their_infos, strict=True):
                assert ("terminal_observation" in info) == ("terminal_observation" in their_info)
                if "terminal_observation" in info:
                    equal(info["terminal_observation"], their_info["terminal_observation"])
    finally:
        mine.close()
        upstream.close()


def equal(a: Any, b: Any) -> None:
    if isinstance(b, dict):
        assert set(a) == set(b)
        for key in b:
            equal(a[key], b[key])
        return
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if a.dtype.kind == "f":
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(a, b)


def rows_by_step(vec: VecEnv, steps: int, seed: int = 3) -> list[list[Any]]:
    """Play by `step`, with the env's number and its own step count as action; return each env's rows in order.

    A row is (obs, reward, done, active, info). Rows that repeat while an env is reset are left out.
    """
    first = vec.reset(seed=seed)
    rows: list[list[Any]] = [[(row_of(first, i), 0.0, False, False, {})] for i in range(vec.num_envs)]
    counts = np.arange(vec.num_envs)
    while min(map(len, rows)) < steps:  # in async mode a step may have only a repeated row of an env
        obs, rewards, dones, infos = vec.step(counts % 4)
        active = vec.active
        for i in range(vec.num_envs):
            if not infos[i].get("resetting"):
                rows[i].append((row_of(obs, i), float(rewards[i]), bool(dones[i]), bool(active[i]), infos[i]))
                # An async reset begins by itself: no action brings its first row.
                counts[i] += not (vec.autoreset == "async" and "episode_start" in infos[i])
        if vec.autoreset == "disabled" and dones.any():
            again = np.flatnonzero(dones)
            firsts = vec.reset(again)
            for j, i in enumerate(again):
                rows[i].append((row_of(firsts, j), 0.0, False, False, {}))
    return rows


def rows_by_recv(vec: VecEnv, steps: int, seed: int = 3) -> list[list[Any]]:
    """Play the same by `reset_async`, `send` and `recv`, a few envs at a time."""
    rows: list[list[Any]] = [[] for _ in range(vec.num_envs)]
    counts = np.arange(vec.num_envs)
    vec.reset_async(seed=seed)
    due = vec.num_envs
    while min(map(len, rows)) < steps:
        batch = vec.recv(1, 2)
        due -= len(batch)
        for j, i in enumerate(batch.indices):
            row = (
                row_of(batch.obs, j),
                float(batch.rewards[j]),
                bool(batch.dones[j]),
                bool(batch.active[j]),
                batch.infos[j],
            )
            rows[i].append(row)
            over = row[2]
            if over and vec.autoreset == "disabled":
                vec.reset_async([i])
            elif not (over and vec.autoreset == "async"):
                vec.send(counts[[i]] % 4, [i])
                counts[i] += 1
            due += 1
    vec.recv(due)
    return rows


def row_of(obs: Any, i: int) -> Any:
    if isinstance(obs, dict):
        return {key: row_of(value, i) for key, value in obs.items()}
    return np.array(obs[i])
