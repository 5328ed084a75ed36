"""Measure the engines beside other libraries; see benchmarks/README.md.

    python -m benchmarks.peers                       everything that is not in the file yet, about 45 minutes in all
    python -m benchmarks.peers --minutes 15          the same in less time, with fewer rounds
    python -m benchmarks.peers --only cost rows-64   some axes or cells
    python -m benchmarks.peers --quick               a few cells, one short round, into demo/
    python -m benchmarks.peers --page                no measuring: write the page from the file

Readings are written to the file after each round. The same command continues a run that was interrupted or whose time
was over: cells that are complete are not measured again without `--again`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.peers import axis_charts, page
from benchmarks.peers.budget import Budget, entrants_of
from benchmarks.peers.figures import best, cell_record, over_peer, shares
from benchmarks.peers.grid import Cell, choose
from benchmarks.peers.library_processes import FOLDERS, ROOT, LibraryProcesses
from benchmarks.peers.lineup import Contestant, Entrant, lineup
from benchmarks.peers.steppers import Job
from vecenvs.bench.contest import LIMIT, Limit, Turn, contest, warmup_for
from vecenvs.bench.limit import BareLoops
from vecenvs.bench.machine import facts, versions
from vecenvs.bench.report import Spread, to_json
from vecenvs.bench.workloads import BadRequest, iterations_for
from vecenvs.cpus import usable_cores

RECORD, PAGE = ROOT / "benchmarks/results/peers.json", ROOT / "docs/benchmarks.md"
ASIDE = ROOT / "demo/peers"  # for the results of partial runs, unless the options name files
LIBRARIES = ("torch", "tianshou", "torchrl", "pufferlib", "envpool")
SECONDS, ROUNDS = 0.5, 5
LEARNER_READINGS = 3  # of the limit, so that no short disturbance changes the learner's work


class Run:
    """One call of this program: cells measured into a file."""

    def __init__(self, args: argparse.Namespace, cores: int) -> None:
        self.args, self.cores = args, cores
        self.seconds = args.seconds or (0.2 if args.quick else SECONDS)
        self.rounds = args.rounds or (1 if args.quick else ROUNDS)
        self.data = load(args.record)
        self.number = len(self.data["runs"])

    def todo(self) -> list[tuple[Cell, list[Contestant]]]:
        """Return the cells that are asked for and not in the file, with their contestants."""
        found = []
        for cell in choose(self.args.only, self.args.quick):
            contestants = lineup(cell, self.args.contestants)
            if contestants and (self.args.again or not self._is_there(cell, contestants)):
                found.append((cell, contestants))
        return found

    def _is_there(self, cell: Cell, contestants: Sequence[Contestant]) -> bool:
        record = self.data["cells"].get(cell.key)
        return record is not None and record["complete"] and {one.name for one in contestants} <= set(record["lineup"])

    def measure(self) -> None:
        """Measure these cells, as far as the time allows."""
        todo = self.todo()
        if not todo:
            print("nothing to measure: the cells asked for are in the file (--again measures them anew)")
            return
        command = "python -m benchmarks.peers " + " ".join(self.args.argv)
        apart = {
            found.name: found.version
            for folders in FOLDERS.values()
            for found in distributions(path=[*map(str, folders)])
        }
        header = {
            "command": command.strip(), "machine": facts(self.cores), "versions": versions(*LIBRARIES) | apart,
        }  # fmt: skip
        self.data["runs"].append(header)
        budget = Budget(None if self.args.minutes is None else 60 * self.args.minutes, len(todo))
        with closing(LibraryProcesses()) as processes:
            for cell, contestants in todo:
                if not budget.begin_cell():
                    print("the time is over; the same command continues with the remaining cells")
                    return
                self._measure_cell(cell, contestants, processes, budget)

    def _measure_cell(
        self, cell: Cell, contestants: Sequence[Contestant], processes: LibraryProcesses, budget: Budget
    ) -> None:
        print(f"== {cell.key}", flush=True)
        turns: list[Turn] = []
        names = [one.name for one in contestants]
        with BareLoops(cell.env_fn(), self.cores) as loops:
            job = job_of(cell, loops, self.cores, self.seconds)
            rounds = entrants_of(budget.rounds(self.rounds), [Entrant(one, job) for one in contestants])
            for turn in contest(rounds, loops, cell.num_envs, seconds=self.seconds, take_turn=processes.take_turn):
                turns.append(turn)
                if turn.failure is not None:
                    print(f"   {turn.contestant}: {turn.failure}", flush=True)
                if turn.contestant == LIMIT and turn.round > 0:
                    self._keep(cell, cell_record(cell, names, job.think, self.seconds, turns, self.number))
        self._keep(cell, {**self.data["cells"][cell.key], "complete": True})
        print(f"   {summary(self.data['cells'][cell.key])}", flush=True)

    def _keep(self, cell: Cell, record: dict[str, Any]) -> None:
        self.data["cells"][cell.key] = record
        save(self.args.record, self.data)


def job_of(cell: Cell, limit: Limit, cores: int, seconds: float) -> Job:
    """Return what is to be stepped. A learner computes per row as long as the limit takes, by its best reading."""
    think = 0
    if cell.learner:
        rate = max(limit.run(seconds, warmup_for(seconds)).rate for _ in range(LEARNER_READINGS))
        think = iterations_for(1 / rate)
    return Job(cell.env, cell.env_fn(), cell.num_envs, cores, think, cell.attr)


def load(path: Path) -> dict[str, Any]:
    """Read a file of results. Without a file, return empty results."""
    if not path.exists():
        return {"format": 1, "runs": [], "cells": {}}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def save(path: Path, data: dict[str, Any]) -> None:
    """Write the results to a new file, which then replaces the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(to_json(data), encoding="utf-8")
    new.replace(path)


