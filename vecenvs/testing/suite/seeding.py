"""Which env gets which seed and options, and when."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.wrappers import TransformAction

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv, FailingEnv, counting_fns
from vecenvs.testing.suite.base import Conformance, Make


class NamingEnv(CountingEnv):
    """An env with the names of the arguments of each reset in `named`."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag, 1)
        self.named: list[list[str]] = []

    def reset(self, **given: Any) -> Any:
        self.named.append(sorted(given))
        return super().reset(**given)


class SamplingEnv(CountingEnv):
    """An env whose rewards are samples of its action space, its class's unless `own`; episodes of two steps."""

    action_space: Any = Discrete(1000)

    def __init__(self, tag: int, own: bool = True) -> None:
        super().__init__(tag, 2)
        del self.action_space
        if own:
            self.action_space = Discrete(1000)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, int(self.action_space.sample()), *rest


def sampling_fn(tag: int, own: bool = True) -> Any:
    """Make a SamplingEnv, whose odd ones have a wrapper with an action space of its own."""
    env = SamplingEnv(tag, own)
    return TransformAction(env, int, Discrete(1000)) if tag % 2 else env


def samples(seed: int, count: int) -> list[int]:
    """Return the first samples of the action space of a SamplingEnv."""
    space = Discrete(1000, seed=seed)
    return [int(space.sample()) for _ in range(count)]


