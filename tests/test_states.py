"""States of libraries' envs, and of any attributes: snapshot after 137 steps, 500 more with autoresets elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import importlib
import json
import pickle
import random
import sys
import types
from array import array
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode

import vecenvs
from vecenvs.state.adapters import adapter_of
from vecenvs.state.encoding import Decoder, Encoder, EncodingError
from vecenvs.state.packing import Packer, unpacked
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv
from vecenvs.testing.envs.states import OpaqueEnv, StateEnv


def double(reward: Any) -> Any:
    return 2 * reward


def make_env(env_id: str) -> gymnasium.Env[Any, Any]:
    if env_id.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
    return gymnasium.make(env_id)


def stacked(env_id: str) -> gymnasium.Env[Any, Any]:
    env = vecenvs.Monitor(wrappers.ClipAction(make_env(env_id)))
    env = wrappers.FrameStackObservation(wrappers.NormalizeReward(wrappers.NormalizeObservation(env)), 3)
    return wrappers.TransformReward(env, lambda reward: 2 * reward)


def delayed(env_id: str) -> gymnasium.Env[Any, Any]:
    env = wrappers.DelayObservation(wrappers.StickyAction(wrappers.RecordEpisodeStatistics(make_env(env_id)), 0.3), 3)
    return wrappers.TransformReward(wrappers.TimeAwareObservation(env), double)


def preprocessed(env_id: str) -> gymnasium.Env[Any, Any]:
    return wrappers.FrameStackObservation(wrappers.AtariPreprocessing(make_env(env_id), frame_skip=1), 4)


def fire_reset(env_id: str) -> gymnasium.Env[Any, Any]:
    from vecenvs.wrappers.atari import FireReset

    return FireReset(make_env(env_id))


KINDS = {
    "CartPole-v1": (make_env, "state"),
    "Acrobot-v1": (make_env, "state"),
    "Pendulum-v1": (stacked, "state"),
    "MountainCar-v0": (delayed, "state"),
    "Blackjack-v1": (make_env, "state"),
    "FrozenLake-v1": (make_env, "state"),
    "Taxi-v4": (make_env, "state"),
    "HalfCheetah-v5": (make_env, "state"),
    "Humanoid-v5": (make_env, "state"),
    "Ant-v5": (make_env, "state"),
    "ALE/Breakout-v5": (make_env, "state"),
    "ALE/Pong-v5": (preprocessed, "state"),
    "ALE/SpaceInvaders-v5": (fire_reset, "state"),
    "LunarLander-v3": (make_env, "replay"),
}
SHORT = {"CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "ALE/Breakout-v5", "LunarLander-v3"}


DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("env_id", ["CartPole-v1", "HalfCheetah-v5", "LunarLander-v3", "BipedalWalker-v3"])
def test_the_table_of_the_docs(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    row_of = importlib.import_module("state_table").row_of
    assert row_of(env_id) in (DOCS / "state.md").read_text(), "run: python docs/state_table.py"


def played(vec: vecenvs.VecEnv, steps: int, seed: int) -> str:
    """Return a checksum of the rows of some steps."""
    rng, rows = np.random.default_rng(seed), hashlib.sha256()
    space = vec.action_space
    for _ in range(steps):
        if isinstance(space, gymnasium.spaces.Discrete):
            actions = rng.integers(space.n, size=vec.num_envs)
        else:
            actions = rng.uniform(-1, 1, (vec.num_envs, *(space.shape or ()))).astype(space.dtype)
        obs, rewards, dones, infos = vec.step(actions)
        rows.update(pickle.dumps((obs, rewards, dones)))
        rows.update(repr([sorted(info.keys() - {"episode"}) for info in infos]).encode())
    return rows.hexdigest()


@pytest.mark.sparse
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "env_id", [pytest.param(each, marks=[] if each in SHORT else [pytest.mark.long]) for each in KINDS]
)
def test_kinds_of_envs(env_id: str) -> None:
    """Two envs by their order go on in new processes, one each."""
    make, way = KINDS[env_id]
    seeded = way == "replay"
    common = {"episode_seeds": seeded}
    with vecenvs.DummyVecEnv([partial(make, env_id)] * 2, **common) as vec:
        vec.reset(seed=7)
        played(vec, 137, 1)
        states = vec.get_state()
        assert [state.way for state in states] == [way] * 2
        expected = played(vec, 500, 2)
    method = "fork" if env_id in SHORT else "spawn"
    with vecenvs.SubprocVecEnv([partial(make, env_id)] * 2, 2, start_method=method, **common) as vec:
        vec.set_state(states)
        assert played(vec, 500, 2) == expected


@pytest.mark.filterwarnings("ignore")
def test_sticky_actions_repeat_the_last_one() -> None:
    """At any moment, the first of an episode and the first after another state included."""
    with vecenvs.DummyVecEnv([partial(make_env, "ALE/Breakout-v5")] * 2) as vec:
        vec.reset(seed=3)
        for moment in range(12):
            states = vec.get_state()
            expected = played(vec, 15, moment)
            vec.set_state(states[::-1], [0, 1])
            vec.set_state(vec.get_state()[::-1])
            assert played(vec, 15, moment) == expected, moment


Point = namedtuple("Point", "x y")
Color = enum.IntFlag("Color", "RED GREEN BLUE")


class Slotted:
    __slots__ = ("first", "second")

    def __init__(self) -> None:
        self.first: Any = None
        self.second: Any = None


class Node:
    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.me = self

    def method(self) -> Any:
        return self.value


def filled(seed: int) -> Node:
    """Return an object whose attributes have values of all kinds."""
    rng = np.random.default_rng(seed)
    node = Node(seed)
    node.plain = [None, True, seed, 0.1 * seed, float("nan"), -0.0, 2**100 + seed, "text", b"bytes", 1j * seed]
    node.arrays = {
        "a": rng.random((2, 3)),
        (1, "b"): rng.integers(9, size=4, dtype=np.uint8),
        3: np.array(["x", None], object),
    }
    node.scalar, node.empty, node.point = np.float32(seed), np.zeros((0, 2)), Point(seed, [seed])
    node.shared = [node.arrays, node.arrays, node.plain]
    node.cycle = []
    node.cycle.append(node.cycle)
    node.deque = deque([rng.random(2) for _ in range(seed % 5)], maxlen=4)
    node.sets = {1, seed}, frozenset({2, seed}), bytearray([seed]), slice(1, seed), range(seed)
    node.numbers = array("d", [seed, 0.5])
    node.default, node.ordered = defaultdict(list, {seed: [1]}), OrderedDict([("b", seed), ("a", 1)])
    node.rng, node.old_rng, node.python_rng = (
        np.random.default_rng(seed),
        np.random.RandomState(seed),
        random.Random(seed),
    )
    node.alias = node.rng
    node.partial, node.bound, node.drawn = partial(double, seed), node.method, node.rng.random
    node.slotted, node.inner, node.names = Slotted(), Node(Node(seed)), types.SimpleNamespace(a=seed)
    node.slotted.first = node.inner
    node.function = lambda: seed
    node.builtin, node.type, node.module = len, dict, random
    node.made = datetime(2026, 1, 1 + seed), Decimal(f"1.{seed}"), Counter({"a": seed}), Color(1) | Color(2 * seed)
    return node


def test_attributes_of_all_kinds() -> None:
    """They are put into another object, which keeps what is no state and everything that it consists of."""
    source, target = filled(7), filled(3)
    function, inner, method = target.function, target.inner, target.bound
    data = pickle.loads(pickle.dumps(Encoder(source).encode(source)))
    source.rng.random(3)
    assert Decoder(target, trusted=False).decode(data, target) is target
    expected = filled(7)
    for name in (
        "plain",
        "arrays",
        "scalar",
        "empty",
        "point",
        "sets",
        "numbers",
        "default",
        "ordered",
        "names",
        "made",
    ):
        assert_same(getattr(target, name), getattr(expected, name), name)
    assert_same(list(target.deque), list(expected.deque), "deque")
    assert target.deque.maxlen == 4
    assert target.me is target
    assert target.shared[0] is target.shared[1] is target.arrays
    assert target.cycle[0] is target.cycle
    assert target.alias is target.rng
    assert target.drawn() == expected.rng.random()
    assert target.rng.random() == expected.rng.random()
    assert target.rng.spawn(1)[0].random() == expected.rng.spawn(1)[0].random()
    assert target.old_rng.random() == expected.old_rng.random()
    assert target.python_rng.random() == expected.python_rng.random()
    assert target.function is function
    assert target.function() == 3
    assert target.inner is inner is target.slotted.first
    assert (inner.value.value, method(), target.bound(), target.partial()) == (7, 7, 7, 14)


def test_attributes_that_the_other_lacks() -> None:
    source, target = Node(1), Node(2)
    source.added = Point(1, 2)
    target.other = 5
    Decoder(target, trusted=False).decode(Encoder(source).encode(source), target)
    assert (target.added, hasattr(target, "other")) == (Point(1, 2), False)
    source.added = Node(3)
    data = Encoder(source).encode(source)
    with pytest.raises(
        EncodingError, match=r"Node, attribute 'added': it was a test_states:Node, here is nothing \(trusted"
    ):
        Decoder(Node(), trusted=False).decode(data, Node())
    target = Decoder(target := Node(), trusted=True).decode(data, target)
    assert target.added.value == 3


@pytest.mark.parametrize("value", [iter([1]), (x for x in ()), type("X", (list,), {})()])
def test_what_is_refused(value: Any) -> None:
    env = wrappers.TimeLimit(StateEnv(), 5)
    env.unwrapped.things = {"a": [value]}
    with pytest.raises(EncodingError, match=r"^StateEnv, attribute 'things': a .* is no plain data"):
        Encoder(env).encode(env)


def test_what_a_file_may_not_do() -> None:
    """Without trust no function, class or method comes by its name."""
    for node in (
        ["f", "os:system"],
        ["m", ["=", 0], "method"],
        ["o", "subprocess:Popen", {}],
        ["p", ["f", "os:system"]],
    ):
        target = Node()
        with pytest.raises(EncodingError):
            Decoder(target, trusted=False).decode(["o", "test_states:Node", {"value": node}], target)
    for node in (["?"], [], [[]], ["=", 99], ["a", 3], ["o"], ["G", {}, None]):
        with pytest.raises((EncodingError, Exception)):
            Decoder(Node(), trusted=False).decode(node, Node())


def test_a_registered_class() -> None:
    """An iterator of its own in an env, by an adapter for its class."""
    with pytest.raises(TypeError, match="two functions"):
        vecenvs.state.register(Numbers, 3, lambda value, state: None)  # type: ignore[arg-type]
    vecenvs.state.register(Numbers, lambda value: value.left(), lambda value, left: value.go_on(left))
    assert adapter_of(type("Below", (Numbers,), {})) is not None
    with vecenvs.DummyVecEnv([NumbersEnv] * 2) as vec:
        vec.reset(seed=1)
        played(vec, 20, 1)
        states = vec.get_state()
        expected = played(vec, 40, 2)
        vec.set_state(states)
        assert played(vec, 40, 2) == expected


class Numbers:
    def __init__(self, numbers: list[int]) -> None:
        self.go_on(numbers)

    def go_on(self, numbers: list[int]) -> None:
        self.numbers = iter(numbers)

    def left(self) -> list[int]:
        left = list(self.numbers)
        self.go_on(left)
        return left

    def __next__(self) -> int:
        return next(self.numbers)


class NumbersEnv(OpaqueEnv):
    def __init__(self) -> None:
        super().__init__()
        self.numbers: Any = Numbers([])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.np_random_seed  # noqa: B018
        obs, info = super().reset(seed=seed, options=options)
        self.numbers = Numbers(list(self.numbers))
        return obs, info


def test_verify_needs_the_functions_of_the_envs() -> None:
    """A fork has them; those that came in a pickle are freed, but for `on_error`."""
    for start_method, on_error in (("fork", "raise"), ("forkserver", "raise"), ("forkserver", "renew")):
        with vecenvs.SubprocVecEnv([StateEnv] * 2, 1, start_method, on_error=on_error) as vec:
            vec.reset(seed=3)
            vec.step([0, 1])
            if (start_method, on_error) == ("forkserver", "raise"):
                with pytest.raises(vecenvs.StateError, match="start_method='fork'"):
                    vec.get_state(verify=True)
                continue
            assert len(vec.get_state(verify=True)) == 2
            for _ in range(25):
                vec.step([1, 0])


class Drawing(StateEnv):
    """Its rewards are drawn by generators of spaces, and one that was seeded with an array."""

    def __init__(self, *_: Any) -> None:
        super().__init__()
        self.items = spaces.Sequence(spaces.Discrete(1000))
        self.graphs = spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(1000))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        for space in (self.items, self.graphs) if seed is not None else ():
            space.seed(seed)
        self.rng = np.random.default_rng(np.array([1, seed or 0]))
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        graph = self.graphs.sample()
        parts = [graph.nodes, *(() if graph.edges is None else graph.edges), self.items.sample(), self.rng.random()]
        return obs, sum(float(np.sum(part)) for part in parts), *rest


def test_generators_wherever_they_are() -> None:
    with vecenvs.DummyVecEnv([Drawing] * 2) as one, vecenvs.DummyVecEnv([Drawing] * 2) as other:
        one.reset(seed=3)
        other.reset(seed=5)
        for _ in range(3):
            one.step([0] * 2)
        other.set_state(one.get_state())
        for _ in range(4):
            assert one.step([0] * 2)[1].tolist() == other.step([0] * 2)[1].tolist()


def of_module(name: str, env: type) -> type:
    """Return a class of the same methods that another module could have."""
    return type(env.__name__, (env,), {"__module__": name})


@pytest.mark.parametrize("module", ["pygame_snake", "moviepy_tools", "mine"])
def test_modules_with_names_like_those_of_windows(module: str) -> None:
    """Their objects are state, as are pygame's rectangles and vectors."""
    import pygame

    class Game(gymnasium.Env[Any, Any]):
        observation_space, action_space = spaces.Box(-99, 99, (3,), np.float64), spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.rect, self.at = pygame.Rect(0, 0, 2, 2), pygame.math.Vector2(0, 0)
            self.alias, self.board = self.rect, of_module(module, Node)(0)
            self.window = pygame.Surface((2, 2))
            return np.zeros(3), {}

        def step(self, action: Any) -> Any:
            self.alias.x += 1
            self.at.x += 0.5
            self.board.value += 2
            return np.array([self.rect.x, self.at.x, self.board.value]), 0.0, False, False, {}

    fns = [lambda: wrappers.TimeLimit(of_module(module, Game)(), 50)]
    with vecenvs.DummyVecEnv(fns) as one, vecenvs.DummyVecEnv(fns) as other:
        one.reset()
        other.reset()
        for _ in range(3):
            one.step([0])
        window = other.envs[0].unwrapped.window
        other.set_state(one.get_state())
        assert other.step([0])[0].tolist() == one.step([0])[0].tolist() == [[4.0, 2.0, 8.0]]
        assert other.envs[0].unwrapped.window is window


