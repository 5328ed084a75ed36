"""Pictures of the readings: lines over the gaps; bars of the phases of a training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.stack.figures import CellRecord, Cells, average
from benchmarks.training.figures import PHASES, base_of, phase, rate, relative, step_time
from benchmarks.training.page import contestants_of, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "vecenvs": "#3b6fb6",
    "SB3": "#e08a2e",
    "Gymnasium": "#4a9d6e",
    "PufferLib": "#c25553",
    "EnvPool": "#b5a347",
}
_STYLES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (5, 1, 1, 1, 1, 1)), "v"), ((0, (1, 3)), "x"))
_PHASES = dict(zip(PHASES, ("#3b6fb6", "#4a9d6e", "#e08a2e", "#bdbdbd"), strict=True))
_PER_LINE = 3  # panels
_REACH = 3.0  # bars longer than this many times the median are cut off


def draw_gaps(cells: Cells, path: Path) -> None:
    """Write a picture with a panel for each cell: the median time inside `step` by gap, and its quartiles."""
    figure, panels = _panels(len(cells), 3.4, "Time inside step, by the time that a torch policy takes between steps")
    names = contestants_of(cells)
    styles = {name: _style(name, names) for name in names}
    for axes, record in zip(panels, cells.values(), strict=True):
        gaps = record["cell"]["gaps"]
        for name in names:
            found = [
                [average(record, name, step_time(gap, which)) for gap in gaps] for which in ("median", "low", "high")
            ]
            if None in (one for line in found for one in line):
                continue
            colour, dashes, marker = styles[name]
            axes.plot(
                range(len(gaps)), found[0], color=colour, linestyle=dashes, marker=marker, markersize=4, label=name
            )
            axes.fill_between(range(len(gaps)), found[1], found[2], color=colour, alpha=0.06, linewidth=0)
        axes.set_xticks(range(len(gaps)), [f"{gap:,}" for gap in gaps])
        axes.set_yscale("log")
        for axis_format in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis_format("{x:,.0f}")
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axes.set_xlabel("us between steps", size=8)
        axes.set_ylabel("us inside step (lines: medians; areas: quartiles)", size=7)
        axes.set_title(title_of(record), size=10, loc="left")
        axes.grid(color="#e3e3e3", which="both", linewidth=0.5)
    _finish(figure, panels, path)


def draw_training(cells: Cells, path: Path, title: str) -> None:
    """Write a picture with a panel for each cell: the phases of a transition, one above the other."""
    names = contestants_of(cells)
    base = base_of(next(iter(cells.values())))
    heading = f"{title}: where the time of a transition goes\nnumbers: rate relative to {base}"
    figure, panels = _panels(len(cells), 0.9 + 0.26 * len(names), heading)
    for index, (axes, record) in enumerate(zip(panels, cells.values(), strict=True)):
        walls = {name: _draw_bar(axes, record, row, name) for row, name in enumerate(names)}
        longest = sorted(filter(None, walls.values())) or [1.0]
        reach = min(longest[-1], _REACH * statistics.median(longest))
        for row, (name, wall) in enumerate(walls.items()):
            ratio = relative(record, name, rate)
            if ratio is not None:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
                axes.text(min(1.01 * wall, reach), row, f"{ratio.median:.2f}", size=8, va="center", bbox=box)
        axes.set_yticks(range(len(names)), names if index % _PER_LINE == 0 else [""] * len(names), size=8)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * reach)
        axes.set_xlabel("us per transition", size=8)
        axes.set_title(title_of(record), size=10, loc="left")
    _finish(figure, panels, path)


def _draw_bar(axes: Axes, record: CellRecord, row: int, name: str) -> float:
    """Draw the phases of a contestant, if it has any; return how long they take together."""
    begin = 0.0
    for one in PHASES:
        time = average(record, name, phase(one))
        if time is not None:
            axes.barh(row, time, left=begin, height=0.7, color=_PHASES[one], label=one)
            begin += time
    return begin


def _style(name: str, names: Sequence[str]) -> tuple[str, object, str]:
    family = _family(name)
    place = [one for one in names if _family(one) == family].index(name)
    return (_COLOURS[family], *_STYLES[place % len(_STYLES)])


def _family(name: str) -> str:
    return next((family for family in _COLOURS if name.startswith(family)), "vecenvs")


def _panels(count: int, height: float, title: str) -> tuple[Figure, list[Axes]]:
    columns = min(_PER_LINE, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(max(6.4, 1.8 + 3.6 * columns), lines * height + 1.9), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, size=12, weight="bold")
    return figure, [figure.add_subplot(lines, columns, number + 1) for number in range(count)]


def _finish(figure: Figure, panels: Sequence[Axes], path: Path) -> None:
    labels: dict[str, object] = {}
    for axes in panels:
        axes.tick_params(which="both", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        handles, names = axes.get_legend_handles_labels()
        labels.update(zip(names, handles, strict=True))
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