class SeedingConformance(Conformance):
    """Seeds and options are applied at the next reset, then consumed."""

    def test_an_int_gives_each_env_its_own(self, make: Make) -> None:
        vec = make(counting_fns(4))
        vec.reset(seed=10)
        assert vec.get_attr("seeds") == [[10], [11], [12], [13]]
        vec.reset()
        assert vec.get_attr("seeds") == [[10, None], [11, None], [12, None], [13, None]]

    def test_a_list_gives_one_each(self, make: Make) -> None:
        vec = make(counting_fns(3))
        vec.reset(seed=[5, 3, 9])
        assert vec.get_attr("seeds") == [[5], [3], [9]]
        vec.reset(seed=[1, None, 2])
        assert vec.get_attr("seeds") == [[5, 1], [3, None], [9, 2]]
        vec.reset([2, 0], seed=[20, 21])
        assert [seeds[-1] for seeds in vec.get_attr("seeds")] == [21, None, 20]

    def test_an_int_on_some_indices_follows_the_env_index(self, make: Make) -> None:
        vec = make(counting_fns(4))
        vec.reset()
        vec.reset([3, 1], seed=100)
        assert [seeds[-1] for seeds in vec.get_attr("seeds")] == [None, 101, None, 103]

    def test_seed_waits_for_the_next_reset(self, make: Make) -> None:
        vec = make(counting_fns(3))
        vec.reset()
        vec.seed(7)
        assert vec.get_attr("seeds") == [[None]] * 3
        vec.reset()
        vec.reset()
        assert vec.get_attr("seeds") == [[None, 7, None], [None, 8, None], [None, 9, None]]

    def test_a_reset_that_fails_leaves_them_to_the_next_one(self, make: Make) -> None:
        vec = make([CountingEnv, functools.partial(FailingEnv, 1, "reset", at=2)])
        vec.reset()
        vec.seed(7)
        vec.set_options({"level": 3})
        with pytest.raises(EnvError, match="env 1 raised ToyError in reset"):
            vec.reset()
        vec.reset([1])
        assert vec.get_attr("seeds") == [[None, 7], [None, 8]]
        assert vec.get_attr("options") == [[None, {"level": 3}]] * 2

    @pytest.mark.parametrize("mode", ["same_step", "next_step", "async"])
    def test_autoresets_name_no_seed(self, make: Make, mode: str) -> None:
        """Like autoresets of SB3 and Gymnasium: some envs look for the argument. Other resets pass it."""
        vec = make([functools.partial(NamingEnv, tag) for tag in range(3)], autoreset=mode)
        vec.reset()
        while min(map(len, vec.get_attr("named"))) < 3:
            vec.step([0] * 3)
        assert [named[:3] for named in vec.get_attr("named")] == [[["seed"], [], []]] * 3
        vec.reset([1], options={"a": 1})
        assert vec.get_attr("named", 1)[0][-1] == ["options", "seed"]

    def test_autoresets_name_what_waits_for_them(self, make: Make) -> None:
        vec = make([functools.partial(NamingEnv, tag) for tag in range(3)])
        vec.reset()
        vec.seed([5, None, 6])
        vec.set_options([None, None, {"a": 1}])
        vec.step([0] * 3)
        assert vec.get_attr("named") == [[["seed"], ["seed"]], [["seed"], []], [["seed"], ["options", "seed"]]]
        assert vec.get_attr("seeds") == [[None, 5], [None, None], [None, 6]]

    def test_seed_is_kept_for_slots_not_reset(self, make: Make) -> None:
        vec = make(counting_fns(3))
        vec.reset()
        vec.seed([4, 5, 6])
        vec.reset([1])
        assert vec.get_attr("seeds") == [[None], [None, 5], [None]]
        vec.reset()
        assert vec.get_attr("seeds") == [[None, 4], [None, 5, None], [None, 6]]

    def test_reset_overrides_seed(self, make: Make) -> None:
        vec = make(counting_fns(2))
        vec.seed(7)
        vec.reset(seed=40)
        vec.reset()
        assert vec.get_attr("seeds") == [[40, None], [41, None]]

    def test_none_takes_back_what_was_set(self, make: Make) -> None:
        vec = make(counting_fns(3))
        vec.seed(4)
        vec.set_options({"a": 1})
        vec.seed(None)
        vec.reset()
        assert vec.get_attr("seeds") == [[None]] * 3
        assert vec.get_attr("options") == [[{"a": 1}]] * 3
        vec.seed(4)
        vec.set_options({"a": 1})
        vec.seed([None, 8, None])
        vec.set_options([None, {"b": 2}, None])
        vec.reset()
        assert [seeds[1:] for seeds in vec.get_attr("seeds")] == [[None], [8], [None]]
        assert [options[1:] for options in vec.get_attr("options")] == [[None], [{"b": 2}], [None]]
        vec.set_options({"a": 1})
        vec.set_options(None)
        vec.reset()
        assert [options[2:] for options in vec.get_attr("options")] == [[None]] * 3

    @pytest.mark.parametrize("way", ["reset", "seed", "autoreset"])
    def test_a_seed_seeds_the_action_space_too(self, make: Make, way: str) -> None:
        """Some envs sample from it. As over SyncVectorEnv and SB3's DummyVecEnv, whose action space is the env's."""
        vec = make([functools.partial(sampling_fn, tag, own=False) for tag in range(4)])
        vec.reset()
        for seed in (5, 6):
            if way == "reset":
                vec.reset(seed=seed)
            else:
                vec.seed(seed)
                for _ in range(2 if way == "autoreset" else 0):
                    vec.step([0] * 4)
                if way == "seed":
                    vec.reset()
            rewards = np.array([vec.step([0] * 4)[1] for _ in range(6)])
            assert rewards.T.tolist() == [samples(seed + env, 6) for env in range(4)]
        vec.reset([2], seed=[9])
        assert vec.step([0] * 4)[1][2] == samples(9, 1)[0]

    def test_seed_sequence_gives_independent_streams(self, make: Make) -> None:
        vec = make(counting_fns(4))
        with DummyVecEnv(counting_fns(4)) as reference:
            for entropy in (0, 1):
                vec.reset(seed=np.random.SeedSequence(entropy))
                reference.reset(seed=np.random.SeedSequence(entropy))
            expected = reference.get_attr("seeds")
        given = vec.get_attr("seeds")
        assert given == expected
        assert len({seed for seeds in given for seed in seeds}) == 8
        assert all(type(seed) is int for seeds in given for seed in seeds)

    @pytest.mark.parametrize("seed", [[1, 2], [1, 2, 3, 4], "seven", 1.5, -1, [1, -2, 3]])
    def test_wrong_seeds(self, make: Make, seed: object) -> None:
        vec = make(counting_fns(3))
        for give in (vec.seed, lambda seed: vec.reset(seed=seed)):
            with pytest.raises((ValueError, TypeError), match="seed"):
                give(seed)  # type: ignore[arg-type]
        vec.reset()
        assert vec.get_attr("seeds") == [[None]] * 3

    def test_numpy_seeds(self, make: Make) -> None:
        vec = make(counting_fns(2))
        vec.reset(seed=np.int64(3))  # type: ignore[arg-type]
        vec.reset(seed=[np.uint32(8), np.int32(9)])  # type: ignore[list-item]
        assert vec.get_attr("seeds") == [[3, 8], [4, 9]]

    def test_options_of_a_reset(self, make: Make) -> None:
        options = {"low": -1, "nested": {"a": np.arange(2)}}
        vec = make(counting_fns(3))
        vec.reset(options=options)
        vec.reset([1])
        assert_same(vec.get_attr("options"), [[options], [options, None], [options]])
        assert set(options) == {"low", "nested"}, "the caller's dict is not written to"

    def test_set_options_waits_for_the_next_reset(self, make: Make) -> None:
        vec = make(counting_fns(3))
        vec.set_options({"a": 1})
        vec.reset()
        vec.reset()
        assert vec.get_attr("options") == [[{"a": 1}, None]] * 3
        vec.set_options([{"b": i} for i in range(3)])
        vec.reset([2])
        vec.reset()
        assert [options[2:] for options in vec.get_attr("options")] == [[{"b": 0}], [{"b": 1}], [{"b": 2}, None]]

    def test_wrong_options(self, make: Make) -> None:
        vec = make(counting_fns(3))
        with pytest.raises((ValueError, TypeError), match="options"):
            vec.set_options([{"a": 1}])
        with pytest.raises((ValueError, TypeError), match="options"):
            vec.set_options("fast")  # type: ignore[arg-type]
