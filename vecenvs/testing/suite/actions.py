"""Which actions are accepted, how they reach the envs, and that a wrong batch is refused before anything is sent."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from vecenvs.testing.envs import NESTED, ActionKeepingEnv, CountingEnv, SampledEnv, counting_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.vec_env import VecEnv

WRONG_DISCRETE: dict[str, Any] = {
    "too few": [0, 1],
    "too many": [0, 1, 2, 0, 1],
    "array too short": np.zeros(3, np.int64),
    "array too deep": np.zeros((4, 1), np.int64),
    "fractions": [0.5, 0.0, 0.0, 0.0],
    "whole floats": [1.0, 0.0, 0.0, 0.0],
    "strings": ["a", "b", "c", "d"],
    "none": None,
    "one none": [0, 1, None, 0],
    "a number": 1,
    "ragged": [0, [1, 2], 0, 0],
}
WRONG_BOX: dict[str, Any] = {
    "too few": np.zeros((3, 2), np.float32),
    "too wide": np.zeros((4, 3), np.float32),
    "flat": np.zeros(8, np.float32),
    "complex": np.zeros((4, 2), np.complex64),
    "ragged": [[0.0, 0.0], [0.0], [0.0, 0.0], [0.0, 0.0]],
    "objects": np.array([[object()] * 2] * 4),
    "beyond float32": np.array([[0.5, 1e39]] * 4),
}


NUMBER = spaces.Box(-1, 1, (), np.float32)
GIVEN: dict[str, tuple[spaces.Space[Any], Any]] = {
    "box of no axis": (NUMBER, np.array([0.5, -0.25], np.float32)),
    "box of no axis, float64": (spaces.Box(-1, 1, (), np.float64), np.array([1 / 3, -1.0])),
    "box of no axis, uint8": (spaces.Box(0, 255, (), np.uint8), np.array([7, 255], np.uint8)),
    "box": (spaces.Box(-1, 1, (1,), np.float32), np.array([[0.5], [0.25]], np.float32)),
    "discrete": (spaces.Discrete(3), np.array([2, 1])),
    "multi-binary": (spaces.MultiBinary(2), np.array([[0, 1], [1, 1]], np.int8)),
    "multi-discrete": (spaces.MultiDiscrete([3, 2]), np.array([[2, 1], [0, 1]])),
    "dict": (spaces.Dict(a=NUMBER, b=spaces.Discrete(3)), {"a": np.array([0.5, 0.25], np.float32), "b": np.arange(2)}),
    "tuple": (spaces.Tuple([NUMBER]), (np.array([0.5, 0.25], np.float32),)),
}


class WitnessEnv(CountingEnv):
    """An env with the kinds of values of its actions in `seen`."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        super().__init__()
        self.action_space: Any = action_space
        self.seen: list[str] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        leaves = [*action.values()] if isinstance(action, dict) else action if isinstance(action, tuple) else [action]
        for leaf in leaves:
            self.seen.append(f"{type(leaf).__name__} {leaf.dtype} {leaf.shape} {leaf.tobytes().hex()}")
        return super().step(0)


class ActionConformance(Conformance):
    """Actions are checked before they are sent."""

    @pytest.mark.parametrize("case", WRONG_DISCRETE)
    def test_wrong_discrete_actions(self, make: Make, case: str) -> None:
        vec = make(counting_fns(4))
        vec.reset()
        vec.step([0, 0, 0, 0])
        refuses(vec, WRONG_DISCRETE[case])
        assert vec.get_attr("steps") == [1] * 4, "nothing was sent"
        obs, *_ = vec.step([0, 1, 2, 0])
        assert obs[:, 2].tolist() == [2] * 4

    @pytest.mark.parametrize("case", WRONG_BOX)
    def test_wrong_box_actions(self, make: Make, case: str) -> None:
        vec = make([ActionKeepingEnv] * 4)
        vec.reset()
        refuses(vec, WRONG_BOX[case])
        vec.step(np.zeros((4, 2), np.float32))

    def test_wrong_nested_actions(self, make: Make) -> None:
        vec = make([functools.partial(SampledEnv, NESTED, NESTED)] * 2)
        vec.reset(seed=0)
        action = vec.action_space.sample()
        refuses(vec, [action, {key: action[key] for key in ("image", "inner")}])
        refuses(vec, [action, {**action, "more": 1}])
        refuses(vec, [action, {**action, "pair": action["pair"][:1]}])
        refuses(vec, [action, {**action, "image": action["image"][:2]}])
        refuses(vec, action)
        vec.step([action, action])

    def test_a_number_for_all(self, make: Make) -> None:
        """A single action is a TypeError, as with Gymnasium and SB3, also for one env."""
        for n in (1, 4):
            vec = make(counting_fns(n))
            vec.reset()
            with pytest.raises(TypeError, match=f"actions must be a batch, one row for each of {n} envs, not 0"):
                vec.step(0)

    def test_no_actions_for_no_envs(self, make: Make) -> None:
        """An empty list has no dtype of its own."""
        vec = make(counting_fns(2))
        vec.reset()
        vec.send([], [])
        vec.send([1], [1])
        assert vec.recv().indices.tolist() == [1]

    def test_list_and_batch_mean_the_same(self, make: Make) -> None:
        for batch in ([0, 1, 2, 1], np.array([0, 1, 2, 1]), np.array([0, 1, 2, 1], np.int32), [np.int64(0), 1, 2, 1]):
            vec = make(counting_fns(4))
            vec.reset()
            vec.step(batch)
            assert [int(actions[0]) for actions in vec.get_attr("actions")] == [0, 1, 2, 1]
            assert vec.get_attr("kinds") == [["int64:int64"]] * 4, "scalars of the space's dtype"

    def test_box_actions_come_as_the_space_says(self, make: Make) -> None:
        """A float64 policy output becomes the space's float32, without a change of the caller's array."""
        vec = make([functools.partial(SampledEnv, spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32))] * 2)
        wide, narrow = np.full((2, 2), 1 / 3), np.full((2, 2), 1 / 3, np.float32)
        vec.reset(seed=0)
        first = vec.step(narrow)[1]
        vec.reset(seed=0)
        second = vec.step(wide)[1]
        assert first.tolist() == second.tolist()
        assert wide.dtype == np.float64

    @pytest.mark.parametrize("case", GIVEN)
    @pytest.mark.parametrize("way", ["step", "send"])
    def test_envs_get_what_gymnasium_gives_them(self, make: Make, way: str, case: str) -> None:
        """Actions arrive bit for bit and with their types: for a Box of shape () a NumPy scalar, not an array."""
        space, batch = GIVEN[case]
        vec = make([functools.partial(WitnessEnv, space)] * 2)
        vec.reset()
        if way == "step":
            vec.step(batch)
        else:
            vec.send(batch)
            vec.recv(2)
        assert vec.get_attr("seen") == list(witnesses(space, batch))


def witnesses(space: spaces.Space[Any], batch: Any) -> Any:
    """Return the actions that the envs of Gymnasium's SyncVectorEnv receive from a batch."""
    vector_env = SyncVectorEnv([functools.partial(WitnessEnv, space)] * 2)
    vector_env.reset()
    vector_env.step(batch)
    return vector_env.get_attr("seen")


def refuses(vec: VecEnv, actions: Any) -> None:
    """Check that `step` and `send` refuse `actions`, and that nothing is pending afterwards."""
    with pytest.raises((ValueError, TypeError), match="action|value"):
        vec.step(actions)
    with pytest.raises((ValueError, TypeError), match="action|value"):
        vec.step_async(actions)
