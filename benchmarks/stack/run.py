"""A run of a benchmark: cells measured into a file, as far as the time allows, and the page written from the file.

Readings are written after each round. The same command continues a run that was interrupted or whose time was over:
cells that are complete are not measured again without `--again`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.shared import DOCS, RESULTS, ROOT, about, load, write
from benchmarks.stack import figures, grid
from benchmarks.stack.candidates import Candidate
from benchmarks.stack.processes import FOLDERS, Processes
from vecenvs.bench.workloads import BadRequest

PAGE = DOCS / "benchmarks.md"
LIBRARIES = ("torch", "tianshou", "torchrl", "pufferlib", "envpool")
QUICK_SECONDS = 0.2


@dataclass(frozen=True)
class Suite:
    """What `python -m benchmarks.NAME` measures, and what it makes of it.

    `measure` yields the record of a cell after each of the rounds. `summary` puts a record into a line. `write_page`
    gets the data, the file that has them, and the page. `promises` returns a table. `sets` are options that stand for
    some cells.
    """

    name: str
    usage: str
    cells: Sequence[Any]
    axes: Sequence[grid.Axis]
    candidates_of: Callable[[Any, Sequence[str] | None], list[Candidate]]
    measure: Callable[[Any, Sequence[Candidate], Processes, Iterator[int], float], Iterator[Mapping[str, Any]]]
    summary: Callable[[figures.CellRecord], str]
    write_page: Callable[[Mapping[str, Any], Path, Path], None]
    promises: Callable[[figures.Cells], str]
    seconds: float
    rounds: int
    sets: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Budget:
    """A number of seconds for a number of cells. A cell leaves unused time to the next ones. None means no limit."""

    def __init__(self, seconds: float | None, cells: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds
        self._cells = cells
        self._cell_end: float | None = None

    def begin_cell(self) -> bool:
        """Assign the next cell its part of the time; return False if there is no time left."""
        if self._end is None:
            return True
        left = self._end - self._clock()
        self._cell_end = self._clock() + left / max(1, self._cells)
        self._cells -= 1
        return left > 0

    def rounds(self, most: int) -> Iterator[int]:
        """Yield the numbers of up to `most` rounds, at least one, as long as another one fits into the cell's time."""
        took = 0.0
        for number in range(most):
            begun = self._clock()
            if number and self._cell_end is not None and begun + took > self._cell_end:
                return
            yield number
            took = self._clock() - begun


class Run:
    """One call of a benchmark's program."""

    def __init__(self, suite: Suite, args: argparse.Namespace) -> None:
        self.suite, self.args = suite, args
        self.data = load(args.record) or {"format": 1, "runs": [], "cells": {}}

    def todo(self) -> list[tuple[Any, list[Candidate]]]:
        """Return the cells that are asked for and not in the file, with their candidates."""
        found = []
        for cell in grid.choose(self.suite.cells, self.suite.axes, self.args.only, self.args.quick):
            candidates = self.suite.candidates_of(cell, self.args.candidates)
            if candidates and (self.args.again or not self._is_there(cell, candidates)):
                found.append((cell, candidates))
        return found

    def _is_there(self, cell: Any, candidates: Sequence[Candidate]) -> bool:
        record = figures.complete(self.data).get(cell.key)
        return record is not None and {one.name for one in candidates} <= set(record["candidates"])

    def measure(self) -> None:
        """Measure these cells, as far as the time allows."""
        todo, args, suite = self.todo(), self.args, self.suite
        if not todo:
            print("nothing to measure: the cells asked for are in the file (--again measures them anew)")
            return
        self.data["runs"].append(_header(f"python -m benchmarks.{suite.name} {' '.join(args.argv)}".strip()))
        seconds = args.seconds or (QUICK_SECONDS if args.quick else suite.seconds)
        rounds = args.rounds or (1 if args.quick else suite.rounds)
        budget = Budget(None if args.minutes is None else 60 * args.minutes, len(todo))
        with closing(Processes()) as processes:
            for cell, candidates in todo:
                if not budget.begin_cell():
                    print("the time is over; the same command continues with the remaining cells")
                    return
                print(f"== {cell.key}", flush=True)
                record: Mapping[str, Any] = {}
                for record in suite.measure(cell, candidates, processes, budget.rounds(rounds), seconds):
                    self._keep(cell.key, record, complete=False)
                self._keep(cell.key, record, complete=True)
                print(f"   {suite.summary(self.data['cells'][cell.key])}", flush=True)

    def _keep(self, key: str, record: Mapping[str, Any], *, complete: bool) -> None:
        self.data["cells"][key] = {"run": len(self.data["runs"]) - 1, "complete": complete, **record}
        write(self.args.record, self.data)


def _header(command: str) -> dict[str, Any]:
    places = [str(folder) for folders in FOLDERS.values() for folder in folders]
    head = about(command, *LIBRARIES)
    head["versions"] |= {found.name: found.version for found in distributions(path=places)}
    return head


def parser(suite: Suite) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{suite.name}",
        description=suite.usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chosen = found.add_mutually_exclusive_group()
    chosen.add_argument("--only", nargs="+", metavar="AXIS|CELL", help="these axes and cells")
    for name, keys in suite.sets.items():
        chosen.add_argument(f"--{name}", dest="only", action="store_const", const=keys, help=" ".join(keys))
    found.add_argument("--candidates", nargs="+", metavar="NAME", help="these libraries and candidates")
    found.add_argument(
        "--quick", action="store_true", help=f"a few cells, one round of {QUICK_SECONDS:g} s, into demo/"
    )
    found.add_argument("--minutes", type=float, help="for everything, with fewer rounds")
    found.add_argument("--seconds", type=float, help=f"per turn ({suite.seconds:g})")
    found.add_argument("--rounds", type=int, help=f"per cell, at most ({suite.rounds})")
    found.add_argument("--again", action="store_true", help="also measure cells that are in the file")
    found.add_argument("--page", action="store_true", help="only write the page")
    found.add_argument("--record", type=Path, help=f"the file of results (benchmarks/results/{suite.name}.json)")
    found.add_argument("--to", type=Path, help="the page (docs/benchmarks.md)")
    return found


def main(suite: Suite, argv: Sequence[str] | None = None) -> None:
    """Measure, write the page, and print what was promised. Partial runs go to demo/, unless the options name files."""
    args = parser(suite).parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as by Ctrl-C: nothing is left running
    args.argv = list(sys.argv[1:] if argv is None else argv)
    aside = ROOT / "demo" / suite.name if args.quick or args.candidates else None
    args.record = args.record or (aside or RESULTS) / f"{suite.name}.json"
    args.to = args.to or (aside / PAGE.name if aside else PAGE)
    run = Run(suite, args)
    try:
        try:
            if not args.page:
                run.measure()
        finally:
            if run.data["cells"]:
                args.to.parent.mkdir(parents=True, exist_ok=True)
                suite.write_page(run.data, args.record, args.to)
                print(suite.promises(figures.complete(run.data)))
    except BadRequest as error:
        sys.exit(f"benchmarks.{suite.name}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"benchmarks.{suite.name}: interrupted; the same command continues from here")
