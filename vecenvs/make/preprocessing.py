"""What each env type does to an env before the agent sees it, as baselines' cmd_util has it.

It comes in two parts, since the Monitor stands in the middle: it shall see raw rewards and whole games, though the
agent sees clipped rewards and an episode per life. Only `atari` and `retro` have any preprocessing.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import (
    AtariPreprocessing,
    FrameStackObservation,
    GrayscaleObservation,
    ResizeObservation,
    TimeLimit,
    TransformObservation,
)

from vecenvs.wrappers.atari import EpisodicLife, FireReset, action_meanings
from vecenvs.wrappers.retro import StochasticFrameSkip
from vecenvs.wrappers.reward import clip_reward

Env = gym.Env[Any, Any]
_RETRO = "stable_retro"
# What an env is made of: the spec of an id, the name of a retro game, or a function.
Source = EnvSpec | str | Callable[..., Any]


@dataclass(frozen=True)
class Preprocessing:
    """What a type does to an env: nothing, unless a subclass says so. Its fields are the `wrapper_kwargs` it takes."""

    def make(self, source: Source, env_kwargs: Mapping[str, Any]) -> Any:
        """Make the bare env."""
        if isinstance(source, EnvSpec):
            return gym.make(source, **{"disable_env_checker": True, **env_kwargs})
        if isinstance(source, str):
            raise TypeError(f"a function or the spec of an env id is needed here, not {source!r}")
        return source(**env_kwargs)

    def below_monitor(self, env: Env) -> Env:
        """Wrap what the Monitor shall see."""
        return env

    def above_monitor(self, env: Env) -> Env:
        """Wrap what the Monitor shall not see."""
        return env

    def clip(self, env: Env) -> Env:
        """Clip the rewards; the user's own wrapper is below this and sees them raw."""
        return env


@dataclass(frozen=True)
class Atari(Preprocessing):
    """Atari as in Mnih et al. 2015, by baselines' names and defaults (make_atari and wrap_deepmind).

    Up to `noop_max` no-ops at reset, every `frame_skip`-th frame (the pixel-wise maximum of the last two) in grey,
    (height, width, 1) uint8, or float32 in [0, 1] with `scale`; FIRE after reset where the game has it; an episode per
    life; rewards by their sign. `screen_size` is both, or (width, height). `frame_stack` True stacks 4 frames, a number
    that many, oldest first, in the last axis. The emulator's own frame skip is set to 1; `repeat_action_probability`
    stays as the id has it (0.25 in ALE/*-v5, 0 in *NoFrameskip-v4).
    """

    episode_life: bool = True
    clip_rewards: bool = True
    frame_stack: bool | int = False
    scale: bool = False
    fire_reset: bool = True
    noop_max: int = 30
    frame_skip: int = 4
    screen_size: int | tuple[int, int] = 84

    def __post_init__(self) -> None:
        stack_size(self.frame_stack)

    def make(self, source: Source, env_kwargs: Mapping[str, Any]) -> Any:
        return super().make(source, {"frameskip": 1, **env_kwargs} if isinstance(source, EnvSpec) else env_kwargs)

    def below_monitor(self, env: Env) -> Env:
        if not hasattr(env.unwrapped, "ale"):
            raise ValueError(f"env_type is 'atari', but {env.unwrapped} is no Atari env: it has no attribute 'ale'")
        return AtariPreprocessing(
            env,
            noop_max=self.noop_max,
            frame_skip=self.frame_skip,
            screen_size=self.screen_size,
            grayscale_newaxis=stack_size(self.frame_stack) == 1,
            scale_obs=self.scale,
        )

    def above_monitor(self, env: Env) -> Env:
        if self.episode_life:
            env = EpisodicLife(env)
        if self.fire_reset and "FIRE" in action_meanings(env):
            env = FireReset(env)
        # The stack is outermost, so that no frame of the life before is in the first observation of the next one.
        return stack_frames(env, self.frame_stack)

    def clip(self, env: Env) -> Env:
        return clip_reward(env) if self.clip_rewards else env


