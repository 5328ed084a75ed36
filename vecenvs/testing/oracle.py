"""The plain loop: the reference for a VecEnv's rows, which shares no code with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import gymnasium

EnvFn = Callable[[], "gymnasium.Env[Any, Any]"]


class Row(NamedTuple):
    """The results of one env in a step, which share nothing with the env."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class PlainLoop:
    """Step envs one after another, by the rules of an autoreset mode.

    Args:
        env_fns: one env function per env.
        autoreset: "same_step", "next_step" or "disabled".

    Attributes:
        envs: the envs.
        reset_infos: as in VecEnv.
    """

    def __init__(self, env_fns: Sequence[EnvFn], autoreset: str = "same_step") -> None:
        self.envs = [fn() for fn in env_fns]
        self.autoreset = autoreset
        self.reset_infos: list[dict[str, Any]] = [{} for _ in env_fns]
        self._ended = [False for _ in env_fns]

    def reset(
        self,
        indices: Iterable[int] | None = None,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Reset all envs or those of `indices`.

        Args:
            indices: the envs to reset; None for all.
            seed: as in `VecEnv.reset`.
            options: as in `VecEnv.reset`.

        Returns:
            The first observation of each, a list.
        """
        chosen = list(range(len(self.envs)) if indices is None else indices)
        if isinstance(seed, int):
            seeds: list[int | None] = [seed + i for i in chosen]
        else:
            seeds = [None for _ in chosen] if seed is None else list(seed)
        return [self._reset_one(i, s, options) for i, s in zip(chosen, seeds, strict=True)]

    def step(self, actions: Sequence[Any], indices: Iterable[int] | None = None) -> list[Row]:
        """Step all envs or those of `indices`.

        Args:
            actions: one action for each.
            indices: the envs to step; None for all.

        Returns:
            The row of each.
        """
        chosen = range(len(self.envs)) if indices is None else indices
        return [self._step_one(i, action) for i, action in zip(chosen, actions, strict=True)]

    def close(self) -> None:
        """Close the envs."""
        for env in self.envs:
            env.close()

    def _reset_one(self, i: int, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = self.envs[i].reset(seed=seed, options=options)
        self._ended[i] = False
        self.reset_infos[i] = {**copy.deepcopy(info), "episode_start": True}
        return copy.deepcopy(obs)

    def _step_one(self, i: int, action: Any) -> Row:
        if self._ended[i]:
            assert self.autoreset == "next_step", f"env {i} needs a reset"
            obs = self._reset_one(i)
            return Row(obs, 0.0, False, False, {**self.reset_infos[i], "TimeLimit.truncated": False})
        obs, reward, terminated, truncated, info = self.envs[i].step(copy.deepcopy(action))
        obs, reward, info = copy.deepcopy(obs), float(reward), copy.deepcopy(info)
        info["TimeLimit.truncated"] = bool(truncated and not terminated)
        if terminated or truncated:
            info["terminal_observation"] = obs
            if self.autoreset == "same_step":
                obs = self._reset_one(i)
                info["episode_start"] = True
            else:
                self._ended[i] = True
        return Row(obs, reward, bool(terminated), bool(truncated), info)
