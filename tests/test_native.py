"""The compiled core against its Python twin: the same results, exceptions and calls, whatever envs do."""

from __future__ import annotations

import collections
import functools
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import NO_CORE
from gymnasium import Env, Wrapper, spaces
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import OrderEnforcing, TimeLimit

import vecenvs._native
from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs._native import twin
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv
from vecenvs.wrappers import Monitor, monitor

ROUNDS = int(os.environ.get("VECENVS_NATIVE_ROUNDS", "60"))
Triple = collections.namedtuple("Triple", "obs reward terminated truncated info")

if NO_CORE:
    pytest.skip("no compiled core", allow_module_level=True)


def core() -> ModuleType:
    from vecenvs._native import core

    return core


class OddFlag:
    def __bool__(self) -> bool:
        raise RuntimeError("this flag is neither")

    def __repr__(self) -> str:
        return "an odd flag"


class Info(dict[str, Any]):
    """A subclass."""


class Array(np.ndarray[Any, Any]):
    """A subclass."""


class Real(float):
    """A subclass."""


SPACES: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-9, 9, (3,), np.float32),
    "double": spaces.Box(-9, 9, (2,), np.float64),
    "image": spaces.Box(0, 255, (4, 5, 2), np.uint8),
    "flags": spaces.MultiBinary(4),
    "empty": spaces.Box(-9, 9, (0,), np.float32),
    "whole": spaces.Discrete(50, start=-10),
    "scalar": spaces.Box(-9, 9, (), np.float32),
    "dict": spaces.Dict({"a": spaces.Discrete(5), "b": spaces.Box(0, 1, (2, 2), np.float32)}),
    "text": spaces.Text(4),
    "large": spaces.Box(0, 255, (80, 80), np.uint8),
}


def observations(rng: random.Random, space: spaces.Space[Any]) -> Any:
    """Return an observation, mostly one of the space; a new object each time, as an env may keep and change its own."""
    good = space.sample()
    if rng.random() < 0.6 or not isinstance(good, np.ndarray):
        return rng.choice([good, good, good, good, int(good), 10**30, True, None]) if np.isscalar(good) else good
    wide = np.repeat(good, 2, axis=-1)[..., ::2] if good.ndim else good
    return rng.choice(
        [
            wide,
            np.asfortranarray(good),
            good.astype(np.float64),
            good.astype(np.int64),
            good.astype(good.dtype.newbyteorder()),
            good.view(Array),
            good.tolist(),
            good[None],
            good.ravel()[:-1],
            np.full_like(good, 7, dtype=object),
            np.full(good.shape, 1e300),
            good.astype(str),
            None,
            "text",
            {},
            np.ma.masked_array(good),
        ]
    )


def rewards(rng: random.Random) -> Any:
    if rng.random() < 0.6:
        return rng.choice([0.0, 1.5, -3, 1])
    odd = [
        True, 10**400, 2**63, np.float32(0.1), np.float64(0.1), np.float16(0.5), np.int64(3), np.array([2.5]),
        np.array(2.5), np.array([1.0, 2.0]), Real(2), float("nan"), float("inf"), -0.0, None, "1.5", 1j, [1.0], 1e300,
    ]  # fmt: skip
    return rng.choice(odd)


def flags(rng: random.Random) -> Any:
    if rng.random() < 0.7:
        return False
    odd = [np.False_, True, np.True_, 0, 1, np.array(True), np.array([False]), None, "", 2, OddFlag(), np.int64(1), 0.0]
    return rng.choice(odd)


def infos(rng: random.Random) -> Any:
    return rng.choice([{}, {}, {}, {"t": rng.random()}, {"a": [1], "t": 2}, Info(), Info(x=1), None, 0, [("k", 1)], 5])


ERRORS = [ValueError("bad"), RecursionError("deep"), StopIteration("over"), SystemExit(3), KeyboardInterrupt("no key")]


def outcomes(rng: random.Random, space: spaces.Space[Any], tame: float) -> Callable[[], Any]:
    """Return a function that does what a step may do."""
    if rng.random() < tame:
        row = space.sample(), rng.choice([0.5, 1]), rng.random() < 0.1, False, rng.choice([{}, {}, {"t": 1}])
        return lambda: row
    if rng.random() < 0.15:
        error = rng.choice(ERRORS)

        def fail() -> Any:
            raise type(error)(*error.args)

        return fail
    row = observations(rng, space), rewards(rng), flags(rng), flags(rng), infos(rng)
    shaped = rng.choice(
        [row, row, row, row, row, row, list(row), Triple(*row), row[:4], (*row, 1), None, 7, dict.fromkeys("abcde")]
    )
    return lambda: shaped


