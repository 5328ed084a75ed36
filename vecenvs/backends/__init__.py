"""The engines by name. A new one is a file here, a word in `BACKENDS` and an extra in setup.py."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vecenvs.arguments import did_you_mean

if TYPE_CHECKING:
    from vecenvs.pool.pool_vec_env import PoolVecEnv

BACKENDS: dict[str, str] = {
    "dummy": "vecenvs.backends.dummy:DummyVecEnv",
    "subproc": "vecenvs.backends.subproc:SubprocVecEnv",
    "mpi": "vecenvs.backends.mpi:MpiVecEnv",
    "ray": "vecenvs.backends.ray:RayVecEnv",
}


# Names of engines elsewhere: Gymnasium's, and those of classes.
_ELSEWHERE = {
    "sync": "dummy",
    "async": "subproc",
    "multiprocessing": "subproc",
    "process": "subproc",
    "fork": "subproc",
}


def unknown_backend(name: Any, others: Sequence[str] = ()) -> str:
    """Return that there is no backend of this name, which ones there are, and which one may be meant."""
    known = [*BACKENDS, *others]
    text = str(getattr(name, "__name__", name)).lower().removesuffix("vecenv").removesuffix("vectorenv")
    meant = [text] if text in known else [_ELSEWHERE[text]] if text in _ELSEWHERE else []
    return f"unknown backend {name!r}{did_you_mean(text, known, meant)}: there are {', '.join(known)}"


def backend_class(name: Any) -> type[PoolVecEnv]:
    """Import an engine. ValueError for an unknown name, BackendUnavailable if its library is missing."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise ValueError(unknown_backend(name))
    module, _, attribute = BACKENDS[name].partition(":")
    found: type[PoolVecEnv] = getattr(importlib.import_module(module), attribute)
    return found
