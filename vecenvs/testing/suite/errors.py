"""An exception in an env: the env that it names, what is kept, what still works."""

from __future__ import annotations

import functools
import pickle
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecenvs.errors import EnvError, SpaceMismatch, VecEnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv, FailingEnv, SampledEnv, ToyError, UnpicklableEnv, counting_fns
from vecenvs.testing.suite.base import Conformance, Make


def failing_fns(bad: int, num_envs: int = 4, **kwargs: Any) -> list[Any]:
    """Return env functions of which env `bad` fails as `kwargs` say."""
    never = {"where": "never", "length": kwargs.get("length", 5)}
    return [functools.partial(FailingEnv, tag, **(kwargs if tag == bad else never)) for tag in range(num_envs)]


class UpTo(spaces.Space[int]):
    """A space of a user's own, equal to nothing but itself."""

    def __init__(self, highest: int) -> None:
        super().__init__()
        self.weights = np.linspace(0.0, 1.0, highest + 1)
        self.parts = {"low": [0], "high": (highest, spaces.Discrete(highest))}

    def sample(self, mask: Any = None, probability: Any = None) -> int:
        return int(self.np_random.integers(len(self.weights)))

    def contains(self, x: Any) -> bool:
        return 0 <= int(x) < len(self.weights)


def bounded(high: float, dtype: Any = np.float32, actions: int = 2) -> SampledEnv:
    """Return an env whose observations lie between 0 and `high`."""
    inside: Any = spaces.Box(0.0, high, (2,), dtype)
    return SampledEnv(spaces.Dict({"x": inside}), spaces.Discrete(actions))