def as_seen(value: Any) -> Any:
    """Return something that compares equal if and only if the values are the same, bit for bit and type for type."""
    if isinstance(value, np.ndarray):
        return (
            type(value).__name__,
            str(value.dtype),
            value.shape,
            value.tolist() if value.dtype == object else bytes(value.tobytes()),
        )
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [as_seen(item) for item in value]
    if isinstance(value, dict):
        return type(value).__name__, [(key, as_seen(item)) for key, item in value.items()]
    return type(value).__name__, repr(value)


# The function by itself


def played(module: ModuleType, seed: int, space: spaces.Box, *, subset: bool) -> list[Any]:
    """Step a shard until it is done, going on after each exception; return all that could be seen of it."""
    rng = random.Random(seed)
    space.seed(seed)
    n = rng.randint(1, 5)
    seen: list[Any] = []
    column = np.zeros((n + 2, *space.shape), space.dtype)[1:-1]
    cells: Any = column
    if not module.writes_to(column):
        cells = list(map(Cell, column))
    kinds = [spaces.Discrete(5, dtype=np.int32), spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([3, 4])]
    action_space = rng.choice(kinds)
    action_space.seed(seed)
    actions: Any = np.stack([action_space.sample() for _ in range(n)])
    if rng.random() < 0.3:
        actions = list(actions)
    doings = [outcomes(rng, space, 0.3) for _ in range(n)]
    ends = [rng.choice([None, None, ValueError, KeyboardInterrupt]) for _ in range(n)]

    def act(local: int, action: Any) -> Any:
        seen.append(("act", local, as_seen(action)))
        if isinstance(action, np.ndarray):
            action[...] = 0  # which must not reach the batch of actions
        return doings[local]()

    def end_episode(local: int, obs: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        seen.append(("end", local, as_seen((obs, terminated, truncated, info))))
        error = ends[local]
        if error is not None:
            raise error("in the reset")
        return np.ones(space.shape, space.dtype), {"ended": local}

    def take_odd(local: int, obs: Any) -> None:
        seen.append(("odd", local, as_seen(obs)))
        if obs is None:
            raise TypeError("no row")

    acts = [lambda action, local=local: act(local, action) for local in range(n)]
    chosen = rng.sample(range(n), rng.randint(1, n)) if subset else None
    column64 = np.full(n, -1.0)
    given: list[Any] = []
    found: list[Any] = []
    before = as_seen(actions)
    while len(given) < (n if chosen is None else len(chosen)):
        try:
            written = module.step_envs(
                acts, actions, cells, slice(None), given, found, end_episode, take_odd, chosen, column64.data, math.inf
            )
            if written:  # the twin takes more types as plain numbers
                assert [column64[k] for k in chosen or range(n)] == pytest.approx(array("d", given), rel=0, nan_ok=True)
        except BaseException as exc:
            seen.append((type(exc), str(exc), len(given)))
            given.append(0.0)
    assert as_seen(actions) == before or isinstance(actions, list)
    return [*seen, as_seen(given), as_seen(found), as_seen(column)]


class Cell:
    """Takes exactly the rows that the compiled loop writes itself."""

    def __init__(self, row: Any) -> None:
        self.row = row

    def __setitem__(self, _: Any, value: Any) -> None:
        if type(value) is not np.ndarray or value.shape != self.row.shape:
            raise TypeError
        rounded = (value.dtype, self.row.dtype) == (np.float64, np.float32)
        if value.dtype != self.row.dtype and not (rounded and np.isfinite(value.astype(np.float32)).all()):
            raise TypeError
        self.row[...] = value


@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize("name", ["vector", "double", "image", "flags"])
def test_the_loop(name: str, subset: bool) -> None:
    space: Any = SPACES[name]
    for seed in range(ROUNDS):
        here, there = (played(module, seed, space, subset=subset) for module in (core(), twin))
        assert here == there, seed


def test_arguments_of_other_types_are_refused() -> None:
    column = np.zeros(2).data
    for given in (
        [],
        [1] * 11,
        [[], [], [], 0, (), [], None, None, None, column, math.inf],
        [[1], [], [], 0, [], [], 0, 0, None, b"", math.inf],
        [[], [], [], 0, [], [], None, None, None, column, None],
        [[], [], [], 0, [], [], None, None, None, np.zeros((2, 2)), math.inf],
        [[], [], [], 0, [], [], None, None, None, np.zeros(4)[::2], math.inf],
        [[], [], [], 0, [], [], None, None, None, np.zeros(2, np.int64), math.inf],
        [[], [], np.zeros(2, np.uint8), 0, [], [], None, None, None, column, math.inf],
        [[], [], np.zeros((2, 4))[:, ::2], 0, [], [], None, None, None, column, math.inf],
        [[], [], np.array(1.0), 0, [], [], None, None, None, column, math.inf],
    ):
        with pytest.raises((TypeError, BufferError, ValueError)):
            core().step_envs(*given)


@pytest.mark.parametrize("places", [[7], [-1], [10**30], ["x"]])
def test_an_index_out_of_bounds_is_an_error(places: list[Any]) -> None:
    row = np.zeros(3, np.float32), 0.0, False, False, {}
    columns = np.zeros((2, 3), np.float32), np.zeros(2)
    with pytest.raises((IndexError, OverflowError, TypeError)):
        core().step_envs(
            [lambda _: row] * 2, [0, 0], columns[0], 0, [], [], None, None, places, columns[1].data, math.inf
        )  # fmt: skip


@pytest.mark.parametrize("module", ["core", "twin"])
def test_the_loop_stops_at_its_time(module: str) -> None:
    """It stops after the env with which the time has come, and goes on from there when it is called again."""
    row = np.zeros(3, np.float32), 1.0, False, False, {}
    columns, column64 = np.zeros((4, 3), np.float32), np.zeros(4)
    rewards: list[Any] = []

    def slow(_: Any) -> Any:
        time.sleep(0.02)
        return row

    cells = columns if module == "core" else [Cell(each) for each in columns]

    def go_on(until: float) -> None:
        assert (core() if module == "core" else twin).step_envs(
            [lambda _: row, slow, lambda _: row, slow], [0] * 4, cells,
            slice(None), rewards, [], None, None, [2, 1, 0, 3], column64.data, until,
        )  # fmt: skip

    go_on(time.perf_counter() + 0.01)
    assert len(rewards) == 2
    assert column64.tolist() == [0, 1, 1, 0]
    go_on(math.inf)
    assert column64.tolist() == [1, 1, 1, 1]


# Whole VecEnvs


class OddEnv(Env[Any, Any]):
    """Does at each step what its random generator says."""

    def __init__(self, seed: int, name: str) -> None:
        self.observation_space = SPACES[name]
        self.action_space = spaces.Discrete(3)
        self.rng = random.Random(seed)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(self.rng.randrange(2**31))
        return self.observation_space.sample(), {} if self.rng.random() < 0.7 else {"first": 1}

    def step(self, action: Any) -> Any:
        if not isinstance(action, np.int64):
            raise AssertionError(action)
        self.observation_space.seed(self.rng.randrange(2**31))
        return outcomes(self.rng, self.observation_space, 0.9)()


def story(make: Callable[[], Any], steps: int) -> list[Any]:
    """Return what a VecEnv has returned and raised."""
    told: list[Any] = []
    with np.errstate(all="ignore"), make() as vec:
        vec.reset()
        for k in range(steps):
            try:
                result = vec.step(np.arange(vec.num_envs) + k & 1)
            except EnvError as exc:
                errors = [(each.index, str(each).partition("Traceback")[0]) for each in exc.errors]
                told.append((errors, None if exc.batch is None else as_seen(tuple(vars_of(exc.batch)))))
                vec.reset([each.index for each in exc.errors])
            except KeyboardInterrupt:
                told.append("Ctrl-C")
                try:
                    vec.step_wait()
                except EnvError as exc:
                    vec.reset([each.index for each in exc.errors])
            else:
                told.append(as_seen((*result, vec.rewards64)))
        told.append(as_seen(vec.reset_infos))
    return told


def vars_of(batch: Any) -> Iterator[Any]:
    return (
        getattr(batch, name) for name in ("indices", "obs", "rewards", "terminated", "truncated", "infos", "active")
    )


def action_batches(rng: random.Random, count: int) -> Any:
    """Return actions as a caller may give them, mostly good ones."""
    good = np.array([rng.randrange(3) for _ in range(count)])
    odd = [
        good.tolist(), good[::-1], good.astype(np.int32), good.view(Array), np.repeat(good, 2)[::2], good[:-1],
        good.astype(float), good[:, None], good.astype(">i8"), good.astype(object), good + 3, None, tuple(good),
    ]  # fmt: skip
    return good if rng.random() < 0.6 else rng.choice(odd)


class Patient(OddEnv):
    """Raises no Ctrl-C: which envs that leaves undone depends on the time that the others have taken."""

    def step(self, action: Any) -> Any:
        try:
            return super().step(action)
        except KeyboardInterrupt as exc:
            raise ValueError from exc


def mixed_story(make: Callable[[], Any], seed: int, calls: int) -> list[Any]:
    """Step all envs or some, reset some, with actions that are odd now and then; return what could be seen."""
    rng = random.Random(seed)
    told: list[Any] = []
    with np.errstate(all="ignore"), make() as vec:
        vec.reset(seed=seed)
        for _ in range(calls):
            some = rng.sample(range(vec.num_envs), rng.randint(1, vec.num_envs))
            what = rng.choice(["step", "send", "send", "reset"])
            try:
                if what == "step":
                    told.append(as_seen((*vec.step(action_batches(rng, vec.num_envs)), vec.rewards64)))
                elif what == "reset":
                    told.append(as_seen((vec.reset(some, seed=rng.choice([None, seed])), vec.reset_infos)))
                else:
                    vec.send(action_batches(rng, len(some)), some)
                    told.append(as_seen(tuple(vars_of(vec.recv(indices=rng.sample(some, len(some)))))))
            except EnvError as exc:
                batch = exc.batch
                told.append([each.index for each in exc.errors])
                told.append(None if batch is None else as_seen(tuple(vars_of(batch))))
                vec.reset([each.index for each in exc.errors])
            except (TypeError, ValueError) as exc:  # the actions, of which no env has been told
                told.append((type(exc), str(exc)))
    return told


@pytest.fixture
def by_twin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    return lambda python: monkeypatch.setattr(vecenvs._native, "chosen", twin if python else core())


def wrapped(env: Env[Any, Any], how: int) -> Env[Any, Any]:
    if how:
        env = TimeLimit(OrderEnforcing(env), 7)
    return Monitor(env) if how == 2 else env


def state_of(env: Any) -> list[Any]:
    """Return what wrappers remember of the steps."""
    found = []
    while isinstance(env, Wrapper):
        names = ("_elapsed_steps", "_has_reset", "needs_reset", "total_steps", "episode_returns", "episode_lengths")
        found.append([getattr(env, name, None) for name in names])
        env = env.env
    return found


@pytest.mark.sparse("name")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("name", SPACES)
def test_envs_that_return_anything(
    name: str, autoreset: str, by_twin: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "time", SimpleNamespace(time=lambda: 1.0))
    for seed in range(max(ROUNDS // 20, 3)):
        stories = []
        for python in (False, True):
            by_twin(python)
            envs = [wrapped(OddEnv(seed * 8 + k, name), seed % 3) for k in range(seed % 4 + 1)]
            fns = [lambda env=env: env for env in envs]  # type: ignore[misc]
            stories.append([story(lambda: DummyVecEnv(fns, autoreset=autoreset), 40), as_seen([*map(state_of, envs)])])  # noqa: B023
        assert stories[0] == stories[1], seed


@pytest.mark.sparse("name")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize("name", SPACES)
def test_some_envs_that_return_anything(name: str, autoreset: str, by_twin: Callable[[bool], None]) -> None:
    for seed in range(max(ROUNDS // 20, 3)):
        stories = []
        for python in (False, True):
            by_twin(python)
            fns = [lambda k=k: wrapped(Patient(seed * 8 + k, name), seed % 2) for k in range(seed % 4 + 2)]  # type: ignore[misc] # noqa: B023
            stories.append(mixed_story(lambda: DummyVecEnv(fns, autoreset=autoreset), seed, 60))  # noqa: B023
        assert stories[0] == stories[1], seed


class Louder(TimeLimit):
    """A subclass, whose `step` is its own."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + 100.0, *rest


class Quieter(OrderEnforcing):
    """A subclass with the `step` of its base."""


def louder(step: Callable[..., Any]) -> Callable[..., Any]:
    def patched(*args: Any) -> Any:
        obs, reward, *rest = step(*args)
        return obs, reward + 100.0, *rest

    return patched


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("what", ["class", "base", "instance", "innermost", "innermost class", "subclass"])
def test_a_patched_step_is_called(
    what: str, python: bool, by_twin: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the next step on, if it is the step of what a wrapper wraps."""
    by_twin(python)
    env = CountingEnv(0, 9)
    below = Louder(Quieter(env), 9) if what == "subclass" else TimeLimit(OrderEnforcing(env), 9)
    with DummyVecEnv([lambda: Monitor(below)]) as vec:
        vec.reset()
        usual = vec.step([0])[1][0] - 100.0 * (what == "subclass")
        of_class = {"class": TimeLimit, "base": Wrapper, "innermost class": CountingEnv}
        of_object = {"instance": below, "innermost": env}
        if what in of_class:
            monkeypatch.setattr(of_class[what], "step", louder(of_class[what].step))
        elif what in of_object:
            of_object[what].step = louder(of_object[what].step)  # type: ignore[method-assign]
        later = [vec.step([0])[1][0] for _ in range(3)]
        assert all(reward - usual > 90 for reward in later)


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize("wrap", [OrderEnforcing, Monitor, lambda env: TimeLimit(env, 5)])
def test_what_a_wrapper_refuses(wrap: Any, python: bool, by_twin: Callable[[bool], None]) -> None:
    """An env that nobody has reset: the errors are those of the wrappers' own code."""
    by_twin(python)
    env = wrap(CountingEnv(0, 9))

    class Unready(Wrapper[Any, Any, Any, Any]):
        def reset(self, **_: Any) -> Any:
            return np.zeros(3, np.int64), {}

        @property
        def step(self) -> Any:
            return self.env.step

    with pytest.raises((ResetNeeded, RuntimeError, TypeError)) as plain:
        env.step(0)
    with DummyVecEnv([lambda: Unready(env)]) as vec:
        vec.reset()
        with pytest.raises(EnvError) as caught:
            vec.step([0])
        assert type(caught.value.__cause__) is plain.type
        assert str(caught.value.__cause__) == str(plain.value)


# The caller's side


def test_results_and_batches() -> None:
    rng = random.Random(0)
    for seed in range(ROUNDS * 5):
        space: Any = SPACES[rng.choice(["vector", "double", "image", "flags", "whole", "text"])]
        space.seed(seed)
        n = rng.randint(1, 9)
        samples = [space.sample() for _ in range(n)]
        column = np.array(samples, dtype=object if isinstance(samples[0], str) else None)
        numbers = np.array([rng.choice([0.0, 1.5, -1e38, float("inf"), float("nan"), 3.5e38, 1e-60]) for _ in samples])
        infos = rng.choice([{"k": False}, [{"own": k} for k in range(n)]])
        whole = rng.choice([column, lambda: {"made": 1}])
        seen = []
        for module in (core(), twin):
            with np.errstate(over="ignore"):
                result = module.plain_result(whole, numbers, infos)
            assert not np.shares_memory(result[1], numbers)
            assert result[0] is not column
            assert len({*map(id, result[3])}) == n
            seen.append(as_seen(result))
        assert seen[0] == seen[1]
        for batch in (
            column,
            column[::-1],
            column.astype(object),
            column.tolist(),
            column[:-1],
            column.view(Array),
            None,
        ):
            written = [np.zeros_like(column), np.zeros_like(column)]
            assert core().take_batch(written[0], batch) is twin.take_batch(written[1], batch)
            assert as_seen(written[0]) == as_seen(written[1])


def test_rows_from_arrays() -> None:
    rng = random.Random(0)
    for seed in range(ROUNDS):
        space: Any = SPACES[rng.choice(["vector", "double", "image", "flags", "empty", "scalar"])]
        space.seed(seed)
        column = np.array([space.sample() for _ in range(rng.randint(1, 5))])
        odd = [None, 1.5, column[0].astype(object), column[:1], column[0][..., None], column[0].view(Array)]
        odd += [np.asfortranarray(column[0]), column[0].astype(np.complex64), np.array(column[0]).tolist()]
        for replaced in [column[0], *odd]:
            rows: Any = [*map(np.array, column)]
            rows[rng.randrange(len(rows))] = replaced
            for values in (rows, tuple(rows), rows[1:], []):
                written = [np.zeros_like(column), np.zeros_like(column)]
                assert core().write_arrays(written[0], values) is twin.write_arrays(written[1], values)
                assert as_seen(written[0]) == as_seen(written[1])
    for column, values in ((np.zeros((2, 2))[:, ::2], []), (np.zeros(2, object), []), (np.zeros(2), {}), ([], [])):
        with pytest.raises(TypeError):
            core().write_arrays(column, values)


def test_some_rows() -> None:
    rng = random.Random(0)
    for seed in range(ROUNDS * 5):
        space: Any = SPACES[rng.choice(["vector", "double", "image", "flags", "empty", "whole", "scalar"])]
        space.seed(seed)
        n = rng.randint(1, 9)
        column = np.array([space.sample() for _ in range(n)])
        numbers = np.array([rng.choice([0.0, 1.5, -1e38, float("inf"), float("nan"), 3.5e38, 1e-60]) for _ in column])
        flags = np.array([rng.choice([0, 0, rng.randrange(32)]) for _ in column], np.uint8)
        indices = np.array(rng.sample(range(n), rng.randint(0, n)), np.int64)
        given = rng.choice([column, lambda rows: {"made": len(rows)}])
        seen = []
        for module in (core(), twin):
            with np.errstate(over="ignore"):
                result = module.rows_result(given, numbers, flags, indices, {"k": False})
            assert not any(np.shares_memory(part, whole) for part in result[1:6] for whole in (numbers, flags))
            assert result[0] is not column
            assert len({*map(id, result[6])}) == len(indices)
            assert all(part.flags.writeable for part in result[3:6])
            seen.append(as_seen(result))
        assert seen[0] == seen[1]
        rows = column[indices]
        for batch in (rows, rows[::-1], rows.astype(object), rows.tolist(), rows[:-1], column, rows.view(Array), None):
            written = [np.zeros_like(column), np.zeros_like(column)]
            assert core().take_batch(written[0], batch, indices) is twin.take_batch(written[1], batch, indices)
            assert as_seen(written[0]) == as_seen(written[1])


def test_rows_that_do_not_exist_are_refused() -> None:
    column, numbers, flags = np.zeros((3, 2), np.float32), np.zeros(3), np.zeros(3, np.uint8)
    for index in (3, -4, 2**62):
        with pytest.raises(IndexError):
            core().rows_result(column, numbers, flags, np.array([0, index]), {})
        with pytest.raises(IndexError):
            core().take_batch(column, column[:1], np.array([index]))
    rows: Any
    for rows in ([0], np.array([0], np.int32), np.array([[0]]), np.arange(4)[::2], None):
        with pytest.raises(TypeError):
            core().rows_result(column, numbers, flags, rows, {})
        with pytest.raises(TypeError):
            core().take_batch(column, column[:1], rows)
    with pytest.raises(TypeError):
        core().rows_result(column[:, ::2], numbers, flags, np.array([0]), {})
    with pytest.raises(TypeError):
        core().rows_result(column, numbers.astype(np.float32), flags, np.array([0]), {})
    with pytest.raises(ZeroDivisionError):
        core().rows_result(lambda _: 1 // 0, numbers, flags, np.array([0]), {})


def test_rewards_beyond_float32_are_infinite() -> None:
    """Whatever numpy is to do where numbers become infinite: the step has been taken."""
    flags, huge = np.zeros(2, np.uint8), np.array([1e300, -1e300])
    for module in (core(), twin):
        with np.errstate(all="raise"):
            found = [
                module.plain_result(np.zeros(2), huge, {})[1],
                module.rows_result(np.zeros(2), huge, flags, np.array([0, 1]), {})[1],
                module.take_outcomes(huge, flags)[0],
            ]
        assert [rewards.tolist() for rewards in found] == [[math.inf, -math.inf]] * 3


# Both ends


def test_workers_that_run_python_while_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the other way round: rows do not depend on which end is compiled."""
    here = os.getpid()

    def make(k: int, python: bool) -> Env[Any, Any]:
        if os.getpid() != here:
            vecenvs._native.chosen = twin if python else core()
        return TimeLimit(CountingEnv(k, 5), 3 + k)

    stories = []
    for caller, worker in [(False, False), (False, True), (True, False), (True, True)]:
        monkeypatch.setattr(vecenvs._native, "chosen", twin if caller else core())
        fns = [functools.partial(make, k, worker) for k in range(4)]
        with SubprocVecEnv(fns, 2, "fork", caller_steps=True) as vec:
            assert vec.stats()["compiled"] is not caller
            rows = [as_seen(vec.reset(seed=3))]
            stories.append([*rows, *(as_seen(vec.step([0, 1, 0, 1])) for _ in range(12))])
    assert stories.count(stories[0]) == 4


# Signals and threads


def test_a_ctrl_c_in_an_env_leaves_the_rows_of_the_others() -> None:
    class Interrupted(CountingEnv):
        def step(self, action: Any) -> Any:
            if self.tag == 1:
                signal.raise_signal(signal.SIGINT)
            return super().step(action)

    with DummyVecEnv([lambda k=k: Interrupted(k, 9) for k in range(3)]) as vec:  # type: ignore[misc]
        vec.reset()
        with pytest.raises(KeyboardInterrupt):
            vec.step([0] * 3)
        with pytest.raises(EnvError) as caught:
            vec.step_wait()
        assert caught.value.batch is not None
        assert caught.value.batch.indices.tolist() == [0]


def test_several_threads_step_vec_envs_of_their_own() -> None:
    problems: list[BaseException] = []

    def play(seed: int) -> None:
        try:
            make = functools.partial(DummyVecEnv, [functools.partial(CountingEnv, k, 3 + k) for k in range(3)])
            stories = [story(make, 200) for _ in range(2)]
            assert stories[0] == stories[1]
        except BaseException as exc:
            problems.append(exc)

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@pytest.mark.parametrize(
    ("missing", "why"), [("", "VECENVS_NATIVE=0"), ("core", "not built"), ("lock", "free-threaded builds")]
)
def test_python_runs_if_asked_to_or_if_nothing_was_built(missing: str, why: str) -> None:
    code = (
        "import sys, sysconfig\n"
        f"if {bool(missing)}: sys.modules['vecenvs._native.core'] = None\n"
        f"sysconfig.get_config_vars()['Py_GIL_DISABLED'] = {missing == 'lock'}\n"
        "import vecenvs._native as n, vecenvs\n"
        "print(n.is_compiled(), n.chosen.__name__, n.why_not)"
    )
    environment = {**os.environ, "VECENVS_NATIVE": "1" if missing else "0"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("False vecenvs._native.twin ")
    assert why in run.stdout


def test_columns_of_python_numbers() -> None:
    """Either writes values of exactly the column's own type, and both refuse the same."""
    rng = random.Random(0)
    numbers = [
        1.5,
        float("nan"),
        -0.0,
        3,
        2**63 - 1,
        -(2**63),
        True,
        False,
        np.float64(2),
        np.int64(2),
        np.True_,
        "a",
        None,
    ]
    kinds = {float: np.float64, int: np.int64, bool: np.bool_}
    for _ in range(ROUNDS * 20):
        kind = rng.choice([*kinds])
        n = rng.randint(1, 9)
        values: Any = rng.choices([each for each in numbers if type(each) is kind], k=n)
        if rng.random() < 0.3:
            values[rng.randrange(n)] = rng.choice([*numbers, 2**63, 2**70])
        values = rng.choice([list, tuple])(values)
        rows: Any = slice(2, 2 + n) if rng.random() < 0.5 else rng.sample(range(12), n)
        cells = [np.zeros(12, np.int64), np.zeros(12, np.int64)]
        written = [
            module.write_column(each.view(kinds[kind])[:: 8 // np.dtype(kinds[kind]).itemsize], rows, values)
            for module, each in zip((core(), twin), cells, strict=True)
        ]
        fit = all(type(each) is kind and (kind is not int or -(2**63) <= each < 2**63) for each in values)
        assert written[0] is written[1] is fit
        if written[0]:
            assert cells[0].tobytes() == cells[1].tobytes()


def test_rows_of_a_column_that_do_not_exist_are_refused() -> None:
    column = np.zeros(3)
    for rows in ([3], [-1], [2**62]):
        with pytest.raises(IndexError):
            core().write_column(column, rows, [1.0])
    for rows in ([0, 1], slice(0, 2), slice(0, 2, 2)):
        with pytest.raises(ValueError, match="one value for each row"):
            core().write_column(column, rows, [1.0] * (1 if rows != slice(0, 2, 2) else 2))
    for given in (
        (column, (0,), [1.0]),
        (column, [0], np.ones(1)),
        (np.zeros((3, 1)), [0], [1.0]),
        (column, [0]),
        ([0], [0], [0]),
    ):
        with pytest.raises(TypeError):
            core().write_column(*given)
