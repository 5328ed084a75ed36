"""A picture of the shares: one panel for each number of envs, one bar for each contestant, whiskers from min to max."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vecenvs.bench.report import Row, count

_PANELS = 4  # in one line
_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#64b5cd", "#ccb974", "#8c8c8c")
_INK, _FAINT = "#262626", "#8c8c8c"


def draw(found: Sequence[Row], path: Path, *, title: str, subtitle: str, cores: int) -> None:
    """Write a PNG (or whatever format the suffix of `path` names). Configurations of one backend share its colour.

    Needs no display. Lines mark the limit and what one core gives of it. A contestant that failed keeps its line.
    """
    names = list(dict.fromkeys(row.contestant for row in found))
    sizes = list(dict.fromkeys(row.num_envs for row in found))
    families = list(dict.fromkeys(_family(name) for name in names))
    columns = min(_PANELS, len(sizes))
    lines = -(-len(sizes) // columns)
    label_width = 0.35 + 0.085 * max(map(len, names))
    width = max(8.0, label_width + 3.2 * columns + 0.3)
    panel_height = 0.5 + 0.42 * len(names)
    header, footer = 0.85, 0.62
    height = header + lines * (panel_height + 0.35) + footer
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    figure.subplots_adjust(
        left=label_width / width,
        right=1 - 0.3 / width,
        top=1 - (header + 0.3) / height,
        bottom=footer / height,
        wspace=0.08,
        hspace=0.35 / panel_height + 0.12,
    )
    figure.text(0.2 / width, 1 - 0.2 / height, title, size=14, weight="bold", color=_INK, va="top")
    figure.text(0.2 / width, 1 - 0.5 / height, subtitle, size=9, color=_FAINT, va="top")
    reach = max([1.0, *(row.share.max for row in found if row.share is not None)])
    for index, axes in enumerate(grid.flat):
        if index >= len(sizes):
            axes.set_visible(False)
            continue
        of_size = {row.contestant: row for row in found if row.num_envs == sizes[index]}
        _frame(axes, names, f"{sizes[index]} env" + ("s" if sizes[index] > 1 else ""), reach, cores)
        for line, name in enumerate(names):
            if name in of_size:
                _bar(axes, line, of_size[name], _COLOURS[families.index(_family(name)) % len(_COLOURS)], reach)
        axes.tick_params(labelleft=index % columns == 0, labelbottom=index + columns >= len(sizes))
    figure.savefig(path)


def _family(name: str) -> str:
    return name.partition(":")[0]


def _frame(axes: Axes, names: Sequence[str], heading: str, reach: float, cores: int) -> None:
    axes.set_title(heading, size=10, weight="bold", loc="left", color=_INK)
    axes.set_yticks(range(len(names)), names, size=9, color=_INK)
    axes.set_ylim(len(names) - 0.4, -0.6)  # the first contestant on top
    axes.set_xlim(0, reach * 1.2)
    axes.set_xlabel("share of the limit", size=8, color=_FAINT)
    axes.tick_params(axis="both", length=0)
    axes.tick_params(axis="x", labelsize=8, labelcolor=_FAINT)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color("#cccccc")
    axes.axvline(1.0, color=_INK, linewidth=1.0, zorder=1)
    if cores > 1:
        axes.axvline(1 / cores, color=_FAINT, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)


def _bar(axes: Axes, line: int, row: Row, colour: str, reach: float) -> None:
    if row.share is None or row.rate is None:
        axes.text(0.02 * reach, line, "failed", size=8, color=_FAINT, style="italic", va="center")
        return
    share = row.share
    whiskers = [[share.median - share.min], [share.max - share.median]]
    axes.barh(line, share.median, height=0.62, color=colour, zorder=2)
    axes.errorbar(share.median, line, xerr=whiskers, color=_INK, linewidth=1.0, capsize=2.5, zorder=3)
    label = f"{share.median:.2f}"
    axes.text(share.max + 0.03 * reach, line, label, size=9, weight="bold", color=_INK, va="center", zorder=4)
    if share.median > 0.3 * reach:
        axes.text(0.02 * reach, line, f"{count(row.rate.median)}/s", size=8, color="white", va="center", zorder=4)
