"""What each step does for each env, and with each batch: compiled (step.c, results.c), or in Python (twin.py).

Both have the same functions; twin.py says what they do. The compiled ones run if they were built when vecenvs was
installed, unless the environment variable VECENVS_NATIVE is "0": `chosen` is the module. Each process chooses for
itself, and rows are the same bit for bit. Debuggers and profilers see the loop over the envs only with
VECENVS_NATIVE=0.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

from vecenvs._native import twin

chosen: ModuleType = twin
why_not = ""  # why Python runs

if os.environ.get("VECENVS_NATIVE") == "0":
    why_not = "VECENVS_NATIVE=0"
else:
    try:
        core = import_module("vecenvs._native.core")
    except ImportError as problem:
        import sysconfig

        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            why_not = "there is none for free-threaded builds of Python"
        else:
            why_not = f"it was not built when vecenvs was installed, which takes a C compiler: {problem}"
    else:
        chosen = core
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=core.note_fork)


def is_compiled() -> bool:
    """Tell whether compiled functions run in this process."""
    return chosen is not twin
