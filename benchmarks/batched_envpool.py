"""EnvPool through VecEnvs, one thread per worker, by turns with EnvPool itself, which has as many threads.

All sides are stepped by the same loop over the same actions, and every row counts. Each is made once for all rounds of
a cell, since 1024 Pongs take a minute to make, and waits in blocking calls during the turns of the others.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, TypeVar

from vecenvs import Batched
from vecenvs.backends import backend_class
from vecenvs.bench.candidates import VecStepper, parse
from vecenvs.bench.contest import LIMIT, Stepper, Timing, Turn, contest, run_for
from vecenvs.bench.limit import BatchedLoop
from vecenvs.bench.report import rows

ENVS = {"CartPole": "CartPole-v1", "HalfCheetah": "HalfCheetah-v5", "Pong, 84x84x4": "Pong-v5"}
SIZES = (64, 1024)
WORKERS = 2
LEAST = 3  # rounds
ENGINES = ("subproc:w=2", "subproc:w=2,caller")
MakesVec = Callable[[Sequence[Any]], Any]
T = TypeVar("T")
Cell = tuple[str, int]  # a name of ENVS, a number of envs


class EnvPoolItself:
    """EnvPool with all envs and as many threads as there are workers, in this process."""

    def __init__(self, env_id: str, num_envs: int) -> None:
        envs = _partial(env_id, num_envs=num_envs, num_threads=WORKERS)()
        envs.reset()
        self._loop = BatchedLoop(envs)
        self.close = envs.close

    def run(self, seconds: float, warmup: float) -> Timing:
        run_for(self._loop.step, warmup)
        return run_for(self._loop.step, seconds)


class ThroughVecEnv:
    """A VecEnv with one EnvPool of one thread for each worker. `make_vec` takes its env functions."""

    def __init__(self, name: str, make_vec: MakesVec, env_id: str, num_envs: int) -> None:
        share = num_envs // WORKERS
        self.name = name
        seeds = range(0, WORKERS * share, share)
        fns = [Batched(_partial(env_id, num_envs=share, num_threads=1, seed=seed), share) for seed in seeds]
        self._vec = make_vec(fns)
        self._stepper = VecStepper(self._vec, self._vec.reset(), rows=True)
        self.step = self._stepper.step

    def make(self, num_envs: int) -> Stepper:
        return self

    def close(self) -> None:
        """Keep the VecEnv for the next round."""

    def end(self) -> None:
        self._vec.close()


def _partial(env_id: str, **kwargs: Any) -> Callable[[], Any]:
    import envpool

    return functools.partial(envpool.make_gymnasium, env_id, **kwargs)


def on_this_host(engine: str) -> MakesVec:
    """Return the function that makes the VecEnv of one of ENGINES."""
    backend = parse(engine)
    return lambda fns: backend_class(backend.backend)(fns, autoreset="next_step", **backend.options)


def shared_out(cells: Sequence[T], minutes: float, rounds: int) -> Iterator[tuple[T, Iterator[int]]]:
    """Yield each cell with its rounds: at most `rounds`, as many as fit into an equal share of the time left."""
    end = time.monotonic() + 60 * minutes
    for number, cell in enumerate(cells):
        now = time.monotonic()
        yield cell, _until(now + (end - now) / (len(cells) - number), rounds)


def _until(end: float, rounds: int) -> Iterator[int]:
    """Yield at least three numbers, and more of them while there is time for as long a round as those before."""
    start = time.monotonic()
    for number in range(rounds):
        now = time.monotonic()
        if number >= LEAST and now + (now - start) / number > end:
            return
        yield number


def measure_all(
    cells: Sequence[Cell], engines: Mapping[str, MakesVec], seconds: float, rounds: int, minutes: float
) -> Iterator[dict[str, Any]]:
    """Measure each cell by turns with EnvPool itself; yield the shares of its rate, and all rates."""
    for (env, num_envs), of_cell in shared_out(cells, minutes, rounds):
        with ExitStack() as stack:
            sides = []
            for name, make_vec in engines.items():
                sides.append(ThroughVecEnv(name, make_vec, ENVS[env], num_envs))
                stack.callback(sides[-1].end)
            itself = EnvPoolItself(ENVS[env], num_envs)
            stack.callback(itself.close)
            turns = list(contest((sides for _ in of_cell), itself, num_envs, seconds=seconds))
        shares = {row.candidate: asdict(row.share) for row in rows(turns) if row.share is not None}
        failures = {turn.candidate: turn.failure for turn in turns if turn.failure}
        rates = {name: _rates(turns, name) for name in (LIMIT, *shares)}
        yield {"env": env, "num_envs": num_envs, "shares": shares, "failures": failures, "rates": rates}


def _rates(turns: Sequence[Turn], name: str) -> list[float]:
    return [turn.timing.rate for turn in turns if turn.candidate == name and turn.timing is not None]


def show(found: dict[str, Any]) -> None:
    """Print the results of one cell."""
    for name, share in found["shares"].items():
        spread = f"{share['median']:.2f} ({share['min']:.2f}..{share['max']:.2f})"
        print(f"  {found['env']:13} {found['num_envs']:5} envs  {name:30} {spread} of EnvPool itself", flush=True)
    for name, failure in found["failures"].items():
        print(f"  {found['env']:13} {found['num_envs']:5} envs  {name}: {failure}", flush=True)
