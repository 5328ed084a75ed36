"""The cores that this process may use."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

_PROCESSOR = 36  # the index of this field among those after the name in /proc/*/stat: see proc_pid_stat(5)


def allowed_cpus() -> list[int]:
    """Return the CPUs that this process may run on; all of them if the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return the number of allowed CPUs, or fewer if a cgroup's quota allows less than their time; at least 1."""
    quota = _cgroup_quota()
    cores = len(allowed_cpus())
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


_share: ContextVar[int | None] = ContextVar("_share", default=None)


def worker_cores() -> int:
    """Return how many cores the worker whose env functions are being called may use: for threads of the envs' own.

    The workers of a VecEnv share the cores of their machine. Outside of an env function, all cores that this process
    may use.

    Returns:
        The number of cores, at least 1.
    """
    share = _share.get()
    return usable_cores() if share is None else max(1, min(share, usable_cores()))


@contextlib.contextmanager
def sharing(cores: int | None) -> Iterator[None]:
    """Let `worker_cores` return at most `cores`, if this is not None."""
    token = _share.set(_share.get() if cores is None else cores)
    try:
        yield
    finally:
        _share.reset(token)


def cpu_of(process: int | None = None) -> int | None:
    """Return the CPU on which a process's main thread, or this thread, ran last; None off Linux."""
    thread = "thread-self" if process is None else str(process)
    try:
        with open(f"/proc/{thread}/stat", "rb") as stat:  # a name in brackets, of any characters, then 50 fields
            return int(stat.read().rpartition(b")")[2].split()[_PROCESSOR])
    except (OSError, ValueError, IndexError):
        return None


def _cgroup_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return the tightest CPU quota, in cores, of this process's cgroups (version 2, or 1 below `cpu`), or None."""
    quotas: list[float] = []
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        group = base / path.lstrip("/")
        for folder in [group, *group.parents]:
            quota = _read_quota(folder, version=1 if controllers else 2)
            if quota is not None:
                quotas.append(quota)
            if folder == base:
                break
    return min(quotas, default=None)


def _read_quota(folder: Path, version: int) -> float | None:
    try:
        if version == 2:
            limit, period = (folder / "cpu.max").read_text().split()
        else:
            limit = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if limit in ("max", "-1") else int(limit) / int(period)
    except (OSError, ValueError):
        return None
