"""The candidates of several cells, what failed in them, and the runs that measured them, for a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.stack.figures import CellRecord, Cells, failures


def names_of(cells: Cells, order: Iterable[str]) -> list[str]:
    """Return the candidates of all cells, in this order, others last."""
    names = dict.fromkeys(name for record in cells.values() for name in record["candidates"])
    known = [name for name in order if name in names]
    return [*known, *(name for name in names if name not in known)]


def reasons(cells: Cells, title: Any) -> str:
    """Return a list of what failed where, and why. `title` is a function of a cell's key and record."""
    found: dict[tuple[str, str], list[str]] = {}
    for key, record in cells.items():
        for candidate, reason in failures(record).items():
            found.setdefault((candidate, reason), []).append(title(key, record))
    lines = [f"* {name} failed ({'; '.join(where)}): {reason}" for (name, reason), where in found.items()]
    return "\n".join(lines) + "\n" if lines else ""


def runs_of(data: Mapping[str, Any], cells: Cells) -> list[tuple[Mapping[str, Any], str, list[CellRecord]]]:
    """Return the runs that measured these cells, their versions as text, and the cells of each."""
    numbers = sorted({record["run"] for record in cells.values()})
    found = []
    for number in numbers:
        run = data["runs"][number]
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        found.append((run, versions, [record for record in cells.values() if record["run"] == number]))
    return found