def summary(record: dict[str, Any]) -> str:
    """Summarise a cell in a line."""
    found = shares(record)
    sides = {"ours": best(record, ours=True), "peers": best(record, ours=False)}
    parts = [f"{side}: {name} {Spread.of(found[name].values()).median:.3f}" for side, name in sides.items() if name]
    ratio = over_peer(record)
    return "; ".join([*parts, *([f"ratio {ratio.median:.2f} ({ratio.min:.2f}..{ratio.max:.2f})"] if ratio else [])])


def write_page(data: dict[str, Any], record: Path, path: Path) -> None:
    """Write the page, and the pictures into a folder of the same name beside it."""
    folder, pictures = path.with_suffix(""), {}
    for axis, cells in page.axes_of(data):
        cores = data["runs"][next(iter(cells.values()))["run"]]["machine"]["cores"]
        axis_charts.draw_axis(axis, cells, folder / f"{axis.name}.png", cores)
        pictures[axis.name] = f"{folder.name}/{axis.name}.png"
    link = os.path.relpath(record, path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(page.page(data, record.name, link, pictures, before), encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--only", nargs="+", metavar="AXIS|CELL", help="these axes and cells")
    found.add_argument("--contestants", nargs="+", metavar="NAME", help="these libraries and contestants")
    found.add_argument("--quick", action="store_true", help="a few cells, one round of 0.2 s")
    found.add_argument("--minutes", type=float, help="for everything, with fewer rounds")
    found.add_argument("--seconds", type=float, help=f"per turn ({SECONDS:g})")
    found.add_argument("--rounds", type=int, help=f"per cell, at most ({ROUNDS})")
    found.add_argument("--again", action="store_true", help="also measure cells that are in the file")
    found.add_argument("--page", action="store_true", help="only write the page")
    found.add_argument("--record", type=Path, help="the file of results (benchmarks/results/peers.json)")
    found.add_argument("--to", type=Path, help="the page (docs/benchmarks.md)")
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as by Ctrl-C: nothing is left running
    args.argv = list(sys.argv[1:] if argv is None else argv)
    aside = args.quick or args.contestants
    args.record = args.record or (ASIDE / "peers.json" if aside else RECORD)
    args.to = args.to or (ASIDE / "benchmarks.md" if aside else PAGE)
    try:
        run = Run(args, usable_cores())
        try:
            if not args.page:
                run.measure()
        finally:
            if run.data["cells"]:
                write_page(run.data, args.record, args.to)
                print(page.promises({k: v for k, v in run.data["cells"].items() if v["complete"]}), end="")
    except BadRequest as error:
        sys.exit(f"benchmarks.peers: {error}")
    except KeyboardInterrupt:
        sys.exit("benchmarks.peers: interrupted; the same command continues from here")


if __name__ == "__main__":
    main()
