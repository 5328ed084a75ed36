"""Measure the engines beside other libraries; see benchmarks/README.md.

    python -m benchmarks.peers                       what is not in the file yet, all in all about 45 minutes
    python -m benchmarks.peers --minutes 15          the same in less time: fewer rounds
    python -m benchmarks.peers --only cost rows-64   some axes or cells
    python -m benchmarks.peers --quick               a few cells, one short round, into demo/
    python -m benchmarks.peers --page                no measuring: the page from the file

Every reading is in the file as soon as its round is over. A run that was broken off, or whose time was over, is taken
up by the next: cells that are complete are not measured again without `--again`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.peers import charts, report
from benchmarks.peers.contest import Budget, job_of, play
from benchmarks.peers.contestants import Contestant, lineup
from benchmarks.peers.crew import ROOT, Crew
from benchmarks.peers.figures import best, cell_record, over_peer, shares
from benchmarks.peers.grid import Cell, choose
from vecenvs.bench.limit import BareLoops
from vecenvs.bench.machine import facts, versions
from vecenvs.bench.measure import LIMIT, Turn
from vecenvs.bench.report import Spread, to_json
from vecenvs.bench.workloads import BadRequest
from vecenvs.cpus import usable_cores

RECORD, PAGE = ROOT / "benchmarks/results/peers.json", ROOT / "docs/benchmarks.md"
ASIDE = ROOT / "demo/peers"  # where a run that is not the whole goes, unless told otherwise
LIBRARIES = ("torch", "tianshou", "torchrl", "pufferlib", "envpool")
SECONDS, ROUNDS = 0.5, 5


class Run:
    """One call of this program: cells measured into a file."""

    def __init__(self, args: argparse.Namespace, cores: int) -> None:
        self.args, self.cores = args, cores
        self.seconds = args.seconds or (0.2 if args.quick else SECONDS)
        self.rounds = args.rounds or (1 if args.quick else ROUNDS)
        self.data = load(args.record)
        self.number = len(self.data["runs"])

    def todo(self) -> list[tuple[Cell, list[Contestant]]]:
        """Give the cells that are asked for and not in the file, with who takes part."""
        found = [(cell, lineup(cell, self.args.contestants)) for cell in choose(self.args.only, self.args.quick)]
        return [(cell, who) for cell, who in found if who and (self.args.again or not self._is_there(cell, who))]

    def _is_there(self, cell: Cell, who: Sequence[Contestant]) -> bool:
        record = self.data["cells"].get(cell.key)
        return record is not None and record["complete"] and {one.name for one in who} <= set(record["lineup"])

    def measure(self) -> None:
        """Measure them, as far as the time goes."""
        todo = self.todo()
        if not todo:
            print("nothing to measure: the cells asked for are in the file (--again measures them anew)")
            return
        command = "python -m benchmarks.peers " + " ".join(self.args.argv)
        header = {"command": command.strip(), "machine": facts(self.cores), "versions": library_versions()}
        self.data["runs"].append(header)
        budget = Budget(None if self.args.minutes is None else 60 * self.args.minutes, len(todo))
        with Crew() as crew:
            for cell, who in todo:
                if not budget.begin_cell():
                    print("the time is over; the same command goes on with the cells that are left")
                    return
                self._measure_cell(cell, who, crew, budget)

    def _measure_cell(self, cell: Cell, who: Sequence[Contestant], crew: Crew, budget: Budget) -> None:
        print(f"== {cell.key}", flush=True)
        turns: list[Turn] = []
        names = [one.name for one in who]
        how: dict[str, Any] = {"seconds": self.seconds, "rounds": self.rounds, "budget": budget}
        with BareLoops(cell.env_fn(), self.cores) as loops:
            job = job_of(cell, loops, self.cores, self.seconds)
            for turn in play(job, who, loops, crew.take_turn, **how):
                turns.append(turn)
                if turn.failure is not None:
                    print(f"   {turn.contestant}: {turn.failure}", flush=True)
                if turn.contestant == LIMIT and turn.round > 0:
                    self._keep(cell, cell_record(cell, names, job.think, self.seconds, turns, self.number))
        self._keep(cell, {**self.data["cells"][cell.key], "complete": True})
        print(f"   {said(self.data['cells'][cell.key])}", flush=True)

    def _keep(self, cell: Cell, record: dict[str, Any]) -> None:
        self.data["cells"][cell.key] = record
        save(self.args.record, self.data)


def load(path: Path) -> dict[str, Any]:
    """Read a file of results; an empty one if there is none yet."""
    if not path.exists():
        return {"format": 1, "runs": [], "cells": {}}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def save(path: Path, data: dict[str, Any]) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(to_json(data), encoding="utf-8")
    new.replace(path)


def library_versions() -> dict[str, str]:
    """Tell the versions of all that takes part."""
    found = versions()
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def said(record: dict[str, Any]) -> str:
    """Sum a cell up in a line."""
    found = shares(record)
    sides = {"ours": best(record, ours=True), "peers": best(record, ours=False)}
    parts = [f"{side}: {who} {Spread.of(found[who].values()).median:.3f}" for side, who in sides.items() if who]
    ratio = over_peer(record)
    return "; ".join([*parts, *([f"ratio {ratio.median:.2f} ({ratio.min:.2f}..{ratio.max:.2f})"] if ratio else [])])


def write_page(data: dict[str, Any], record: Path, path: Path) -> None:
    """Write the page and, in a folder of its name beside it, the pictures."""
    folder, pictures = path.with_suffix(""), {}
    for axis, cells in report.axes_of(data):
        cores = data["runs"][next(iter(cells.values()))["run"]]["machine"]["cores"]
        charts.draw(axis, cells, folder / f"{axis.name}.png", cores)
        pictures[axis.name] = f"{folder.name}/{axis.name}.png"
    link = os.path.relpath(record, path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.page(data, record.name, link, pictures), encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--only", nargs="+", metavar="AXIS|CELL", help="these axes and cells")
    found.add_argument("--contestants", nargs="+", metavar="NAME", help="these libraries and contestants")
    found.add_argument("--quick", action="store_true", help="a few cells, one round of 0.2 s")
    found.add_argument("--minutes", type=float, help="for everything; rounds become fewer")
    found.add_argument("--seconds", type=float, help=f"per turn ({SECONDS:g})")
    found.add_argument("--rounds", type=int, help=f"per cell, at most ({ROUNDS})")
    found.add_argument("--again", action="store_true", help="measure cells that are in the file, too")
    found.add_argument("--page", action="store_true", help="only write the page")
    found.add_argument("--record", type=Path, help="the file of results (benchmarks/results/peers.json)")
    found.add_argument("--to", type=Path, help="the page (docs/benchmarks.md)")
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as by Ctrl-C: nothing is left behind
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
                print(report.promises({k: v for k, v in run.data["cells"].items() if v["complete"]}), end="")
    except BadRequest as error:
        sys.exit(f"benchmarks.peers: {error}")
    except KeyboardInterrupt:
        sys.exit("benchmarks.peers: broken off; the same command goes on from here")


if __name__ == "__main__":
    main()
