"""What the readings of a training say: its rate and phases, the time inside `step`, and ratios to a base."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.stack.figures import CellRecord, Value, relative_to
from benchmarks.training.candidates import BASE, GAPS_BASE
from vecenvs.bench.report import Spread

PHASES = ("step", "inference", "update", "other")


def relative(record: CellRecord, candidate: str, value: Value) -> Spread | None:
    """Divide the candidate's value by that of the measurement's base, round by round."""
    return relative_to(record, candidate, base_of(record), value)


def base_of(record: CellRecord) -> str:
    """Return the candidate that the others are compared with."""
    return BASE.get(record["cell"]["measurement"], GAPS_BASE)


def rate(reading: Mapping[str, Any]) -> float:
    """Return the transitions per second of a training."""
    return 1 / float(reading["seconds_per_transition"]["wall"])


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


def idle_cpu(reading: Mapping[str, Any]) -> float | None:
    """Pick the cores that other processes use during updates."""
    found: float | None = reading["updates"]["cpu"]
    return found
