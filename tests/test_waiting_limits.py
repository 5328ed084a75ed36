"""Envs that wait: how long they took, and what limits that."""

from __future__ import annotations

import asyncio
import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_waiting_envs import GateEnv

import vecenvs
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
