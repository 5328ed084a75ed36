"""What steps do to memory: references, buffers that change under the compiled core, allocations that fail, signals.

    VECENVS_LEAK_STEPS=10000000 python -m pytest -n 0 -s tests/test_native_memory.py -k leaks

steps each kind of env so often, and prints what is left.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from conftest import NO_CORE
from gymnasium import Env, spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from vecenvs import DummyVecEnv
from vecenvs.errors import EnvError, NotSteppingError
from vecenvs.testing.envs.batches import batched_fns
from vecenvs.wrappers import Monitor

STEPS = int(os.environ.get("VECENVS_LEAK_STEPS", "100000"))
ENVS = 32

if NO_CORE:
    pytest.skip("no compiled core", allow_module_level=True)

from vecenvs._native import core  # noqa: E402

# References


class Plain(Env[Any, Any]):
    """Ends every `length` steps, and raises at step `fails`."""

    observation_space = spaces.Box(-9, 9, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 10**9, fails: int = -1, dtype: Any = np.float32, told: bool = False) -> None:
        self.length, self.fails, self.dtype, self.told = length, fails, dtype, told
        self.count = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return np.zeros(3, np.float32), {"first": [seed]} if self.told else {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == self.fails:
            raise ValueError("as it is to")
        return np.ones(3, self.dtype), 0.5, self.count >= self.length, False, {"t": [1]} if self.told else {}


def stepping(make: Callable[[int], Any], **kwargs: Any) -> Callable[[], Iterator[int]]:
    """Return a function that makes a VecEnv, and yields the number of env steps whenever it has stepped all envs."""

    def run() -> Iterator[int]:
        with DummyVecEnv([functools.partial(make, k) for k in range(ENVS)], **kwargs) as vec:
            vec.reset()
            actions = np.zeros(ENVS, np.int64)
            while True:
                try:
                    vec.step(actions)
                except EnvError as exc:
                    vec.reset([each.index for each in exc.errors])
                yield ENVS

    return run


def subsets() -> Iterator[int]:
    """`take_batch` and `rows_result`."""
    with DummyVecEnv([functools.partial(Plain, 50 + k) for k in range(ENVS)]) as vec:
        vec.reset()
        halves = np.split(np.arange(ENVS), 2)
        actions = np.zeros(ENVS // 2, np.int64)
        while True:
            for half in halves:
                vec.send(actions, half)
                vec.recv(indices=half)
            yield ENVS


def resets() -> Iterator[int]:
    with DummyVecEnv([functools.partial(Plain, told=bool(k % 2)) for k in range(ENVS)]) as vec:
        vec.reset()
        some = np.arange(0, ENVS, 2)
        while True:
            vec.reset(some, seed=3)
            yield len(some)


def batches() -> Iterator[int]:
    with DummyVecEnv(batched_fns([functools.partial(Plain, 20 + k) for k in range(ENVS)], (ENVS,))) as vec:
        vec.reset()
        actions = np.zeros(ENVS, np.int64)
        while True:
            vec.step(actions)
            yield ENVS


class Nested(Plain):
    """Observations are dicts of arrays, a number and a tuple; every other one's have another dtype."""

    observation_space: Any = spaces.Dict(
        x=spaces.Box(-9, 9, (3,), np.float32), n=spaces.Discrete(9), pair=spaces.Tuple([spaces.Box(-9, 9, (2, 2))] * 2)
    )

    def reset(self, **given: Any) -> Any:
        obs, info = super().reset(**given)
        return self.nested(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return self.nested(obs), *rest

    def nested(self, obs: Any) -> Any:
        return {"x": obs, "n": self.count % 9, "pair": (np.ones((2, 2), self.dtype), np.ones((2, 2), np.float32))}


def odd(k: int) -> Env[Any, Any]:
    return Plain(20 + k, dtype=np.float64 if k % 2 else np.float32, told=True)


def monitored(k: int) -> Env[Any, Any]:
    return Monitor(TimeLimit(OrderEnforcing(Plain()), 1000 + k))


WORK = {
    "plain": stepping(lambda _: Plain()),
    "wrappers": stepping(lambda _: TimeLimit(OrderEnforcing(Plain()), 10**9)),
    "monitors": stepping(monitored),
    "same_step": stepping(lambda k: Plain(4 + k), autoreset="same_step"),
    "next_step": stepping(lambda k: Plain(4 + k), autoreset="next_step"),
    "errors": stepping(lambda k: Plain(fails=4 + 8 * k)),
    "odd": stepping(odd),
    "nested": stepping(lambda k: Nested(20 + k, dtype=[np.float32, np.float64, np.float16][k % 3], told=True)),
    "subsets": subsets,
    "resets": resets,
    "batches": batches,
}


def everything() -> dict[int, Any]:
    """Return all objects that can be found, by `id`: those that the garbage collector knows, and what they refer to."""
    gc.collect()
    known = gc.get_objects()
    found = {id(each): each for each in known}
    found.update((id(each), each) for each in gc.get_referents(*known))
    return found


def references() -> dict[int, int]:
    """Return a count for each object, plus a million, for Python has but one object for each small number."""
    return {key: sys.getrefcount(each) + 10**6 for key, each in everything().items()}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", WORK)
def test_leaks(what: str) -> None:
    """No object has more references after many steps than before, by one for 100 of them; nor are there more objects.

    Objects that never die, as None from Python 3.12 on, have no count.
    """
    work: Any = WORK[what]()

    def run(steps: int) -> None:
        done = 0
        for count in work:
            done += count
            if done >= steps:
                return

    with contextlib.closing(work):
        run(STEPS // 5)  # caches fill, the allocator has its arenas
        before, figures = references(), totals()
        run(STEPS)
        blocks, resident = (now - then for now, then in zip(totals(), figures, strict=True))
        print(f"\n{what}: {STEPS} steps, {blocks:+} blocks of memory, {resident >> 10:+} KiB resident")
        most = STEPS // 100
        for key, each in everything().items():
            assert sys.getrefcount(each) + 10**6 - before.get(key, 10**12) < most, f"{type(each)}: {each!r:.100}"
        assert blocks < most
        assert resident < 8 * 2**20 + STEPS


def totals() -> tuple[int, int]:
    """Return the numbers of allocated blocks and of resident bytes.

    `sys.gettotalrefcount` says nothing as long as numpy does not count references as well.
    """
    gc.collect()
    return sys.getallocatedblocks(), psutil.Process().memory_info().rss


# Buffers that change while they are used


def loop(acts: list[Any], columns: Any, rewards64: Any, **given: Any) -> list[Any]:
    """Step each act once; return the rewards."""
    rewards: list[Any] = given.pop("rewards", [])
    arguments = {
        "actions": [0] * len(acts), "cells": columns, "where": slice(None), "rewards": rewards, "infos": [],
        "end_episode": None, "take_odd": None, "chosen": None, **given,
    }  # fmt: skip
    core.step_envs(acts, *arguments.values(), rewards64, math.inf)
    return rewards


ROW = (np.ones(3, np.float32), 0.5, False, False, {})


def test_the_column_of_rewards_cannot_be_released_while_envs_are_stepped() -> None:
    column, told = np.zeros(2).data, []

    def release(_: Any) -> Any:
        with pytest.raises(BufferError):
            column.release()
        told.append(1)
        return ROW

    loop([release] * 2, np.zeros((2, 3), np.float32), column)
    assert told == [1, 1]
    assert column.tolist() == [0.5, 0.5]
    column.release()
    with pytest.raises(ValueError, match="released"):
        loop([release] * 2, np.zeros((2, 3), np.float32), column)


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (4, 3), (2, 1), (2, 100)])
def test_arrays_that_change_their_size_while_envs_are_stepped(shape: tuple[int, ...]) -> None:
    """Rows that are not there any more are errors, or odd: no memory is read or written which is not the array's."""
    for which in ("column", "actions", "obs"):
        arrays = {
            "column": np.zeros((2, 3), np.float32), "actions": np.zeros((2, 3)), "obs": np.zeros((2, 3), np.float32)
        }  # fmt: skip
        odd: list[Any] = []

        def act(_: Any, arrays: Any = arrays, which: str = which) -> Any:
            arrays[which].resize(shape, refcheck=False)
            return (arrays["obs"][0] if len(arrays["obs"]) else arrays["obs"], *ROW[1:])

        try:
            loop(
                [act, act], arrays["column"], np.zeros(2).data, actions=arrays["actions"],
                take_odd=lambda local, obs, odd=odd: odd.append(local),
            )  # fmt: skip
        except IndexError:
            assert shape[0] < 2
        else:
            assert bool(odd) == ((shape[1] != 3 and which != "actions") or shape[0] == 0)


