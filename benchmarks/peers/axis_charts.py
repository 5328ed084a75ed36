"""A picture for each axis: a panel for each cell, with a bar for each contestant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.figures import value
from benchmarks.peers.grid import cell
from benchmarks.peers.lineup import CONTESTANTS
from benchmarks.stack.contestants import OURS, Contestant
from benchmarks.stack.figures import CellRecord, failures
from benchmarks.stack.grid import Axis
from vecenvs.bench.bar_chart import Bar, Panel, draw, limit_marks

_OURS, _PYTHON, _OTHER = "#3b6fb6", "#8f887c", "#d0a94f"  # ours are blue, other libraries grey, EnvPool yellow

_LEGEND = {"vecenvs": _OURS, "other libraries": _PYTHON, "for scale: envs in C++, bare loops": _OTHER}
_WHAT = {False: "share of the limit", True: "rate over the best peer's"}


def draw_axis(axis: Axis, cells: Mapping[str, CellRecord], path: Path, cores: int) -> None:
    """Write a PNG."""
    there = [found for found in CONTESTANTS if any(found.name in record["lineup"] for record in cells.values())]
    relative = {record["cell"]["relative"] for record in cells.values()}
    one = {False: f"the limit: one bare env.step loop per core ({cores}), all at once", True: "the best other library"}
    ones = [f"1.0 is {' or, over best peer, '.join(one[each] for each in sorted(relative))}"]
    what = " or ".join(_WHAT[each] for each in sorted(relative))
    draw(
        [_panel(key, record, there, cores) for key, record in cells.items()],
        path,
        title=f"{axis.title}: {what}",
        subtitle=". ".join(["More is better. Bars: medians; lines: from the least to the most of all rounds", *ones]),
        legend={name: colour for name, colour in _LEGEND.items() if colour in {_colour(found) for found in there}},
    )


def _panel(key: str, record: CellRecord, contestants: Sequence[Contestant], cores: int) -> Panel:
    relative = record["cell"]["relative"]
    bars = [_bar(record, found) for found in contestants]
    shares = [bar.share.max for bar in bars if bar.share]
    title = cell(key).title + (", over best peer" if relative else "")
    return Panel(title, bars, {1.0: "best peer"} if relative else limit_marks(cores), max([1.0, *shares]))


def _bar(record: CellRecord, found: Contestant) -> Bar:
    share = value(record, found.name)
    missing = "failed" if found.name in failures(record) else "" if found.name in record["lineup"] else "not measured"
    return Bar(found.name, share, _colour(found), "" if share else missing)


def _colour(found: Contestant) -> str:
    return _OURS if found.library == OURS else _PYTHON if found.python else _OTHER
