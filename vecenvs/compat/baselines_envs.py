"""Single envs as `baselines.common.cmd_util`, `bench`, `atari_wrappers` and `misc_util` make, wrap and seed them.

`vecenvs.compat.baselines` has them too. Envs are Gymnasium's, and so are the wrappers where it has the same ones.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import random
import time
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
from vecenvs.make.preprocessing import check_game, preprocessing, stack_frames
from vecenvs.wrappers.atari import EpisodicLife, FireReset, action_meanings
from vecenvs.wrappers.reward import check_scale, clip_reward

__all__ = ["Monitor", "make_atari", "make_env", "set_global_seeds", "wrap_deepmind"]

Env = gym.Env[Any, Any]
_SIDE = 84  # of the frames that an agent sees


class Monitor(wrappers.Monitor[Any, Any]):
    """Records episodes as `vecenvs.wrappers.Monitor`; a reset in mid-episode is an error unless `allow_early_resets`.

    `filename` None or "" is no file.
    """

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
    """Make one env, wrapped as those of `make_vec_env` are, for code that steps a single one.

    With a `seed` its action space and its first reset get `seed + subrank`; the next resets go on from there.
    `logger_dir` is where the Monitor writes `<mpi_rank>.<subrank>.monitor.csv`, None for no file.
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
        wrappers=(),
        reward_scale=check_scale(reward_scale),
        monitor_dir=None if logger_dir is None else os.path.abspath(logger_dir),
        monitor_kwargs={},
        seed=None if seed is None else parse_int("seed", seed, 0),
        mpi_rank=mpi_rank,
        initializer=None,
        home=("", 0),
        begun=time.time(),
    )
    env = EnvFn(recipe, source, subrank)()
    return env if seed is None else FirstSeed(env, seed + subrank)


def make_atari(env_id: str, max_episode_steps: int | None = None) -> Env:
    """Make an Atari env that begins with up to 30 no-ops and shows every 4th frame, the maximum of the last two.

    Frames are in colour and of the screen's size. `max_episode_steps` counts those steps.
    """
    spec = find_spec(env_id)
    if check_env_type("atari", spec) != "atari":
        raise ValueError(f"make_atari makes Atari envs, which {env_id!r} is not: make_env makes any")
    bare = gym.make(spec, frameskip=1, disable_env_checker=True)
    height, width, _ = bare.observation_space.shape or (0, 0, 0)
    # At the screen's own size, so that `wrap_deepmind` has the same pixels to shrink as in baselines.
    env: Env = AtariPreprocessing(bare, screen_size=(width, height), grayscale_obs=False)
    return env if max_episode_steps is None else TimeLimit(env, max_episode_steps)


def wrap_deepmind(
    env: Env, episode_life: bool = True, clip_rewards: bool = True, frame_stack: bool = False, scale: bool = False
) -> Env:
    """Wrap what `make_atari` gives: an episode per life, FIRE after a reset, grey frames (84, 84, 1), clipped rewards.

    With `scale` frames are float32 in [0, 1]. `frame_stack` stacks 4 of them in the last axis: arrays, not LazyFrames.
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
        env = TransformObservation(env, _unit, spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32))
    return clip_reward(env) if clip_rewards else env


def _warp(shape: tuple[int, ...], frame: Any) -> Any:
    """Make a frame grey and small, as OpenCV does it."""
    cv2 = importlib.import_module("cv2")
    grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
    return cv2.resize(grey, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA).reshape(shape)


def _unit(frames: Any) -> Any:
    return np.asarray(frames, np.float32) / np.float32(255)


def set_global_seeds(i: int | None) -> None:
    """Seed Python's and NumPy's global generators, and PyTorch's if that is installed; by None from the system.

    Envs have generators of their own, which this does not touch: `make_vec_env` seeds them, or `reset(seed=...)`.
    """
    random.seed(i)
    np.random.seed(i)  # noqa: NPY002
    if importlib.util.find_spec("torch") is not None:
        torch = importlib.import_module("torch")
        torch.seed() if i is None else torch.manual_seed(i)
