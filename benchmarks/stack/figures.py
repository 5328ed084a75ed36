"""What readings say: medians over the rounds with their range, and ratios round by round.

The record of a cell is plain data, as in the JSON file. Its `readings` have a candidate and a round each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vecenvs.bench.report import Spread

CellRecord = Mapping[str, Any]
Cells = Mapping[str, CellRecord]
Value = Callable[[Mapping[str, Any]], float | None]  # picks a number from a reading


def complete(data: Mapping[str, Any]) -> Cells:
    """Return the cells whose rounds are all over."""
    return {key: found for key, found in data["cells"].items() if found.get("complete", True)}


def failures(record: CellRecord) -> dict[str, str]:
    """Return the candidates that failed, and how."""
    return {reading["candidate"]: reading["failure"] for reading in record["readings"] if "failure" in reading}


def by_round(record: CellRecord, candidate: str, value: Value) -> dict[int, float]:
    """Return the candidate's value in each round in which it has one."""
    own = [one for one in record["readings"] if one["candidate"] == candidate and "failure" not in one]
    found = {reading["round"]: value(reading) for reading in own}
    return {number: one for number, one in found.items() if one is not None}


def spread(record: CellRecord, candidate: str, value: Value) -> Spread | None:
    """Return the median and the range of a candidate's value over the rounds."""
    return _spread(by_round(record, candidate, value).values())


def average(record: CellRecord, candidate: str, value: Value) -> float | None:
    """Return the median of a candidate's value over the rounds."""
    found = spread(record, candidate, value)
    return None if found is None else found.median


def relative_to(record: CellRecord, candidate: str, other: str | None, value: Value) -> Spread | None:
    """Divide the candidate's value by that of another one, round by round."""
    base = {} if other is None else by_round(record, other, value)
    found = by_round(record, candidate, value)
    return _spread(one / base[number] for number, one in found.items() if number in base)


def best(record: CellRecord, names: Iterable[str], value: Value) -> str | None:
    """Return the candidate with the highest median, None if none of these has a value."""
    found = {name: median for name in names if (median := average(record, name, value)) is not None}
    return max(found, key=found.__getitem__, default=None)


def _spread(values: Iterable[float]) -> Spread | None:
    found = list(values)
    return Spread.of(found) if found else None
