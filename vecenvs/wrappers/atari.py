"""The wrappers of baselines' wrap_deepmind and retro envs that Gymnasium lacks."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.core import ActType, ObsType

_NOOP, _FIRE, _THIRD = 0, 1, 2


class EpisodicLife(gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs):
    """End the episode when a life is lost, but reset the game only when it is over (Mnih et al. 2015; baselines).

    After the loss of a life `reset` continues the same game by one no-op, and returns the info of that step. A reset
    with a seed or options always begins a new game. Gymnasium's `AtariPreprocessing(terminal_on_life_loss=True)`
    begins a new game after each life, so an agent never sees the later parts of a game.

    Args:
        env: an Atari env.

    Raises:
        ValueError: `env` is not an Atari env.
    """

    def __init__(self, env: gym.Env[ObsType, ActType]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self._ale: Any = _unwrapped_ale(env)
        self._lives = 0
        self._game_over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        if self._game_over or seed is not None or options:
            first = self.env.reset(seed=seed, options=options)
        else:
            obs, _, terminated, truncated, info = self.env.step(_NOOP)  # type: ignore[arg-type]
            first = self.env.reset() if terminated or truncated else (obs, info)
        self._game_over = False
        self._lives = self._ale.lives()
        return first

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._game_over = terminated or truncated
        # Some games (Qbert) show 0 lives for a few frames before they end: no life is lost yet.
        lives = self._ale.lives()
        lost, self._lives = 0 < lives < self._lives, lives
        return obs, reward, terminated or lost, truncated, info


class FireReset(gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs):
    """Begin each episode with the actions 1 (FIRE) and 2, for games that stand still until FIRE (baselines).

    The first observation is the one after these actions.

    Args:
        env: an Atari env.

    Raises:
        ValueError: action 1 of `env` is not FIRE.
    """

    def __init__(self, env: gym.Env[ObsType, ActType]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        super().__init__(env)
        meanings = action_meanings(env)
        if len(meanings) < 3 or meanings[_FIRE] != "FIRE":
            raise ValueError(f"FireReset needs an env whose action 1 is FIRE; this one's actions are {meanings}")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        first = self.env.reset(seed=seed, options=options)
        for action in (_FIRE, _THIRD):
            obs, _, terminated, truncated, info = self.env.step(action)  # type: ignore[arg-type]
            first = self.env.reset() if terminated or truncated else (obs, info)
        return first


class StochasticFrameSkip(gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs):
    """Hold each action for `n` frames, as baselines' wrapper of this name.

    With probability `stickprob` the previous action still holds in the first of these frames.
    The reward is the sum over the frames, the observation that of the last one. Random numbers come from the env's own
    generator, so a reset with a seed determines them.

    Args:
        env: the env to wrap.
        n: frames per step.
        stickprob: the probability, from 0 to 1.
    """

    def __init__(self, env: gym.Env[ObsType, ActType], n: int, stickprob: float) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, n=n, stickprob=stickprob)
        super().__init__(env)
        self._n = n
        self._stickprob = stickprob
        self._last_action: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        self._last_action = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        sticks = self._last_action is not None and self.np_random.random() < self._stickprob
        first = self._last_action if sticks else action
        self._last_action = action if self._n > 1 else first  # the one that the env was given last
        obs, reward, terminated, truncated, info = self.env.step(first)
        total = float(reward)
        for _ in range(self._n - 1):
            if terminated or truncated:
                break
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
        return obs, total, terminated, truncated, info


def action_meanings(env: gym.Env[Any, Any]) -> list[str]:
    """Return the names of an Atari env's actions."""
    return list(env.get_wrapper_attr("get_action_meanings")())


def _unwrapped_ale(env: gym.Env[Any, Any]) -> Any:
    if not hasattr(env.unwrapped, "ale"):
        raise ValueError(f"{env.unwrapped} is not an Atari env: it has no attribute 'ale'")
    return env.unwrapped.ale
