"""Measure what training costs beside a torch policy; see benchmarks/README.md.

    python -m benchmarks.training                     everything that is not in the file yet
    python -m benchmarks.training --minutes 24        the same in less time, with fewer rounds
    python -m benchmarks.training --key --minutes 8   8 envs: Stable-Baselines3's PPO, and gaps of 300 and 1000 us
    python -m benchmarks.training --quick             a minute, to see whether it works, into demo/
    python -m benchmarks.training --table             no measuring: print the tables and draw the pictures
    python -m benchmarks.training --page              no measuring: write the first section of docs/benchmarks.md

Readings are written to the file after each cell. The same command continues a run that was interrupted or whose time
was over: cells that are in the file are not measured again without `--again`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers import page as peers_page
from benchmarks.peers.budget import Budget
from benchmarks.peers.library_processes import ROOT, LibraryProcess, ProcessLost
from benchmarks.training import charts, page, tables
from benchmarks.training.contestants import Contestant, lineup
from benchmarks.training.figures import base_of, cell_record, failures, rate, relative, step_time
from benchmarks.training.grid import COMPLETE, ENVS, GAPS, KEY, MEASUREMENTS, QUICK, Cell, Order, Plan
from vecenvs.bench.machine import facts, versions
from vecenvs.bench.report import to_json
from vecenvs.bench.workloads import BadRequest
from vecenvs.cpus import usable_cores

RECORD = ROOT / "benchmarks/results/training.json"
PAGE = ROOT / "docs/benchmarks.md"
ASIDE = ROOT / "demo/training/training.json"  # for the results of partial runs, unless the options name a file
LIBRARIES = ("torch", "pufferlib", "envpool")
TIMEOUT = 180.0  # seconds for a turn besides the measured time
BUSY = 0.05  # the share of the cores that other programs may use before a round
QUICK_LINEUP = ("dummy", "subproc", "auto", "subproc, halves", "stable-baselines3", "gymnasium")


class Processes:
    """A process for each family of contestants."""

    def __init__(self) -> None:
        self._processes: dict[str, LibraryProcess] = {}

    def take_turn(self, found: Contestant, cell: Cell) -> dict[str, Any]:
        """Have the contestant's process take a turn. If the process dies or takes too long, the turn is a failure."""
        turn_of = Order(found.name, cell)
        try:
            if found.family not in self._processes:
                program = [sys.executable, "-m", "benchmarks.training.serve_turns", found.family]
                self._processes[found.family] = LibraryProcess(program)
            reading: dict[str, Any] = self._processes[found.family].ask(turn_of, TIMEOUT + 10 * cell.seconds)
        except ProcessLost as lost:
            if found.family in self._processes:
                self._processes.pop(found.family).kill()
            return {"contestant": found.name, "failure": str(lost)}
        return reading

    def close(self) -> None:
        """End all processes. It may be called again."""
        while self._processes:
            self._processes.popitem()[1].close()


def measure(args: argparse.Namespace, plan: Plan, data: dict[str, Any]) -> None:
    """Measure the cells that are asked for and not in the file, as far as the time allows."""
    lineups = {cell: lineup(cell, args.contestants) for cell in plan.cells()}
    todo = [cell for cell, found in lineups.items() if found and (args.again or not is_there(data, cell, found))]
    if not todo:
        print("nothing to measure: the cells asked for are in the file (--again measures them anew)")
        return
    command = f"python -m benchmarks.training {' '.join(args.argv)}".strip()
    data["runs"].append({"command": command, "machine": facts(usable_cores()), "versions": versions(*LIBRARIES)})
    budget = Budget(None if args.minutes is None else 60 * args.minutes, len(todo))
    with closing(Processes()) as processes:
        for cell in todo:
            if not budget.begin_cell():
                print("the time is over; the same command continues with the remaining cells")
                return
            measure_cell(cell, lineups[cell], processes, budget.rounds(plan.rounds), data)
            save(args.record, data)
            print(f"   {summary(data['cells'][cell.key])}", flush=True)


def measure_cell(
    cell: Cell, contestants: Sequence[Contestant], processes: Processes, rounds: Any, data: dict[str, Any]
) -> None:
    """Let the contestants take turns. Every other round runs backwards; one that fails takes no further turns."""
    print(f"== {cell.key}", flush=True)
    readings: list[dict[str, Any]] = []
    failed: set[str] = set()
    busy: list[float] = []
    for number in rounds:
        busy.append(psutil.cpu_percent(interval=0.5) / 100)
        if busy[-1] > BUSY:
            print(f"   other programs use {busy[-1]:.0%} of the cores: the readings will not mean much", flush=True)
        for found in contestants[:: -1 if number % 2 else 1]:
            if found.name in failed:
                continue
            reading = processes.take_turn(found, cell)
            readings.append({"round": number, **reading})
            if "failure" in reading:
                failed.add(found.name)
                print(f"   {found.name}: {reading['failure']}", flush=True)
    names = [found.name for found in contestants]
    data["cells"][cell.key] = cell_record(cell, names, readings, busy, len(data["runs"]) - 1)


