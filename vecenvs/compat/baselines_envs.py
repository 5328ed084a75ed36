"""Make, wrap and seed single envs, as baselines' `common.cmd_util`, `bench`, `atari_wrappers` and `misc_util`.

Programs import these names from `vecenvs.compat.baselines`. Envs are Gymnasium's, and so are wrappers that it has, too.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AtariPreprocessing, TimeLimit, TransformObservation

from vecenvs import wrappers
from vecenvs.arguments import parse_int
from vecenvs.compat.ray_env_wrapper import FirstSeed
from vecenvs.make.env_fn import EnvFn, Recipe
from vecenvs.make.env_types import check_env_type, find_spec
from vecenvs.make.preprocessing import check_game, preprocessing, stack_frames, unit_interval
from vecenvs.wrappers.atari import EpisodicLife, FireReset, action_meanings
from vecenvs.wrappers.reward import check_scale, clip_reward

__all__ = ["Monitor", "make_atari", "make_env", "set_global_seeds", "wrap_deepmind"]

Env = gym.Env[Any, Any]
_SIDE = 84  # height and width, in pixels, of the frames that an agent sees


class Monitor(wrappers.Monitor[Any, Any]):
    """Record episodes, as `vecenvs.wrappers.Monitor`, with baselines' order and defaults of arguments."""

    def __init__(
        self,
        env: Env,
        filename: str | os.PathLike[str] | None,
        allow_early_resets: bool = False,
        reset_keywords: Sequence[str] = (),
        info_keywords: Sequence[str] = (),
    ) -> None:
        super().__init__(env, filename or None, allow_early_resets, reset_keywords, info_keywords)


def make_env(
    env_id: str,
    env_type: str | None = None,
    mpi_rank: int = 0,
    subrank: int = 0,
    seed: int | None = None,
    reward_scale: float = 1.0,
    gamestate: Any = None,
    flatten_dict_observations: bool = True,
    wrapper_kwargs: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    logger_dir: str | os.PathLike[str] | None = None,
    initializer: Callable[..., Any] | None = None,
) -> Env:
    """Make one env with the wrappers that `make_vec_env` puts around each, for code that steps a single env.

    Args:
        env_id: as in `make_vec_env`, an id.
        env_type: as in `make_vec_env`.
        mpi_rank: the rank in the name of the monitor file, passed to `initializer`.
        subrank: the index in the name of the monitor file, passed to `initializer`.
        seed: the action space and the first reset get `seed + subrank`; later resets continue from there.
        reward_scale: as in `make_vec_env`.
        gamestate: as in `make_vec_env`.
        flatten_dict_observations: as in `make_vec_env`.
        wrapper_kwargs: as in `make_vec_env`.
        env_kwargs: as in `make_vec_env`.
        logger_dir: the directory for the Monitor's file `<mpi_rank>.<subrank>.monitor.csv`; None for no file.
        initializer: called as `initializer(mpi_rank=..., subrank=...)` first.

    Returns:
        The env.

    Raises:
        gymnasium.error.Error: the id is unknown or malformed.
        ImportError: a library that the env needs is missing.
        TypeError: an argument has a wrong type.
        ValueError: an argument has a wrong value.
    """
    if initializer is not None:
        initializer(mpi_rank=mpi_rank, subrank=subrank)
    source = check_game(env_id) if env_type == "retro" else find_spec(env_id)
    spec = None if isinstance(source, str) else source
    state = {} if gamestate is None else {"state": gamestate}
    recipe = Recipe(
        preprocessing=preprocessing(check_env_type(env_type, spec), wrapper_kwargs),
        env_kwargs={**state, **(env_kwargs or {})},
        module=env_id.rpartition(":")[0],
        flatten=flatten_dict_observations,
        reward_scale=check_scale(reward_scale),
        monitor_dir=None if logger_dir is None else os.path.abspath(logger_dir),
        seed=None if seed is None else parse_int("seed", seed, 0),
        mpi_rank=mpi_rank,
        home=("", 0),
    )
    env = EnvFn(recipe, source, subrank)()
    return env if seed is None else FirstSeed(env, seed + subrank)


def make_atari(env_id: str, max_episode_steps: int | None = None) -> Env:
    """Make an Atari env that begins with up to 30 no-ops and repeats each action for 4 frames.

    Args:
        env_id: an Atari id.
        max_episode_steps: the longest episode, in steps of 4 frames; None for no limit.

    Returns:
        The env. Its observations, colour frames of the screen's size, uint8, are the pixel-wise maximum of the last two
        frames.

    Raises:
        ValueError: the id is not Atari's.
        ImportError: ale-py is missing.
    """
    spec = find_spec(env_id)
    if check_env_type("atari", spec) != "atari":
        raise ValueError(f"make_atari makes Atari envs, which {env_id!r} is not: make_env makes any")
    bare = gym.make(spec, frameskip=1, disable_env_checker=True)
    height, width, _ = bare.observation_space.shape or (0, 0, 0)
    # At the screen's own size, so that `wrap_deepmind` shrinks the same pixels as in baselines.
    env: Env = AtariPreprocessing(bare, screen_size=(width, height), grayscale_obs=False)
    return env if max_episode_steps is None else TimeLimit(env, max_episode_steps)


def wrap_deepmind(
    env: Env, episode_life: bool = True, clip_rewards: bool = True, frame_stack: bool = False, scale: bool = False
) -> Env:
    """Wrap an env that `make_atari` made. Games with a FIRE action begin with it.

    Args:
        env: the env.
        episode_life: whether an episode ends with each life.
        clip_rewards: whether rewards are replaced by their sign.
        frame_stack: whether 4 frames are stacked in the last axis, as an array (in baselines as LazyFrames).
        scale: whether observations are float32 in [0, 1].

    Returns:
        The wrapped env. Its observations are grey frames (84, 84, 1), uint8 unless `scale` is True.
    """
    if episode_life:
        env = EpisodicLife(env)
    if "FIRE" in action_meanings(env):
        env = FireReset(env)
    shape = (_SIDE, _SIDE) if frame_stack else (_SIDE, _SIDE, 1)
    env = TransformObservation(env, functools.partial(_warp, shape), spaces.Box(0, 255, shape, np.uint8))
    if frame_stack:
        env = stack_frames(env, 4)
    if scale:
        env = TransformObservation(env, unit_interval, spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32))
    return clip_reward(env) if clip_rewards else env


def _warp(shape: tuple[int, ...], frame: Any) -> Any:
    """Make a frame grey and shrink it, by OpenCV, as in baselines."""
    cv2 = importlib.import_module("cv2")
    grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
    return cv2.resize(grey, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).reshape(shape)


def set_global_seeds(i: int | None) -> None:
    """Seed Python's and NumPy's global generators, and PyTorch's if it is installed.

    Envs have their own generators, which `make_vec_env(seed=...)` or `reset(seed=...)` seeds.

    Args:
        i: the seed; None for one from the system.
    """
    random.seed(i)
    np.random.seed(i)  # noqa: NPY002
    if importlib.util.find_spec("torch") is not None:
        torch = importlib.import_module("torch")
        torch.seed() if i is None else torch.manual_seed(i)
