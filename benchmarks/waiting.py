"""Measure envs that wait: coroutines and threads beside loops of other kinds, by turns, each in a process of its own.

    python benchmarks/waiting.py                     less than ten minutes on two cores that are idle
    python benchmarks/waiting.py --docs              measures nothing: writes the section of docs/benchmarks.md

Each env waits in its steps for a time that is drawn from U(low, high). The program takes the rows that are ready and
sends their envs on. Sides (benchmarks/waiting_sides.py): this library with two workers, a process per env, coroutines
in two processes with pickled rows over a pipe each, and one process with a ThreadPoolExecutor. Rows are given as a
share of those of each env alone in a loop that costs nothing, CPU time is that of the caller and its workers together.
TorchRL's AsyncEnvPool is not measured here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shared import DOCS, RESULTS, about, load, parser, promises, spread, table, write, write_sections

from vecenvs.bench.report import Spread

FILE = RESULTS / "waiting.json"
OURS = ("coroutines", "threads")


class Case(NamedTuple):
    """So many envs that wait for U(low, high) seconds, and the sides that run them."""

    n: int
    low: float
    high: float
    sides: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.n} envs, {self.low:g} to {self.high:g} s"


MANY = Case(512, 0.1, 2.0, (*OURS, "executor loop"))
SLOW = Case(64, 0.2, 5.0, (*OURS, "process per env"))
COST = Case(2048, 0.1, 2.0, ("coroutines", "coroutines, step_timeout", "pipe loop", "executor loop"))
HUGE = Case(10_000, 0.5, 10.0, ("coroutines",))
CASES = {"512": MANY, "64": SLOW, "2048": COST, "10000": HUGE}
COMPARED = {  # by case: a side, the one beside it, the bound of its CPU time per row as a multiple
    "2048": [
        ("coroutines", "pipe loop", 1.2),
        ("coroutines", "executor loop", 1.5),
        ("coroutines, step_timeout", "coroutines", 1.05),
    ],
    "512": [("coroutines", "executor loop", 2.2), ("threads", "executor loop", 2.6)],
}
SMALL = 32  # envs, beside which the memory of many is measured


def run(*arguments: object) -> dict[str, Any]:
    """Run one side in a process of its own."""
    program = Path(__file__).with_name("waiting_sides.py")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, program, *map(str, arguments)], capture_output=True, text=True,
        env={**os.environ, **threads}, timeout=180, check=False,
    )  # fmt: skip
    if done.returncode or not done.stdout:
        raise SystemExit(f"{arguments}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def memory(kind: str, n: int) -> float:
    """Return the bytes per env beyond those of the env itself."""
    many, few = (run(kind, count, 0.1, 0.5, 0.5)["memory"] for count in (n, SMALL))
    return float((many - few) / (n - SMALL) - run("envs", n, kind)["memory"])


def measure(only: Sequence[str], rounds: int, seconds: float, record: dict[str, Any]) -> None:
    """Measure, by turns, and write the record after each round."""
    for turn in range(rounds):
        for name in only:
            case = CASES.get(name)
            if case is not None and not (case is HUGE and turn):  # which takes as long as a round of all others
                sides = case.sides if turn % 2 == 0 else case.sides[::-1]
                found = {side: run(side, case.n, case.low, case.high, seconds) for side in sides}
                record["cases"].setdefault(name, []).append(found)
            elif name == "memory" and not turn:
                record["memory"] = {"coroutines": memory("coroutines", 2048), "threads": memory("threads", 512)}
            elif name == "hang":
                record["hang"].append(run("hang")["seconds"])
            write(FILE, record)


def shares(rounds: Sequence[dict[str, Any]], side: str) -> Spread:
    """Return the rows of a side as a share of the ideal loops'."""
    return Spread.of([each[side]["rows"] / each[side]["ideal"] for each in rounds])


def costs(rounds: Sequence[dict[str, Any]], side: str, beside: str) -> Spread:
    """Return the CPU time per row of a side as a multiple of another's, round by round."""
    return Spread.of([each[side]["cpu_us"] / each[beside]["cpu_us"] for each in rounds])


def promised(record: dict[str, Any]) -> list[tuple[str, float, bool, tuple[Spread, str] | None]]:
    """Return the promised figures beside the measured ones."""
    rows: list[tuple[str, float, bool, tuple[Spread, str] | None]] = []

    def add(what: str, bound: float, found: Spread, *, least: bool = False) -> None:
        rows.append((what, bound, least, (found, "")))

    for name, rounds in record["cases"].items():
        for side in OURS if name in ("512", "64") else ():
            add(f"{CASES[name].name}: {side}, share of loops", 0.99, shares(rounds, side), least=True)
        for side, beside, bound in COMPARED.get(name, ()):
            add(f"{name}: CPU per row of {side}, of {beside}", bound, costs(rounds, side, beside))
        if name == "10000":
            add("10,000: share of loops", 0.98, shares(rounds, "coroutines"), least=True)
            for what, key, bound in (("end to row, p99, s", "p99", 0.25), ("start, s", "start", 10.0)):
                add(f"10,000: {what}", bound, Spread.of([each["coroutines"][key] for each in rounds]))
    for kind, found in record["memory"].items():
        add(f"KB per env beyond it: {kind}", {"coroutines": 10.0, "threads": 32.0}[kind], Spread.of([found / 1024]))
    if record["hang"]:
        add("a coroutine hangs, limit 0.5 s: s until it fails alone", 0.75, Spread.of(record["hang"]))
    return rows


def section(record: dict[str, Any]) -> str:
    """Return the section of docs/benchmarks.md."""
    rows = []
    for name, rounds in record["cases"].items():
        case = CASES[name]
        for side in case.sides:
            micros = Spread.of([each[side]["cpu_us"] for each in rounds])
            megabytes = Spread.of([each[side]["memory"] / 1e6 for each in rounds])
            rows.append([case.name, side, spread(shares(rounds, side), 3), spread(micros, 0), spread(megabytes, 0)])
    return f"""## Envs that wait

`{record["command"]}` on {record["machine"]["cores"]} cores. Rows as a share of those of each env alone in a loop that
costs nothing; CPU time per row of the caller and its workers, in microseconds; their memory in MB. Readings are in
[waiting.json](../benchmarks/results/waiting.json).

{table(["envs", "by", "rows", "CPU per row", "memory"], rows)}"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, or write the section."""
    options = parser(__doc__, [*CASES, "memory", "hang"], seconds=6.0, repeats=3)
    options.add_argument("--rounds", type=int, dest="repeats", help="as --repeats")
    options.add_argument("--docs", action="store_true", help="write the section of docs/benchmarks.md from the file")
    given = options.parse_args(argv)
    if given.docs:
        write_sections(DOCS / "benchmarks.md", {"waiting": section(load(FILE))})
        return
    command = f"python benchmarks/waiting.py --rounds {given.repeats}"
    record: dict[str, Any] = {**about(command), "cases": {}, "memory": {}, "hang": []}
    measure(given.only, given.repeats, given.seconds, record)
    print(section(record))
    print(promises(promised(record)))


if __name__ == "__main__":
    main()
