"""Calls out of order, and `close`, which always works and can be repeated."""

from __future__ import annotations

import functools
import gc
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenvs.errors import AlreadySteppingError, ClosedError, EnvError, NotSteppingError, VecEnvError
from vecenvs.testing.envs import CountingEnv, FailingEnv, ForkingEnv, counting_fns
from vecenvs.testing.envs.counting import pid_of
from vecenvs.testing.lockstep import Lockstep
from vecenvs.testing.suite.base import Conformance, Make


def _mapped() -> int:
    """Return how many segments of shared memory this process maps, where the system shows that."""
    maps = Path("/proc/self/maps")
    return maps.read_text(encoding="utf-8", errors="replace").count("memfd:vecenvs") if maps.exists() else 0


class LifecycleConformance(Conformance):
    """The order of calls, and `close`."""

    def test_wait_without_async(self, make: Make) -> None:
        vec = make(counting_fns(2))
        vec.reset()
        with pytest.raises(NotSteppingError):
            vec.step_wait()
        vec.step([0, 0])
        with pytest.raises(NotSteppingError):
            vec.step_wait()

    def test_async_twice(self, make: Make) -> None:
        vec = make(counting_fns(2))
        vec.reset()
        vec.step_async([0, 0])
        calls: list[Any] = [
            lambda: vec.step_async([1, 1]),
            lambda: vec.step([1, 1]),
            lambda: vec.reset(),
            lambda: vec.seed(1),
        ]
        for call in calls:
            with pytest.raises(AlreadySteppingError):
                call()
        vec.step_wait()
        assert vec.get_attr("actions") == [[0], [0]], "nothing of it was sent"

    def test_step_before_reset(self, make: Make) -> None:
        vec = make(counting_fns(2))
        with pytest.raises(VecEnvError, match="reset"):
            vec.step([0, 0])
        assert vec.get_attr("steps") == [0, 0]
        vec.reset()
        vec.step([0, 0])

    def test_text(self, make: Make) -> None:
        """`print(vec)` says what it is."""
        vec = make(counting_fns(3))
        text = repr(vec)
        assert all(part in text for part in (type(vec).__name__, "3 envs", "worker", "autoreset='same_step'"))
        vec.close()
        assert "closed" not in text
        assert ", closed>" in repr(vec)

    def test_stats_of_each_worker(self, make: Make) -> None:
        """Its envs, its process, and how its rows come; also after `close`."""
        n = random.randint(1, 5)
        vec = make(counting_fns(n))
        pids = vec.call(pid_of, None)
        stats = vec.stats()
        vec.close()
        workers = stats["workers"]
        assert [slot for worker in workers for slot in worker["slots"]] == [*range(n)]
        assert [worker["pid"] for worker in workers for _ in worker["slots"]] == pids
        assert all(worker["host"] and worker["restarts"] == 0 for worker in workers)
        assert len(workers) == stats["num_workers"] == sum(stats["transports"].values())
        assert {worker["transport"] for worker in workers} == {*stats["transports"]}
        for name in ("slots", "pid", "host", "transport", "restarts"):
            assert [worker[name] for worker in vec.stats()["workers"]] == [worker[name] for worker in workers]

    def test_closed(self, make: Make) -> None:
        vec = make(counting_fns(2))
        vec.reset()
        before = vec.closed
        vec.close()
        assert (before, vec.closed) == (False, True)
        calls: list[Any] = [
            lambda: vec.reset(),
            lambda: vec.step([0, 0]),
            lambda: vec.step_async([0, 0]),
            lambda: vec.step_wait(),
            lambda: vec.seed(0),
            lambda: vec.set_options({}),
            lambda: vec.get_attr("tag"),
            lambda: vec.set_attr("tag", 0),
            lambda: vec.has_attr("tag"),
            lambda: vec.env_method("add", 1),
            lambda: vec.env_is_wrapped(object),
            lambda: vec.active,
            lambda: vec.rewards64,
            lambda: vec.info_array("tag"),
            lambda: vec.call_wait(),
            lambda: vec.recv(),
            lambda: vec.send([0, 0]),
            lambda: vec.get_images(),
            lambda: vec.render(),
        ]
        for call in calls:
            with pytest.raises(ClosedError, match="closed"):
                call()
        vec.close()
        assert vec.num_envs == 2
        assert vec.closed is True

    def test_a_closed_vec_env_holds_nothing(self, make: Make, request: pytest.FixtureRequest) -> None:
        """A program may keep thousands of them, and what it was given stays valid: no collector has to run for that."""
        import psutil

        closed, held = [], []
        counts = []
        gc.collect()
        request.addfinalizer(gc.enable)
        gc.disable()
        for _ in range(3):
            vec = make(counting_fns(4), copy=False)
            vec.reset(seed=0)
            held.append(vec.step([0] * 4)[0])
            expected = np.array(held[-1])
            steps = vec.stats()["steps"]
            vec.close()
            closed.append(vec)
            counts.append((psutil.Process().num_fds(), _mapped()))
            np.testing.assert_array_equal(held[-1], expected)
            assert vec.stats()["steps"] == steps
            held.clear()
        assert counts[1] == counts[2]

    @pytest.mark.parametrize("when", ["made", "reset", "stepping"])
    def test_close_is_asked_of_every_env_once(self, make: Make, when: str, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        vec = make(counting_fns(4, closed_file=closed))
        if when != "made":
            vec.reset()
        if when == "stepping":
            vec.step_async([0] * 4)
        vec.close()
        vec.close()
        assert vec.closed
        assert sorted(closed.read_text().split()) == ["0", "1", "2", "3"]

    def test_with_statement(self, make: Make) -> None:
        with make(counting_fns(2)) as vec:
            vec.reset()
        assert vec.closed
        with pytest.raises(ZeroDivisionError), make(counting_fns(2)) as vec:
            vec.reset()
            raise ZeroDivisionError
        assert vec.closed

    def test_close_after_an_error(self, make: Make) -> None:
        vec = make([functools.partial(FailingEnv, tag) for tag in range(4)])
        vec.reset()
        with pytest.raises(EnvError):
            vec.step([0] * 4)
        vec.close()
        assert vec.closed

    @pytest.mark.timeout(120)
    @pytest.mark.parametrize("where", ["step", "reset", "method", "close"])
    def test_envs_that_fork(self, make: Make, where: str, tmp_path: Path) -> None:
        """Whatever a child leaves the env's code by, it ends there, and is no second worker."""
        ways = {"exit": 3, "raise": 1, "return": 0}
        fns = [functools.partial(ForkingEnv, tag, where, way, tmp_path / way, 2) for tag, way in enumerate(ways)]
        both = Lockstep(make, fns)
        both.plain.envs = [CountingEnv(tag, 2) for tag in range(3)]  # which do not fork
        both.reset(seed=1)
        both.run(7)
        assert both.vec.env_method("add", 1) == [1, 2, 3]
        both.run(2)
        both.reset([2, 0])
        both.vec.send([0, 0], [1, 2])
        assert both.vec.recv(indices=[1, 2]).obs[:, 0].tolist() == [1, 2]
        both.vec.close()
        count = {"step": 3, "reset": 2, "method": 1, "close": 1}[where]
        assert {way: (tmp_path / way).read_text().split() for way in ways} == {
            way: [str(code)] * count for way, code in ways.items()
        }

    def test_an_async_reset_that_forks(self, make: Make, tmp_path: Path) -> None:
        fns = [functools.partial(ForkingEnv, tag, "reset", "return", tmp_path / "told", 2) for tag in range(2)]
        vec = make(fns, autoreset="async")
        vec.reset()
        steps = 0
        while min(vec.get_attr("episode")) < 4:
            assert vec.step([0] * 2)[0][:, 0].tolist() == [0, 1]
            steps += 1
            assert steps < 10_000
        assert set((tmp_path / "told").read_text().split()) == {"0"}

    def test_an_env_that_raises_in_close(self, make: Make, tmp_path: Path) -> None:
        """The exception is reported as a warning or an error, and the other envs are closed."""
        closed = tmp_path / "closed"
        vec = make([functools.partial(FailingEnv, 0, "close"), *counting_fns(3, closed_file=closed)])
        vec.reset()
        with pytest.warns(Warning, match="env 0"):
            vec.close()
        assert vec.closed
        assert sorted(closed.read_text().split()) == ["0", "1", "2"]
