"""Figures from the readings of a cell: shares of the limit, and ratios to the best peer, with their spread.

The record of a cell is plain data, as in the JSON file: see `cell_record`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.peers.grid import Cell, Promise
from benchmarks.peers.lineup import CONTESTANTS, OURS
from vecenvs.bench.contest import LIMIT, Turn
from vecenvs.bench.report import Spread, readings

CellRecord = Mapping[str, Any]
LIBRARIES = {found.name: found.library for found in CONTESTANTS}
PYTHON = {found.name for found in CONTESTANTS if found.python}


def cell_record(
    cell: Cell, lineup: Sequence[str], think: int, seconds: float, turns: Sequence[Turn], run: int
) -> dict[str, Any]:
    """Convert the turns of a cell to plain data.

    `think` is the number of the learner's iterations per row, `run` the index of the run in the file. The record is not
    `complete` before all of its rounds are over.
    """
    return {
        "run": run,
        "complete": False,
        "cell": asdict(cell),
        "lineup": list(lineup),
        "think": think,
        "seconds": seconds,
        "rounds": sum(turn.contestant == LIMIT for turn in turns) - 1,
        "readings": readings(turns),
    }


def shares(record: CellRecord) -> dict[str, dict[int, float]]:
    """Return each contestant's share of the limit by round, without those that failed."""
    found: dict[str, dict[int, float]] = {}
    for reading in record["readings"]:
        if "share" in reading:
            found.setdefault(reading["contestant"], {})[reading["round"]] = reading["share"]
    return found


def failures(record: CellRecord) -> dict[str, str]:
    """Return the contestants that failed, and how."""
    return {reading["contestant"]: reading["failure"] for reading in record["readings"] if "failure" in reading}


def best(record: CellRecord, *, ours: bool) -> str | None:
    """Return the contestant with the highest median share: of ours, or of the others that step Python envs."""
    found = {
        name: Spread.of(values.values()).median
        for name, values in shares(record).items()
        if name in PYTHON and (LIBRARIES[name] == OURS) == ours
    }
    return max(found, key=found.__getitem__, default=None)


def relative(record: CellRecord, contestant: str, other: str | None) -> Spread | None:
    """Divide the contestant's share by the other's, round by round."""
    found = shares(record)
    if other is None or contestant not in found or other not in found:
        return None
    ratios = [value / found[other][number] for number, value in found[contestant].items() if number in found[other]]
    return Spread.of(ratios) if ratios else None


def value(record: CellRecord, contestant: str) -> Spread | None:
    """Return the figure in a table: the share of the limit or, in a relative cell, the rate over the best peer's."""
    if record["cell"]["relative"]:
        return relative(record, contestant, best(record, ours=False))
    found = shares(record).get(contestant)
    return Spread.of(found.values()) if found else None


def over_peer(record: CellRecord) -> Spread | None:
    """Divide our best contestant by the best Python peer."""
    mine = best(record, ours=True)
    return relative(record, mine, best(record, ours=False)) if mine is not None else None


def promised_figure(promise: Promise, cells: Mapping[str, CellRecord]) -> tuple[Spread, str] | None:
    """Return the figure of a promise and its contestant or cell, or None if it has not been measured."""
    if promise.key is None:
        least = {key: spread for key, record in cells.items() if (spread := over_peer(record)) is not None}
        key = min(least, key=lambda key: least[key].median, default=None)
        return None if key is None else (least[key], key)
    record = cells.get(promise.key)
    if record is None:
        return None
    name = promise.contestant or best(record, ours=True)
    if name is None:
        return None
    if promise.unit == "peer":
        spread = over_peer(record)
        return None if spread is None else (spread, f"{name} over {best(record, ours=False)}")
    found = shares(record).get(name)
    return (Spread.of(found.values()), name) if found else None
