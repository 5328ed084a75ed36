"""The wrappers of each env type, as in baselines' cmd_util. Only `atari` and `retro` have any.

Some are below the Monitor and some above it: the Monitor records raw rewards and whole games, while the agent sees
clipped rewards and an episode per life.
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

from vecenvs.wrappers.atari import EpisodicLife, FireReset, StochasticFrameSkip, action_meanings
from vecenvs.wrappers.reward import clip_reward

Env = gym.Env[Any, Any]
_RETRO = "stable_retro"
# The source of an env: the spec of an id, the name of a retro game, or a function.
Source = EnvSpec | str | Callable[..., Any]


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of one env type. This base class wraps nothing.

    The fields of a subclass are the `wrapper_kwargs` that its type takes.
    """

    def make(self, source: Source, env_kwargs: Mapping[str, Any]) -> Any:
        """Make the bare env."""
        if isinstance(source, EnvSpec):
            return gym.make(source, **{"disable_env_checker": True, **env_kwargs})
        if isinstance(source, str):
            raise TypeError(f"a function or the spec of an env id is needed here, not {source!r}")
        return source(**env_kwargs)

    def below_monitor(self, env: Env) -> Env:
        """Add the wrappers below the Monitor."""
        return env

    def above_monitor(self, env: Env) -> Env:
        """Add the wrappers above the Monitor."""
        return env

    def clip(self, env: Env) -> Env:
        """Clip the rewards, above the user's own wrapper, which sees raw rewards."""
        return env


@dataclass(frozen=True)
class Atari(Preprocessing):
    """The preprocessing of Atari envs: Mnih et al. 2015, with the names and defaults of baselines' make_atari.

    Observations are grey frames (height, width, 1), uint8. The emulator's own frame skip is set to 1;
    `repeat_action_probability` is the id's (0.25 in ALE/*-v5, 0 in *NoFrameskip-v4).

    Attributes:
        episode_life: whether an episode ends with each life.
        clip_rewards: whether rewards are replaced by their sign.
        frame_stack: the number of frames in the last axis, oldest first; True for 4.
        scale: whether observations are float32 in [0, 1].
        fire_reset: whether an episode begins with FIRE, in games that have it.
        noop_max: the largest number of no-ops at a reset.
        frame_skip: frames per step; the observation is the pixel-wise maximum of the last two.
        screen_size: height and width, or (width, height), in pixels.
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
            raise ValueError(f"env_type is 'atari', but {env.unwrapped} is not an Atari env: it has no attribute 'ale'")
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
        # The stack is outermost, so that the first observation of a life has no frame of the life before.
        return stack_frames(env, self.frame_stack)

    def clip(self, env: Env) -> Env:
        return clip_reward(env) if self.clip_rewards else env


@dataclass(frozen=True)
class Retro(Preprocessing):
    """The preprocessing of retro games, by stable-retro: baselines' make_retro and wrap_deepmind_retro.

    Actions are Discrete and hold for 4 frames; the previous one holds for one frame longer with probability 0.25. An
    episode has at most 10,000 steps. Observations are grey frames (84, 84, 1).

    Attributes:
        scale: whether observations are float32 in [0, 1] rather than uint8.
        frame_stack: the number of frames in the last axis, oldest first; True for 4.
        clip_rewards: whether rewards are replaced by their sign.
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
        return TransformObservation(env, unit_interval, space)

    def clip(self, env: Env) -> Env:
        return clip_reward(env) if self.clip_rewards else env


def preprocessing(env_type: str, wrapper_kwargs: Mapping[str, Any] | None = None) -> Preprocessing:
    """Return the preprocessing of an env type, whose fields get the `wrapper_kwargs`. TypeError for unknown ones."""
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
    """Return the name of a retro game; ImportError if stable-retro is missing."""
    try:
        found = importlib.util.find_spec(_RETRO)
    except ValueError:  # a module in sys.modules without a spec
        return game
    if found is None:
        raise ImportError(f"{game!r} with env_type 'retro' needs stable-retro: pip install stable-retro")
    return game


def stack_size(frame_stack: Any) -> int:
    """Return the number of frames that `frame_stack` means: 4 for True, as in baselines, 1 for False."""
    if not isinstance(frame_stack, (int, np.integer)) or frame_stack < 0:
        raise ValueError(f"frame_stack must be a bool or a number of frames, not {frame_stack!r}")
    return 4 if frame_stack is True else max(int(frame_stack), 1)


def stack_frames(env: Env, frame_stack: bool | int) -> Env:
    """Stack grey frames (height, width) into (height, width, frames), the newest last; one frame adds no wrapper."""
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


def unit_interval(frames: Any) -> Any:
    """Return bytes as float32 from 0 to 1."""
    return np.asarray(frames, np.float32) / np.float32(255)
