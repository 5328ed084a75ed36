"""A picture of the shares: one panel for each number of envs, one bar for each contestant, whiskers from min to max."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vecenvs.bench.report import Row, count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = 3  # in one line
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
_FAR = 1.5  # a share beyond which the scale is another one: envs that sleep can pass the limit many times
_ROW, _PANEL = 0.34, 3.0  # inches: the height of a bar's line, the width of a panel
_HEADER, _HEADING, _FOOTER, _EDGE = 0.68, 0.56, 0.5, 0.25


def draw(found: Sequence[Row], path: Path, *, title: str, subtitle: str, cores: int) -> None:
    """Write a PNG, or whatever format the suffix of `path` names. Needs no display.

    Configurations of one backend share its colour. Lines mark the limit and what one core gives of it. A contestant
    that failed keeps its place.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = _Picture(
        list(dict.fromkeys(row.contestant for row in found)),
        list(dict.fromkeys(row.num_envs for row in found)),
        max([1.0, *(row.share.max for row in found if row.share is not None)]),
    )
    figure = Figure(figsize=(picture.width, picture.height), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)
    figure.text(_EDGE / picture.width, 1 - 0.2 / picture.height, title, size=13, weight="bold", color=_INK, va="top")
    figure.text(_EDGE / picture.width, 1 - 0.5 / picture.height, subtitle, size=8.5, color=_FAINT, va="top")
    for index, num_envs in enumerate(picture.sizes):
        axes = figure.add_axes(picture.place(index))
        _frame(axes, picture, num_envs, cores, names=index % picture.columns == 0)
        for row in found:
            if row.num_envs == num_envs:
                _bar(axes, picture, row)
    figure.savefig(path)


@dataclass
class _Picture:
    names: list[str]
    sizes: list[int]
    reach: float  # the largest share there is to show

    def __post_init__(self) -> None:
        self.columns = min(_PANELS, len(self.sizes))
        self.lines = -(-len(self.sizes) // self.columns)
        self.left = _EDGE + 0.12 + 0.072 * max(map(len, self.names))
        self.panel = _ROW * (len(self.names) + 0.4)
        self.width = max(6.4, self.left + self.columns * (_PANEL + _EDGE))
        self.height = _HEADER + self.lines * (_HEADING + self.panel) + _FOOTER

    def place(self, index: int) -> tuple[float, float, float, float]:
        """Left, bottom, width and height of a panel, as parts of the figure."""
        line, column = divmod(index, self.columns)
        step = (self.width - self.left) / self.columns
        bottom = self.height - _HEADER - (line + 1) * (_HEADING + self.panel)
        left = self.left + column * step
        return left / self.width, bottom / self.height, (step - _EDGE) / self.width, self.panel / self.height

    def colour(self, name: str) -> str:
        families = list(dict.fromkeys(other.partition(":")[0] for other in self.names))
        return _COLOURS[families.index(name.partition(":")[0]) % len(_COLOURS)]


def _frame(axes: Axes, picture: _Picture, num_envs: int, cores: int, *, names: bool) -> None:
    top = -0.7
    axes.set_xlim(0, 1.14 * picture.reach)
    axes.set_ylim(len(picture.names) - 0.3, top)  # the first contestant on top
    axes.set_yticks(range(len(picture.names)), picture.names if names else [])
    axes.tick_params(length=0, labelsize=8, labelcolor=_FAINT)
    if picture.reach < _FAR:
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "", "0.5", "", "1"])
    axes.grid(axis="x", color=_GRID, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(f"{num_envs} env{'s' * (num_envs > 1)}", size=9.5, weight="bold", loc="left", color=_INK, pad=12)
    axes.tick_params(axis="y", labelsize=8.5, labelcolor=_INK)
    marks = {1.0: "limit"} if cores == 1 else {1.0: "limit", 1 / cores: "one core"}
    for x, label in marks.items():
        style = "-" if x == 1.0 else (0, (3, 2))
        axes.axvline(x, color=_INK, linewidth=1.0, linestyle=style, zorder=1.5)
        axes.text(x, top, label if picture.reach < _FAR else "", size=7, color=_FAINT, ha="center", va="bottom")


def _bar(axes: Axes, picture: _Picture, row: Row) -> None:
    line = picture.names.index(row.contestant)
    if row.share is None or row.rate is None:
        what = "unavailable" if row.unavailable else "failed"
        axes.text(0.02 * picture.reach, line, what, size=8, color=_FAINT, style="italic", va="center")
        return
    share = row.share
    axes.barh(line, share.median, height=0.66, color=picture.colour(row.contestant), zorder=2)
    whiskers = [[share.median - share.min], [share.max - share.median]]
    axes.errorbar(share.median, line, xerr=whiskers, color=_INK, linewidth=0.9, capsize=2, zorder=3)
    inside = share.min > 0.55 * picture.reach  # else there is no room for both numbers in the bar
    axes.text(
        (share.min if inside else share.max) + (-0.025 if inside else 0.025) * picture.reach,
        line,
        f"{share.median:.2f}",
        size=8.5,
        weight="bold",
        color="white" if inside else _INK,
        ha="right" if inside else "left",
        va="center",
        zorder=4,
        bbox=None if inside else {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )
    if share.min > 0.42 * picture.reach:
        axes.text(
            0.02 * picture.reach,
            line,
            f"{count(row.rate.median)} steps/s",
            size=7.5,
            color="white",
            va="center",
            zorder=4,
        )