@dataclass(frozen=True)
class Retro(Preprocessing):
    """Retro games through stable-retro, as baselines' make_retro and wrap_deepmind_retro.

    Discrete actions, held for 4 frames (the old one for one frame longer with probability 0.25), at most 10000 steps;
    grey 84x84 frames, `frame_stack` of them in the last axis, float32 in [0, 1] with `scale`; rewards by their sign.
    """

    scale: bool = True
    frame_stack: bool | int = 1
    clip_rewards: bool = True

    def __post_init__(self) -> None:
        stack_size(self.frame_stack)

    def make(self, source: Source, env_kwargs: Mapping[str, Any]) -> Any:
        if not isinstance(source, str):
            return super().make(source, env_kwargs)
        retro = importlib.import_module(_RETRO)
        defaults = {"use_restricted_actions": retro.Actions.DISCRETE, "render_mode": "rgb_array"}
        return retro.make(game=source, **{**defaults, **env_kwargs})

    def below_monitor(self, env: Env) -> Env:
        return TimeLimit(StochasticFrameSkip(env, 4, 0.25), max_episode_steps=10_000)

    def above_monitor(self, env: Env) -> Env:
        env = ResizeObservation(GrayscaleObservation(env, keep_dim=stack_size(self.frame_stack) == 1), (84, 84))
        env = stack_frames(env, self.frame_stack)
        if not self.scale:
            return env
        space = spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)
        return TransformObservation(env, _unit_interval, space)

    def clip(self, env: Env) -> Env:
        return clip_reward(env) if self.clip_rewards else env


def preprocessing(env_type: str, wrapper_kwargs: Mapping[str, Any] | None = None) -> Preprocessing:
    """Make the preprocessing of a type; TypeError for `wrapper_kwargs` that it does not take."""
    types: dict[str, type[Preprocessing]] = {"atari": Atari, "retro": Retro}
    cls = types.get(env_type, Preprocessing)
    kwargs = dict(wrapper_kwargs or {})
    known = [field.name for field in dataclasses.fields(cls)]
    unknown = sorted(set(kwargs) - set(known))
    if unknown and not known:
        raise TypeError(
            f"wrapper_kwargs {unknown} mean nothing to env_type {env_type!r}, which has no preprocessing; arguments of "
            "your own wrapper go into wrapper_class=functools.partial(...)"
        )
    if unknown:
        raise TypeError(f"unknown wrapper_kwargs {unknown}: env_type {env_type!r} takes {', '.join(known)}")
    return cls(**kwargs)


def check_game(game: str) -> str:
    """Give the name of a retro game back; ImportError if stable-retro is missing."""
    try:
        found = importlib.util.find_spec(_RETRO)
    except ValueError:  # loaded, but by no importer
        return game
    if found is None:
        raise ImportError(f"{game!r} with env_type 'retro' needs stable-retro: pip install stable-retro")
    return game


def stack_size(frame_stack: Any) -> int:
    """Give the number of frames that `frame_stack` asks for: True means 4, as in baselines, False one."""
    if not isinstance(frame_stack, (int, np.integer)) or frame_stack < 0:
        raise ValueError(f"frame_stack must be a bool or a number of frames, not {frame_stack!r}")
    return 4 if frame_stack is True else max(int(frame_stack), 1)


def stack_frames(env: Env, frame_stack: bool | int) -> Env:
    """Stack grey frames (height, width) into (height, width, frames), the newest last; a stack of one adds nothing."""
    frames = stack_size(frame_stack)
    if frames == 1:
        return env
    env = FrameStackObservation(env, frames)
    below = env.observation_space
    if not isinstance(below, spaces.Box):
        raise TypeError(f"frame_stack needs image observations, not {below}")
    above = spaces.Box(_last_axis(below.low), _last_axis(below.high), dtype=below.dtype.type)
    return TransformObservation(env, _last_axis, above)


def _last_axis(frames: Any) -> Any:
    return np.moveaxis(frames, 0, -1)


def _unit_interval(frames: Any) -> Any:
    return np.asarray(frames, np.float32) / np.float32(255)
