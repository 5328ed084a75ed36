"""Measure envs of several agents beside bare loops and other libraries: agents' rows per second of CPU time.

    sh benchmarks/agents.sh                                                 the libraries, in .venv/agents
    .venv/agents/bin/python -m benchmarks.agents --docs                     everything, about six minutes
    .venv/agents/bin/python -m benchmarks.agents --only "tictactoe, 64" --repeats 1

The bare loop steps as many envs in turn, with actions drawn beforehand, resets those that have ended, and does nothing
else. Of a library the CPU time of all its processes counts. A share is the rate over that of the bare loop in the same
turn. Sides have a process of their own and take turns; a figure is the median over the turns, and the range of the
medians of the rounds, in which all processes are made anew. What fails is shown with its error.

In the games by turns each side plays the first action that its mask allows; a row is a turn.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from benchmarks.agents_sides import CELLS, Steps
from benchmarks.shared import DOCS, RESULTS, about, load, parser, spread, table, write, write_sections
from vecenvs.bench.child import Child
from vecenvs.bench.report import Spread
from vecenvs.bench.workloads import BadRequest

PATH = RESULTS / "agents.json"
LIBRARIES = ("pettingzoo", "mpe2", "supersuit", "pufferlib-core", "agilerl", "torchrl")
INTRO = """## Envs of several agents

`python -m benchmarks.agents --docs` writes this section from [agents.json](../benchmarks/results/agents.json): rows of
agents per second of CPU time, of all processes, as a share of a bare loop over as many envs in one process. A figure is
the median of the rounds, with their range in brackets. The toy has eight agents with observations (16,). In the games
agents act by turns, and every side plays by the mask. What these envs are: [agents.md](agents.md)."""


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU time that all threads of these processes have used, to the nanosecond."""
    total = 0
    for process in processes:
        for task in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(task.read_text().split()[0])
    return total / 1e9


def serve(connection: Connection, make: Callable[[], tuple[Steps, Callable[[], Any]]]) -> None:
    """Run one side: step for each number of seconds received, and send rows per second of CPU time."""
    warnings.simplefilter("ignore")
    try:
        step, close = make()
    except Exception as problem:  # whatever a library raises
        connection.send(f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}")
        return
    try:
        for _ in range(3):
            step()
        own = psutil.Process()
        connection.send(0.0)
        while True:
            seconds = connection.recv()
            processes = [own, *own.children(recursive=True)]
            begin, used, rows = time.perf_counter(), cpu_seconds(processes), 0
            while time.perf_counter() < begin + seconds:
                rows += step()
            connection.send(rows / (cpu_seconds(processes) - used))
    finally:
        close()


def measure(sides: dict[str, Any], seconds: float, turns: int, repeats: int) -> dict[str, Any]:
    """Return the shares of each side, round by round, or its failure."""
    shares: dict[str, list[float]] = {name: [] for name in sides}
    failures: dict[str, str] = {}
    for _ in range(repeats):
        with contextlib.ExitStack() as stack:
            children: dict[str, Child] = {}
            rates: dict[str, list[float]] = {}
            for name, make in sides.items():
                if name in failures:
                    continue
                children[name] = Child(serve, make)
                stack.callback(children[name].close)
                try:
                    children[name].receive()
                    rates[name] = []
                except BadRequest as problem:
                    failures[name] = str(problem)
            for turn in range(turns):
                for name in [*rates] if turn % 2 == 0 else [*reversed(rates)]:
                    children[name].send(seconds)
                    rates[name].append(children[name].receive())
        bare = next(iter(rates.values()))
        for name, own in rates.items():
            shares[name].append(statistics.median(one / limit for one, limit in zip(own, bare, strict=True)))
    found: dict[str, Any] = {name: {"share": vars(Spread.of(own))} for name, own in shares.items() if own}
    return found | {name: {"failure": text} for name, text in failures.items()}


def section(record: dict[str, Any]) -> str:
    """Return the section of docs/benchmarks.md."""
    cells = record["cells"]
    sides = dict.fromkeys(name for cell in cells.values() for name in cell if name != "bare loop")

    def entry(cell: dict[str, Any], name: str) -> str:
        share = cell.get(name, {}).get("share")
        return "-" if share is None else spread(Spread(**share), 2 if share["median"] >= 0.02 else 3)

    rows = [[name, *(entry(cell, name) for cell in cells.values())] for name in sides]
    failed = {
        f"{name}: {side['failure']}" for cell in cells.values() for name, side in cell.items() if "failure" in side
    }
    machine = record["machine"]
    known = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    where = f"`{record['command']}` on {machine['cores']} cores, Python {machine['python']}; {known}."
    return "\n\n".join([INTRO, table(["", *cells], rows), *sorted(failed), where])


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the record after each cell."""
    options: argparse.ArgumentParser = parser(__doc__, CELLS, seconds=0.25, repeats=3)
    options.add_argument("--turns", type=int, default=4, help="of each side in a round")
    options.add_argument("--docs", action="store_true", help="write the section of docs/benchmarks.md, too")
    given = options.parse_args(argv)
    command = f"python -m benchmarks.agents --seconds {given.seconds:g} --turns {given.turns} --repeats {given.repeats}"
    record = {**about(command, *LIBRARIES), "cells": load(PATH).get("cells", {})}
    for cell in given.only:
        found = measure(CELLS[cell](), given.seconds, given.turns, given.repeats)
        record["cells"][cell] = found
        for name, side in found.items():
            share = side.get("share")
            print(
                f"{cell:<22} {name:<28} {side['failure'] if share is None else spread(Spread(**share), 3)}", flush=True
            )
        write(PATH, record)
    if given.docs:
        write_sections(DOCS / "benchmarks.md", {"agents": section(record)})


if __name__ == "__main__":
    main()
