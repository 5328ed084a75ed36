"""The policies of `python -m vecenvs evaluate` (random, a function, a model of Stable-Baselines3), and --normalize."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

from gymnasium import spaces

from vecenvs.make.env_types import find_function
from vecenvs.vec_env import VecEnv
from vecenvs.wrappers import VecNormalize, vec_statistics

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
_PICKLE = b"\x80"  # how a file of Stable-Baselines3's VecNormalize begins


class SavedStatistics(NamedTuple):
    """The statistics in a file: whether they are of Dict observations, and what normalizes a VecEnv by them."""

    dicts: bool
    applied: Callable[[VecEnv], VecEnv]


def statistics_in(path: Path | None) -> SavedStatistics | None:
    """Read a file of VecNormalize, or of Stable-Baselines3's. Raise ValueError, ImportError or OSError."""
    if path is None:
        return None
    with path.open("rb") as file:
        if file.read(1) != _PICKLE:
            dicts = vec_statistics.read(str(path))[0]["norm_obs_keys"] is not None
            return SavedStatistics(dicts, lambda vec: VecNormalize.load(path, vec))
        file.seek(0)
        try:
            saved = pickle.load(file)
        except ImportError as error:
            raise ImportError(f"{str(path)!r} is a pickle, as of Stable-Baselines3's VecNormalize: {error}") from error
        except Exception as error:  # whatever a file may hold
            raise ValueError(f"{str(path)!r} cannot be unpickled: {error}") from error
    if not (hasattr(saved, "norm_obs") and hasattr(saved, "ret_rms")):
        raise ValueError(f"{str(path)!r} holds a {type(saved).__name__}, not Stable-Baselines3's VecNormalize")

    def applied(vec: VecEnv) -> VecEnv:
        keys = saved.norm_obs_keys if saved.norm_obs else None
        found = VecNormalize(
            vec, norm_obs=saved.norm_obs, clip_obs=saved.clip_obs, epsilon=saved.epsilon, norm_obs_keys=keys
        )
        if saved.norm_obs:
            found.obs_rms = saved.obs_rms
        return found

    return SavedStatistics(saved.norm_obs and isinstance(saved.obs_rms, dict), applied)


def wants_dicts(text: str) -> bool:
    """Return whether a policy was made with Dict observations, which must not be flattened then.

    Raise ValueError or OSError if a file cannot be read.
    """
    if not text.endswith(".zip"):
        return False
    space = _settings_in(text).get("observation_space")
    return isinstance(space, dict) and "spaces.dict.Dict" in str(space.get(":type:"))


def load_policy(text: str, vec: VecEnv, algo: str | None = None) -> Any:
    """Load the policy that `text` names. Raise ValueError, ImportError or OSError if it cannot be loaded."""
    if text == "random":
        return text
    if text.endswith(".zip"):
        return sb3_model(text, vec, algo)
    return function_policy(text)


def function_policy(text: str) -> Callable[..., Any]:
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


def sb3_model(path: str, vec: VecEnv, algo: str | None) -> Any:
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
    seen, space = model.observation_space, vec.observation_space
    if not isinstance(vec, VecNormalize) and seen != space and seen != _transposed(space):
        told = f"{path!r} has learned from observations in {seen}, and sees {space}"
        warnings.warn(f"{told}: if VecNormalize was between, give its statistics by --normalize FILE", stacklevel=2)
    return model


def _transposed(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space in which a model has its images: Stable-Baselines3 wraps an env of images, VecTransposeImage."""
    from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
    from stable_baselines3.common.vec_env import VecTransposeImage

    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _transposed(part) for name, part in space.items()})
    if is_image_space(space) and not is_image_space_channels_first(space):
        space = VecTransposeImage.transpose_space(space)
    return space


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
