"""`arecv`: rows in a coroutine."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from pathlib import Path
from typing import Any

import pytest

import vecenvs
from vecenvs.errors import AlreadySteppingError, ClosedError, EnvError, NotSteppingError, StepTimeout
from vecenvs.testing.envs import CountingEnv, FailingEnv, GatedEnv, counting_fns

pytestmark = pytest.mark.timeout(60)

WAYS = {
    "threads": functools.partial(vecenvs.DummyVecEnv, concurrency="threads"),
    "one by one": vecenvs.DummyVecEnv,
    "workers": functools.partial(vecenvs.SubprocVecEnv, num_workers=4),
}


@pytest.fixture(params=WAYS)
def make(request: pytest.FixtureRequest) -> Any:
    return WAYS[request.param]


def gated(gate: Path) -> list[Any]:
    return [functools.partial(GatedEnv, 0, gate), *(functools.partial(CountingEnv, tag) for tag in (1, 2, 3))]


@pytest.fixture(params=["threads", "workers"])
def make_others(request: pytest.FixtureRequest) -> Any:
    """Make envs that the caller does not step itself."""
    return WAYS[request.param]


def test_rows_of_random_schedules(make: Any) -> None:
    """They are those of envs that are stepped as often."""
    rng = random.Random(7)

    async def play(vec: Any) -> dict[int, int]:
        due, steps = 0, dict.fromkeys(range(5), 0)
        vec.reset(seed=0)
        free = set(range(5))
        for _ in range(60):
            if free:
                some = rng.sample(sorted(free), rng.randint(1, len(free)))
                vec.send([0] * len(some), some)
                free -= {*some}
                due += len(some)
            at_least = rng.randint(1, due)
            most = rng.choice([None, at_least])
            batch = await (vec.arecv(at_least, most) if rng.random() < 0.7 else vec.arecv(indices=[min(busy(free))]))
            for slot, obs in zip(batch.indices.tolist(), batch.obs.tolist(), strict=True):
                steps[slot] += 1
                assert obs[1:] == [1 + steps[slot] // 5, steps[slot] % 5]
                free.add(slot)
            due -= len(batch)
        return steps

    def busy(free: set[int]) -> set[int]:
        return {*range(5)} - free

    with vecenvs.VecMonitor(make(counting_fns(5))) as vec:
        assert sum(asyncio.run(play(vec)).values()) > 60


def test_other_coroutines_go_on(make_others: Any, tmp_path: Path) -> None:
    """The env waits for what another coroutine does."""
    gate = tmp_path / "gate"

    async def play(vec: Any) -> None:
        vec.send([0] * 4)
        first = await vec.arecv(3)
        assert 0 not in first.indices
        rows = asyncio.create_task(vec.arecv())
        await asyncio.sleep(0.1)
        for method in (
            vec.recv,
            vec.arecv(),
            functools.partial(vec.send, [0], [1]),
            functools.partial(vec.get_attr, "tag"),
        ):
            with pytest.raises(AlreadySteppingError, match="while a coroutine waits in arecv"):
                await method if asyncio.iscoroutine(method) else method()
        gate.touch()
        assert (await rows).indices.tolist() == [0]

    with make_others(gated(gate)) as vec:
        vec.reset()
        asyncio.run(play(vec))


def test_a_cancelled_wait_loses_no_row(make_others: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def play(vec: Any) -> None:
        vec.send([0] * 4)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(vec.arecv(4), 0.3)
        with pytest.raises(StepTimeout):
            await vec.arecv(4, timeout=0.1)
        assert sorted((await vec.arecv(3)).indices.tolist()) == [1, 2, 3]
        task = asyncio.create_task(vec.arecv())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        gate.touch()
        with pytest.raises(asyncio.CancelledError):
            await task

    with make_others(gated(gate)) as vec:
        vec.reset()
        asyncio.run(play(vec))
        assert vec.recv().obs.tolist() == [[0, 1, 1]]
        assert vec.step([0] * 4)[0][:, 2].tolist() == [2] * 4


def test_what_recv_raises(make: Any) -> None:
    vec = make([functools.partial(FailingEnv, tag, "step", 2 if tag == 1 else 99) for tag in range(4)])
    with vec:
        vec.reset()
        with pytest.raises(NotSteppingError):
            asyncio.run(vec.arecv())
        vec.send([0], [0])
        with pytest.raises(ValueError, match="min_envs"):
            asyncio.run(vec.arecv(2))
        with pytest.raises(NotSteppingError):
            asyncio.run(vec.arecv(indices=[2]))
        assert len(asyncio.run(vec.arecv())) == 1
        vec.step([0] * 4)
        vec.send([0] * 4)
        with pytest.raises(EnvError, match="env 1"):
            asyncio.run(vec.arecv(indices=[0, 1, 2, 3]))
    with pytest.raises(ClosedError):
        asyncio.run(vec.arecv())


def test_an_error_of_tasks_loses_no_first_row() -> None:
    """What is to be returned after it is, before anything else is waited for."""
    fails: list[bool] = []

    def tasks(*_: Any) -> Any:
        if fails:
            fails.clear()
            raise RuntimeError("service away")
        return None, None

    fns = [functools.partial(CountingEnv, tag, 2 + tag) for tag in range(2)]
    with vecenvs.SubprocVecEnv(fns, 1, autoreset="async", tasks=tasks) as vec:

        async def play() -> None:
            vec.reset()
            for _ in range(2):
                vec.send([0, 0])
                batch = await vec.arecv(2)
            assert batch.dones.tolist() == [True, False]
            vec.send([0], [1])
            fails.append(True)
            with pytest.raises(vecenvs.VecEnvError, match="service away"):
                await vec.arecv(2)
            batch = await vec.arecv()
            assert sorted(batch.indices.tolist()) == [0, 1]
            assert (await vec.arecv(timeout=10)).indices.tolist() == [1]

        asyncio.run(play())


def test_the_semaphore_of_all_answers_is_reset() -> None:
    """By loops, too, that ask for rows of certain envs alone: they take these without it."""
    with vecenvs.SubprocVecEnv(counting_fns(4), 2) as vec:
        vec.reset()
        most, end = 0, time.monotonic() + 0.8
        while time.monotonic() < end:
            for group in ([0, 2], [1, 3]):
                vec.send([0] * 2, group)
                vec.recv(indices=group)
            most = max(most, vec._workers.wake._lock._get_value())
        time.sleep(0.3)
        vec.send([0] * 2, [0, 2])
        vec.recv(indices=[0, 2])
        assert vec._workers.wake._lock._get_value() < most < vec.stats()["received"] / 2