def is_there(data: dict[str, Any], cell: Cell, contestants: Sequence[Contestant]) -> bool:
    """Return whether the file has this cell with all of its gaps and contestants."""
    record = data["cells"].get(cell.key)
    if record is None:
        return False
    return set(cell.gaps) <= set(record["cell"]["gaps"]) and {one.name for one in contestants} <= set(record["lineup"])


def summary(record: dict[str, Any]) -> str:
    """Summarise a cell in a line: ratios to the base, of time inside `step` after the longest gap or of rates."""
    gaps = record["cell"]["gaps"]
    value = step_time(gaps[-1]) if gaps else rate
    names = [name for name in record["lineup"] if name not in failures(record)]
    found = {name: ratio.median for name in names if (ratio := relative(record, name, value)) is not None}
    what = f"step after {gaps[-1]} us" if gaps else "rates"
    return f"{what} / {base_of(record)}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items())


def load(path: Path) -> dict[str, Any]:
    """Return the content of the file of results, or of an empty one."""
    if not path.exists():
        return {"runs": [], "cells": {}}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def save(path: Path, data: dict[str, Any]) -> None:
    """Write the file, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(to_json(data), encoding="utf-8")
    new.replace(path)


def write_up(data: dict[str, Any], record: Path) -> None:
    """Print the tables, and draw the pictures beside the file."""
    for measurement, title in MEASUREMENTS.items():
        there = tables.of_measurement(data["cells"], measurement)
        if there:
            draw(there, measurement, title, record.with_name(f"{record.stem}-{measurement}.png"))
    print(tables.page(data))


def write_page(data: dict[str, Any], path: Path) -> None:
    """Write the section about training of a page that is there, and its pictures beside the page's other ones."""
    folder, pictures = path.with_suffix(""), {}
    for measurement, title in MEASUREMENTS.items():
        there = tables.of_measurement(data["cells"], measurement)
        if there:
            name = f"training-{measurement}.png"
            draw(there, measurement, title, folder / name)
            pictures[measurement] = f"{folder.name}/{name}"
    text = path.read_text(encoding="utf-8")
    path.write_text(peers_page.with_training(text, page.section(data, pictures)), encoding="utf-8")


def draw(cells: dict[str, Any], measurement: str, title: str, path: Path) -> None:
    if measurement == GAPS:
        charts.draw_gaps(cells, path)
    else:
        charts.draw_training(cells, path, title)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    plans = found.add_mutually_exclusive_group()
    plans.add_argument("--key", dest="plan", action="store_const", const=KEY, help="the most telling cells")
    plans.add_argument(
        "--quick", dest="plan", action="store_const", const=QUICK, help="one short round, few contestants"
    )
    found.add_argument("--only", dest="measurements", nargs="+", choices=MEASUREMENTS, help="these measurements")
    found.add_argument("--envs", nargs="+", choices=ENVS)
    found.add_argument("--num-envs", nargs="+", type=int, metavar="N")
    found.add_argument("--gaps", nargs="+", type=int, metavar="US", help="microseconds of inference between steps")
    found.add_argument("--contestants", nargs="+", metavar="NAME", help="libraries, contestants, settings of ours")
    found.add_argument("--seconds", type=float, help=f"per training ({COMPLETE.seconds:g})")
    found.add_argument("--gap-seconds", type=float, help=f"per gap ({COMPLETE.gap_seconds:g})")
    found.add_argument("--rounds", type=int, help=f"per cell, at most ({COMPLETE.rounds})")
    found.add_argument("--minutes", type=float, help="for everything, with fewer rounds")
    found.add_argument("--again", action="store_true", help="also measure cells that are in the file")
    found.add_argument("--table", action="store_true", help="only print the tables and draw the pictures")
    found.add_argument("--page", action="store_true", help="only write the first section of docs/benchmarks.md")
    found.add_argument("--to", type=Path, default=PAGE, help="the page (docs/benchmarks.md)")
    found.add_argument("--record", type=Path, help="the file of results (benchmarks/results/training.json)")
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, then print the tables and draw the pictures."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as by Ctrl-C: nothing is left running
    args.argv = list(sys.argv[1:] if argv is None else argv)
    given = {one.name: getattr(args, one.name) for one in fields(Plan) if getattr(args, one.name) is not None}
    plan = replace(args.plan or COMPLETE, **given)
    quick = args.plan is QUICK
    args.record = args.record or (ASIDE if quick or args.contestants else RECORD)
    args.contestants = args.contestants or (QUICK_LINEUP if quick else None)
    args.again = args.again or quick
    data = load(args.record)
    try:
        if not args.table and not args.page:
            measure(args, plan, data)
    except BadRequest as error:
        sys.exit(f"benchmarks.training: {error}")
    except KeyboardInterrupt:
        sys.exit("benchmarks.training: interrupted; the same command continues from here")
    if args.page:
        write_page(data, args.to)
        print("\n".join(page.promises(data["cells"])))
    elif data["cells"]:
        write_up(data, args.record)


if __name__ == "__main__":
    main()
