"""Batched envs made of single toy envs, so that their rows can be compared with those of the single ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.batched import Batched

EnvFn = Callable[[], Any]


class ArrayBatch:
    """A batched env of no class of Gymnasium's: `reset` and `step` over arrays, as simulators have it.

    It resets ended episodes in the same step, and keeps their last observations in the infos.

    Args:
        env_fns: the functions of the single envs. Their observations are arrays.
    """

    mode = AutoresetMode.SAME_STEP

    def __init__(self, env_fns: Sequence[EnvFn]) -> None:
        self._envs = SyncVectorEnv(env_fns, autoreset_mode=self.mode)
        self.num_envs = len(env_fns)
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self.speeds = np.arange(len(env_fns)) * 0.5
        self.closed = False

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes; return observations and infos, as Gymnasium's vector envs do."""
        return self._envs.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Step every env; return observations, rewards, terminated, truncated, infos."""
        return self._envs.step(actions)


KINDS: dict[str, tuple[str, Callable[[Sequence[EnvFn]], Any]]] = {
    "same_step": ("same_step", functools.partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP)),
    "next_step": ("next_step", functools.partial(SyncVectorEnv, autoreset_mode=AutoresetMode.NEXT_STEP)),
    "disabled": ("disabled", functools.partial(SyncVectorEnv, autoreset_mode=AutoresetMode.DISABLED)),
    "by_masks": ("same_step", functools.partial(SyncVectorEnv, autoreset_mode=AutoresetMode.DISABLED)),
    "arrays": ("same_step", ArrayBatch),
    "vec_env": ("same_step", DummyVecEnv),
    "vec_env_next": ("next_step", functools.partial(DummyVecEnv, autoreset="next_step")),
}
"""Kinds of batched envs: the autoreset mode in which a VecEnv steps them, and what makes one of single envs."""


def batched_fns(env_fns: Sequence[EnvFn], sizes: Sequence[int], kind: str = "same_step") -> list[Any]:
    """Divide functions of single envs into `Batched` ones of these sizes, of a kind of KINDS; 0 leaves one single."""
    found: list[Any] = []
    at = 0
    for size in sizes:
        part = list(env_fns[at : at + (size or 1)])
        at += len(part)
        found.append(Batched(functools.partial(KINDS[kind][1], part), size) if size else part[0])
    return found
