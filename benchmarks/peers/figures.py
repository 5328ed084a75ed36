"""What a record's readings say: shares of the limit, and ratios to the best peer, with their spread.

A record of a cell is plain data, as it stands in the JSON file: see `cell_record`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.peers.contestants import CONTESTANTS, OURS
from benchmarks.peers.grid import Cell, Promise
from vecenvs.bench.measure import LIMIT, Turn
from vecenvs.bench.report import Spread, share_of

CellRecord = Mapping[str, Any]
LIBRARIES = {found.name: found.library for found in CONTESTANTS}
PYTHON = {found.name for found in CONTESTANTS if found.python}


def cell_record(
    cell: Cell, lineup: Sequence[str], think: int, seconds: float, turns: Sequence[Turn], run: int
) -> dict[str, Any]:
    """Put what was read in a cell into plain data.

    `readings` has one entry per turn: the rate (env steps per second), the share of the limit in its round, the
    start-up in seconds, or the failure. `think`: the learner's loop iterations per row. `run` is the number of the run
    in the file that it belongs to. It is not `complete` before all its rounds are over.
    """
    readings = []
    for turn in turns:
        reading: dict[str, Any] = {"contestant": turn.contestant, "round": turn.round}
        if turn.timing is not None:
            reading["rate"] = turn.timing.rate
            if turn.contestant != LIMIT:
                reading["share"] = share_of(turn, turns)
        for name in ("startup", "failure"):
            if getattr(turn, name) is not None:
                reading[name] = getattr(turn, name)
        if turn.unavailable:
            reading["unavailable"] = True
        readings.append(reading)
    return {
        "run": run,
        "complete": False,
        "cell": asdict(cell),
        "lineup": list(lineup),
        "think": think,
        "seconds": seconds,
        "rounds": sum(turn.contestant == LIMIT for turn in turns) - 1,
        "readings": readings,
    }


def shares(record: CellRecord) -> dict[str, dict[int, float]]:
    """Give each contestant's share of the limit in each round; who failed is not among them."""
    found: dict[str, dict[int, float]] = {}
    for reading in record["readings"]:
        if "share" in reading:
            found.setdefault(reading["contestant"], {})[reading["round"]] = reading["share"]
    return found


def failures(record: CellRecord) -> dict[str, str]:
    """Tell who failed, and how."""
    return {reading["contestant"]: reading["failure"] for reading in record["readings"] if "failure" in reading}


def best(record: CellRecord, *, ours: bool) -> str | None:
    """Name the contestant with the highest median share: of ours, or of the others that step Python envs."""
    found = {
        name: Spread.of(values.values()).median
        for name, values in shares(record).items()
        if name in PYTHON and (LIBRARIES[name] == OURS) == ours
    }
    return max(found, key=found.__getitem__, default=None)


def relative(record: CellRecord, contestant: str, other: str | None) -> Spread | None:
    """Divide its share by the other's, round by round."""
    found = shares(record)
    if other is None or contestant not in found or other not in found:
        return None
    ratios = [value / found[other][number] for number, value in found[contestant].items() if number in found[other]]
    return Spread.of(ratios) if ratios else None


def value(record: CellRecord, contestant: str) -> Spread | None:
    """Give what a table shows of it: its share of the limit, or its rate over the best peer's where that counts."""
    if record["cell"]["relative"]:
        return relative(record, contestant, best(record, ours=False))
    found = shares(record).get(contestant)
    return Spread.of(found.values()) if found else None


def over_peer(record: CellRecord) -> Spread | None:
    """Divide our best by the best Python peer."""
    mine = best(record, ours=True)
    return relative(record, mine, best(record, ours=False)) if mine is not None else None


def keep(promise: Promise, cells: Mapping[str, CellRecord]) -> tuple[Spread, str] | None:
    """Give the figure of a promise and whose it is, or None if it has not been measured."""
    if promise.key is None:
        least = {key: spread for key, record in cells.items() if (spread := over_peer(record)) is not None}
        key = min(least, key=lambda key: least[key].median, default=None)
        return None if key is None else (least[key], key)
    record = cells.get(promise.key)
    if record is None:
        return None
    who = promise.contestant or best(record, ours=True)
    if who is None:
        return None
    if promise.unit == "peer":
        spread = over_peer(record)
        return None if spread is None else (spread, f"{who} over {best(record, ours=False)}")
    found = shares(record).get(who)
    return (Spread.of(found.values()), who) if found else None
