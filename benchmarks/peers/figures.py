"""Figures from the readings of a cell: shares of the limit, and ratios to the best peer, with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.candidates import CANDIDATES
from benchmarks.peers.grid import Promise
from benchmarks.stack import figures
from benchmarks.stack.candidates import OURS
from benchmarks.stack.figures import CellRecord, Cells
from vecenvs.bench.contest import LIMIT
from vecenvs.bench.report import Spread

_OURS = [found.name for found in CANDIDATES if found.python and found.library == OURS]
_PEERS = [found.name for found in CANDIDATES if found.python and found.library != OURS]


def share(reading: Mapping[str, Any]) -> float | None:
    """Pick the share of the limit."""
    return reading.get("share")


def best(record: CellRecord, *, ours: bool) -> str | None:
    """Return the candidate with the highest median share: of ours, or of the others that step Python envs."""
    return figures.best(record, _OURS if ours else _PEERS, share)


def value(record: CellRecord, candidate: str) -> Spread | None:
    """Return the figure in a table: the share of the limit or, in a relative cell, the rate over the best peer's."""
    if record["cell"]["relative"]:
        return figures.relative_to(record, candidate, best(record, ours=False), share)
    return figures.spread(record, candidate, share)


def limits(record: CellRecord) -> Spread:
    """Return the limit's readings over their median: on a quiet machine they lie within a tenth of 1."""
    rates = [reading["rate"] for reading in record["readings"] if reading["candidate"] == LIMIT]
    return Spread.of([rate / statistics.median(rates) for rate in rates])


def over_peer(record: CellRecord) -> Spread | None:
    """Divide our best candidate by the best Python peer."""
    mine = best(record, ours=True)
    return None if mine is None else figures.relative_to(record, mine, best(record, ours=False), share)


def promised_figure(promise: Promise, cells: Cells) -> tuple[Spread, str] | None:
    """Return the figure of a promise and its candidate or cell, or None if it has not been measured."""
    if promise.key is None:
        least = {key: spread for key, record in cells.items() if (spread := over_peer(record)) is not None}
        key = min(least, key=lambda key: least[key].median, default=None)
        return None if key is None else (least[key], key)
    record = cells.get(promise.key)
    name = promise.candidate or (best(record, ours=True) if record is not None else None)
    if record is None or name is None:
        return None
    if promise.unit == "peer":
        spread, name = over_peer(record), f"{name} over {best(record, ours=False)}"
    else:
        spread = figures.spread(record, name, share)
    return None if spread is None else (spread, name)
