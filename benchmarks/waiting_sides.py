"""The sides of `waiting.py`, in processes of their own: `python benchmarks/waiting_sides.py SIDE N LOW HIGH SECONDS`.

Each prints a line of JSON: rows received between HIGH and HIGH + SECONDS after the first action, the CPU time of the
process and its workers meanwhile, seconds to start, and the time from an env's end of a step to its row in the caller.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import math
import multiprocessing
import os
import pickle
import queue
import random
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from vecenvs import AsyncEnv, DummyVecEnv, EnvError, SubprocVecEnv

WORKERS = 2


class Waits:
    """How long an env waits in its steps: drawn for each env by its number."""

    def __init__(self, tag: int, low: float, high: float) -> None:
        self._draw, self._low, self._high = random.Random(tag), low, high

    def __call__(self) -> float:
        return self._draw.uniform(self._low, self._high)


def ended() -> Any:
    """Return the row of a step that ends now."""
    return np.array([time.monotonic(), 0.0]), 1.0, False, False, {}


class WaitingEnv(gym.Env[Any, Any]):
    """Wait in each step. The observation has the time of its end."""

    observation_space, action_space = spaces.Box(0.0, math.inf, (2,), np.float64), spaces.Discrete(2)

    def __init__(self, tag: int, low: float, high: float) -> None:
        self.waits = Waits(tag, low, high)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.waits())
        return ended()


class AwaitingEnv(AsyncEnv[Any, Any]):
    """The same as coroutines."""

    observation_space, action_space = WaitingEnv.observation_space, WaitingEnv.action_space

    def __init__(self, tag: int, low: float, high: float) -> None:
        self.waits = Waits(tag, low, high)

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2), {}

    async def step(self, action: Any) -> Any:
        await asyncio.sleep(self.waits())
        return ended()


class HangingEnv(AwaitingEnv):
    """The same, but for the second step of env 0, which never ends."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag, 0.01, 0.02)
        self.steps = tag * 1000

    async def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 2:
            await asyncio.sleep(3600)
        return await super().step(action)


Rows = Iterable[tuple[list[int], list[float]]]  # the envs of rows that have come, and the times of their ends


def vec_env(num_workers: int, n: int, low: float, high: float, **options: Any) -> tuple[list[int], Any]:
    """Return the workers' processes, and what sends actions to envs and yields rows."""
    make = AwaitingEnv if options.get("concurrency") == "asyncio" else WaitingEnv
    vec = SubprocVecEnv([partial(make, tag, low, high) for tag in range(n)], num_workers, **options)
    vec.reset()

    def rows() -> Rows:
        vec.send(np.zeros(n, np.int64))
        while True:
            batch = vec.recv()
            yield batch.indices.tolist(), batch.obs[:, 0].tolist()
            vec.send(np.zeros(len(batch), np.int64), batch.indices)

    return [worker["pid"] for worker in vec.stats()["workers"]], rows


def pipe_loop(n: int, low: float, high: float) -> tuple[list[int], Any]:
    """Return the same of coroutines in two processes, whose pickled rows come through a pipe each."""
    pipes = [multiprocessing.Pipe() for _ in range(WORKERS)]
    shards = [range(n * w // WORKERS, n * (w + 1) // WORKERS) for w in range(WORKERS)]
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=_serve_pipe, args=(theirs, shard, low, high), daemon=True)
        for (_, theirs), shard in zip(pipes, shards, strict=True)
    ]
    for child in children:
        child.start()
    ours = [mine for mine, _ in pipes]

    def rows() -> Rows:
        for pipe, shard in zip(ours, shards, strict=True):
            for slot in shard:
                pipe.send((slot, 0))
        while True:
            for pipe in multiprocessing.connection.wait(ours):
                slot, (obs, *_) = pipe.recv()  # type: ignore[union-attr]
                yield [slot], [float(obs[0])]
                ours[slot >= shards[0].stop].send((slot, 0))

    return [child.pid or 0 for child in children], rows


def _serve_pipe(pipe: Any, shard: range, low: float, high: float) -> None:
    envs = {slot: AwaitingEnv(slot, low, high) for slot in shard}
    tasks: set[Any] = set()

    async def step(slot: int, action: int) -> None:
        pipe.send_bytes(pickle.dumps((slot, await envs[slot].step(action))))

    async def serve() -> None:
        def take() -> None:
            while pipe.poll():
                task = asyncio.ensure_future(step(*pipe.recv()))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        asyncio.get_running_loop().add_reader(pipe.fileno(), take)
        await asyncio.sleep(3600)

    asyncio.run(serve())


