"""The machine a benchmark ran on, as far as it bears on speed. Nothing that tells whose machine it is."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from vecenvs import __version__

_LIBRARIES = ("numpy", "gymnasium", "mujoco", "ale-py", "box2d", "mpi4py", "ray", "stable-baselines3")


def facts(cores: int) -> dict[str, object]:
    """Describe the machine; `cores` are those that this process may use."""
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
    }


def versions() -> dict[str, str]:
    """Tell the versions of those libraries that bear on speed and are installed here."""
    found = {"vecenvs": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """Name the processor, as well as the system can tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.machine()
