"""The policies of `python -m vecenvs run`: random, a function, or a model of Stable-Baselines3."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any
from zipfile import BadZipFile, ZipFile

from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from vecenvs.vec_env import VecEnv

Policy = Callable[[Any], Any]  # a batch of observations -> a batch of actions

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

# By what only this algorithm's models have among their settings. The rest is A2C.
_MARKS = {
    "PPO": "clip_range",
    "SAC": "target_entropy",
    "TD3": "target_policy_noise",
    "DQN": "exploration_schedule",
}


def load_policy(
    text: str, vec: VecEnv, *, seed: int | None = None, algo: str | None = None, deterministic: bool = True
) -> Policy:
    """Make what the command line calls a policy. ValueError, ImportError or OSError if it cannot be had."""
    if text == "random":
        return random_policy(vec, seed)
    if text.endswith(".zip"):
        return sb3_policy(text, algo, deterministic)
    return function_policy(text)


def random_policy(vec: VecEnv, seed: int | None) -> Policy:
    """Sample the action space: the same actions for the same seed, whatever the backend."""
    space, n = vec.action_space, vec.num_envs
    if isinstance(space, _ARRAYS):
        batched = batch_space(space, n)
        batched.seed(seed)
        return lambda _: batched.sample()
    space.seed(seed)
    return lambda _: [space.sample() for _ in range(n)]


def function_policy(text: str) -> Policy:
    """Import `package.module:function`, as from a script in this directory."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise ValueError(f"policy {text!r} is none of: random, package.module:function, model.zip")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise ImportError(f"policy {text!r}: {error}") from error
    except Exception as error:
        raise ImportError(f"policy {text!r}: importing {module} raised {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"policy {text!r}: {module} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"policy {text!r} is {found!r}, no function")
    policy: Policy = found
    return policy


def sb3_policy(path: str, algo: str | None, deterministic: bool) -> Policy:
    """Load a model that Stable-Baselines3 saved, on the CPU."""
    chosen = algo or _algorithm_of(path)
    module, colon, name = chosen.rpartition(":")
    try:
        library = import_module(module if colon else "stable_baselines3")
    except ImportError as error:
        raise ImportError(f"{path!r} is a model of {chosen}: pip install stable-baselines3 ({error})") from error
    if not hasattr(getattr(library, name, None), "load"):
        raise ValueError(f"no algorithm {chosen!r} to load a model with: give one like PPO or sb3_contrib:TQC")
    try:
        model = getattr(library, name).load(path, device="cpu")
    except Exception as error:
        raise ValueError(f"{path!r} could not be loaded as {chosen} (--algo names another): {error}") from error
    return lambda obs: model.predict(obs, deterministic=deterministic)[0]


def _algorithm_of(path: str) -> str:
    """Tell the algorithm from the settings in the file; nothing is unpickled."""
    try:
        with ZipFile(path) as file:
            settings = json.loads(file.read("data"))
    except (BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"{path!r} is no model that Stable-Baselines3 saved: {error}") from error
    return next((name for name, mark in _MARKS.items() if mark in settings), "A2C")
