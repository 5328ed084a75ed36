"""Measure the parts of a step's time, by subtraction: nothing in the engines is instrumented.

    python -m benchmarks.breakdown CartPole-v1 --num-envs 64
    python -m benchmarks.breakdown spin:100us --backends dummy subproc --json parts.json

ENV, BACKEND and the numbers are those of `python -m vecenvs bench`.

Beside the backends, `DummyVecEnv` and a bare loop step stand-ins, which return what the env returned, in full or in
part, at no cost. The time of a part is the difference that leaving it out makes. All times are core time per step of
one env, so that the parts of a backend add up to what all cores spend on it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from benchmarks.loop_candidates import LockStepCandidate, LoopCandidate
from benchmarks.shared import about, write
from benchmarks.stand_ins import record
from vecenvs.bench import mpi_job, report
from vecenvs.bench.candidates import Backend, MakesVec, VecCandidate, choose, from_env_fn
from vecenvs.bench.contest import LIMIT, Candidate, Turn
from vecenvs.bench.measurement import measure
from vecenvs.bench.monitored import from_make_vec_env, monitored
from vecenvs.bench.report import Spread, limit_of, share_of
from vecenvs.bench.workloads import Workload, workload
from vecenvs.cpus import usable_cores

IN_PROCESS = "dummy"
WAITING = "waiting"
UNEVEN = "uneven"
LOCK_STEP = "~lock-step"
ALONE = "alone"  # an engine over several cores does not have this part

# The parts in the order of a step, each as a sum of signed readings of the probes below.
_PARTS: dict[str, dict[str, int]] = {
    "env": {LIMIT: 1},
    ALONE: {"~loop of one": 1, LIMIT: -1},
    "turns": {"~loop": 1, "~loop of one": -1},
    "calls": {"~dummy blank": 1, "~loop blank": -1},
    "rows": {"~dummy rows in place": 1, "~dummy blank": -1},
    "copies": {"~dummy rows": 1, "~dummy rows in place": -1},
    "infos": {"~dummy rows, infos": 1, "~dummy rows": -1},
    "ends": {"~dummy all": 1, "~dummy rows, infos": -1, "~loop all": -1, "~loop blank": 1},
    "rest": {IN_PROCESS: 1, "~loop": -1, "~dummy all": -1, "~loop all": 1},
}
MEANING = {
    "env": "env.step, and env.reset where an episode ends",
    ALONE: "one core alone, rather than all at once",
    "turns": "many envs in turn, rather than one (caches)",
    "calls": "actions in, the loop over envs, rewards and flags",
    "rows": "observations into their columns",
    "copies": "copies of the columns for the caller",
    "infos": "infos",
    "ends": "episode ends: terminal observations, autoreset",
    "rest": "what stand-ins do not show",
    UNEVEN: "cores that wait for the slowest one: bare loops in lock-step",
    WAITING: "wake-up, waiting, cores without work",
}


def probes(env_fn: Workload, make_vec: MakesVec, chosen: Collection[str], cores: int) -> list[Candidate]:
    """Return the candidates that a breakdown needs besides the backends of the names `chosen`."""
    stand_in = record(env_fn)
    found: list[Candidate] = [LoopCandidate("~loop of one", env_fn, 1), LoopCandidate("~loop", env_fn)]
    found.append(LockStepCandidate(LOCK_STEP, env_fn, cores))
    if IN_PROCESS not in chosen:
        found.append(VecCandidate(Backend(IN_PROCESS, "dummy"), make_vec))
    found += [LoopCandidate("~loop blank", stand_in.only()), LoopCandidate("~loop all", stand_in)]
    for name, part, options in (
        ("blank", stand_in.only(), {"copy": False}),
        ("rows in place", stand_in.only(rows=True), {"copy": False}),
        ("rows", stand_in.only(rows=True), {}),
        ("rows, infos", stand_in.only(rows=True, infos=True), {}),
        ("all", stand_in, {}),
    ):
        found.append(VecCandidate(Backend(f"~dummy {name}", "dummy", options), from_env_fn(part)))
    return found


@dataclass(frozen=True)
class Part:
    """One part of a backend's step: its share of the core time, and its core time in seconds per step of one env."""

    candidate: str
    num_envs: int
    part: str
    share: Spread
    seconds: Spread


def parts(turns: Sequence[Turn], names: Sequence[str], cores: int) -> list[Part]:
    """Take the readings of each round apart, and return the spread over the rounds. Incomplete rounds are left out."""
    found: list[Part] = []
    for num_envs in dict.fromkeys(turn.num_envs for turn in turns):
        own = [turn for turn in turns if turn.num_envs == num_envs]
        rounds = [_core_seconds(own, number, cores) for number in sorted({turn.round for turn in own})]
        for name in names:
            complete = [taken for taken in rounds if name in taken and _needed() <= taken.keys()]
            by_part: dict[str, list[tuple[float, float]]] = {}
            for taken in complete:
                whole = cores * taken[name]
                for part, seconds in _take_apart(taken, whole, name, cores).items():
                    by_part.setdefault(part, []).append((seconds / whole, seconds))
            for part, both in by_part.items():
                shares, seconds_of = zip(*both, strict=True)
                found.append(Part(name, num_envs, part, Spread.of(shares), Spread.of(seconds_of)))
    return found


def _needed() -> set[str]:
    return {LOCK_STEP, *(probe for terms in _PARTS.values() for probe in terms)}


def _core_seconds(turns: Sequence[Turn], number: int, cores: int) -> dict[str, float]:
    """Return the seconds per env step of each candidate in this round, at the limit's speed; for that, in core time."""
    limit = limit_of(turns).median
    found = {LIMIT: cores / limit}
    for turn in turns:
        if turn.round == number and turn.candidate != LIMIT and (share := share_of(turn, turns)):
            found[turn.candidate] = 1 / (share * limit)
    return found


def _take_apart(taken: dict[str, float], whole: float, name: str, cores: int) -> dict[str, float]:
    found = {part: sum(sign * taken[probe] for probe, sign in terms.items()) for part, terms in _PARTS.items()}
    if name == IN_PROCESS:
        found[UNEVEN] = 0.0
    else:
        found[ALONE] = 0.0
        found[UNEVEN] = cores * taken[LOCK_STEP] - found["env"] - found["turns"]
    return {**found, WAITING: whole - sum(found.values())}


def table(found: Sequence[Part], num_envs: int) -> Table:
    """Lay the parts out as a table with a column per backend: median share of the core time, and its range."""
    own = [part for part in found if part.num_envs == num_envs]
    names = list(dict.fromkeys(part.candidate for part in own))
    cells = {(part.candidate, part.part): part for part in own}
    result = Table(
        title=f"Where the core time of {num_envs} env{'s' * (num_envs > 1)} goes",
        title_justify="left",
        title_style="bold",
    )
    result.add_column("per env and step", no_wrap=True)
    for name in names:
        result.add_column(escape(name), justify="right", no_wrap=True)
    for key, meaning in MEANING.items():
        result.add_row(meaning, *(_percent(cells[name, key].share) for name in names))
    return result


def _percent(share: Spread) -> str:
    return f"[bold]{100 * share.median:.1f} %[/bold]  ({100 * share.min:.1f}..{100 * share.max:.1f})"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table for each number of envs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", metavar="ENV")
    parser.add_argument("--num-envs", metavar="N", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--backends", metavar="BACKEND", nargs="+", help="default: dummy subproc subproc:caller")
    parser.add_argument("--seconds", metavar="S", type=float, default=1.0, help="per reading")
    parser.add_argument("--repeats", metavar="R", type=int, default=5, help="rounds")
    parser.add_argument("--env-kwargs", metavar="JSON", type=json.loads, default={}, help="for gym.make")
    parser.add_argument("--monitor", action="store_true", help="wrap the envs as make_vec_env does, Monitor included")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the parts to FILE")
    args = parser.parse_args(argv)
    bare = workload(args.env, args.env_kwargs)
    env_fn, make_vec = (monitored(bare), from_make_vec_env(bare)) if args.monitor else (bare, from_env_fn(bare))
    chosen, unavailable = choose(args.backends)
    names = [backend.name for backend in chosen]
    cores = usable_cores()
    candidates = [mpi_job.candidate(backend, make_vec, rows=False) for backend in chosen]
    candidates += probes(env_fn, make_vec, names, cores)
    numbers = {"num_envs": args.num_envs, "seconds": args.seconds, "repeats": args.repeats}
    every = measure(candidates, env_fn, cores=cores, **numbers, weigh=lambda candidate, num_envs: None)
    found = parts(every.turns, names, cores)
    notes = [f"{name} is not available here: {reason}" for name, reason in unavailable.items()]
    failed = [row for row in report.rows(every.turns) if row.failure]
    notes += [f"{row.candidate} failed with {row.num_envs} envs: {row.failure}" for row in failed]
    for num_envs in dict.fromkeys(part.num_envs for part in found):
        report.print_table(table(found, num_envs), notes)
    if not found:
        print("\n".join(["no breakdown: no round has all of its readings", *notes]))
    if args.json is not None:
        head = about(f"python -m benchmarks.breakdown {args.env}")
        write(args.json, {**head, "env": args.env, **numbers, "breakdown": [asdict(part) for part in found]})


if __name__ == "__main__":
    main()
