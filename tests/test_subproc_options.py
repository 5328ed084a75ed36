"""What SubprocVecEnv can be told about where its envs are stepped."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.backends import backend_class
from vecenvs.cpus import cpu_of, usable_cores
from vecenvs.errors import EnvError
from vecenvs.pool.pool_base import CommonArguments, PoolBase
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv

FNS = [functools.partial(CountingEnv, i) for i in range(7)]


class MyVecEnv(DummyVecEnv):
    """One of a user's own, with an argument that it passes on by mistake."""

    def __init__(self, env_fns: Any, speed: int = 1) -> None:
        super().__init__(env_fns, speed=speed)


@pytest.mark.parametrize(
    ("cls", "kwargs", "message"),
    [
        (SubprocVecEnv, {"context": "spawn"}, r"has no argument 'context' \(did you mean 'start_method'\?\): it has"),
        (SubprocVecEnv, {"n_workers": 2}, r"has no argument 'n_workers' \(did you mean .*'num_workers'.*\?\)"),
        (DummyVecEnv, {"start_method": "fork"}, r"has no argument 'start_method' .*: it has env_fns, autoreset"),
        (DummyVecEnv, {"num_workers": 2}, "has no argument 'num_workers': it has env_fns, autoreset"),
        (MyVecEnv, {}, "has no argument 'speed': it has env_fns"),
    ],
)  # fmt: skip
def test_arguments_it_does_not_have(cls: Any, kwargs: dict[str, Any], message: str) -> None:
    """The error names the class that was called, not the base which met them."""
    with pytest.raises(TypeError, match=f"^{cls.__name__} {message}"):
        cls(FNS, **kwargs)


