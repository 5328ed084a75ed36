"""Show what this machine and this Python environment can do: cores, start methods, MPI, Ray; and what is wrong.

Each way of starting worker processes is tried with two small envs. Neither MPI nor Ray is started. A line begins with

    ok    it works
    --    it is not installed, or this program was not started that way; the line says what to do if you want it
    !!    it is broken; the line says how, and the exit code is 1
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

OK, ABSENT, BROKEN = "ok", "--", "!!"
HERE = Path(__file__).resolve().parents[1]  # the folder vecenvs that was imported


class Finding(NamedTuple):
    """The result of one check."""

    state: str
    what: str
    text: str


def add_arguments(_: argparse.ArgumentParser) -> None:
    """Declare the command line, which has no arguments."""


def run(_: argparse.Namespace) -> int:
    """Print the findings. Return 1 if something is broken."""
    broken = False
    for examine in EXAMINATIONS:
        for finding in examine():
            broken |= finding.state == BROKEN
            sys.stdout.write(f"{finding.state}  {finding.what:<22}{finding.text}\n")
            sys.stdout.flush()
    return int(broken)


def _python() -> Iterator[Finding]:
    from vecenvs.bench.machine import versions

    yield Finding(OK, "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding(OK, "libraries", ", ".join(f"{name} {version}" for name, version in versions().items()))


def _native() -> Iterator[Finding]:
    from vecenvs import _native

    if _native.is_compiled():
        yield Finding(OK, "compiled core", "runs the loop over the envs; VECENVS_NATIVE=0 turns it off")
    else:
        folders = [Path(str(each.locate_file("vecenvs"))) for each in distributions(name="vecenvs")]
        other = next((folder.parent for folder in folders if folder.is_dir() and folder.resolve() != HERE), None)
        shadow = f"the source in {HERE.parent} shadows the installation in {other}: start Python in another folder, or"
        why = _native.why_not if other is None else f"{shadow} pip install -e . there"
        yield Finding(ABSENT, "compiled core", f"Python runs in its place: {why}")


def _cores() -> Iterator[Finding]:
    from vecenvs.cpus import allowed_cpus, usable_cores

    cores, allowed, there = usable_cores(), len(allowed_cpus()), os.cpu_count() or 1
    text = f"{cores} usable: this is the default number of workers"
    if allowed < there:
        text += f"; this process is tied to {allowed} of {there} CPUs"
    if cores < allowed:
        text += f"; a cgroup's quota allows the time of {cores} of {allowed} CPUs"
    yield Finding(OK, "cores", text)


def _threads() -> Iterator[Finding]:
    from vecenvs.worker.process import THREAD_VARIABLES

    given = {name: os.environ[name] for name in THREAD_VARIABLES if os.environ.get(name, "1") != "1"}
    if given:
        named = ", ".join(f"{name}={value}" for name, value in given.items())
        yield Finding(OK, "threads", f"{named}: it holds for workers, too; leave it unset for one thread in each")


def _processes() -> Iterator[Finding]:
    """Step two envs in two processes, by each start method."""
    from vecenvs.backends.subproc import SubprocVecEnv
    from vecenvs.bench.workloads import workload

    for method in multiprocessing.get_all_start_methods():
        start = time.perf_counter()
        try:
            with SubprocVecEnv([workload("spin:0us")] * 2, 2, start_method=method, step_timeout=30.0) as vec:
                vec.reset(seed=0)
                vec.step([0, 0])
        except Exception as error:  # any error is a finding
            yield Finding(BROKEN, f"subproc, {method}", _line(error))
        else:
            yield Finding(OK, f"subproc, {method}", f"two workers made, reset and stepped in {_since(start)}")


def _mpi() -> Iterator[Finding]:
    from vecenvs.backends.mpi.library import HOW_TO_LAUNCH, explain_size_one, launched_by, library_name, load_mpi
    from vecenvs.errors import BackendUnavailable
    from vecenvs.mpi.launch import find_mpirun

    try:
        mpi = load_mpi(initialize=False)
        mpirun = find_mpirun()
    except BackendUnavailable as error:
        yield Finding(ABSENT, "mpi", _line(error))
        return
    library = library_name(mpi)
    yield Finding(OK, "mpi", f"{library}; mpirun is {mpirun}")
    job = launched_by()
    if job is None:
        yield Finding(ABSENT, "mpi job", HOW_TO_LAUNCH)
    elif library in ("Open MPI", "MPICH") and job[0].startswith(("Open MPI", "MPICH")) and library not in job[0]:
        yield Finding(BROKEN, "mpi job", explain_size_one(mpi))
    else:
        yield Finding(OK, "mpi job", f"{job[0]} has started {job[1]} processes; this is one of them")


def _ray() -> Iterator[Finding]:
    from vecenvs.backends.ray.cluster import check_ray
    from vecenvs.errors import BackendUnavailable

    try:
        check_ray()
        import ray
    except BackendUnavailable as error:
        yield Finding(ABSENT, "ray", _line(error))
        return
    address = os.environ.get("RAY_ADDRESS")
    where = f"RAY_ADDRESS={address}" if address else "a local one is started on demand; address='auto' finds a cluster"
    yield Finding(OK, "ray", f"{ray.__version__}; {where}")


EXAMINATIONS: list[Callable[[], Iterator[Finding]]] = [_python, _native, _cores, _threads, _processes, _mpi, _ray]


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _since(start: float) -> str:
    return f"{time.perf_counter() - start:.2f} s"
