"""Envs that wait: how long they took, and what limits that."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from test_waiting_envs import GateEnv

import vecenvs
from vecenvs.errors import EnvError, StepTimeout
from vecenvs.testing.envs import CountingEnv, counting_fns

pytestmark = pytest.mark.timeout(60)

KINDS = pytest.mark.parametrize("kind", ["asyncio", "threads"])


@pytest.fixture(params=["dummy", "subproc"])
def engine(request: pytest.FixtureRequest) -> Any:
    return vecenvs.DummyVecEnv if request.param == "dummy" else functools.partial(vecenvs.SubprocVecEnv, num_workers=2)


class SlowEnv(CountingEnv):
    """An env that takes a while for each step, and twice that for each reset."""

    def step(self, action: Any) -> Any:
        time.sleep(0.1 * self.tag)
        return super().step(action)

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(0.2 * self.tag)
        return super().reset(**kwargs)


class SlowAsyncEnv(GateEnv):
    """The same as coroutines."""

    async def step(self, action: Any) -> Any:
        await asyncio.sleep(0.1 * self.tag)
        return await super().step(action)

    async def reset(self, **kwargs: Any) -> Any:
        await asyncio.sleep(0.2 * self.tag)
        return await super().reset(**kwargs)


def slow_fns(kind: str, gate: Path) -> list[Any]:
    tags = (2, 0, 1)
    return [
        functools.partial(SlowEnv, t) if kind == "threads" else functools.partial(SlowAsyncEnv, t, gate) for t in tags
    ]


@KINDS
def test_latency_is_what_the_env_took(engine: Any, kind: str, tmp_path: Path) -> None:
    least = np.array([0.2, 0.0, 0.1])
    with vecenvs.VecMonitor(engine(slow_fns(kind, tmp_path / "none"), concurrency=kind)) as vec:
        began = time.monotonic()
        vec.reset_async()
        for at_least in (2 * least, least, least):
            found = np.full(3, -1.0)
            for _ in range(3):
                batch = vec.recv(max_envs=1)
                assert batch.latency is not None
                assert (batch.latency.dtype, batch.latency.shape) == (np.float32, (1,))
                found[batch.indices] = batch.latency
            ended = time.monotonic()
            time.sleep(0.3)  # what the caller does meanwhile is not in it
            assert (found >= at_least).all()
            assert (found <= ended - began + 1e-3).all()
            began = time.monotonic()
            vec.send([0] * 3)
        kept = vec.recv(3)
        before = kept.latency.copy()
        vec.send([0] * 3)
        vec.recv(3)
        assert kept.latency.tolist() == before.tolist(), "it is the caller's own"


class HangingEnv(CountingEnv):
    """An env that hangs once, at a reset or step, until the gate is there; one that is made in its place does not."""

    def __init__(self, tag: int, gate: Path, where: str, at: int, length: int = 5) -> None:
        super().__init__(tag, length)
        self.gate, self.where, self.left = gate, where, at

    def hangs(self, where: str) -> bool:
        self.left -= where == self.where
        hung = self.gate.with_suffix(".hung")
        if self.left or where != self.where or hung.exists():
            return False
        hung.touch()
        return True

    def step(self, action: Any) -> Any:
        if self.hangs("step"):
            wait_for(self.gate)
        return super().step(action)

    def reset(self, **kwargs: Any) -> Any:
        if self.hangs("reset"):
            wait_for(self.gate)
        return super().reset(**kwargs)


def wait_for(gate: Path) -> None:
    while not gate.exists():
        time.sleep(0.005)


class HangingAsyncEnv(HangingEnv):
    """The same as coroutines, which go on in spite of being cancelled."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if self.hangs("step"):
            await self.ignore_cancellations()
        return CountingEnv.step(self, action)

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        if self.hangs("reset"):
            await self.ignore_cancellations()
        return CountingEnv.reset(self, **kwargs)

    async def close(self) -> None:  # type: ignore[override]
        super().close()

    async def ignore_cancellations(self) -> None:
        while not self.gate.exists():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.005)


def hanging_fns(kind: str, gate: Path, where: str, at: int, length: int = 5) -> list[Any]:
    """Return functions of three envs, of which env 1 hangs once."""
    make = HangingEnv if kind == "threads" else HangingAsyncEnv
    return [functools.partial(make, tag, gate, where, at if tag == 1 else 99, length) for tag in range(3)]


