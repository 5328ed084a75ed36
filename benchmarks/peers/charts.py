"""A picture for each axis: a panel for each cell, a bar for each contestant, whiskers from min to max."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.contestants import CONTESTANTS, OURS, Contestant
from benchmarks.peers.figures import CellRecord, failures, value
from benchmarks.peers.grid import Axis, cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _FAINT, _GRID = "#262626", "#757575", "#d9d9d9"
_MINE, _OTHERS, _SCALE = "#3b6fb6", "#b9b3a8", "#e3cfa4"
_COLUMNS = 3
_LINE, _PANEL, _LEFT, _HEAD, _EDGE = 0.24, 2.7, 2.75, 0.62, 0.22  # inches


def draw(axis: Axis, cells: Mapping[str, CellRecord], path: Path, cores: int) -> None:
    """Write a PNG. Needs no display. Ours are blue, other libraries grey, EnvPool (C++) yellow."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    there = [found for found in CONTESTANTS if any(found.name in record["lineup"] for record in cells.values())]
    columns = min(_COLUMNS, len(cells))
    lines = -(-len(cells) // columns)
    panel = _LINE * (len(there) + 0.4)
    width = _LEFT + columns * (_PANEL + _EDGE)
    height = 0.4 + lines * (_HEAD + panel) + 0.15
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(_EDGE / width, 1 - 0.16 / height, axis.title, size=13, weight="bold", color=_INK, va="top")
    for index, (key, record) in enumerate(cells.items()):
        line, column = divmod(index, columns)
        left, bottom = _LEFT + column * (_PANEL + _EDGE), height - 0.25 - (line + 1) * (_HEAD + panel)
        axes = figure.add_axes((left / width, bottom / height, _PANEL / width, panel / height))
        _panel(axes, key, record, there, cores, names=column == 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _panel(axes: Axes, key: str, record: CellRecord, there: list[Contestant], cores: int, *, names: bool) -> None:
    found = {one.name: value(record, one.name) for one in there}
    reach = max([1.0, *(spread.max for one in there if one.python and (spread := found[one.name]) is not None)])
    axes.set_xlim(0, 1.2 * reach)
    if reach == 1.0:
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "", "0.5", "", "1"])
    axes.set_ylim(len(there) - 0.3, -0.7)
    axes.set_yticks(range(len(there)), [one.name for one in there] if names else [])
    axes.tick_params(length=0, labelsize=7.5, labelcolor=_FAINT)
    axes.tick_params(axis="y", labelcolor=_INK)
    axes.grid(axis="x", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    title = cell(key).title + (", rate over the best peer's" if record["cell"]["relative"] else "")
    axes.set_title(title, size=9, weight="bold", loc="left", color=_INK, pad=11)
    marks = {1.0: "best peer"} if record["cell"]["relative"] else {1.0: "limit", 1 / cores: "one core"}
    for x, label in marks.items():
        axes.axvline(x, color=_INK, linewidth=0.9, linestyle="-" if x == 1.0 else (0, (3, 2)), zorder=1.5)
        axes.text(x, -0.7, label, size=6.5, color=_FAINT, ha="center", va="bottom")
    for line, one in enumerate(there):
        spread = found[one.name]
        if spread is None:
            said = "failed" if one.name in failures(record) else "" if one.name in record["lineup"] else "not measured"
            axes.text(0.02 * reach, line, said, size=6.5, color=_FAINT, style="italic", va="center")
            continue
        colour = _MINE if one.library == OURS else _OTHERS if one.python else _SCALE
        axes.barh(line, min(spread.median, 1.2 * reach), height=0.7, color=colour, zorder=2)
        whiskers = [[spread.median - spread.min], [spread.max - spread.median]]
        axes.errorbar(spread.median, line, xerr=whiskers, color=_INK, linewidth=0.8, capsize=1.5, zorder=3)
        axes.text(
            min(spread.max, reach) + 0.015 * reach,
            line,
            f"{spread.median:.2f}",
            size=7,
            color=_INK,
            va="center",
            zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )
