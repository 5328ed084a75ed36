"""What the readings say: medians over the rounds with their range, and ratios round by round.

The record of a cell is plain data, as in the JSON file: see `cell_record`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.training.contestants import BASE, GAPS_BASE
from benchmarks.training.grid import Cell
from vecenvs.bench.report import Spread

CellRecord = Mapping[str, Any]
Value = Callable[[Mapping[str, Any]], float | None]  # picks a number from a reading
PHASES = ("step", "inference", "update", "other")


def cell_record(
    cell: Cell, lineup: Sequence[str], readings: Sequence[Mapping[str, Any]], busy: Sequence[float], run: int
) -> dict[str, Any]:
    """Convert the turns of a cell to plain data.

    `busy` is the share of the cores that other programs used before each round, `run` the index of the run in the file.
    """
    return {
        "run": run,
        "cell": asdict(cell),
        "lineup": list(lineup),
        "busy": list(busy),
        "readings": list(readings),
    }


def failures(record: CellRecord) -> dict[str, str]:
    """Return the contestants that failed, and how."""
    return {reading["contestant"]: reading["failure"] for reading in record["readings"] if "failure" in reading}


def by_round(record: CellRecord, contestant: str, value: Value) -> dict[int, float]:
    """Return the contestant's value in each round in which it has one."""
    own = [one for one in record["readings"] if one["contestant"] == contestant and "failure" not in one]
    found = {reading["round"]: value(reading) for reading in own}
    return {number: one for number, one in found.items() if one is not None}


def spread(record: CellRecord, contestant: str, value: Value) -> Spread | None:
    """Return the median and the range of a contestant's value over the rounds."""
    return _spread(by_round(record, contestant, value).values())


def relative(record: CellRecord, contestant: str, value: Value) -> Spread | None:
    """Divide the contestant's value by that of the measurement's base, round by round."""
    return relative_to(record, contestant, base_of(record), value)


def relative_to(record: CellRecord, contestant: str, other: str, value: Value) -> Spread | None:
    """Divide the contestant's value by that of another one, round by round."""
    base = by_round(record, other, value)
    found = by_round(record, contestant, value)
    return _spread(one / base[number] for number, one in found.items() if number in base)


def base_of(record: CellRecord) -> str:
    """Return the contestant that the others are compared with."""
    return BASE.get(record["cell"]["measurement"], GAPS_BASE)


def _spread(values: Iterable[float]) -> Spread | None:
    found = list(values)
    return Spread.of(found) if found else None


def rate(reading: Mapping[str, Any]) -> float:
    """Return the transitions per second of a training."""
    return 1 / float(reading["seconds_per_transition"]["wall"])


def rollout_rate(reading: Mapping[str, Any]) -> float:
    """Return the transitions per second of the rollouts alone, as if updates took no time."""
    found = reading["seconds_per_transition"]
    return 1 / float(found["wall"] - found["update"])


def phase(name: str) -> Value:
    """Return what picks the microseconds per transition of a phase of a training."""

    def pick(reading: Mapping[str, Any]) -> float:
        parts = reading["seconds_per_transition"]
        known = {part: parts[part] for part in PHASES[:-1]}
        return 1e6 * float(known[name] if name in known else parts["wall"] - sum(known.values()))

    return pick


def step_time(gap: int, which: str = "median") -> Value:
    """Return what picks the microseconds inside `step` after a gap: the median, or the quartile "low" or "high"."""
    return lambda reading: reading["steps"].get(str(gap), {}).get(which)


def update_value(name: str) -> Value:
    """Return what picks a number of the updates. "first_step" is a median in microseconds."""

    def pick(reading: Mapping[str, Any]) -> float | None:
        found = reading["updates"][name]
        return found["median"] if isinstance(found, Mapping) else found

    return pick


def others_cpu(reading: Mapping[str, Any]) -> float | None:
    return reading["others_cpu"]


def settings_of(record: CellRecord, contestant: str) -> str:
    """Return what the library said about its setting, such as the backend that was chosen."""
    told = [one["setting"] for one in record["readings"] if one["contestant"] == contestant and one.get("setting")]
    return ", ".join(f"{key}={value}" for key, value in told[-1].items()) if told else ""


def average(record: CellRecord, contestant: str, value: Value) -> float | None:
    """Return the median of a contestant's value over the rounds."""
    found = by_round(record, contestant, value).values()
    return statistics.median(found) if found else None
