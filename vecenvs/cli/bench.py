"""Measure what share of the machine's limit each backend reaches with an env.

The limit is the rate of one bare env.step loop per core, all cores at once, in the same run. Each backend takes its
turns between readings of it. With --vectorization native a loop steps a batched env, with its share of the envs.

ENV is an id:            CartPole-v1   ALE/Pong-v5   package.module:Env-v0
or makes an env:         package.module:Class   package.module:function
or a synthetic workload: spin:100us   rows:84x84x4   nested:10us   sleep:1ms   spin:100us,episode=50
BACKEND is a name, optionally with options after a colon:
    subproc   subproc:caller   subproc:w=4,spawn   subproc:num_workers=1,caller_steps=true
    mpi   mpi:w=4   ray   ray:cluster
Each turn of mpi starts an MPI job of this machine, and each turn of ray a Ray; ray:cluster joins the one that runs. To
measure over several nodes, start a job:
    python -m vecenvs.mpi -n 5 --mpirun-args "--hostfile nodes" -m vecenvs bench ENV --backends mpi
The file of --json is written after each turn.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vecenvs.cli import INTERRUPTED, UsageError
from vecenvs.cli._arguments import PICTURES, SECONDS, count, json_object, output, output_ending_in

if TYPE_CHECKING:
    from vecenvs.bench.measurement import Measurement
    from vecenvs.bench.workloads import Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("env", metavar="ENV", help="env id, package.module:name, or synthetic workload")
    parser.add_argument("--num-envs", metavar="N", type=count, nargs="+", help="default: 8 64, native 1024 4096")
    parser.add_argument("--backends", metavar="BACKEND", nargs="+", help="default: dummy subproc subproc:caller")
    parser.add_argument("--seconds", metavar="S", type=SECONDS, default=1.0, help="per reading (default: 1)")
    parser.add_argument("--repeats", metavar="R", type=count, default=5, help="rounds (default: 5)")
    parser.add_argument("--env-kwargs", metavar="JSON", type=json_object, default={}, help="for the env's constructor")
    parser.add_argument("--monitor", action="store_true", help="wrap the envs as make_vec_env does, Monitor included")
    parser.add_argument(
        "--vectorization", choices=("native",), help="one batched env per worker, by the id's vector_entry_point"
    )
    parser.add_argument("--json", metavar="FILE", type=output, help="write every reading to FILE")
    parser.add_argument(
        "--chart",
        metavar="FILE",
        type=output_ending_in(*PICTURES),
        help="default: bench-ENV.png in this directory",
    )
    parser.add_argument("--no-chart", action="store_true", help="draw none")


def run(args: argparse.Namespace) -> int:
    """Measure, then print the table and the path of the chart. Return 1 if a backend failed, 130 after Ctrl-C."""
    from vecenvs.bench import (
        candidates,
        check_libraries,
        machine,
        measurement,
        monitored,
        mpi_job,
        native,
        report,
        workloads,
    )
    from vecenvs.cpus import usable_cores

    args.native = args.vectorization == "native"
    if args.native and args.monitor:
        raise UsageError("--vectorization native has no single envs for --monitor: leave it out")
    args.num_envs = args.num_envs or ([1024, 4096] if args.native else [8, 64])
    args.chart = None if args.no_chart else args.chart or _default_chart(args)
    try:
        check_libraries()
        workload = workloads.workload(args.env, args.env_kwargs)
        chosen, unavailable = candidates.choose(args.backends)
        if not chosen:
            raise UsageError("; ".join(unavailable.values()))
        cores = usable_cores()
        facts = machine.facts(cores)
        env_fn: workloads.Workload | native.NativeEnv
        if args.native:
            env_fn = native.native(workload, args.env)
            make_vec = monitored.from_make_vec_env(workload, vectorization="native")
        elif args.monitor:
            env_fn, make_vec = monitored.monitored(workload), monitored.from_make_vec_env(workload)
        else:
            env_fn, make_vec = workload, candidates.from_env_fn(workload)
        header = {"command": command(args), "env": args.env, "machine": facts, "versions": machine.versions()}

        def keep(held: Measurement) -> None:
            if args.json is not None:
                missing = {"unavailable": unavailable | report.unavailable(held)}
                report.write(args.json, report.record({**header, **missing}, held))

        held = measurement.measure(
            [mpi_job.candidate(backend, make_vec, rows=args.native) for backend in chosen],
            env_fn,
            cores=cores,
            num_envs=args.num_envs,
            seconds=args.seconds,
            repeats=args.repeats,
            keep=keep,
        )
    except (ImportError, workloads.BadRequest) as error:
        raise UsageError(str(error)) from None
    found = report.rows(held.turns)
    if found:
        keep(held)
        chart = _draw(args, held)
        unavailable.update(report.unavailable(held))
        notes = [*candidates.meanings(chosen), *report.notes(held, _how(args, workload), _loop(args))]
        notes += [f"{name} is not available here: {reason}" for name, reason in unavailable.items()]
        report.show(found, f"{_what(args)} on {cores} core{'s' * (cores > 1)}", notes)
        written = {"readings": args.json, "chart": chart}
        sys.stdout.writelines(f"{what}: {path}\n" for what, path in written.items() if path is not None)
    if held.interrupted:
        sys.stderr.write("interrupted: the table has the turns up to then\n" if found else "interrupted\n")
        return INTERRUPTED
    if held.failure is not None:
        sys.stderr.write(f"{held.failure}: the table has the turns up to then\n")
        return 1
    return 1 if any(row.failure and not row.unavailable for row in found) else 0


def command(args: argparse.Namespace) -> str:
    """Return the command that repeats the measurement, without the options that name files."""
    words = ["python", "-m", "vecenvs", "bench", args.env, "--num-envs", *map(str, args.num_envs)]
    if args.backends is not None:
        words += ["--backends", *args.backends]
    words += ["--seconds", f"{args.seconds:g}", "--repeats", str(args.repeats)]
    if args.env_kwargs:
        words += ["--env-kwargs", json.dumps(args.env_kwargs)]
    return shlex.join([*words, *["--monitor"] * args.monitor, *["--vectorization", "native"] * args.native])


def _what(args: argparse.Namespace) -> str:
    return f"{args.env} native" if args.native else str(args.env)


def _loop(args: argparse.Namespace) -> str:
    """Return what the limit consists of."""
    from vecenvs.bench.report import LOOP

    return "native loop" if args.native else LOOP


def _how(args: argparse.Namespace, workload: Workload) -> str:
    from vecenvs.bench.workloads import SYNTHETIC, GymEnv

    if args.native:
        return "Batched envs, one per worker and one per native loop; the loops share the envs. Every row counts."
    if args.monitor:
        return "Envs wrapped as make_vec_env does, Monitor included, also in the bare loops."
    kind = args.env.partition(":")[0]
    if kind == "sleep":
        return "Synthetic envs that wait without needing a core: more workers than cores may pass the limit."
    if kind in SYNTHETIC:
        return "Synthetic envs without wrappers."
    if not isinstance(workload, GymEnv):
        return f"Envs as {args.env} makes them, no Monitor: --monitor adds it."
    return "Envs by gym.make(..., disable_env_checker=True) without further wrappers, no Monitor: --monitor adds it."


def _default_chart(args: argparse.Namespace) -> Path:
    try:
        return output(f"bench-{re.sub(r'[^A-Za-z0-9.]+', '-', _what(args))}.png")
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{error}: give --chart FILE, or --no-chart") from None


def _draw(args: argparse.Namespace, held: Measurement) -> Path | None:
    from vecenvs.bench import bar_chart, report

    if args.chart is None:
        return None
    path: Path = args.chart
    bar_chart.draw(
        # One core is no bound of a batched env's rate: a loop over all envs saves the calls of the others.
        [*bar_chart.panels(report.rows(held.turns), 1 if args.native else held.cores)],
        path,
        title=f"{_what(args)}: share of what {held.cores} core{'s' * (held.cores > 1)} can give",
        subtitle=f"1.0 = one {_loop(args)} per core, all at once; "
        f"median and range of {held.repeats} rounds of {held.seconds:g} s",
    )
    return path