@KINDS
def test_a_reset_that_is_too_late_fails_alone(engine: Any, kind: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fns = hanging_fns(kind, gate, "reset", 2)
    with engine(fns, concurrency=kind, step_timeout=30.0, reset_timeout=0.4) as vec:
        vec.reset(seed=0)
        vec.step([0] * 3)
        with pytest.raises(EnvError, match="env 1|envs 1") as caught:
            vec.reset(seed=7)
        assert isinstance(caught.value.__cause__, StepTimeout)
        assert "reset within 0.4 s" in str(caught.value.__cause__)
        assert caught.value.batch is not None
        assert caught.value.batch.obs.tolist() == [[0, 2, 0], [2, 2, 0]]
        with pytest.raises(EnvError, match="failed before|failed in reset"):
            vec.step([0] * 3)
        assert vec.reset([1], seed=7).tolist() == [[1, 1, 0]], "of another env, as that one goes on"
        gate.touch()
        assert vec.step([0] * 3)[0][:, :2].tolist() == [[0, 2], [1, 1], [2, 2]]
        assert vec.get_attr("seeds", [1]) == [[8]]


@KINDS
def test_with_restarts_a_late_reset_is_repeated(engine: Any, kind: str, tmp_path: Path) -> None:
    fns = hanging_fns(kind, tmp_path / "gate", "reset", 1)
    with engine(fns, concurrency=kind, reset_timeout=0.4, on_failure="restart") as vec:
        assert vec.reset(seed=3).tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]
        assert vec.get_attr("seeds") == [[3], [4], [5]]
        assert vec.stats()["errors"] == 1
        (tmp_path / "gate").touch()


@KINDS
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "async"])
def test_an_autoreset_has_the_time_of_a_reset(kind: str, autoreset: str, tmp_path: Path) -> None:
    """The time of a step ends where the reset begins: each is shorter than its limit, and both together are not."""
    gate = tmp_path / "none"
    make = functools.partial(SlowEnv, 3, 2) if kind == "threads" else functools.partial(SlowAsyncEnv, 3, gate, length=2)
    limits = {"step_timeout": 0.5, "reset_timeout": 30.0}
    with vecenvs.DummyVecEnv([make], concurrency=kind, autoreset=autoreset, **limits) as vec:
        vec.reset()
        episodes = [vec.step([0])[0][0, 1] for _ in range(4)]
        while episodes[-1] < 2:
            episodes.append(vec.step([0])[0][0, 1])
        assert sorted(episodes) == episodes


@KINDS
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "async", "disabled"])
def test_what_an_abandoned_env_does_in_the_end_changes_nothing(kind: str, autoreset: str, tmp_path: Path) -> None:
    """It ends its episode, which would begin the next one of the env that has taken its place."""
    gate = tmp_path / "gate"
    fns = hanging_fns(kind, gate, "step", 2, length=2)
    with vecenvs.DummyVecEnv(fns, concurrency=kind, autoreset=autoreset, step_timeout=0.4) as vec:
        vec.reset()
        vec.step([0] * 3)
        vec.send([0] * 3)
        assert sorted(vec.recv(2).indices.tolist()) == [0, 2]
        with pytest.raises(EnvError, match="env 1"):
            vec.recv(indices=[1])
        vec.reset(seed=5)
        gate.touch()
        time.sleep(0.1)
        assert vec.step([0] * 3)[0][:, 2].tolist() == [1] * 3
        assert vec.get_attr("seeds", [1]) == [[6]]
        assert vec.get_attr("steps", [1]) == [1]


@pytest.mark.parametrize("name", ["step_timeout", "reset_timeout"])
def test_limits_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be more than 0 seconds, or None"):
        vecenvs.DummyVecEnv(counting_fns(1), **{name: 0})
    with pytest.raises(TypeError, match=name):
        vecenvs.make_vec_env(counting_fns(2), **{name: "soon"})


@KINDS
def test_latency_of_async_resets_begins_with_them(kind: str, tmp_path: Path) -> None:
    gate = tmp_path / "none"
    make = functools.partial(SlowEnv, 1, 1) if kind == "threads" else functools.partial(SlowAsyncEnv, 1, gate, length=1)
    with vecenvs.DummyVecEnv([make], concurrency=kind, autoreset="async") as vec:
        vec.reset()
        vec.send([0])
        last = vec.recv()
        assert last.dones.tolist() == [True]
        first = vec.recv()
        assert first.active.tolist() == [False]
        assert first.latency is not None
        assert first.latency[0] >= 0.2


def test_without_concurrency_there_is_none(engine: Any) -> None:
    with engine(counting_fns(2)) as vec:
        vec.reset()
        vec.send([0, 0])
        assert vec.recv(2).latency is None


class TimedEnv(CountingEnv):
    """An env that writes when its steps begin and end."""

    def __init__(self, tag: int, file: Path) -> None:
        super().__init__(tag, 3)
        self.file = file

    def step(self, action: Any) -> Any:
        began = time.monotonic()
        time.sleep(0.01)
        self.tell(began)
        return super().step(action)

    def tell(self, began: float) -> None:
        with self.file.open("a") as file:
            file.write(f"{began} {time.monotonic()}\n")


