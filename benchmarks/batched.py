"""Compare batched envs with one native loop per core, and write the readings as JSON.

    python benchmarks/batched.py                          about ten minutes on an idle machine
    python benchmarks/batched.py --minutes 1 --key 4096   one number of envs

The limit is one independent loop per core over NumPy CartPole (`vector_entry_point`), all at once, which share the
envs. Beside it, by turns with it: one loop over all envs ("bare"), and VecEnvs of one batched env per worker, through
`step` and through as_gymnasium. Every row counts, on both sides. `memory` is what a VecEnv adds to the calling process
once it has been stepped, shared columns included, in rows (observation, reward, two flags) per env; "bare" is what a
batched env of all envs takes by itself, which is part of the figures of the engines that step envs in this process.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vecenvs.bench.child import Child
from vecenvs.bench.contest import LIMIT, Stepper, Turn, contest
from vecenvs.bench.contestants import Backend, MakesVec, VecContestant, VecStepper, draw_actions, parse
from vecenvs.bench.limit import BareLoops, BatchedLoop
from vecenvs.bench.machine import facts, versions
from vecenvs.bench.native import NativeEnv, from_make_vec_env, native
from vecenvs.bench.report import rows
from vecenvs.bench.weigh import footprint
from vecenvs.bench.workloads import workload
from vecenvs.cpus import usable_cores
from vecenvs.views import as_gymnasium

RESULTS = Path(__file__).parent / "results"
SIZES = (1024, 4096, 65536)
ENGINES = ("dummy", "dummy:copy=false", "subproc:w=2", "subproc:w=2,caller")
ROW = 4 * 4 + 4 + 2  # bytes


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


class ThroughGymnasium(VecContestant):
    """A VecEnv, stepped as a gymnasium.vector.VectorEnv."""

    def __init__(self, backend: Backend, make_vec: MakesVec) -> None:
        super().__init__(backend, make_vec)
        self.name = f"{backend.name} as_gymnasium"

    def _stepper(self, vec: Any, first: Any) -> Stepper:
        return Loop(as_gymnasium(vec))


def measure(env: NativeEnv, num_envs: int, seconds: float, rounds: int) -> list[Turn]:
    """Measure all sides by turns."""
    make_vec, cores = from_make_vec_env(env), usable_cores()
    sides: list[Any] = [Bare(env)]
    for backend in map(parse, ENGINES):
        sides += [VecContestant(backend, make_vec, rows=True), ThroughGymnasium(backend, make_vec)]
    with BareLoops(env.of(max(1, num_envs // cores)), cores) as loops:
        return list(contest([sides] * rounds, loops, num_envs, seconds=seconds))


def weigh(connection: Connection, make_vec: MakesVec, backend: Backend, num_envs: int) -> None:
    """Send how many bytes a VecEnv adds to this process."""
    make_vec(8, backend).close()
    spaces = make_vec(8, Backend("dummy", "dummy")).action_space
    batches = draw_actions(spaces, num_envs)[:2]
    gc.collect()
    before = footprint().parent
    vec = make_vec(num_envs, backend)
    stepper = VecStepper(vec, vec.reset(seed=0), rows=True)
    for actions in batches:
        vec.step(actions)
    connection.send(footprint().parent - before)
    stepper.close()


def weigh_bare(connection: Connection, env: NativeEnv, num_envs: int) -> None:
    """Send how many bytes one batched env of all envs adds to this process."""
    loop = Bare(env).make(8)
    gc.collect()
    before = footprint().parent
    bare = env.of(num_envs)()
    bare.reset(seed=0)
    for _ in range(2):
        bare.step(bare.action_space.sample())
    connection.send(footprint().parent - before)
    bare.close()
    loop.close()


def memory(env: NativeEnv, num_envs: int) -> dict[str, float]:
    """Return the rows per env that each engine takes in the caller."""
    children: dict[str, Any] = {"bare": (weigh_bare, env, num_envs)}
    for backend in map(parse, ENGINES):
        children[backend.name] = (weigh, from_make_vec_env(env), backend, num_envs)
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
    rates = {(turn.contestant, turn.round): turn.timing.rate for turn in turns if turn.timing is not None}
    sides = dict.fromkeys(turn.contestant for turn in turns if turn.contestant not in (LIMIT, Bare.name))
    return {
        side: statistics.median(
            rate / rates[Bare.name, number] for (name, number), rate in rates.items() if name == side
        )
        for side in sides
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--key", type=int, nargs="+", choices=SIZES, default=[*SIZES], help="numbers of envs")
    parser.add_argument("--minutes", type=float, default=10.0, help="in all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, default=RESULTS / "batched.json")
    args = parser.parse_args(argv)
    env = native(workload("CartPole-v1"), "CartPole-v1")
    readings = len(args.key) * args.rounds * (2 + 2 * len(ENGINES))
    seconds = max(0.05, args.minutes * 60 / readings / 1.25 - 0.15)  # 0.15 s to start and end a side
    record: dict[str, Any] = {
        "command": f"python benchmarks/batched.py --minutes {args.minutes:g} --rounds {args.rounds}",
        "machine": facts(usable_cores()),
        "versions": versions(),
        "seconds": seconds,
        "results": json.loads(args.json.read_text())["results"] if args.json.exists() else {},
    }
    for num_envs in args.key:
        turns = measure(env, num_envs, seconds, args.rounds)
        of_bare, rows_per_env = shares_of_bare(turns), memory(env, num_envs)
        found: dict[str, Any] = {}
        print(f"{num_envs} envs{'':34}of the limit         of bare")
        for row in rows(turns):
            if row.share is None:
                print(f"  {row.contestant}: {row.failure}")
                continue
            share = {"median": row.share.median, "range": [row.share.min, row.share.max]}
            found[row.contestant] = {"limit": share, "bare": of_bare.get(row.contestant)}
            bare = f"{of_bare[row.contestant]:.2f}" if row.contestant in of_bare else ""
            print(f"  {row.contestant:40} {row.share.median:.2f}  ({row.share.min:.2f}..{row.share.max:.2f})   {bare}")
        for name, each in rows_per_env.items():
            print(f"  {name:40} {each:.1f} rows per env in the caller")
        record["results"][str(num_envs)] = {"shares": found, "rows_per_env": rows_per_env}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