@pytest.mark.parametrize("name", ["acts", "infos", "chosen", "rewards"])
def test_lists_that_change_while_envs_are_stepped(name: str) -> None:
    lists: dict[str, list[Any]] = {"infos": [], "chosen": [1, 0, 2], "rewards": []}
    left = 1

    def act(_: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            lists[name].clear()
            gc.collect()
        return (*ROW[:4], {"t": 1})

    lists["acts"] = [act] * 3
    acts = lists.pop("acts") if name != "acts" else lists["acts"]
    given = {key: each for key, each in lists.items() if key != "acts"}
    try:
        loop(acts, np.zeros((3, 3), np.float32), np.zeros(3).data, actions=[0] * 3, **given)
    except IndexError:
        assert name in ("acts", "chosen")


def test_arrays_that_change_while_a_result_is_made() -> None:
    """What a function of Python's does to the arrays comes too late, or is seen."""
    for size in (0, 1, 3, 9):
        rewards, flags, indices = np.ones(3), np.ones(3, np.uint8), np.arange(3)

        def observations(*_: Any, arrays: Any = (rewards, flags, indices), size: int = size) -> Any:
            for array in arrays:
                array.resize(size, refcheck=False)
                array[:] = 2**30 if array.dtype == np.int64 else 7
            return 0

        result = core.rows_result(observations, rewards, flags, indices, {})
        assert result[1].tolist() == [1, 1, 1]
        assert result[2] == b"\1\1\1"
        assert len(result[6]) == 3
        rewards.resize(3, refcheck=False)
        rewards[:] = 1
        result = core.plain_result(observations, rewards, {})
        assert result[1].tolist() == [1, 1, 1]
        assert (len(result[2]), len(result[3])) == (3, 3)


def test_a_batch_that_is_part_of_the_column() -> None:
    column = np.arange(12.0).reshape(6, 2)
    assert core.take_batch(column, column[1:4], np.arange(3))
    assert column[:3].tolist() == [[2, 3], [4, 5], [6, 7]]


def test_observations_of_many_dimensions() -> None:
    column = np.arange(3.0).reshape(3, *[1] * (np.zeros(1).reshape([1] * 32).ndim - 1))
    result = core.rows_result(column, np.zeros(3), np.zeros(3, np.uint8), np.array([2, 0]), {})
    assert result[0].ravel().tolist() == [2, 0]
    assert result[0].shape == (2, *column.shape[1:])


# Allocations that fail

FAILING = """
import faulthandler, math, sys
import _testcapi
import numpy as np
from gymnasium import Env
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from vecenvs._native import core
from vecenvs.wrappers import Monitor

faulthandler.enable()
row = np.ones(3, np.float32), 0.5, False, False, {}
told = np.ones(3, np.float32), 7, False, False, {"t": 1}
over = [np.ones(3), 0.5, True, False, {}]
columns, column64, flags, indices = np.zeros((4, 3), np.float32), np.zeros(4), np.zeros(4, np.uint8), np.arange(4)
batch = np.ones((4, 3), np.float32)

class Bare(Env):
    def step(self, _): return row

env = Monitor(TimeLimit(OrderEnforcing(Bare()), 10**9))
env.env.env._has_reset, env.env._elapsed_steps, env.needs_reset = True, 0, False
acts = [lambda _: row, env.step, lambda _: told, lambda _: over]
lists = rewards, infos = [], []

def end_episode(local, obs, terminated, truncated, info):
    return obs, info

def take_odd(local, obs):
    pass

def stepping(actions):
    return (
        core.step_envs, acts, actions, columns, slice(None), rewards, infos, end_episode, take_odd, [3, 1, 0, 2],
        column64.data, math.inf,
    )

calls = {
    "step": stepping(np.zeros(4, np.int64)),
    "step with rows of actions": stepping(np.zeros((4, 2))),
    "step with a list": stepping([0] * 4),
    "plain_result": (core.plain_result, columns, column64, {"k": False}),
    "rows_result": (core.rows_result, columns, column64, flags, indices, {"k": False}),
    "take_batch": (core.take_batch, columns, batch),
    "take_batch by rows": (core.take_batch, columns, batch, indices),
    "write_arrays": (core.write_arrays, columns, list(batch)),
    "write_column": (core.write_column, column64, [3, 1], [1.5, 2.5]),
    "write_column of another type": (core.write_column, column64, slice(0, 2), (1.5, "a")),
}
counted = row, told, over, row[0], columns, column64, flags, indices, env

def fails(k, function, *arguments):
    # Tell whether the call fails if the allocation k does.
    for each in lists:
        each.clear()
    try:
        _testcapi.set_nomemory(k, k + 1)
        function(*arguments)
    except MemoryError:
        return True
    finally:
        _testcapi.remove_mem_hooks()
    return False

for name, call in calls.items():
    for _ in range(20):
        fails(10**6, *call)
    failed = [k for k in range(300) if fails(k, *call)]
    assert not failed or failed[-1] < 200, failed
    before, references = sys.getallocatedblocks(), [sys.getrefcount(each) for each in counted]
    for k in failed * 3:
        fails(k, *call)
    fails(10**6, *call)
    now = [sys.getrefcount(each) for each in counted]
    print(name, len(failed), sys.getallocatedblocks() - before)
    assert max(abs(x - y) for x, y in zip(now, references)) < 2, (name, references, now)
    assert abs(sys.getallocatedblocks() - before) <= len(failed), (name, before, sys.getallocatedblocks())
"""


@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="this Python was built without its tests")
def test_allocations_that_fail() -> None:
    """Each in turn: a MemoryError, and no reference is lost or kept."""
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Signals