class Asked(OpaqueEnv):
    """An env whose `get_state` is for another purpose."""

    def get_state(self, player: int) -> Any:
        return player

    def set_state(self, state: Any) -> None:
        raise RuntimeError


def test_a_get_state_that_is_something_else() -> None:
    """Episodes are replayed; without seeds the error says why there is no state."""
    with vecenvs.DummyVecEnv([Asked]) as vec:
        vec.reset()
        with pytest.raises(vecenvs.StateError, match="its state cannot be read: TypeError: .*'player'"):
            vec.get_state()
    with vecenvs.DummyVecEnv([Asked], episode_seeds=True) as vec:
        vec.reset(seed=1)
        vec.step([1])
        state = vec.get_state()
        assert state[0].way == "replay"
        expected = [vec.step([t % 2])[:3] for t in range(5)]
        vec.set_state(state)
        assert_same([vec.step([t % 2])[:3] for t in range(5)], expected, "rows")


def test_verified_states_and_what_follows() -> None:
    """The env beside the original ends with the episode in which it was made."""
    with vecenvs.DummyVecEnv([partial(gymnasium.make, "CartPole-v1")]) as vec:
        for follow in ("reset", "set_state"):
            vec.reset(seed=0)
            vec.step([0])
            state = vec.get_state(verify=True)
            vec.step([1])
            if follow == "reset":
                vec.reset()
            else:
                vec.set_state(state)
            for t in range(9):
                vec.step([t % 2])


