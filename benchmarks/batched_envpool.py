"""EnvPool through VecEnvs, one thread per worker, by turns with EnvPool itself, which has as many threads.

Both sides are made anew for each turn, and stepped by the same loop over the same actions. Every row counts.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from vecenvs import Batched
from vecenvs.backends import backend_class
from vecenvs.bench.contest import LIMIT, Stepper, Timing, Turn, contest, run_for
from vecenvs.bench.contestants import VecStepper, parse
from vecenvs.bench.limit import BatchedLoop
from vecenvs.bench.report import rows

ENVS = {"CartPole": "CartPole-v1", "HalfCheetah": "HalfCheetah-v5", "Pong, 84x84x4": "Pong-v5"}
SIZES = (64, 1024)
WORKERS = 2
ENGINES = ("subproc:w=2", "subproc:w=2,caller")
MakesVec = Callable[[Sequence[Any]], Any]
T = TypeVar("T")
Cell = tuple[str, int]  # a name of ENVS, a number of envs


class EnvPoolItself:
    """EnvPool with all envs and as many threads as there are workers, in this process."""

    def __init__(self, env_id: str, num_envs: int) -> None:
        import envpool

        self._make = functools.partial(envpool.make_gymnasium, env_id, num_envs=num_envs, num_threads=WORKERS)

    def run(self, seconds: float, warmup: float) -> Timing:
        envs = self._make()
        envs.reset()
        loop = BatchedLoop(envs)
        run_for(loop.step, warmup)
        timing = run_for(loop.step, seconds)
        envs.close()
        return timing  # and with the object its threads end


class ThroughVecEnv:
    """A VecEnv with one EnvPool of one thread for each worker. `make_vec` takes its env functions."""

    def __init__(self, name: str, env_id: str, make_vec: MakesVec) -> None:
        import envpool

        self.name = name
        self._make = functools.partial(envpool.make_gymnasium, env_id, num_threads=1)
        self._make_vec = make_vec

    def make(self, num_envs: int) -> Stepper:
        share = num_envs // WORKERS
        vec = self._make_vec([Batched(functools.partial(self._make, num_envs=share), share)] * WORKERS)
        try:
            return VecStepper(vec, vec.reset(), rows=True)
        except BaseException:
            vec.close()
            raise


def on_this_host(env_id: str) -> list[ThroughVecEnv]:
    """Return a contestant for each of ENGINES."""

    def maker(engine: str) -> MakesVec:
        backend = parse(engine)
        return lambda fns: backend_class(backend.backend)(fns, autoreset="next_step", **backend.options)

    return [ThroughVecEnv(engine, env_id, maker(engine)) for engine in ENGINES]


def shared_out(cells: Sequence[T], minutes: float, rounds: int) -> Iterator[tuple[T, Iterator[int]]]:
    """Yield each cell with its rounds: at most `rounds`, as many as fit into an equal share of the time left."""
    end = time.monotonic() + 60 * minutes
    for number, cell in enumerate(cells):
        now = time.monotonic()
        yield cell, _until(now + (end - now) / (len(cells) - number), rounds)


def _until(end: float, rounds: int) -> Iterator[int]:
    """Yield at least one number, and more of them while there is time for as long a round as those before."""
    start = time.monotonic()
    for number in range(rounds):
        now = time.monotonic()
        if number and now + (now - start) / number > end:
            return
        yield number


def measure_all(cells: Sequence[Cell], seconds: float, rounds: int, minutes: float) -> Iterator[dict[str, Any]]:
    """Measure cells on this host; yield each result."""
    for (env, num_envs), of_cell in shared_out(cells, minutes, rounds):
        yield measure(env, num_envs, on_this_host(ENVS[env]), seconds, of_cell)


def measure(
    env: str, num_envs: int, contestants: Sequence[Any], seconds: float, rounds: Iterable[int]
) -> dict[str, Any]:
    """Measure contestants by turns with EnvPool itself; return their shares of its rate, and all rates."""
    itself = EnvPoolItself(ENVS[env], num_envs)
    turns = list(contest((contestants for _ in rounds), itself, num_envs, seconds=seconds))
    shares = {row.contestant: asdict(row.share) for row in rows(turns) if row.share is not None}
    failures = {turn.contestant: turn.failure for turn in turns if turn.failure}
    rates = {name: _rates(turns, name) for name in (LIMIT, *shares)}
    return {"env": env, "num_envs": num_envs, "shares": shares, "failures": failures, "rates": rates}


def _rates(turns: Sequence[Turn], name: str) -> list[float]:
    return [turn.timing.rate for turn in turns if turn.contestant == name and turn.timing is not None]


def show(found: dict[str, Any]) -> None:
    """Print the results of one cell."""
    for name, share in found["shares"].items():
        spread = f"{share['median']:.2f} ({share['min']:.2f}..{share['max']:.2f})"
        print(f"  {found['env']:13} {found['num_envs']:5} envs  {name:30} {spread} of EnvPool itself", flush=True)
    for name, failure in found["failures"].items():
        print(f"  {found['env']:13} {found['num_envs']:5} envs  {name}: {failure}", flush=True)
