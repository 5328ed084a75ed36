"""The files of VecNormalize: settings and statistics as plain arrays in one `.npz`, nothing pickled."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO
from zipfile import ZIP_STORED

import numpy as np
from numpy.typing import NDArray

from vecenvs.arguments import parse_json

# The settings in a file, and their types there: users may have set the attributes to numpy's numbers.
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
    """Write a file at once; `settings` has the keys of SETTINGS."""
    plain = {name: as_plain(settings[name]) for name, as_plain in SETTINGS.items()}
    # Under another name first, so that a run which is killed leaves the old file whole.
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
    """Return the settings and the arrays of a file. ValueError if `write` did not write it."""
    with open(path, "rb") as opened:
        try:
            settings, arrays = _read(opened)
            found = settings.pop("format")
        except Exception as error:  # whatever zipfile, zlib, numpy and json raise for any other file
            problem = f"{type(error).__name__}: {error}"
            raise ValueError(f"{os.fspath(path)!r} is no file that VecNormalize.save wrote ({problem})") from error
    if found != _FORMAT or set(settings) != set(SETTINGS):
        raise ValueError(f"{os.fspath(path)!r} has format {found!r}; this version reads format {_FORMAT}")
    wrong = {name: value for name, value in settings.items() if not _is_right(name, value)}
    wrong |= {name: value for name, value in arrays.items() if getattr(value, "dtype", None) != np.float64}
    if wrong:
        raise ValueError(f"{os.fspath(path)!r} is no file that VecNormalize.save wrote: {reprlib.repr(wrong)}")
    return settings, arrays


def _is_right(name: str, value: Any) -> bool:
    """Tell whether `write` writes such a setting."""
    if name == "norm_obs_keys":
        return value is None or (isinstance(value, list) and all(isinstance(key, str) and key for key in value))
    return type(value) is SETTINGS[name]


def _read(opened: BinaryIO) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    with np.load(opened, allow_pickle=False) as file:
        # `write` compresses nothing, and a few compressed bytes could become gigabytes.
        if any(member.compress_type != ZIP_STORED for member in file.zip.infolist()):
            raise ValueError("it is compressed")
        arrays = {name: file[name] for name in file.files}
    return dict(parse_json(str(arrays.pop("settings")))), arrays
