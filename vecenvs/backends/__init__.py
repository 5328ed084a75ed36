"""The engines by name. A new one is a file here, a word in `BACKENDS` and an extra in setup.py."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vecenvs.pool import PoolVecEnv

BACKENDS: dict[str, str] = {
    "dummy": "vecenvs.backends.dummy:DummyVecEnv",
    "subproc": "vecenvs.backends.subproc:SubprocVecEnv",
    "mpi": "vecenvs.backends.mpi:MpiVecEnv",
    "ray": "vecenvs.backends.ray:RayVecEnv",
}


def backend_class(name: str) -> type[PoolVecEnv]:
    """Import an engine. ValueError for an unknown name, BackendUnavailable if its library is missing."""
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r} is none of {', '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    found: type[PoolVecEnv] = getattr(importlib.import_module(module), attribute)
    return found
