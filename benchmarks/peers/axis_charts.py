"""A picture for each axis: a panel for each cell, with a bar for each contestant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.figures import CellRecord, failures, value
from benchmarks.peers.grid import Axis, cell
from benchmarks.peers.lineup import CONTESTANTS, OURS, Contestant
from vecenvs.bench.bar_chart import Bar, Panel, draw, limit_marks

_OURS, _PYTHON, _OTHER = "#3b6fb6", "#8f887c", "#d0a94f"  # ours are blue, other libraries grey, EnvPool yellow


def draw_axis(axis: Axis, cells: Mapping[str, CellRecord], path: Path, cores: int) -> None:
    """Write a PNG."""
    there = [found for found in CONTESTANTS if any(found.name in record["lineup"] for record in cells.values())]
    draw([_panel(key, record, there, cores) for key, record in cells.items()], path, title=axis.title)


def _panel(key: str, record: CellRecord, contestants: Sequence[Contestant], cores: int) -> Panel:
    relative = record["cell"]["relative"]
    bars = [_bar(record, found) for found in contestants]
    shares = [bar.share.max for bar, found in zip(bars, contestants, strict=True) if bar.share and found.python]
    title = cell(key).title + (", over best peer" if relative else "")
    return Panel(title, bars, {1.0: "best peer"} if relative else limit_marks(cores), max([1.0, *shares]))


def _bar(record: CellRecord, found: Contestant) -> Bar:
    share = value(record, found.name)
    missing = "failed" if found.name in failures(record) else "" if found.name in record["lineup"] else "not measured"
    colour = _OURS if found.library == OURS else _PYTHON if found.python else _OTHER
    return Bar(found.name, share, colour, "" if share else missing)
