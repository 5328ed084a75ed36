"""Have multiprocessing's fork server import what workers need, once for all of them.

Without that every worker of start method "forkserver" imports NumPy, Gymnasium and this package anew, which takes
seconds. The caller uses `preloading`. The fork server imports this module by name, and runs its last lines.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing import forkserver, process, util
from typing import Any

import numpy as np
import threadpoolctl  # noqa: F401  which workers use

from vecenvs.worker.process import let_signals_through, signals_let_through

_log = logging.getLogger("vecenvs")

WORKER = "vecenvs-worker-"  # and its number: what the process of a worker is called
MODULES = [__name__, "vecenvs.backends.subproc"]  # what the fork server imports
DEFAULT = ["__main__"]  # multiprocessing's own list: what it has while the user has set none
_CALLERS_PATH = "VECENVS_CALLERS_PYTHONPATH"  # set in the fork server alone, until this module is imported there


def unfit_for_forks() -> str:
    """Return what this process has used that does not work in a fork, if anything."""
    bridge, cuda = sys.modules.get("jax._src.xla_bridge"), sys.modules.get("torch.cuda")
    return "JAX" if getattr(bridge, "_backends", None) else "CUDA" if cuda is not None and cuda.is_initialized() else ""


def choose(start_method: str | None) -> str | None:
    """Return the start method to use: not fork by default where this process has used what does not work in one."""
    used = unfit_for_forks()
    if used and start_method == "fork":
        _log.warning("%s is in use here: envs that use it, too, hang in a fork. start_method='forkserver' works", used)
    if start_method or not used or multiprocessing.get_start_method() != "fork":
        return start_method
    _log.warning("%s is in use here and does not work in a fork: workers start with start_method='forkserver'", used)
    return "forkserver"


@contextlib.contextmanager
def preloading(start_method: str) -> Iterator[None]:
    """Let a fork server that is started inside this block import what workers need, after the modules of Python's list.

    Nothing changes if one is running already, or if the user has set a list (`set_forkserver_preload`). The list is
    put back afterwards: it is the user's to set for the next server. Change os.environ nowhere else meanwhile.
    """
    server: Any = forkserver._forkserver  # noqa: SLF001  there is no public way to see these
    running, modules = server._forkserver_pid is not None, server._preload_modules  # noqa: SLF001
    if start_method != "forkserver" or running or modules != DEFAULT or _is_shadowed():
        if start_method == "forkserver" and not running:
            with signals_let_through():  # what the user has this server fork would not unblock them
                forkserver.ensure_running()
        yield
        return
    before = os.environ.get("PYTHONPATH")
    # Up to Python 3.13 a fork server looks for modules where an interpreter finds them that is started in this
    # directory, which need not be where this program has found them.
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    os.environ[_CALLERS_PATH] = before or ""
    server.set_forkserver_preload([*DEFAULT, *MODULES])
    try:
        yield
    finally:
        server.set_forkserver_preload(DEFAULT)
        del os.environ[_CALLERS_PATH]
        _set_python_path(before or "")


def _is_shadowed() -> bool:
    """Tell whether the current directory, where a fork server looks first, hides modules that are loaded here."""
    here = os.getcwd()
    if here in map(os.path.abspath, sys.path):
        return False
    files = (getattr(sys.modules.get(name.partition(".")[0]), "__file__", None) for name in os.listdir())
    return any(file is not None and not file.startswith(os.path.join(here, "")) for file in files)


def _set_python_path(value: str) -> None:
    if value:
        os.environ["PYTHONPATH"] = value
    else:
        os.environ.pop("PYTHONPATH", None)


def _seed_anew() -> None:
    """In a worker: give NumPy's global generator a seed of its own, as the import of NumPy does.

    Not in what the worker forks: that has the worker's, as always.
    """
    global _unseeded  # noqa: PLW0603
    if _unseeded:
        _unseeded = False
        np.random.seed()  # noqa: NPY002


def _begin_process(_: object) -> None:
    """In a fork of the server that has its name now: let signals through, which a worker holds back at first."""
    if not process.current_process().name.startswith(WORKER):
        let_signals_through()


in_server = False  # whether this process is a fork server for which a caller has asked by `preloading`, or its fork
_unseeded = False  # whether a worker has still to give the generator a seed
if (_before := os.environ.pop(_CALLERS_PATH, None)) is not None:
    _set_python_path(_before)
    in_server = True
    # Signals stay held back here: with the server, which ends after all workers, these would count as dead.
    util.register_after_fork(sys.modules[__name__], _begin_process)
    # Where Python imports the user's script here (from 3.14 on), that may seed the generator on purpose.
    _unseeded = sys.modules["__mp_main__"].__name__ == "__main__"
    os.register_at_fork(after_in_child=_seed_anew)