@pytest.mark.parametrize("backend", ["dummy", "subproc", "mpi", "ray"])
def test_every_engine_shows_the_common_arguments(backend: str) -> None:
    """To `help` by its signature, to type checkers by CommonArguments."""
    known = {
        name: parameter
        for name, parameter in inspect.signature(PoolBase.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert {name: parameter.annotation for name, parameter in known.items()} == {
        name: found.__forward_arg__ for name, found in CommonArguments.__annotations__.items()
    }
    cls = backend_class(backend)
    shown = inspect.signature(cls).parameters
    assert {name: shown[name] for name in known} == known
    own = inspect.signature(cls.__init__).parameters
    assert str(own["common"]) == "**common: 'Unpack[CommonArguments]'"
    assert [name for name in own if name not in ("self", "common")] == [name for name in shown if name not in known]


THREADS = """
import sys

import numpy as np
import psutil
from threadpoolctl import threadpool_info, threadpool_limits

from vecenvs import SubprocVecEnv
from vecenvs.testing.envs import CountingEnv


def thread_counts(env):
    np.ones((500, 500)) @ np.ones((500, 500))
    return {pool["num_threads"] for pool in threadpool_info()}, psutil.Process().num_threads()


if __name__ == "__main__":
    with threadpool_limits(2), SubprocVecEnv([CountingEnv] * 3, 2, sys.argv[1]) as vec:
        print(vec.call(thread_counts, None), {pool["num_threads"] for pool in threadpool_info()})
"""


@pytest.mark.sparse
@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_a_worker_computes_with_one_thread(start_method: str, tmp_path: Path) -> None:
    """Idle threads would count as well: OpenBLAS's poll for a tenth of a second after they have begun.

    In a program of its own: torch, once another test has set its number of threads here, starts one in every fork.
    """
    script = tmp_path / "script.py"
    script.write_text(THREADS)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    environ.pop("OMP_NUM_THREADS", None)
    command = [sys.executable, str(script), start_method]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=50, check=False)
    threads = {1}, 2  # of a library; of the process: the main thread, and one that watches the caller
    assert done.stdout == f"{[threads] * 3} {{2}}\n", done.stderr  # the caller's own libraries keep theirs


def cpus_of(env: Any) -> set[int]:
    return set(os.sched_getaffinity(0))


if sys.platform == "linux":

    @pytest.mark.parametrize("start_method", ["fork", "spawn"])
    def test_pinned_workers_have_a_cpu_each_and_the_caller_keeps_its_own(start_method: str) -> None:
        allowed = os.sched_getaffinity(0)
        with SubprocVecEnv(FNS, min(2, len(allowed)), start_method, pin_workers=True) as vec:
            found = {frozenset(cpus) for cpus in vec.call(cpus_of, None)}
            assert len(found) == vec.stats()["num_workers"]
            assert all(len(cpus) == 1 and cpus <= allowed for cpus in found)
        assert os.sched_getaffinity(0) == allowed

    def test_more_pinned_workers_than_cpus() -> None:
        too_many = len(os.sched_getaffinity(0)) + 1
        with pytest.raises(ValueError, match="use fewer workers"):
            SubprocVecEnv(FNS[:1] * too_many, too_many, "fork", pin_workers=True)

    def test_workers_without_a_core_to_spare_tell_where_they_are() -> None:
        cores = usable_cores()
        with SubprocVecEnv([FNS[0]] * cores, cores, pin_workers=True) as vec:
            for worker, cpus in zip(vec.stats()["workers"], vec.call(cpus_of, None), strict=True):
                assert {cpu_of(worker["pid"])} == cpus


def test_rows_do_not_depend_on_the_order_of_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller moves from one worker's CPU to the other's and on to its own."""
    here, pids = itertools.cycle([0, 1, 1, 2]), list[int]()
    monkeypatch.setattr("vecenvs.pool.workers.cpu_of", lambda pid=None: next(here) if pid is None else pids.index(pid))
    monkeypatch.setattr("vecenvs.pool.workers.usable_cores", lambda: 1)
    monkeypatch.setattr("vecenvs.pool.commands._REORDER", 3)
    actions = np.zeros(len(FNS), dtype=np.int64)
    with SubprocVecEnv(FNS, 2) as vec, DummyVecEnv(FNS) as reference:
        pids += [worker["pid"] for worker in vec.stats()["workers"]]
        assert_same(vec.reset(seed=1), reference.reset(seed=1))
        orders = set()
        for _ in range(40):
            assert_same(vec.step(actions), reference.step(actions))
            orders.add(tuple(vec._workers.order))
        assert orders == {(0, 1), (1, 0)}


class Speaking(CountingEnv):
    """Prints at each step, and fails at the third."""

    def step(self, action: Any) -> Any:
        print(f"env {self.tag} out")
        print(f"env {self.tag} err", file=sys.stderr)
        if self.steps == 2:
            raise ValueError("three")
        return super().step(action)


def test_prints_go_to_the_descriptors_where_the_caller_has_no_files(capfd: Any) -> None:
    """A notebook's streams end in the kernel's own process; it reads the descriptors of its children."""
    fns = [functools.partial(Speaking, i) for i in range(3)]
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
        SubprocVecEnv(fns, 2, start_method="fork") as vec,
    ):
        vec.reset(seed=0)
        vec.step([0] * 3)
    found = capfd.readouterr()
    assert sorted(found.out.splitlines()) == [f"env {i} out" for i in range(3)]
    assert sorted(found.err.splitlines()) == [f"env {i} err" for i in range(3)]
    assert out.getvalue() == err.getvalue() == ""


@pytest.mark.parametrize("cls", [DummyVecEnv, functools.partial(SubprocVecEnv, start_method="fork")])
def test_a_traceback_begins_in_the_env(cls: Any) -> None:
    with cls([lambda: TimeLimit(Speaking(0), 9)]) as vec:
        vec.reset(seed=0)
        for _ in range(2):
            vec.step([0])
        with pytest.raises(EnvError) as caught:
            vec.step([0])
    # The last traceback: an interruption by another test may have left an exception that counts as being handled.
    _, _, last = caught.value.remote_traceback.rpartition("Traceback (most recent call last)")
    first, *_ = [line for line in last.splitlines() if line.startswith("  File")]
    assert first.startswith(f'  File "{__file__}"')
