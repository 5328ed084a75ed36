"""Observations that are not of their space, rewards that are no numbers: an error of their env, never another value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from vecenvs.errors import EnvError
from vecenvs.testing.envs import BadObservationEnv, CountingEnv
from vecenvs.testing.suite.base import Conformance, Make


class WithinDict(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Gives observations as {"counts": ...}."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"counts": env.observation_space})

    def observation(self, observation: Any) -> Any:
        return {"counts": observation}


class FrameEnv(CountingEnv):
    """Shows frames of 80 x 80 bytes. Those of its steps are of another dtype, as if it had scaled them."""

    def __init__(self, tag: int = 0) -> None:
        super().__init__(tag)
        self.observation_space: Any = spaces.Box(0, 255, (80, 80), np.uint8)

    def _observe(self) -> Any:
        return np.full((80, 80), 0.5) if self.t else np.zeros((80, 80), np.uint8)


class OddEnv(CountingEnv):
    """Gives, by `odd`, what does not fit: a "reward" or "both" in step 1, an observation in the second "reset"."""

    def __init__(self, tag: int, odd: str, length: int = 5) -> None:
        super().__init__(tag, length)
        self.odd = odd

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(**given)
        return (np.zeros(9) if self.odd == "reset" and self.episode == 2 else obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        odd = self.odd if self.steps == 1 else ""
        return (
            np.zeros(9) if odd == "both" else obs,
            "much" if odd in ("reward", "both") else reward,
            terminated,
            truncated,
            info,
        )


class OldGymEnv(CountingEnv):
    """Speaks as Gym did before 0.26, in what `old` says: "seed", "reset" or "step". Shows `size` numbers."""

    def __init__(self, tag: int, old: str, size: int) -> None:
        super().__init__(tag)
        self.observation_space: Any = spaces.Box(0, 99, (size,), np.int64)
        if old == "seed":
            self.reset = self._observe  # type: ignore[method-assign, assignment]
        self.old = old

    def reset(self, **given: Any) -> Any:
        obs, info = super().reset(**given)
        return obs if self.old == "reset" else (obs, info)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return (obs, reward, terminated or truncated, info) if self.old == "step" else (obs, reward, False, False, info)

    def _observe(self) -> Any:
        return super()._observe()[: self.observation_space.shape[0]]


class NoOptionsEnv(CountingEnv):
    """Its reset takes a seed and nothing else, which is enough for Stable-Baselines3."""

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class Unpacking(CountingEnv):
    """Fails by a mistake of its own."""

    def step(self, action: Any) -> Any:
        result: Any = super().step(action)
        _, _, _, _, _ = result[:4]


def make_within_dict(make_env: Callable[[], gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
    return WithinDict(make_env())


class MisfitConformance(Conformance):
    """EnvError for observations and rewards that do not fit."""

    def test_observations_of_the_wrong_shape(self, make: Make) -> None:
        vec = make([functools.partial(BadObservationEnv, tag, 2 if tag == 1 else 99) for tag in range(4)])
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(EnvError, match="shape") as caught:
            vec.step([0] * 4)
        assert caught.value.index == 1
        assert caught.value.batch is not None
        assert caught.value.batch.obs.tolist() == [[0, 1, 2], [2, 1, 2], [3, 1, 2]]

    @pytest.mark.parametrize("nested", [False, True])
    def test_wrong_shapes_that_make_up_for_each_other(self, make: Make, nested: bool) -> None:
        """4 + 2 values where 3 + 3 belong must not be stored as if they fitted."""
        fns: list[Any] = [functools.partial(BadObservationEnv, tag, 1, size) for tag, size in enumerate((4, 2))]
        vec = make([functools.partial(make_within_dict, fn) for fn in fns] if nested else fns)
        vec.reset()
        with pytest.raises(EnvError, match="shape") as caught:
            vec.step([0, 0])
        assert [one.index for one in caught.value.errors] == [0, 1]

    def test_frames_of_another_dtype(self, make: Make) -> None:
        """Fractions are not cut to bytes."""
        vec = make([FrameEnv] * 2)
        vec.reset()
        with pytest.raises(EnvError, match="dtype") as caught:
            vec.step([0, 0])
        assert [one.index for one in caught.value.errors] == [0, 1]

    @pytest.mark.parametrize("mode", ["same_step", "next_step", "async", "disabled"])
    def test_an_odd_reward_at_an_end(self, make: Make, mode: str) -> None:
        """There is no such row, and no end: the env is refused until the caller resets it, and nobody else does."""
        vec = make([functools.partial(OddEnv, 0, "reward", 1), CountingEnv], autoreset=mode)
        vec.reset()
        with pytest.raises(EnvError, match="reward.*much") as caught:
            vec.step([0, 0])
        assert caught.value.index == 0
        assert not vec.terminated.any()
        assert vec.reset([0]).tolist() == [[0, 3 if mode == "same_step" else 2, 0]]

    def test_two_things_wrong_with_one_row(self, make: Make) -> None:
        """Are told as one error."""
        vec = make([functools.partial(make_within_dict, functools.partial(OddEnv, tag, "both")) for tag in range(4)])
        vec.reset()
        with pytest.raises(EnvError) as caught:
            vec.step([0] * 4)
        assert [one.index for one in caught.value.errors] == [0, 1, 2, 3]

    def test_an_autoreset_that_gives_a_misfit(self, make: Make) -> None:
        """No episode has begun: `reset_infos` is still of the one before."""
        vec = make([functools.partial(OddEnv, tag, "reset" if tag == 1 else "", 1) for tag in range(4)])
        vec.reset()
        with pytest.raises(EnvError, match="shape") as caught:
            vec.step([0] * 4)
        assert caught.value.index == 1
        assert [info["episode"] for info in vec.reset_infos] == [2, 1, 2, 2]

    @pytest.mark.parametrize("wrapped", [False, True])
    @pytest.mark.parametrize("old", ["seed", "reset", "step"])
    def test_envs_of_the_old_gym(self, make: Make, old: str, wrapped: bool) -> None:
        """Are told what is to be done, by whoever meets them first."""
        size = 3 if wrapped else 2  # which looks like (obs, info)
        fns: list[Any] = [functools.partial(OldGymEnv, tag, old, size) for tag in range(2)]
        vec = make([functools.partial(make_within_dict, fn) for fn in fns] if wrapped else fns)
        wanted = r"step\(self, action\) -> \(obs, rew" if old == "step" else r"reset\(self, \*, seed=None, opt"
        with pytest.raises(EnvError, match=f"{wanted}.* write it so, or put shimmy's") as caught:
            vec.reset(seed=0)
            vec.step([0, 0])
        assert [one.index for one in caught.value.errors] == [0, 1]

    def test_an_envs_own_mistake(self, make: Make) -> None:
        """Is not taken for the old interface."""
        vec = make([Unpacking])
        vec.reset()
        with pytest.raises(EnvError, match=r"expected 5, got 4") as caught:
            vec.step([0])
        assert "shimmy" not in str(caught.value)

    @pytest.mark.parametrize("mode", ["same_step", "next_step", "async"])
    def test_options_go_to_those_who_are_given_some(self, make: Make, mode: str) -> None:
        vec = make([functools.partial(NoOptionsEnv, tag, 2) for tag in range(2)], autoreset=mode)
        vec.reset(seed=3)
        for _ in range(6):
            vec.step([0, 0])
        assert min(vec.get_attr("episode")) > 1
        with pytest.raises(EnvError, match=r"'options'.* write it so"):
            vec.reset(options={"level": 1})
