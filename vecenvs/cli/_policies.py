"""The policies of `python -m vecenvs run` (random, a function, a model of Stable-Baselines3), and --normalize."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from vecenvs.make.env_types import find_function
from vecenvs.vec_env import VecEnv
from vecenvs.wrappers import VecNormalize, vec_statistics

Policy = Callable[[Any], Any]  # a batch of observations -> a batch of actions

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

# A setting that only the models of this algorithm have. All other models are taken for A2C.
_MARKS = {
    "PPO": "clip_range",
    "SAC": "target_entropy",
    "TD3": "target_policy_noise",
    "DQN": "exploration_schedule",
}

# A model needs no replay buffer to play. Without these settings loading makes a new one, and the one of HER needs envs.
_NO_BUFFER: dict[str, Any] = {
    "replay_buffer_class": None,
    "replay_buffer_kwargs": {},
    "buffer_size": 1,
    "optimize_memory_usage": False,
    "n_steps": 1,
}


def wants_dicts(text: str, statistics: Path | None) -> bool:
    """Return whether the policy or the statistics were made with Dict observations, which must not be flattened then.

    Raise ValueError or OSError if a file cannot be read.
    """
    if text.endswith(".zip"):
        space = _settings_in(text).get("observation_space")
        if isinstance(space, dict) and "spaces.dict.Dict" in str(space.get(":type:")):
            return True
    return statistics is not None and vec_statistics.read(str(statistics))[0]["norm_obs_keys"] is not None


def normalized(vec: VecEnv, statistics: Path | None) -> VecEnv:
    """Return the VecEnv normalised by these statistics, which no longer change. Raise ValueError or OSError."""
    if statistics is None:
        return vec
    found = VecNormalize.load(statistics, vec)
    found.training = False
    return found


def load_policy(
    text: str, vec: VecEnv, *, seed: int | None = None, algo: str | None = None, deterministic: bool = True
) -> Policy:
    """Load the policy that `text` names. Raise ValueError, ImportError or OSError if it cannot be loaded."""
    if text == "random":
        return random_policy(vec, seed)
    if text.endswith(".zip"):
        return sb3_policy(text, vec, algo, deterministic)
    return function_policy(text)


def random_policy(vec: VecEnv, seed: int | None) -> Policy:
    """Return a policy which samples the action space. The same seed gives the same actions on every backend."""
    space, n = vec.action_space, vec.num_envs
    if isinstance(space, _ARRAYS):
        batched = batch_space(space, n)
        batched.seed(seed)
        return lambda _: batched.sample()
    space.seed(seed)
    return lambda _: [space.sample() for _ in range(n)]


def function_policy(text: str) -> Policy:
    """Import `package.module:function`."""
    module, _, name = text.partition(":")
    if not (module and name):
        raise ValueError(f"policy {text!r} is none of: random, package.module:function, model.zip")
    try:
        return find_function(text)
    except ValueError as error:
        raise ValueError(f"policy {text!r}: {error}") from None
    except Exception as error:
        raise ImportError(f"policy {text!r}: importing {module} raised {type(error).__name__}: {error}") from error


def sb3_policy(path: str, vec: VecEnv, algo: str | None, deterministic: bool) -> Policy:
    """Load a model that Stable-Baselines3 has saved, on the CPU and without its replay buffer."""
    settings = _settings_in(path)
    chosen = algo or _algorithm_of(settings)
    module, colon, name = chosen.rpartition(":")
    try:
        library = import_module(module if colon else "stable_baselines3")
    except ImportError as error:
        raise ImportError(f"{path!r} is a model of {chosen}: pip install stable-baselines3 ({error})") from error
    if not hasattr(getattr(library, name, None), "load"):
        raise ValueError(f"there is no algorithm {chosen!r}: --algo takes names like PPO and sb3_contrib:TQC")
    without = _NO_BUFFER if "replay_buffer_class" in settings else {}
    try:
        model = getattr(library, name).load(path, device="cpu", custom_objects=without)
    except Exception as error:
        raise ValueError(f"{path!r} could not be loaded as {chosen} (--algo names another): {error}") from error
    if not isinstance(vec, VecNormalize) and (seen := model.observation_space) != vec.observation_space:
        told = f"{path!r} has learned from observations in {seen}, and sees {vec.observation_space}"
        warnings.warn(f"{told}: if VecNormalize was between, give its statistics by --normalize FILE", stacklevel=2)
    return lambda obs: model.predict(obs, deterministic=deterministic)[0]


def _settings_in(path: str) -> dict[str, Any]:
    """Read the settings of a model without unpickling anything."""
    try:
        with ZipFile(path) as file:
            settings = json.loads(file.read("data"))
    except (BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"{path!r} is no model that Stable-Baselines3 saved: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path!r} is no model that Stable-Baselines3 saved: its settings are no dict")
    return settings


def _algorithm_of(settings: dict[str, Any]) -> str:
    return next((name for name, mark in _MARKS.items() if mark in settings), "A2C")