@pytest.fixture
def alarms() -> Iterator[Callable[[Any, float], None]]:
    """Start a signal every so many seconds.

    The collector is off: Python drops what a handler raises while a callback of the collector runs.
    """

    def start(handler: Any, seconds: float) -> None:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)

    was = signal.getsignal(signal.SIGALRM)
    gc.disable()
    yield start
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, was)


class Rude(BaseException):
    """What a signal's handler raises."""


def make_vec() -> DummyVecEnv:
    make = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=8, disable_env_checker=True)
    fns = [lambda: Monitor(make())] * 4
    return DummyVecEnv(fns)


def rows(vec: Any, steps: int) -> list[Any]:
    """Return what steps from a reset on return."""
    found = [vec.reset(seed=5).tolist()]
    for k in range(steps):
        obs, rewards, dones, infos = vec.step([k % 2] * 4)
        for info in infos:
            info.get("episode", {}).pop("t", None)
        vec.send([0, 1], [2, 0])
        batch = vec.recv(indices=[0, 2])
        found.append([*(part.tolist() for part in (obs, rewards, dones, batch.obs, batch.terminated)), repr(infos)])
    return found


def test_a_handler_that_does_nothing_changes_nothing(alarms: Callable[[Any, float], None]) -> None:
    count = 0

    def handler(*_: Any) -> None:
        nonlocal count
        count += 1

    with make_vec() as vec:
        expected = rows(vec, 50)
        alarms(handler, 0.0002)
        while count < 200:
            assert rows(vec, 50) == expected


def test_a_handler_that_raises_at_any_time(alarms: Callable[[Any, float], None]) -> None:
    """After each a reset of all envs is a fresh start."""
    armed = False
    rng = random.Random(1)

    def handler(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False  # another signal may have come by now
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Rude

    def step_until_a_signal(vec: Any) -> None:
        nonlocal armed
        armed = True
        alarms(handler, rng.uniform(1e-4, 3e-3))
        for k in range(10**6):
            vec.step([k % 2] * 4)
            vec.send([0, 1], [2, 0])
            vec.recv(indices=[0, 2])

    def settle(take: Callable[[], Any]) -> None:
        with contextlib.suppress(NotSteppingError):
            while True:
                with contextlib.suppress(EnvError):
                    take()

    with make_vec() as vec:
        expected = rows(vec, 20)
        for _ in range(60):
            with pytest.raises(Rude):
                step_until_a_signal(vec)
            settle(vec.step_wait)
            settle(vec.recv)
            assert rows(vec, 20) == expected
