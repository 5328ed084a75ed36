"""VecFrameStack: equal to SB3's step by step; the same stacks on every path and in every autoreset mode."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import sb3
from gymnasium import spaces
from vec_plays import PATHS, SPACES, compare_with_sb3, env_fns, equal, make, play, row_of

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.errors import ClosedError, EnvError
from vecenvs.testing.envs import DyingEnv, FailingEnv, counting_fns
from vecenvs.wrappers import VecFrameStack

N_STACK = 3


@pytest.mark.sparse("name")
@pytest.mark.parametrize("order", [None, "first", "last"])
@pytest.mark.parametrize("name", SPACES)
def test_as_sb3(name: str, order: str | None) -> None:
    space = SPACES[name]
    compare_with_sb3(
        space, lambda vec: VecFrameStack(vec, N_STACK, order), lambda vec: sb3().VecFrameStack(vec, N_STACK, order)
    )
    with VecFrameStack(DummyVecEnv(env_fns(space)), N_STACK, order) as vec:
        upstream = sb3().VecFrameStack(sb3().DummyVecEnv(env_fns(space)), N_STACK, order)
        assert vec.observation_space == upstream.observation_space


def test_an_order_for_each_key() -> None:
    order = {"image": "first", "vector": None}
    compare_with_sb3(
        SPACES["dict"], lambda vec: VecFrameStack(vec, 2, order), lambda vec: sb3().VecFrameStack(vec, 2, order)
    )


def expected(rows: list[Any], same_step: bool) -> list[Any]:
    """Stack raw vector rows by hand; return (obs, terminal observation) of each."""
    found, frames = [], []
    for obs, _, done, active, info in rows:
        terminal = None
        if info.get("terminal_observation") is not None:
            terminal = stack([*frames, info["terminal_observation"]])
        if not active or (done and same_step):
            frames = []
        frames.append(obs)
        found.append((stack(frames), terminal))
    return found


def stack(frames: list[Any]) -> Any:
    last = frames[-N_STACK:]
    return np.concatenate([np.zeros_like(last[0])] * (N_STACK - len(last)) + last, axis=-1)


@pytest.mark.parametrize(("backend", "path", "mode"), PATHS)
def test_the_same_by_every_path(backend: str, path: str, mode: str) -> None:
    with make(SPACES["vector"], backend, mode) as raw:
        plain = play(path, raw, 40)
    with VecFrameStack(make(SPACES["vector"], backend, mode), N_STACK) as vec:
        stacked = play(path, vec, 40)
    for rows, theirs in zip(plain, stacked, strict=True):
        k = min(len(rows), len(theirs))  # the duration of an async reset differs from run to run
        assert k > 20
        for (obs, terminal), row in zip(expected(rows[:k], mode == "same_step"), theirs, strict=False):
            equal(row[0], obs)
            if terminal is not None:
                equal(row[4]["terminal_observation"], terminal)
                if mode != "same_step":
                    equal(row[0], row[4]["terminal_observation"])


def test_a_reset_of_one_env_leaves_the_others() -> None:
    with VecFrameStack(DummyVecEnv(counting_fns(3)), 2) as vec:
        vec.reset()
        before = vec.step([0, 0, 0])[0]
        np.testing.assert_array_equal(vec.reset([1]), [[0, 0, 0, 1, 2, 0]])
        after = vec.step([0, 0, 0])[0]
        np.testing.assert_array_equal(after[1], [1, 2, 0, 1, 2, 1])
        np.testing.assert_array_equal(after[[0, 2], :3], before[[0, 2], 3:])


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_a_replaced_worker_leaves_the_last_stack_as_it_was(tmp_path: Path, mode: str) -> None:
    """The episode ends with the last stack that was seen: its row has no new frame."""
    fns = [partial(DyingEnv, 0, at=3, length=9, lives_file=tmp_path / "lives")]
    with VecFrameStack(SubprocVecEnv(fns, num_workers=1, on_failure="restart", autoreset=mode), 2) as vec:
        vec.reset()
        vec.step([0])
        last = vec.step([0])[0]
        assert last.tolist() == [[0, 1, 1, 0, 1, 2]]
        obs, _, dones, infos = vec.step([0])
        assert dones.all()
        assert infos[0]["worker_restarted"]
        assert infos[0]["terminal_observation"].tolist() == last[0].tolist()
        assert obs.tolist() == ([[0, 0, 0, 0, 1, 0]] if mode == "same_step" else last.tolist())


def test_rows_given_are_the_callers_own() -> None:
    with VecFrameStack(DummyVecEnv(counting_fns(2), copy=False), 2) as vec:
        first = vec.reset()
        first += 100
        obs = vec.step([0, 0])[0]
        kept = obs.copy()
        vec.step([0, 0])
        np.testing.assert_array_equal(obs, kept)
        np.testing.assert_array_equal(obs[:, 5], [1, 1])
        np.testing.assert_array_equal(obs[:, 2], [0, 0])


def test_rows_beside_an_error_are_stacked_too() -> None:
    fns = [*counting_fns(1), lambda: FailingEnv(1, at=2)]
    with VecFrameStack(DummyVecEnv(fns), 2) as vec:
        vec.reset()
        vec.step([0, 0])
        with pytest.raises(EnvError) as error:
            vec.step([0, 0])
        assert error.value.batch is not None
        np.testing.assert_array_equal(error.value.batch.obs, [[0, 1, 1, 0, 1, 2]])
        np.testing.assert_array_equal(vec.reset([1]), [[0, 0, 0, 1, 2, 0]])
        np.testing.assert_array_equal(row_of(vec.step([0, 0])[0], 0), [0, 1, 2, 0, 1, 3])


@pytest.mark.parametrize(
    ("space", "arguments", "error"),
    [
        (spaces.Discrete(3), (2,), TypeError),
        (spaces.Box(0.0, 1.0, (), np.float32), (2,), ValueError),
        (SPACES["vector"], (0,), ValueError),
        (SPACES["vector"], ("2",), TypeError),
        (SPACES["vector"], (2, "middle"), ValueError),
        (SPACES["vector"], (2, {"a": "first"}), TypeError),
        (SPACES["dict"], (2, {"image": "first"}), ValueError),
    ],
)
def test_what_it_refuses(space: Any, arguments: Any, error: type[Exception]) -> None:
    with DummyVecEnv(env_fns(space)) as vec, pytest.raises(error):
        VecFrameStack(vec, *arguments)


def test_a_closed_one_holds_no_frames() -> None:
    """Also where a program keeps it; a further `close` and calls are as ever."""
    stack = VecFrameStack(DummyVecEnv(env_fns(SPACES["vector"])), 4)
    stack.reset()
    frames = weakref.ref(stack._stacks[0])
    stack.close()
    gc.collect()
    assert frames() is None
    stack.close()
    with pytest.raises(ClosedError):
        stack.step([0] * stack.num_envs)
