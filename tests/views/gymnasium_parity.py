"""Shared parts of the Gymnasium view's tests: envs, pairs of vector envs, and their comparison."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from vecenvs.batch.layout import SpaceLayout
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import SampledEnv
from vecenvs.views import as_gymnasium

MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}

Fns = Sequence[Callable[[], gym.Env[Any, Any]]]
AnyVectorEnv = VectorEnv[Any, Any, Any]


def sampled_fns(space: spaces.Space[Any], action_space: spaces.Space[Any] | None = None, n: int = 3) -> Fns:
    """Return functions that make random envs over these spaces; each env has its own copies of the spaces."""
    return [functools.partial(sampled, space, action_space) for _ in range(n)]


def sampled(space: spaces.Space[Any], action_space: spaces.Space[Any] | None) -> SampledEnv:
    return SampledEnv(space, copy.deepcopy(action_space))


class InfoEnv(gym.Env[Any, Any]):
    """An env whose infos hold everything that infos hold in the wild, some keys only now and then.

    What env `tag` says at step t depends on (tag, t) alone; episodes last 3 + tag steps and are truncated if odd.
    """

    def __init__(self, tag: int) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.tag, self.t, self.episode = tag, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.episode += 1
        info: dict[str, Any] = {"episode": self.episode, "seed": str(seed), "options": options or {}}
        if self.tag != 1:
            info["only_at_reset"] = np.arange(3.0)
        return self._observe(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t >= 3 + self.tag
        t, tag = self.t, self.tag
        info: dict[str, Any] = {
            "int": t,
            "float": t / 3,
            "bool": t > 1,
            "text": f"{tag}:{t}",
            "none": None,
            "numpy": np.float32(t),
            "numpy_bool": np.bool_(t > 1),
            "array": np.full((2, 2), t, np.int16),
            "list": [t, "x"],
            "tuple": (t, tag),
            "nested": {"a": t, "deep": {"b": np.uint8(tag), "c": f"{t}"}},
        }
        if (t + tag) % 2:
            info["sometimes"] = np.int32(t)
            info["nested"]["sometimes"] = float(t)
        if tag == 2:
            info = {}
        return self._observe(), t / 7, over and not self.episode % 2, over and bool(self.episode % 2), info

    def scale(self, factor: float, *, offset: float = 0.0) -> float:
        return self.tag * factor + offset

    def _observe(self) -> Any:
        return np.array([self.tag, self.t], np.float32)


class ReservedKeysEnv(InfoEnv):
    """An env whose own infos have on every row the keys that a VecEnv adds."""

    RESERVED: ClassVar[dict[str, Any]] = {"terminal_observation": "own", "TimeLimit.truncated": "own"}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *row, info = super().step(action)
        return *row, {**info, **self.RESERVED}  # type: ignore[return-value]


def info_fns(n: int = 4) -> Fns:
    return [functools.partial(InfoEnv, tag) for tag in range(n)]


def sync(fns: Fns, mode: str) -> SyncVectorEnv[Any, Any]:
    return SyncVectorEnv(fns, autoreset_mode=MODES[mode])


def asynchronous(fns: Fns, mode: str, **kwargs: Any) -> AsyncVectorEnv[Any, Any]:
    return AsyncVectorEnv(fns, autoreset_mode=MODES[mode], **kwargs)


def ours(configuration: Any, fns: Fns, mode: str, **common: Any) -> Any:
    return as_gymnasium(configuration.make_vec(fns, autoreset=mode, **common))


def assert_parity(
    ours: AnyVectorEnv, theirs: AnyVectorEnv, *, steps: int = 25, seed: Any = 3, masks: bool | None = None
) -> int:
    """Reset and step both with the same actions; every value, dtype and type must agree. Closes both.

    Envs whose episode is over are reset by a mask where nothing else resets them (or by `masks`). Gives the number of
    episodes that ended.
    """
    assert ours.num_envs == theirs.num_envs
    try:
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        theirs.action_space.seed(seed if isinstance(seed, int) else 0)
        if masks is None:
            masks = theirs.metadata["autoreset_mode"] == AutoresetMode.DISABLED
        layout = SpaceLayout(theirs.single_observation_space)
        ended = 0
        assert_same(ours.reset(seed=seed), theirs.reset(seed=seed), "reset")
        for t in range(steps):
            action = theirs.action_space.sample()
            mine, other = ours.step(copy.deepcopy(action)), theirs.step(action)
            if "final_obs" in other[4]:  # ours are of the space's dtypes, theirs as the env gave them
                for i, final in enumerate(other[4]["final_obs"]):
                    other[4]["final_obs"][i] = None if final is None else layout.copied(final)
            assert_same(mine, other, f"step {t}")
            assert ours.observation_space.contains(mine[0]) == theirs.observation_space.contains(other[0])
            dones = other[2] | other[3]
            ended += int(dones.sum())
            if masks and dones.any():
                options = [{"reset_mask": dones.copy(), "level": t} for _ in range(2)]
                assert_same(ours.reset(options=options[0]), theirs.reset(options=options[1]), f"reset after step {t}")
        return ended
    finally:
        ours.close()
        theirs.close()