class Words(spaces.Space[Any]):
    """A space that is shown by its address."""

    def __init__(self) -> None:
        super().__init__((), np.int64)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return np.int64(self.np_random.integers(5))

    def contains(self, x: Any) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words)

    __hash__ = None  # type: ignore[assignment]


class WordsEnv(StateEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_space: Any = Words()


def test_spaces_that_are_shown_by_their_address() -> None:
    with vecenvs.DummyVecEnv([WordsEnv] * 2) as vec:
        vec.reset(seed=0)
        vec.step([np.int64(1), np.int64(1)])
        vec.set_state(vec.get_state([0]), [1])


class ComesAndGoes(CountingEnv):
    """Only its first reset has an info."""

    def reset(self, **kwargs: Any) -> Any:
        obs, _ = super().reset(**kwargs)
        return obs, {"level": 1} if self.episode == 1 else {}


def async_states(fns: list[Any]) -> list[Any]:
    """Return states of envs of two steps whose next first rows have not been returned."""
    with vecenvs.DummyVecEnv(fns, autoreset="async") as vec:
        vec.reset()
        vec.step([0] * len(fns))
        assert vec.step([0] * len(fns))[2].all()
        states = vec.get_state()
    assert all(state.first_due for state in states)
    return states


def test_the_info_of_a_first_row_that_is_due() -> None:
    fns = [partial(ComesAndGoes, tag, 2) for tag in range(2)]
    states = async_states(fns)
    with vecenvs.DummyVecEnv(fns, autoreset="async") as vec:
        vec.reset()
        vec.set_state(states)
        assert vec.reset_infos == [{"episode_start": True}] * 2
        vec.step([0] * 2)
        assert vec.reset_infos == [{"episode_start": True}] * 2


class Another(CountingEnv):
    """Of another class."""


def test_a_first_row_that_is_due_beside_an_error() -> None:
    """The env that was put into its state gives this row next; the other one is reset."""
    fns = [partial(CountingEnv, tag, 2) for tag in range(2)]
    good, bad = async_states(fns)[0], async_states([partial(Another, 1, 2)])[0]
    with vecenvs.DummyVecEnv(fns, autoreset="async") as vec:
        vec.reset()
        with pytest.raises(vecenvs.EnvError, match="another kind of env") as caught:
            vec.set_state([good, bad])
        assert [each.index for each in caught.value.errors] == [1]
        vec.reset([1])
        rows: list[Any] = []
        while len(rows) < 5:
            obs, _, _, infos = vec.step([0] * 2)
            if "resetting" not in infos[0]:
                rows.append(obs[0, 1:].tolist())
        assert rows == [[2, 0], [2, 1], [2, 2], [3, 0], [3, 1]]


class Clock:
    """A batched env without infos, which resets all its envs at once. Action 1 fails."""

    num_envs = 2
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  # as Gymnasium's envs have it
    observation_space = spaces.Box(0, 99, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.t = np.zeros((2, 1))
        return self.t.copy(), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        if actions.any():
            raise ValueError("action 1")
        self.t += 1
        return self.t.copy(), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}

    def get_state(self, indices: list[int]) -> list[Any]:
        return [float(self.t[index, 0]) for index in indices]

    def set_state(self, states: list[Any], indices: list[int]) -> None:
        self.t[indices, 0] = states


def test_a_batched_env_whose_observations_bypass_the_columns() -> None:
    def step() -> Any:
        vec.step(np.zeros(2, np.int64))
        return vec.step(np.zeros(2, np.int64))[0]  # the first one after a reset writes them

    with vecenvs.DummyVecEnv([vecenvs.Batched(Clock, 2)], autoreset="next_step") as vec:
        vec.reset()
        step()
        states = vec.get_state()
        assert vec.set_state(states).tolist() == [[2], [2]]
        step()
        vec.set_state(states[:1], [0])
        assert vec.set_state(vec.get_state()).tolist() == [[2], [4]]
        assert step().tolist() == [[4], [6]]


def test_a_state_beside_envs_that_wait_for_a_reset_of_all() -> None:
    with vecenvs.DummyVecEnv([vecenvs.Batched(Clock, 2)], autoreset="next_step", on_error="reset") as vec:
        vec.reset()
        vec.step([0, 0])
        states = vec.get_state()
        assert vec.step([1, 0])[2].all()
        with pytest.raises(vecenvs.EnvError, match="Clock resets all its envs at once"):
            vec.set_state(states[:1], [0])
        vec.set_state(states)
        assert vec.step([0, 0])[0].tolist() == [[2], [2]]


def test_a_state_of_one_env_of_a_vec_env_inside() -> None:
    """The other one goes on."""
    inner = partial(vecenvs.DummyVecEnv, [StateEnv] * 2)
    with vecenvs.DummyVecEnv([vecenvs.Batched(inner, 2)]) as vec, inner() as bare:
        rows = []
        for each in (vec, bare):
            each.reset(seed=0)
            states = each.get_state()
            each.step([1, 1])
            rows.append([each.set_state(states[:1], [0]), each.step([1, 1])[0]])
        assert_same(rows[0], rows[1], "rows")


class Placed(gymnasium.Env[Any, Any]):
    """What `place` gives for the number of an episode, which is its seed, is the attribute `it`."""

    observation_space, action_space = spaces.Box(-99, 99, (2,), np.float64), spaces.Discrete(2)

    def __init__(self, place: Any = None) -> None:
        self.place = place

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.it = self.place(self, seed or 0)
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, False, {}


class Mode:
    """Two of them are globals here."""

    def __init__(self, name: str) -> None:
        self.name = name


IDLE, BUSY = Mode("idle"), Mode("busy")
SENTINEL = object()
GOALS = np.arange(8.0).reshape(4, 2)
ROWS = [np.full(3, float(number)) for number in range(4)]
LEVELS = {number: {"number": number, "walls": [number]} for number in range(4)}
MAPS = {(0, number): [number] for number in range(4)}
ADDED: dict[int, list[int]] = {}
BOARDS = [np.zeros(2) for _ in range(2)]
constants: Any = types.ModuleType("constants_of_test_states")
constants.__file__, constants.modes = __file__, [Mode("here"), Mode("there")]
sys.modules[constants.__name__] = constants


def own_goal(env: Any, number: int) -> Any:
    env.goals = GOALS.copy() if not hasattr(env, "goals") else env.goals
    return env.goals[number % 4]


PLACES: dict[str, Any] = {
    "a row of its own table": own_goal,
    "a row of a global": lambda _, number: GOALS[number % 4],
    "an item of a global": lambda _, number: ROWS[number % 4],
    "a dict in a global": lambda _, number: LEVELS[number % 4],
    "what is deep in a global": lambda _, number: LEVELS[number % 4]["walls"],
    "an item with a key that has parts": lambda _, number: MAPS[0, number % 4],
    "an item that is added later": lambda _, number: ADDED.setdefault(number, [number]),
    "an item of a module's global": lambda _, number: constants.modes[number % 2],
    "a flipped item": lambda _, number: np.flipud(ROWS[number % 4]),
    "a global object": lambda _, number: (IDLE, BUSY)[number % 2],
    "a global object or a number": lambda _, number: (SENTINEL, 7)[number % 2],
}


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("fresh", [False, True])
def test_what_other_episodes_refer_to_is_left_as_it_is(kind: str, fresh: bool) -> None:
    def told(value: Any) -> str:
        return repr(vars(value)) if isinstance(value, Mode) else repr(value)

    tables = [GOALS, *ROWS, LEVELS, MAPS, IDLE, BUSY, *constants.modes]
    before = [*map(told, tables)]
    ADDED.clear()
    with vecenvs.DummyVecEnv([partial(Placed, PLACES[kind])]) as vec:
        vec.reset(seed=0)
        other = vecenvs.DummyVecEnv([partial(Placed, PLACES[kind])]) if fresh else vec
        for number in range(4):
            vec.reset(seed=number)
            it, (state,) = vec.envs[0].it, vec.get_state()
            for other_number in range(4):
                if not fresh:
                    other.reset(seed=other_number)
                trusted = number % 2 or fresh or kind == "a global object or a number"  # which has to be made, or taken
                other.set_state(state if trusted else dataclasses.replace(state, trusted=False))
                found = other.envs[0].it
                assert told(found) == told(it) if type(it) is not object else found is it
                assert found is it or type(it) is not Mode
        if kind == "a row of its own table":
            assert (other.envs[0].goals == GOALS).all()
        other.close()
    assert [*map(told, tables)] == before
    assert all(value == [number] for number, value in ADDED.items())


def test_a_global_by_chance() -> None:
    """One of two envs has what is global, as a loop's last value is: each keeps its own."""
    own, IDLE.name = Mode("own"), "idle"
    with vecenvs.DummyVecEnv([partial(Placed, lambda *_, it=it: it) for it in (own, IDLE)]) as vec:
        vec.reset()
        vec.set_state(vec.get_state([1]) * 2)
        assert [env.it for env in vec.envs] == [own, IDLE]
        assert own.name == "idle"


class Playing(Placed):
    """Counts its steps on a board, which is in a global list, too: a script may have made its envs like that."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.board = BOARDS[self.place]
        self.board[:] = 0
        return self.board.copy(), {}

    def step(self, action: Any) -> Any:
        self.board += 1
        return self.board.copy(), 0.0, False, False, {}


def test_items_of_tables_are_not_shared() -> None:
    with vecenvs.DummyVecEnv([partial(Playing, slot) for slot in range(2)]) as vec:
        vec.reset()
        for number in range(3):
            vec.set_state(vec.get_state([number % 2]) * 2)
            assert vec.step([0, 0])[0].tolist() == [[number + 1.0] * 2] * 2


def test_an_item_that_was_replaced() -> None:
    """As in a pool of levels: the one that is there now is left as it is, also for the env that plays it."""
    pool = ROWS[:]
    with vecenvs.DummyVecEnv([partial(Placed, PLACES["an item of a global"])] * 2) as vec:
        vec.reset(seed=0)
        states = vec.get_state([0])
        try:
            ROWS[0] = np.full(3, 50.0)
            vec.reset(seed=[0, 1])
            vec.set_state(states, [1])
            assert [env.it[0] for env in vec.envs] == [50.0, 0.0]
            vec.set_state(states, [0])
            assert [env.it[0] for env in vec.envs] == [0.0, 0.0]
            assert ROWS[0].tolist() == [50.0] * 3
        finally:
            ROWS[:] = pool


@pytest.mark.parametrize(
    "node",
    [
        ["g", "typing", ["__builtins__", "exec"], ["k"]],
        ["g", "typing", [], ["d", {}]],
        ["g", "typing", ["__builtins__"], ["d", {}]],
        ["g", "typing", ["__builtins__", "exec"], ["o", "builtins:object", {}]],
        ["g", "typing", 3, ["d", {}]],
        ["V", ["A", ["t", 1], "text"], np.empty(0, np.int64), [1], [8], 0],
        ["V", 3, np.empty(0, np.int64), [1], [8], 0],
    ],
    ids=lambda node: str(node[:2]),
)
def test_what_a_file_may_not_have(node: Any) -> None:
    import typing

    names = [*vars(typing)]
    with vecenvs.DummyVecEnv([partial(gymnasium.make, "CartPole-v1")]) as vec:
        vec.reset()
        state = pickle.loads(pickle.dumps(vec.get_state()[0]))
        state.data[2]["close"] = node
        with contextlib.suppress(vecenvs.StateError):
            vec.set_state(dataclasses.replace(state, trusted=False))
        close = vec.envs[0].close
        assert isinstance(close, types.MethodType) or not callable(close)
        vec.envs[0].__dict__.pop("close", None)
    assert [*vars(typing)] == names


class Following(Placed):
    """Its last position is a view of all of the present one until it steps."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.now = np.zeros(2)
        self.before = self.now[::-1] if (seed or 0) % 2 else self.now[:]
        return self.now.copy(), {}

    def step(self, action: Any) -> Any:
        self.before = self.now.copy()
        self.now += 1
        return self.now + 100 * self.before, 0.0, False, False, {}


@pytest.mark.parametrize("seed", [0, 1])
def test_two_arrays_where_there_is_one(seed: int) -> None:
    with vecenvs.DummyVecEnv([Following]) as vec, vecenvs.DummyVecEnv([Following]) as other:
        vec.reset()
        vec.step([0])
        states = vec.get_state()
        for each in (other, vec):
            each.reset(seed=seed)
            each.set_state(states)
            assert (each.envs[0].before.tolist(), each.envs[0].now.tolist()) == ([0, 0], [1, 1])


@pytest.mark.parametrize("trusted", [False, True])
def test_values_of_classes_in_c(trusted: bool) -> None:
    def place(_: Any, number: int) -> Any:
        return [timedelta(number), types.SimpleNamespace(number=number), datetime(2000 + number, 1, 1)]

    with vecenvs.DummyVecEnv([partial(Placed, place)]) as vec:
        vec.reset(seed=3)
        (state,) = vec.get_state()
        vec.reset(seed=4)
        vec.set_state(dataclasses.replace(state, trusted=trusted))
        assert vec.envs[0].it == place(None, 3)


class Halves(Placed):
    """Two halves of numbers that are no attribute, of which a closure tells."""

    def __init__(self) -> None:
        numbers = np.zeros(2)
        self.first, self.second, self.told = numbers[:1], numbers[1:], lambda: numbers.copy()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.first[:] = self.second[:] = 0
        return self.told(), {}

    def step(self, action: Any) -> Any:
        self.first += 1
        self.second += self.first
        return self.told(), 0.0, False, False, {}


class Rows(Placed):
    """Its top is a part of its grid, as far as it knows: both are views of what NumPy has made first."""

    def __init__(self) -> None:
        self.grid = np.arange(4.0).reshape(2, 2)
        self.top = self.grid[0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.grid[:] = 0
        return self.grid[0].copy(), {}

    def step(self, action: Any) -> Any:
        self.top += 1
        return self.grid[0].copy(), 0.0, False, False, {}


@pytest.mark.parametrize("kind", [Halves, Rows])
def test_views_of_what_is_no_attribute(kind: Any) -> None:
    with vecenvs.DummyVecEnv([kind]) as vec, vecenvs.DummyVecEnv([kind]) as other:
        vec.reset()
        vec.step([0])
        states = vec.get_state()
        rows = [vec.step([0])[0].tolist() for _ in range(3)]
        for each in (vec, other):
            each.set_state(states)
            assert [each.step([0])[0].tolist() for _ in range(3)] == rows


class Turned(Placed):
    """Sums up an array whose memory has an order of its own, which a seed chooses."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        axes = [(0, 1, 2), (2, 1, 0), (1, 2, 0)][(seed or 0) % 3]
        made = np.random.default_rng(1).random((40, 50, 60)) - 0.5
        self.numbers = np.empty([(40, 50, 60)[axis] for axis in axes]).transpose(np.argsort(axes))
        self.numbers[...] = made
        self.part = self.numbers[1:3, 2]
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        self.part += 1.0
        return np.array([self.numbers.sum(), self.part.sum()]) % 100, 0.0, False, False, {}


@pytest.mark.parametrize("through_a_file", [False, True])
def test_sums_have_their_last_bits(through_a_file: bool, tmp_path: Path) -> None:
    with vecenvs.DummyVecEnv([Turned]) as vec, vecenvs.DummyVecEnv([Turned]) as other:
        for seed in range(3):
            vec.reset(seed=seed)
            if through_a_file:
                vecenvs.state.save(vec, tmp_path / "s.npz")
            states = vec.get_state()
            rows = [vec.step([0])[0].tolist() for _ in range(2)]
            for number in range(3):
                other.reset(seed=number)
                if through_a_file:
                    vecenvs.state.load(other, tmp_path / "s.npz")
                else:
                    other.set_state(states)
                assert [other.step([0])[0].tolist() for _ in range(2)] == rows


class Viewing(Placed):
    """Its position is a part of its numbers, which move: forwards, or in Fortran's order, or the part comes first."""

    def __init__(self, order: str, first: bool) -> None:
        self.order, self.first = order, first

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        numbers = np.zeros((3, 4), order=self.order)  # type: ignore[call-overload]
        if self.first:
            self.position, self.numbers = numbers[1:, 2], numbers
        else:
            self.numbers, self.position = numbers, numbers[1:, 2]
        return self.position.copy(), {}

    def step(self, action: Any) -> Any:
        self.numbers += np.arange(12.0).reshape(3, 4)
        return self.position.copy(), 0.0, False, False, {}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("through_a_file", [False, True])
def test_views_stay_views(order: str, first: bool, begun: bool, through_a_file: bool) -> None:
    fns = [partial(Viewing, order, first)]
    with vecenvs.DummyVecEnv(fns) as one, vecenvs.DummyVecEnv(fns) as other:
        one.reset()
        one.step([0])
        if begun:
            other.reset()
        states = one.get_state()
        if through_a_file:
            packer = Packer()
            packed = json.loads(json.dumps(packer.packed(states[0].data)))
            states = [dataclasses.replace(states[0], data=unpacked(packed, b"".join(packer.parts)))]
        for _ in range(2):  # of which the second one is put into what the first one has made
            other.set_state(states)
        for _ in range(3):
            assert one.step([0])[0].tolist() == other.step([0])[0].tolist()


class Replayed(Placed):
    """Cannot be read. Its reset takes the level out of its options; its rewards have a gain, which is an attribute."""

    gain = 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.numbers = iter(range(99))
        self.level = (options or {"level": 0}).pop("level")
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2), self.gain * next(self.numbers) + self.level, False, False, {}


def test_a_replay_begins_with_the_options_and_attributes_of_its_episode() -> None:
    with (
        vecenvs.DummyVecEnv([Replayed], episode_seeds=True) as vec,
        vecenvs.DummyVecEnv([Replayed], episode_seeds=True) as other,
    ):
        vec.set_attr("gain", 10.0)
        vec.reset(options={"level": 7})
        vec.step([0])
        vec.step([0])
        states = vec.get_state()
        assert states[0].way == "replay"
        vec.set_attr("gain", 1.0)
        for each in (vec, other):
            for _ in range(2):
                each.set_state(states)
                assert each.step([0])[1].tolist() == [27.0]
        assert other.get_state()[0].way == "replay"


class Tuned(Replayed):
    """Its angle is set in degrees; a code can be set, and not be read."""

    @property
    def angle(self) -> float:
        return float(np.radians(self.gain))

    @angle.setter
    def angle(self, degrees: float) -> None:
        self.gain = degrees

    @property
    def code(self) -> Any:
        raise RuntimeError("secret")

    @code.setter
    def code(self, value: Any) -> None:
        pass


def test_attributes_of_a_replay_that_are_no_data() -> None:
    attributes = {"angle": 90.0, "code": 7, "bonus": lambda: 1, "folder": Path(), "game": iter(range(9))}
    with (
        vecenvs.DummyVecEnv([Tuned], episode_seeds=True) as vec,
        vecenvs.DummyVecEnv([Tuned], episode_seeds=True) as other,
    ):
        for name, value in attributes.items():
            vec.set_attr(name, value)
        vec.reset()
        vec.step([0])
        states = vec.get_state()
        assert states[0].way == "replay"
        for _ in range(2):
            vec.set_state(states)
            assert vec.step([0])[1].tolist() == [90.0]
            assert [vec.get_attr(name)[0] for name in ("bonus", "folder", "game")] == [*attributes.values()][2:]
        vec.set_attr("bonus", 7)
        vec.reset()
        vec.step([0])
        for _ in range(2):
            other.set_state(vec.get_state())
            assert other.step([0])[1].tolist() == [90.0]
            assert other.get_attr("bonus") == [7]


def test_options_of_a_replay_that_are_no_data() -> None:
    with vecenvs.DummyVecEnv([Replayed], episode_seeds=True) as vec:
        vec.reset(options={"level": 7, "other": iter([])})
        with pytest.raises(vecenvs.StateError, match="the options or actions of its episode"):
            vec.get_state()


class OwnState(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells its state itself."""

    def __init__(self) -> None:
        super().__init__(Placed(lambda env, _: env.np_random))

    def get_state(self) -> Any:
        return self.env.unwrapped.np_random.bit_generator.state  # type: ignore[attr-defined]

    def set_state(self, state: Any) -> None:
        self.env.unwrapped.np_random.bit_generator.state = state  # type: ignore[attr-defined]


def test_a_wrapper_that_tells_its_state() -> None:
    with vecenvs.DummyVecEnv([OwnState]) as vec:
        vec.reset()
        states, first = vec.get_state(), vec.envs[0].unwrapped.np_random.random(3)
        vec.set_state(states)
        assert (vec.envs[0].unwrapped.np_random.random(3) == first).all()


class Machine(Placed):
    def __init__(self) -> None:
        super().__init__(lambda env, _: env.__fly)

    def __fly(self) -> str:
        return "flies"


def test_methods_with_private_names() -> None:
    with vecenvs.DummyVecEnv([Machine]) as vec, vecenvs.DummyVecEnv([Machine]) as other:
        vec.reset()
        other.set_state(vec.get_state())
        assert other.envs[0].it() == "flies"
        assert other.envs[0].it.__self__ is other.envs[0]


def test_what_refers_to_what_is_made_after_it() -> None:
    """It is an error, not None."""

    def in_a_ring(_: Any, __: int) -> Any:
        mode = Mode("ring")
        mode.name = frozenset([mode])  # type: ignore[assignment]
        return mode.name

    with vecenvs.DummyVecEnv([partial(Placed, in_a_ring)]) as vec:
        vec.reset()
        with pytest.raises(vecenvs.StateError, match="made after it"):
            vec.set_state(vec.get_state())


def test_private_names_in_a_file_of_somebody_else() -> None:
    """They stand at the same place."""
    with vecenvs.DummyVecEnv([Machine]) as vec, vecenvs.DummyVecEnv([Machine]) as other:
        vec.reset()
        other.reset()
        other.set_state(dataclasses.replace(vec.get_state()[0], trusted=False))
        assert other.envs[0].it.__self__ is other.envs[0]
