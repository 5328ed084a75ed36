"""Cells, each varied from a common base along an axis. A cell can be on several axes and is measured once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vecenvs.bench.workloads import BadRequest


@dataclass(frozen=True)
class Axis:
    """Cells that differ in one thing. Each axis is a table and a chart of the page."""

    name: str
    title: str
    text: str
    keys: tuple[str, ...]


def choose(cells: Sequence[Any], axes: Sequence[Axis], only: Sequence[str] | None, quick: bool) -> list[Any]:
    """Return the cells of these axes and keys, in the order of measuring. Raise BadRequest if there is none."""
    keys = {axis.name: axis.keys for axis in axes}
    wanted: set[str] = set()
    for name in only if only is not None else keys:
        if name not in keys and all(name != found.key for found in cells):
            there = ", ".join([*keys, *(found.key for found in cells)])
            raise BadRequest(f"--only {name}: no such axis or cell; there are {there}")
        wanted.update(keys.get(name, (name,)))
    return [found for found in cells if found.key in wanted and (found.quick or not quick)]