def executor_loop(n: int, low: float, high: float) -> tuple[list[int], Any]:
    """Return the same of a ThreadPoolExecutor with a thread per env; futures come in the order of their ends."""
    envs = [WaitingEnv(tag, low, high) for tag in range(n)]
    pool = concurrent.futures.ThreadPoolExecutor(n)
    done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def begin(slot: int) -> None:
        pool.submit(envs[slot].step, 0).add_done_callback(lambda future: done.put((slot, future)))

    def rows() -> Rows:
        for slot in range(n):
            begin(slot)
        while True:
            slot, future = done.get()
            yield [slot], [float(future.result()[0][0])]
            begin(slot)

    return [], rows


SIDES: dict[str, Callable[[int, float, float], tuple[list[int], Any]]] = {
    "coroutines": partial(vec_env, WORKERS, concurrency="asyncio"),
    "coroutines, step_timeout": partial(vec_env, WORKERS, concurrency="asyncio", step_timeout=60.0),
    "threads": partial(vec_env, WORKERS, concurrency="threads"),
    "process per env": lambda n, low, high: vec_env(n, n, low, high),
    "pipe loop": pipe_loop,
    "executor loop": executor_loop,
}


def ideal(n: int, low: float, high: float, warm: float, seconds: float) -> int:
    """Return how many steps end in that time in loops of each env alone that cost nothing."""
    count = 0
    for tag in range(n):
        waits, now = Waits(tag, low, high), 0.0
        while (now := now + waits()) <= warm + seconds:
            count += now > warm
    return count


def cpu_of(pids: Iterable[int]) -> float:
    """Return the seconds of CPU of all threads of processes that are there (Linux)."""
    found = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += int((task / "schedstat").read_text().split()[0])
    return found / 1e9


def memory_of(pids: Iterable[int]) -> int:
    """Return the bytes that only these processes have in RAM, and their parts of what they share."""
    lines = (line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def measure(side: str, n: int, low: float, high: float, seconds: float) -> dict[str, Any]:
    """Measure one side."""
    warm, began = high, time.monotonic()
    others, rows = SIDES[side](n, low, high)
    pids = [os.getpid(), *others]
    start = time.monotonic() - began
    count, delays, cpu = 0, list[float](), 0.0
    first = time.monotonic()
    for slots, ends in rows():
        now = time.monotonic()
        if now > first + warm:
            cpu = cpu or cpu_of(pids)
            if now > first + warm + seconds:
                break
            count += len(slots)
            delays += [now - end for end in ends]
    used = cpu_of(pids) - cpu
    return {
        "rows": count, "ideal": ideal(n, low, high, warm, seconds), "cpu_us": 1e6 * used / max(count, 1),
        "start": start, "p99": float(np.percentile(delays, 99)), "memory": memory_of(pids),
    }  # fmt: skip


def hang() -> dict[str, Any]:
    """Measure after how long a coroutine that hangs fails, with a limit of 0.5 s, while 63 others go on."""
    with DummyVecEnv([partial(HangingEnv, tag) for tag in range(64)], concurrency="asyncio", step_timeout=0.5) as vec:
        vec.reset()
        vec.step(np.zeros(64, np.int64))
        began = time.monotonic()
        vec.send(np.zeros(64, np.int64))
        try:
            while True:
                batch = vec.recv()
                vec.send(np.zeros(len(batch), np.int64), batch.indices)
        except EnvError as error:
            return {"seconds": time.monotonic() - began, "env": error.index}


def envs_alone(n: int, side: str) -> dict[str, Any]:
    """Measure the memory of a process that has nothing but envs."""
    make = WaitingEnv if side == "threads" else AwaitingEnv
    before = memory_of([os.getpid()])
    kept = [make(tag, 0.1, 2.0) for tag in range(n)]
    return {"memory": (memory_of([os.getpid()]) - before) / len(kept)}


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    if name == "hang":
        found = hang()
    elif name == "envs":
        found = envs_alone(int(numbers[0]), numbers[1])
    else:
        found = measure(name, int(numbers[0]), *map(float, numbers[1:]))
    print(json.dumps(found))
    sys.stdout.flush()
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(0)