class TimedAsyncEnv(TimedEnv):
    """The same as coroutines."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        began = time.monotonic()
        await asyncio.sleep(0.01)
        self.tell(began)
        return CountingEnv.step(self, action)

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        return CountingEnv.reset(self, **kwargs)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


@pytest.mark.sparse
@KINDS
@pytest.mark.parametrize("limit", [(3, None), (None, 100), (2, 200)])
def test_work_limit(engine: Any, kind: str, limit: Any, tmp_path: Path) -> None:
    make = TimedEnv if kind == "threads" else TimedAsyncEnv
    fns = [functools.partial(make, tag, tmp_path / "times") for tag in range(7)]
    with engine(fns, concurrency=kind, work_limit=limit) as vec:
        began = time.monotonic()
        vec.reset(seed=0)
        rows = [vec.step([0] * 7)[0][:, 1:].tolist() for _ in range(4)]
        vec.send([0] * 7)
        got: list[int] = []
        while len(got) < 7:
            got += vec.recv().indices.tolist()
        elapsed = time.monotonic() - began
        vec.send([0] * 7)  # what waits for its turn does not keep `close` from ending
    assert rows == [[[episode, t]] * 7 for episode, t in ((1, 1), (1, 2), (2, 0), (2, 1))]
    if limit[0] is not None:
        times = [line.split() for line in (tmp_path / "times").read_text().splitlines()]
        turns = sorted([(float(first), 1) for first, _ in times] + [(float(last), -1) for _, last in times])
        assert max(itertools.accumulate(change for _, change in turns)) <= limit[0]
    if limit[1] is not None:
        assert elapsed >= 40 / limit[1], "of 42 steps and resets"


@KINDS
def test_an_abandoned_env_does_not_keep_its_place(kind: str, tmp_path: Path) -> None:
    fns = hanging_fns(kind, tmp_path / "gate", "step", 1)
    with vecenvs.DummyVecEnv(fns, concurrency=kind, work_limit=(1, None), step_timeout=0.4) as vec:
        vec.reset()
        with pytest.raises(EnvError, match="env 1"):
            vec.step([0] * 3)
        vec.reset([1])
        assert vec.step([0] * 3)[0][:, 2].tolist() == [2, 1, 2]
        (tmp_path / "gate").touch()


def test_wrong_work_limits() -> None:
    fns = counting_fns(4)
    with pytest.raises(ValueError, match=r"work_limit is for envs that wait .* give concurrency='threads'"):
        vecenvs.DummyVecEnv(fns, work_limit=(2, None))
    with pytest.raises(ValueError, match="each of 3 workers needs one: give num_workers=2"):
        vecenvs.SubprocVecEnv(fns, 3, concurrency="threads", work_limit=(2, None))
    with pytest.raises(TypeError, match="work_limit must be a pair"):
        vecenvs.make_vec_env(fns, concurrency="threads", work_limit=2)
    with pytest.raises(ValueError, match=r"work_limit=\(None, 0\) lets no env work"):
        vecenvs.DummyVecEnv(fns, concurrency="threads", work_limit=(None, 0))


class LateOnce:
    """Hangs in the second reset of this process: an env that is made anew does not."""

    resets = 0

    def is_late(self) -> bool:
        type(self).resets += 1
        return type(self).resets == 2


class LateEnv(LateOnce, CountingEnv):
    """The reward is the action."""

    def reset(self, **kwargs: Any) -> Any:
        if self.is_late():
            time.sleep(3)
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(action), *rest


class LateAsyncEnv(LateOnce, GateEnv):
    async def reset(self, **kwargs: Any) -> Any:
        if self.is_late():
            await asyncio.sleep(3600)
        return await super().reset(**kwargs)


def late_fns(kind: str, gate: Path) -> list[Any]:
    """Return a late env of two steps, and another one."""
    LateEnv.resets = LateAsyncEnv.resets = 0
    if kind == "asyncio":
        return [functools.partial(LateAsyncEnv, 0, gate, length=2), functools.partial(GateEnv, 1, gate, 99)]
    return [functools.partial(LateEnv, 0, 2), functools.partial(CountingEnv, 1, 99)]


@KINDS
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "async"])
@pytest.mark.parametrize("policy", [{"on_error": "reset"}, {"on_error": "renew"}, {"on_failure": "restart"}], ids=str)
@pytest.mark.sparse("policy")
def test_a_late_autoreset_keeps_the_last_row(
    engine: Any, kind: str, autoreset: str, policy: Any, tmp_path: Path
) -> None:
    """The reset alone is repeated: the episode has ended before, and ends once."""
    options = {"autoreset": autoreset, "reset_timeout": 0.4, "info_attrs": ("t",), **policy}
    with engine(late_fns(kind, tmp_path / "none"), concurrency=kind, **options) as vec:
        vec.reset()
        rows: list[Any] = []
        for action in itertools.cycle([1, 2]):
            obs, rewards, dones, infos = vec.step([action, 0])
            if "resetting" not in infos[0]:
                last = infos[0].get("terminal_observation")
                flags = bool(dones[0]), bool(vec.truncated[0])
                rows.append((obs[0, 2], rewards[0], *flags, None if last is None else last[2], infos[0]["t"]))
                assert not {"env_error", "worker_restarted"} & infos[0].keys()
            if len(rows) == 4:
                break
            if dones[0] and autoreset == "async":
                time.sleep(1)
        if autoreset == "same_step":
            assert rows == [(1, 1, False, False, None, 1), (0, 2, True, False, 2, 2)] * 2
        else:
            assert rows[:3] == [(1, 1, False, False, None, 1), (2, 2, True, False, 2, 2), (0, 0, False, False, None, 0)]
            assert rows[3][::5] == (1, 1)
        assert vec.stats()["errors"] == 1
        assert vec.stats()["workers"][0]["restarts"] == 0


class Broken(CountingEnv):
    """The first one's second reset raises, and its close takes longer than all limits."""

    made: ClassVar[list[Broken]] = []

    def __init__(self) -> None:
        super().__init__(length=10**6 if self.made else 1)
        self.made.append(self)
        self.number, self.closed = len(self.made), 0

    def reset(self, **kwargs: Any) -> Any:
        if (self.number, self.episode) == (1, 1):
            raise RuntimeError("broken")
        return super().reset(**kwargs)

    def close(self) -> None:
        time.sleep(0.8 if self.number == 1 else 0)
        self.closed += 1


