"""NumPy CartPole (`vector_entry_point`) through VecEnvs: rates by turns with one native loop per core, and memory.

The limit is one independent loop per core, all at once, which share the envs. "bare" is one loop over all envs.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from vecenvs.bench.candidates import Backend, MakesVec, VecCandidate, VecStepper, draw_actions, parse
from vecenvs.bench.child import Child
from vecenvs.bench.contest import LIMIT, Stepper, Turn, contest
from vecenvs.bench.limit import BareLoops, BatchedLoop
from vecenvs.bench.memory_use import footprint
from vecenvs.bench.monitored import from_make_vec_env
from vecenvs.bench.native import NativeEnv, native
from vecenvs.bench.report import rows
from vecenvs.bench.workloads import workload
from vecenvs.cpus import usable_cores
from vecenvs.views import as_gymnasium

SIZES = (1024, 4096, 65536)
ENGINES = ("dummy", "dummy:copy=false", "subproc:w=2", "subproc:w=2,caller")
ROW = 4 * 4 + 4 + 2  # bytes
CARTPOLE = workload("CartPole-v1")


class Bare:
    """One loop over all envs, in this process."""

    name = "bare"

    def __init__(self, env: NativeEnv) -> None:
        self._env = env

    def make(self, num_envs: int) -> Stepper:
        env = self._env.of(num_envs)()
        env.reset(seed=0)
        return Loop(env)


class Loop(BatchedLoop):
    def close(self) -> None:
        self._env.close()


class ThroughGymnasium(VecCandidate):
    """A VecEnv, stepped as a gymnasium.vector.VectorEnv."""

    def __init__(self, backend: Backend, make_vec: MakesVec) -> None:
        super().__init__(backend, make_vec)
        self.name = f"{backend.name} as_gymnasium"

    def _stepper(self, vec: Any, first: Any) -> Stepper:
        return Loop(as_gymnasium(vec))


def measure(num_envs: int, seconds: float, rounds: Iterable[int]) -> dict[str, Any]:
    """Measure all sides by turns, and then what each takes in memory."""
    env = native(CARTPOLE, "CartPole-v1")
    make_vec, cores = from_make_vec_env(CARTPOLE, vectorization="native"), usable_cores()
    sides: list[Any] = [Bare(env)]
    for backend in map(parse, ENGINES):
        sides += [VecCandidate(backend, make_vec, rows=True), ThroughGymnasium(backend, make_vec)]
    with BareLoops(env.of(max(1, num_envs // cores)), cores) as loops:
        turns = list(contest((sides for _ in rounds), loops, num_envs, seconds=seconds))
    of_bare = shares_of_bare(turns)
    shares = {
        row.candidate: {"limit": asdict(row.share), "bare": of_bare.get(row.candidate)}
        for row in rows(turns)
        if row.share is not None
    }
    failures = {turn.candidate: turn.failure for turn in turns if turn.failure}
    return {"shares": shares, "failures": failures, "rows_per_env": memory(env, num_envs)}


def show(num_envs: int, found: dict[str, Any]) -> None:
    """Print the results of a number of envs."""
    print(f"{num_envs} envs{'':34}of the limit         of bare")
    for name, each in found["shares"].items():
        limit, bare = each["limit"], "" if each["bare"] is None else f"{each['bare']:.2f}"
        print(f"  {name:40} {limit['median']:.2f}  ({limit['min']:.2f}..{limit['max']:.2f})   {bare}")
    for name, failure in found["failures"].items():
        print(f"  {name}: {failure}")
    for name, count in found["rows_per_env"].items():
        print(f"  {name:40} {count:.1f} rows per env in the caller", flush=True)


def weigh(connection: Connection, make_vec: MakesVec, backend: Backend, num_envs: int) -> None:
    """Send how many bytes a VecEnv adds to this process."""
    make_vec(8, backend).close()
    spaces = make_vec(8, Backend("dummy", "dummy")).action_space
    batches = draw_actions(spaces, num_envs)[:2]
    before = resident()
    vec = make_vec(num_envs, backend)
    stepper = VecStepper(vec, vec.reset(seed=0), rows=True)
    for actions in batches:
        vec.step(actions)
    connection.send(resident() - before)
    stepper.close()


def weigh_bare(connection: Connection, env: NativeEnv, num_envs: int) -> None:
    """Send how many bytes one batched env of all envs adds to this process."""
    loop = Bare(env).make(8)
    before = resident()
    bare = env.of(num_envs)()
    bare.reset(seed=0)
    for _ in range(2):
        bare.step(bare.action_space.sample())
    connection.send(resident() - before)
    bare.close()
    loop.close()


def resident() -> int:
    """Return how many bytes this process has, without those that are free and kept by the C library."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return footprint().parent


def memory(env: NativeEnv, num_envs: int) -> dict[str, float]:
    """Return the rows per env that each engine takes in the caller."""
    children: dict[str, Any] = {"bare": (weigh_bare, env, num_envs)}
    for backend in map(parse, ENGINES):
        children[backend.name] = (weigh, from_make_vec_env(CARTPOLE, vectorization="native"), backend, num_envs)
    found = {}
    for name, what in children.items():
        child = Child(*what)
        try:
            found[name] = child.receive() / num_envs / ROW
        finally:
            child.close()
    return found


def shares_of_bare(turns: Sequence[Turn]) -> dict[str, float]:
    """Return each side's median rate as a share of the bare loop's over all envs, in the same rounds."""
    rates = {(turn.candidate, turn.round): turn.timing.rate for turn in turns if turn.timing is not None}
    sides = dict.fromkeys(turn.candidate for turn in turns if turn.candidate not in (LIMIT, Bare.name))
    return {
        side: statistics.median(
            rate / rates[Bare.name, number] for (name, number), rate in rates.items() if name == side
        )
        for side in sides
    }
