"""A picture of shares: panels side by side, one bar per candidate in each, with whiskers from min to max."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vecenvs.bench.report import Row, Spread, count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PER_LINE = 3  # panels
_COLOURS = (
    "#3b6fb6",
    "#e08a2e",
    "#4a9d6e",
    "#c25553",
    "#7d6bb0",
    "#8a6a55",
    "#cf7fb3",
    "#5aaecb",
    "#b5a347",
    "#7f7f7f",
)
_INK, _FAINT, _GRID = "#262626", "#757575", "#d9d9d9"
_FAR = 1.5  # with shares beyond this the axis gets other ticks: envs that sleep can pass the limit many times
_ROW, _NARROW_ROW, _NARROW_FROM = 0.34, 0.26, 12  # inches per bar, also if there are many of them
_PANEL, _HEADER, _HEADING, _FOOTER, _EDGE = 3.0, 0.68, 0.56, 0.5, 0.25  # inches


@dataclass(frozen=True)
class Bar:
    """The bar of one candidate. Without a share, `text` stands in its place, otherwise inside the bar if it fits."""

    name: str
    share: Spread | None
    colour: str
    text: str = ""


@dataclass(frozen=True)
class Panel:
    """Bars on one axis from 0 to `reach`, the longest of them. `marks` are labelled vertical lines.

    All panels of a picture have the same candidates in the same order.
    """

    title: str
    bars: Sequence[Bar]
    marks: Mapping[float, str]
    reach: float = 1.0


def panels(rows: Sequence[Row], cores: int) -> Iterator[Panel]:
    """Yield one panel for each number of envs. Configurations of one backend share its colour.

    Lines mark the limit and what one core can reach of it. A candidate that failed keeps its place.
    """
    names = list(dict.fromkeys(row.candidate for row in rows))
    families = list(dict.fromkeys(name.partition(":")[0] for name in names))
    colours = {name: _COLOURS[families.index(name.partition(":")[0]) % len(_COLOURS)] for name in names}
    reach = max([1.0, *(row.share.max for row in rows if row.share is not None)])
    for num_envs in dict.fromkeys(row.num_envs for row in rows):
        there = {row.candidate: row for row in rows if row.num_envs == num_envs}
        bars = [_bar(name, there.get(name), colours[name]) for name in names]
        yield Panel(f"{num_envs} env{'s' * (num_envs > 1)}", bars, limit_marks(cores), reach)


def limit_marks(cores: int) -> dict[float, str]:
    """Return the marks of a panel of shares of the limit."""
    return {1 / cores: "one core", 1.0: "limit"}


def _bar(name: str, row: Row | None, colour: str) -> Bar:
    if row is None:
        return Bar(name, None, colour)
    if row.share is None or row.rate is None:
        return Bar(name, None, colour, "unavailable" if row.unavailable else "failed")
    return Bar(name, row.share, colour, f"{count(row.rate.median)} steps/s")


def draw(
    found: Sequence[Panel], path: Path, *, title: str, subtitle: str = "", legend: Mapping[str, str] | None = None
) -> None:
    """Write a PNG, or the format that the suffix of `path` names. This needs no display.

    `legend` has the colour of each group of bars, by its name.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    names = [bar.name for bar in found[0].bars]
    columns = min(_PER_LINE, len(found))
    lines = -(-len(found) // columns)
    left = _EDGE + 0.12 + 0.072 * max(map(len, names))
    panel_height = (_ROW if len(names) < _NARROW_FROM else _NARROW_ROW) * (len(names) + 0.4)
    width = max(6.4, left + columns * (_PANEL + _EDGE))
    height = _HEADER + lines * (_HEADING + panel_height) + _FOOTER
    step = (width - left) / columns
    figure = Figure(figsize=(width, height), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(_EDGE / width, 1 - 0.2 / height, title, size=13, weight="bold", color=_INK, va="top")
    figure.text(_EDGE / width, 1 - 0.5 / height, subtitle, size=8.5, color=_FAINT, va="top")
    if legend:
        squares = [Patch(color=colour, label=name) for name, colour in legend.items()]
        corner = ((_EDGE - 0.05) / width, 0.08 / height)
        figure.legend(
            handles=squares, loc="lower left", bbox_to_anchor=corner, ncols=len(squares), fontsize=8.5, frameon=False
        )
    for index, panel in enumerate(found):
        line, column = divmod(index, columns)
        bottom = height - _HEADER - (line + 1) * (_HEADING + panel_height)
        place = ((left + column * step) / width, bottom / height, (step - _EDGE) / width, panel_height / height)
        axes = figure.add_axes(place)
        _draw_frame(axes, panel, names if column == 0 else [])
        for row, bar in enumerate(panel.bars):
            _draw_bar(axes, panel, row, bar)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_frame(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    top = -0.7
    axes.set_xlim(0, 1.14 * panel.reach)
    axes.set_ylim(len(panel.bars) - 0.3, top)  # the first candidate is on top
    axes.set_yticks(range(len(panel.bars)) if names else [], names)
    axes.tick_params(length=0, labelsize=8, labelcolor=_FAINT)
    axes.tick_params(axis="y", labelsize=8.5, labelcolor=_INK)
    if panel.reach < _FAR:
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "", "0.5", "", "1"])
    axes.grid(axis="x", color=_GRID, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(panel.title, size=9.5, weight="bold", loc="left", color=_INK, pad=12)
    for x, label in panel.marks.items():
        style = "-" if x == 1.0 else (0, (3, 2))
        axes.axvline(x, color=_INK, linewidth=1.0, linestyle=style, zorder=1.5)
        axes.text(
            x,
            top,
            label if panel.reach < _FAR or len(panel.marks) == 1 else "",
            size=7,
            color=_FAINT,
            ha="center",
            va="bottom",
        )


def _draw_bar(axes: Axes, panel: Panel, row: int, bar: Bar) -> None:
    share, reach = bar.share, panel.reach
    if share is None:
        axes.text(0.02 * reach, row, bar.text, size=8, color=_FAINT, style="italic", va="center")
        return
    axes.barh(row, share.median, height=0.66, color=bar.colour, zorder=2)
    whiskers = [[share.median - share.min], [share.max - share.median]]
    axes.errorbar(share.median, row, xerr=whiskers, color=_INK, linewidth=0.9, capsize=2, zorder=3)
    inside = share.min > 0.55 * reach  # otherwise there is no room for both numbers in the bar
    axes.text(
        share.min - 0.025 * reach if inside else share.max + 0.025 * reach,
        row,
        f"{share.median:.2f}",
        size=8.5,
        weight="bold",
        color="white" if inside else _INK,
        ha="right" if inside else "left",
        va="center",
        zorder=4,
        bbox=None if inside else {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )
    if share.min > 0.42 * reach:
        axes.text(0.02 * reach, row, bar.text, size=7.5, color="white", va="center", zorder=4)