class ErrorConformance(Conformance):
    """EnvError and SpaceMismatch."""

    @pytest.mark.parametrize("bad", [0, 2, 3])
    def test_a_step_that_raises(self, make: Make, bad: int) -> None:
        vec = make(failing_fns(bad, where="step", at=3))
        vec.reset(seed=0)
        vec.step([0] * 4)
        vec.step([0] * 4)
        with pytest.raises(EnvError, match=f"env {bad}") as caught:
            vec.step([0, 1, 2, 1])
        error = caught.value
        assert error.index == bad
        assert [one.index for one in error.errors] == [bad]
        assert "ToyError" in error.remote_traceback
        assert "_act" in error.remote_traceback
        assert f"env {bad} failed in step" in str(error), "shown without asking for it"
        assert isinstance(error.__cause__, ToyError)
        assert str(error.__cause__) == f"env {bad} failed in step"
        others = [tag for tag in range(4) if tag != bad]
        assert error.batch is not None
        assert list(error.batch.indices) == others
        assert_same(error.batch.obs[:, 0].tolist(), others)
        assert error.batch.obs[:, 2].tolist() == [3] * 3
        assert error.batch.rewards.tolist() == [3 + tag / 8 for tag in others]
        assert not error.batch.terminated.any()
        assert not error.batch.truncated.any()
        assert not error.batch.dones.any()
        assert [info["tag"] for info in error.batch.infos] == others
        assert [actions[2:] for actions in vec.get_attr("actions", others)] == [[[0, 1, 2, 1][tag]] for tag in others]

    @pytest.mark.parametrize("autoreset", ["same_step", "async"])
    def test_rewards_beside_an_env_that_raises(self, make: Make, autoreset: str) -> None:
        """`rewards64` has them, in every mode."""
        vec = make(failing_fns(2, where="step", at=2), autoreset=autoreset)
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(EnvError):
            vec.step([0] * 4)
        assert vec.rewards64[[0, 1, 3]].tolist() == [2.0, 2.125, 2.375]

    @pytest.mark.parametrize("at", [1, 2])
    def test_a_reset_that_raises(self, make: Make, at: int) -> None:
        """Its env is not stepped before another one that does not."""
        vec = make(failing_fns(3, where="reset", at=at))
        if at == 2:
            vec.reset()
            vec.step([0] * 4)
        with pytest.raises(EnvError, match="env 3 failed in reset") as caught:
            vec.reset(seed=0)
        assert caught.value.index == 3
        assert isinstance(caught.value.__cause__, ToyError)
        with pytest.raises(EnvError, match=r"env 3\b.*reset\(\[3\]\) it first"):
            vec.step([0] * 4)
        vec.reset([3])
        assert vec.step([0] * 4)[0][:, 2].tolist() == [2, 2, 2, 1]

    @pytest.mark.parametrize("mode", ["same_step", "next_step"])
    def test_an_autoreset_that_raises(self, make: Make, mode: str) -> None:
        vec = make(failing_fns(1, where="reset", at=2, length=2), autoreset=mode)
        vec.reset()
        vec.step([0] * 4)
        if mode == "next_step":
            vec.step([0] * 4)
        with pytest.raises(EnvError, match="env 1 failed in reset") as caught:
            vec.step([0] * 4)
        assert caught.value.index == 1
        vec.reset([1])
        assert vec.step([0] * 4)[0][:, 2].tolist() == [1] * 4

    @pytest.mark.parametrize("kind", ["awkward", "unpicklable", "exit", "cancelled"])
    def test_exceptions_that_do_not_travel(self, make: Make, kind: str) -> None:
        vec = make(failing_fns(1, where="step", kind=kind))
        vec.reset()
        with pytest.raises(EnvError, match="env 1 failed in step") as caught:
            vec.step([0] * 4)
        assert caught.value.index == 1
        name = {"exit": "SystemExit", "cancelled": "CancelledError"}.get(kind, "Error")
        assert f"{name}: env 1 failed in step" in caught.value.remote_traceback
        assert name in str(caught.value)
        assert caught.value.__cause__ is not None
        vec.reset([1])
        vec.step([0] * 4)

    def test_an_env_that_cannot_be_made(self, make: Make) -> None:
        """The error names it, and nothing half-started stays behind (the fixture no_leaks looks)."""
        with pytest.raises(EnvError, match="env 2 failed in init") as caught:
            make(failing_fns(2, where="init"))
        assert caught.value.index == 2
        assert isinstance(caught.value.__cause__, ToyError)

    def test_envs_made_before_it_are_closed(self, make: Make, tmp_path: Any) -> None:
        closed = tmp_path / "closed"
        fns = [*counting_fns(2, closed_file=closed), functools.partial(FailingEnv, 2, "init")]
        with pytest.raises(EnvError):
            make(fns)
        assert sorted(closed.read_text().split()) == ["0", "1"]

    def test_env_functions_that_are_none(self, make: Make) -> None:
        with pytest.raises((TypeError, ValueError), match="env"):
            make([CountingEnv()])
        with pytest.raises((TypeError, ValueError), match="env"):
            make([])
        with pytest.raises((VecEnvError, TypeError), match=r"env 1\b"):
            make([CountingEnv, dict])

    def test_env_functions_that_do_not_pickle(self, make: Make) -> None:
        """They run where nothing is pickled. Elsewhere they are refused, with the index of the env."""
        lock = threading.Lock()

        def fn() -> CountingEnv:
            assert lock is not None
            return CountingEnv(1)

        try:
            vec = make([CountingEnv, fn])
        except (VecEnvError, TypeError, ValueError, pickle.PicklingError) as error:
            assert "env_fns[1]" in str(error) or "env 1" in str(error)
            assert "pickle" in str(error)
        else:
            assert vec.get_attr("tag") == [0, 1]

    def test_closures_and_lambdas_travel(self, make: Make) -> None:
        vec = make([lambda tag=tag: CountingEnv(tag) for tag in (5, 6)])
        assert vec.get_attr("tag") == [5, 6]

    def test_spaces_that_differ(self, make: Make) -> None:
        odd_obs, odd_action = spaces.Discrete(3), spaces.Discrete(4)
        normal = functools.partial(SampledEnv, spaces.Discrete(2), spaces.Discrete(2))
        for which, odd in {
            "observation_space": functools.partial(SampledEnv, odd_obs, spaces.Discrete(2)),
            "action_space": functools.partial(SampledEnv, spaces.Discrete(2), odd_action),
        }.items():
            for index in (1, 3):
                fns = [odd if i == index else normal for i in range(4)]
                with pytest.raises(SpaceMismatch, match=f"env {index}.*{which}") as caught:
                    make(fns)
                assert caught.value.index == index

    def test_bounds_that_differ(self, make: Make) -> None:
        """They are refused, unless they may differ: then the VecEnv's space is that of env 0."""
        fns = [functools.partial(bounded, 1.0 + tag) for tag in range(4)]
        with pytest.raises(SpaceMismatch, match=r"env 1 .*observation_mode='different'"):
            make(fns)
        vec = make(fns, observation_mode="different")
        assert vec.observation_space == bounded(1.0).observation_space
        assert [space["x"].high[0] for space in vec.get_attr("observation_space")] == [1, 2, 3, 4]
        vec.reset(seed=0)
        vec.step([0] * 4)
        for odd, which in ((bounded(1.0, np.float64), "observation_space"), (bounded(1.0, actions=3), "action_space")):
            with pytest.raises(SpaceMismatch, match=f"env 3 has {which}"):
                make([*fns[:3], lambda odd=odd: odd], observation_mode="different")

    def test_an_env_given_twice(self, make: Make) -> None:
        """It is a ValueError in one process, as in SB3, also if each function wraps it anew."""
        env = CountingEnv()
        try:
            vec = make([lambda: gymnasium.Wrapper(env), lambda: gymnasium.Wrapper(env)])
        except ValueError as error:
            assert isinstance(error, EnvError)
            assert error.index == 1
            assert "new gymnasium.Env each time" in str(error)
        else:
            assert vec.stats()["num_workers"] == 2  # each has a copy

    @pytest.mark.parametrize("nested", [False, True])
    def test_spaces_of_a_class_without_eq(self, make: Make, nested: bool) -> None:
        """Spaces that each env makes for itself are equal if their attributes are."""

        def fn(highest: int) -> Any:
            custom: spaces.Space[Any] = UpTo(highest)
            custom.seed(highest)
            space = spaces.Dict({"a": spaces.Tuple([custom])}) if nested else custom
            return SampledEnv(space, spaces.Discrete(2))

        vec = make([functools.partial(fn, 3) for _ in range(4)])
        vec.reset(seed=0)
        vec.step([0] * 4)
        for index in (1, 3):
            with pytest.raises(SpaceMismatch, match=f"env {index}.*observation_space.*__eq__"):
                make([functools.partial(fn, 4 if i == index else 3) for i in range(4)])

    def test_infos_that_do_not_pickle(self, make: Make) -> None:
        """They arrive where nothing is pickled. Elsewhere an error names the env, and the VecEnv stays usable."""
        vec = make([functools.partial(UnpicklableEnv, tag, 2 if tag == 1 else 99) for tag in range(3)])
        vec.reset()
        vec.step([0] * 3)
        try:
            infos = vec.step([0] * 3)[3]
        except EnvError as error:
            assert error.index == 1
            assert "pickle" in str(error)
            vec.reset([1])
        else:
            assert hasattr(infos[1]["lock"], "acquire")
        assert vec.step([0] * 3)[0][[0, 2], 2].tolist() == [3, 3]