def test_an_env_that_was_made_too_late_takes_no_place() -> None:
    Broken.made.clear()
    options = {"on_error": "reset", "step_timeout": 0.3, "reset_timeout": 0.3}
    with vecenvs.DummyVecEnv([Broken], concurrency="threads", **options) as vec:
        vec.reset()
        vec.step([0])
        number, end = vec.get_attr("number"), time.monotonic() + 1.0
        for t in itertools.count(1):
            assert vec.step([0])[0][0, 2] == t
            if time.monotonic() > end:
                break
        assert vec.get_attr("number") == number == [2]
    assert [env.closed for env in Broken.made] == [1] * len(Broken.made)


class Restored(CountingEnv):
    """Its `set_state` waits for a file."""

    def __init__(self, gate: Path) -> None:
        super().__init__(length=2)
        self.gate = gate
        self.threads: list[threading.Thread] = []

    def get_state(self) -> int:
        return self.t

    def set_state(self, state: int) -> None:
        self.threads.append(threading.current_thread())
        wait_for(self.gate)
        self.t = state


def test_a_state_that_was_set_too_late_changes_nothing(tmp_path: Path) -> None:
    """The slot is in another episode by then, of another env."""
    gate, seeds = tmp_path / "gate", list[Any]()
    options = {"episode_seeds": True, "concurrency": "threads", "reset_timeout": 0.2}
    for late in (False, True):
        with vecenvs.DummyVecEnv([functools.partial(Restored, gate)], **options) as vec:
            vec.reset(seed=5)
            threads = vec.envs[0].unwrapped.threads
            if late:
                with pytest.raises(EnvError, match="did not finish"):
                    vec.set_state(vec.get_state())
            vec.reset(seed=77)
            if late:
                gate.touch()
                threads[0].join()
            found = []
            for _ in range(5):
                vec.step([0])
                found.append(vec.reset_infos[0]["episode_seed"])
            seeds.append(found)
    assert seeds[0] == seeds[1]
    assert len({*seeds[0]}) > 1


class Counted(CountingEnv):
    """Action 1 takes longer than the limit."""

    made: ClassVar[list[Counted]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)
        self.closed = 0

    def step(self, action: Any) -> Any:
        time.sleep(0.6 * action)
        return super().step(action)

    def close(self) -> None:
        self.closed += 1


def test_no_env_is_made_while_the_others_are_closed() -> None:
    Counted.made.clear()
    options: Any = {"concurrency": "threads", "step_timeout": 0.3, "on_failure": "restart"}
    with vecenvs.DummyVecEnv([Counted] * 2, **options) as vec:
        vec.reset()
        vec.send([1, 0])
        assert vec.recv(1).indices.tolist() == [1]
    assert [env.closed for env in Counted.made] == [1, 1]
