"""Env types: which one an env is of, and the preprocessing that each brings, as baselines' cmd_util has it.

A type's preprocessing comes in two parts, since the Monitor stands in its middle: it shall see the raw rewards and whole
games, though the agent sees clipped rewards and an episode per life. Only `atari` and `retro` have any.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformObservation

from vecenvs.wrappers.atari import EpisodicLife, FireReset, action_meanings
from vecenvs.wrappers.reward import clip_reward

# Where the entry point of an id lies, and the type that makes it. `plain` is the type of everything else.
_PACKAGES = {
    "gymnasium.envs.classic_control": "classic_control",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.toy_text": "toy_text",
    "gymnasium_robotics": "robotics",
    "ale_py": "atari",
}
PLAIN = "plain"
ENV_TYPES = tuple(sorted({*_PACKAGES.values(), PLAIN, "retro"}))

Env = gym.Env[Any, Any]


def find_spec(env_id: str) -> EnvSpec:
    """Look up an env id, with or without a version, or `package.module:id`, which imports that module first.

    The Atari ids are found without `import ale_py`. Raises Gymnasium's own errors for an unknown or malformed id,
    and ImportError for a module that cannot be imported or for an Atari id while ale-py is missing.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    try:
        return _registered(name)
    except gym.error.UnregisteredEnv:
        if not (name.startswith("ALE/") or "NoFrameskip-" in name):
            raise
        try:
            importlib.import_module("ale_py")
        except ImportError as error:
            raise ImportError(f"env_id {env_id!r} needs ale-py: pip install 'vecenvs[atari]'") from error
        return _registered(name)


def get_env_type(env: str | EnvSpec) -> str:
    """Give the type of a registered env, by where its entry point lies; `plain` if that is no package known here."""
    spec = find_spec(env) if isinstance(env, str) else env
    entry = spec.entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    for package, env_type in _PACKAGES.items():
        if f"{module}.".startswith(f"{package}."):
            return env_type
    return PLAIN


def check_env_type(env_type: Any, spec: EnvSpec | None) -> str:
    """Settle the type of the env of `spec`, or of an env function's (None): `env_type`, or derived if that is None.

    Any env may be called `plain`, to have no preprocessing. ValueError for an unknown type, or another one than the
    id's own.
    """
    own = PLAIN if spec is None else get_env_type(spec)
    if env_type is None:
        return own
    if env_type not in ENV_TYPES:
        raise ValueError(f"unknown env_type {env_type!r}: the types are {', '.join(ENV_TYPES)} (None: by the env id)")
    if spec is not None and own not in (PLAIN, env_type) and env_type != PLAIN:
        raise ValueError(
            f"env_type is {env_type!r}, but {spec.id} is of type {own!r}: leave env_type out, or give {PLAIN!r} to "
            "have the env without preprocessing"
        )
    return str(env_type)


@dataclass(frozen=True)
class Preprocessing:
    """What a type does to an env: nothing, unless a subclass says so. Its fields are the `wrapper_kwargs` it takes."""

    def make_kwargs(self) -> dict[str, Any]:
        """Give what gym.make must be told."""
        return {}

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
    (*screen_size, 1) uint8, or float32 in [0, 1] with `scale`; FIRE after reset where the game has it; an episode per
    life; rewards by their sign. `frame_stack` True stacks 4 frames, a number that many, oldest first, in the last axis.
    The emulator's own frame skip is set to 1; `repeat_action_probability` stays as the id has it (0.25 in ALE/*-v5, 0 in
    *NoFrameskip-v4).
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
        if not isinstance(self.frame_stack, (int, np.integer)) or self.frame_stack < 0:
            raise ValueError(f"frame_stack must be a bool or a number of frames, not {self.frame_stack!r}")

    def make_kwargs(self) -> dict[str, Any]:
        return {"frameskip": 1}

    def below_monitor(self, env: Env) -> Env:
        if not hasattr(env.unwrapped, "ale"):
            raise ValueError(f"env_type is 'atari', but {env.unwrapped} is no Atari env: it has no attribute 'ale'")
        return AtariPreprocessing(
            env,
            noop_max=self.noop_max,
            frame_skip=self.frame_skip,
            screen_size=self.screen_size,
            grayscale_newaxis=self._frames == 1,
            scale_obs=self.scale,
        )

    def above_monitor(self, env: Env) -> Env:
        if self.episode_life:
            env = EpisodicLife(env)
        if self.fire_reset and "FIRE" in action_meanings(env):
            env = FireReset(env)
        # The stack is outermost, so that no frame of the life before is in the first observation of the next one.
        return stack_last(env, self._frames) if self._frames > 1 else env

    def clip(self, env: Env) -> Env:
        return clip_reward(env) if self.clip_rewards else env

    @property
    def _frames(self) -> int:
        return 4 if self.frame_stack is True else max(int(self.frame_stack), 1)


def preprocessing(env_type: str, wrapper_kwargs: Mapping[str, Any] | None, gamestate: Any = None) -> Preprocessing:
    """Make the preprocessing of a type; TypeError for `wrapper_kwargs` that it does not take."""
    cls = {"atari": Atari}.get(env_type, Preprocessing)
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


def stack_last(env: Env, frames: int) -> Env:
    """Stack `frames` grey frames (height, width) into (height, width, frames), the newest last."""
    stacked = FrameStackObservation(env, frames)
    below = stacked.observation_space
    if not isinstance(below, spaces.Box):
        raise TypeError(f"only image observations can be stacked here, not {below}")
    above = spaces.Box(np.moveaxis(below.low, 0, -1), np.moveaxis(below.high, 0, -1), dtype=below.dtype.type)
    return TransformObservation(stacked, _last_axis, above)


def _last_axis(frames: Any) -> Any:
    return np.moveaxis(frames, 0, -1)


def _registered(name: str) -> EnvSpec:
    from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

    namespace, base, version = parse_env_id(name)
    if version is None and name not in gym.registry:
        version = find_highest_version(namespace, base)
    return gym.spec(get_env_id(namespace, base, version))
