"""The files of VecNormalize: settings and statistics in one `.npz` of plain arrays. Nothing in them is pickled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

# What a file says besides statistics, and as what: who has set an attribute may have set it to numpy's numbers.
SETTINGS: dict[str, Callable[[Any], Any]] = {
    "norm_obs": bool,
    "norm_reward": bool,
    "clip_obs": float,
    "clip_reward": float,
    "gamma": float,
    "epsilon": float,
    "norm_obs_keys": lambda keys: None if keys is None else list(keys),
}
_FORMAT = 1


def write(path: str | os.PathLike[str], settings: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a file in one go; `settings` are those that SETTINGS names."""
    plain = {name: as_plain(settings[name]) for name, as_plain in SETTINGS.items()}
    # Beside its place first: a run that is killed leaves the old file whole.
    aside = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with open(aside, "wb") as file:
            named: dict[str, Any] = {"settings": np.array(json.dumps({"format": _FORMAT, **plain})), **arrays}
            np.savez(file, **named)
        os.replace(aside, path)
    finally:
        if os.path.exists(aside):
            os.remove(aside)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Give the settings and the arrays of a file. ValueError if `write` did not write it."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        settings = json.loads(str(arrays.pop("settings")))
        found = settings.pop("format")
    except (ValueError, KeyError, EOFError, AttributeError, TypeError, RuntimeError, BadZipFile) as error:
        raise ValueError(f"{os.fspath(path)!r} is no file that VecNormalize.save wrote ({error})") from error
    if found != _FORMAT or set(settings) != set(SETTINGS):
        raise ValueError(f"{os.fspath(path)!r} has format {found}; this version reads format {_FORMAT}")
    return settings, arrays
