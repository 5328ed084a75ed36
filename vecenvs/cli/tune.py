"""Find the fastest way to step an env on this machine, and print the make_vec_env call for it.

This measures backends, numbers of workers and numbers of envs: all of them briefly, the better ones for longer. It
recommends the simplest of those that are about as fast as the best: few envs, few processes. Envs have the wrappers of
make_vec_env, Monitor and preprocessing included. An id with a vector_entry_point is also tried with
vectorization="native".

ENV is an id (CartPole-v1, ALE/Pong-v5, package.module:Env-v0), a class or function that makes an env
(package.module:Class), or a synthetic workload (spin:100us, sleep:1ms).
The program computes for --gap-us between steps, as a learner does for its policy: in an empty loop other settings win.
With --learner-ms it computes for this long instead. Stepping half of the envs while it computes on the other half is
tried, too.
The mpi backend needs ranks: python -m vecenvs.mpi -n 5 -m vecenvs tune ENV --backends mpi
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from vecenvs.cli import INTERRUPTED, UsageError
from vecenvs.cli._arguments import SECONDS, count, json_object, number_of, output

if TYPE_CHECKING:
    from vecenvs.bench.tuning import Search

_SIZES = (8, 32, 128)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    sizes = " ".join(map(str, _SIZES))
    parser.add_argument("env", metavar="ENV", help="env id, package.module:name, or synthetic workload")
    parser.add_argument("--num-envs", metavar="N", type=count, nargs="+", help=f"numbers to try (default: {sizes})")
    parser.add_argument("--backends", metavar="NAME", nargs="+", default=[], help="further backends to try: mpi ray")
    between = parser.add_mutually_exclusive_group()
    between.add_argument(
        "--gap-us",
        metavar="US",
        type=number_of("microseconds", or_zero=True),
        default=300.0,
        help="your program's CPU time per step (default: 300)",
    )
    between.add_argument(
        "--learner-ms", metavar="MS", type=number_of("milliseconds"), help="your program's CPU time per N rows"
    )
    parser.add_argument("--budget", metavar="S", type=SECONDS, default=45.0, help="seconds to spend (default: 45)")
    parser.add_argument("--env-kwargs", metavar="JSON", type=json_object, default={}, help="for the env's constructor")
    parser.add_argument("--json", metavar="FILE", type=output, help="write every reading to FILE")


def run(args: argparse.Namespace) -> int:
    """Measure, then print the line to paste and the table. Return 1 if every candidate failed, 130 after Ctrl-C."""
    if args.learner_ms is not None and (args.num_envs is None or len(args.num_envs) != 1):
        raise UsageError("--learner-ms is the time for one batch of all envs: say how many with --num-envs N")
    from vecenvs.bench import (
        check_libraries,
        contest,
        limit,
        machine,
        monitored,
        progress,
        report,
        tuning,
        tuning_table,
        workloads,
    )
    from vecenvs.cpus import usable_cores

    try:
        check_libraries()
        workload = workloads.workload(args.env, args.env_kwargs)
        cores = usable_cores()
        facts = machine.facts(cores)
        learner = args.learner_ms is not None
        native = isinstance(workload, workloads.GymEnv) and workload.spec.vector_entry_point is not None
        sizes = args.num_envs or _SIZES
        single = monitored.monitored(workload)
        try:
            waits = tuning.waits(single)
        except Exception as error:
            raise UsageError(f"the env cannot be made and stepped: {contest.describe(error)}") from None
        settings = tuning.settings_to_try(sizes, cores, learner=learner, more=args.backends, native=native, waits=waits)
        iterations = workloads.iterations_for(_between(args))
        with (
            limit.BareLoops(single, cores) as loops,
            progress.progress(tuning.total(settings, args.budget)) as display,
        ):
            make_vec = monitored.from_make_vec_env(workload)
            found = tuning.search(settings, loops, make_vec, display, iterations=iterations, budget=args.budget)
    except (ImportError, workloads.BadRequest) as error:
        raise UsageError(str(error)) from None
    if args.json is not None:
        asked = {"env": args.env, "env_kwargs": args.env_kwargs, "gap_us": args.gap_us, "learner_ms": args.learner_ms}
        here = {"machine": facts, "versions": machine.versions()}
        report.write(args.json, {"format": 1, **asked, **here, **found.record()})
    sys.stdout.write(_answer(args, found))
    title = f"{args.env} on {cores} core{'s' * (cores > 1)}"
    report.print_table(tuning_table.table(found, title), tuning_table.notes(found, _between(args), learner))
    if args.json is not None:
        sys.stdout.write(f"readings: {args.json}\n")
    if found.interrupted:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    return 0 if found.best() else 1


def _between(args: argparse.Namespace) -> float:
    """Return for how many seconds the program computes between two steps."""
    return float(args.gap_us / 1e6 if args.learner_ms is None else args.learner_ms / 1e3)


def _answer(args: argparse.Namespace, found: Search) -> str:
    """Return the lines to paste; nothing if every candidate failed."""
    from vecenvs.bench.tuning import make_vec_env_line
    from vecenvs.bench.workloads import SYNTHETIC
    from vecenvs.make.env_types import find_source

    chosen = found.recommended()
    if chosen is None:
        return ""
    module, _, name = args.env.partition(":")
    env, lines = f'"{args.env}"', list[str]()
    if module in SYNTHETIC:
        env = "make_env"
    elif callable(find_source(args.env)):
        env, lines = name, [f"from {module} import {name.partition('.')[0]}"]
    lines.append(make_vec_env_line(env, chosen.candidate, args.env_kwargs))
    if chosen.candidate.halves:
        half = chosen.candidate.batch
        lines += [
            "env.send(actions)  # of all envs, once; then repeat:",
            f"batch = env.recv(min_envs={half}, max_envs={half})  # compute on its rows, then:",
            "env.send(actions_of_batch, batch.indices)",
        ]
    return "\n".join([*lines, "", ""])
