"""Facts about the machine that affect speed. They do not tell whose machine it is."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from vecenvs import _native
from vecenvs._version import __version__

_LIBRARIES = ("numpy", "gymnasium", "mujoco", "ale-py", "box2d", "envpool", "mpi4py", "ray", "stable-baselines3")


def facts(cores: int) -> dict[str, object]:
    """Describe the machine. `cores` is the number of cores that this process may use."""
    import psutil

    return {
        "cores": cores,
        "logical_cpus": os.cpu_count(),
        "cpu": cpu_name(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "compiled": _native.is_compiled(),
    }


def versions(*others: str) -> dict[str, str]:
    """Return the versions of the installed libraries that affect speed, and of `others`."""
    found = {"vecenvs": __version__}
    for name in (*_LIBRARIES, *others):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """Return the name of the processor, or else of its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.machine()
