"""Draw learning curves with matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenvs.plots.curves import Curve

# Okabe and Ito's colours, which colour-blind people can tell apart. After eight curves the line style changes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800")
_LINES = ("-", "--", ":")
_UNITS = ((3 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_BANDS = {
    "std": "one standard deviation over seeds",
    "sem": "one standard error over seeds",
    "range": "least to greatest of the seeds",
}
_POINTS = 2000  # single episodes of a run that are shown, at most
_NAMED = 3  # runs in the title, at most
_NAMES = {"r": "episode return", "l": "episode length", "t": "seconds"}


def draw(
    curves: Sequence[Curve],
    path: str | os.PathLike[str],
    *,
    x: str,
    y: str,
    window: int,
    spread: str,
    title: str | None = None,
) -> None:
    """Draw the curves into the file `path`, whose suffix names the format. Raise ImportError without matplotlib."""
    try:
        from matplotlib import lines, patches, ticker
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plotting needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(8.0, 5.0), dpi=150, layout="constrained")
    axes: Any = figure.add_subplot()
    label, scale = _x_axis(curves, x)
    legend: dict[str, Any] = {}
    for k, curve in enumerate(curves):
        colour, style = _COLOURS[k % len(_COLOURS)], _LINES[k // len(_COLOURS) % len(_LINES)]
        seeds = f" ({curve.seeds} seeds)" if curve.seeds > 1 else ""
        marker = "o" if len(curve.x) == 1 else None  # a line needs two points
        if window > 1:
            episodes = curve.points[:: -(-len(curve.points) // _POINTS)]
            axes.plot(episodes[:, 0] / scale, episodes[:, 1], ".", color=colour, ms=2.0, alpha=0.25, zorder=1)
        (legend[curve.label + seeds],) = axes.plot(
            curve.x / scale, curve.mean, style, color=colour, lw=1.8, marker=marker
        )
        if curve.seeds > 1 and spread != "none":
            axes.fill_between(curve.x / scale, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    if window > 1:
        legend["single episodes"] = lines.Line2D([], [], color="0.45", linestyle="", marker=".", markersize=3.0)
    if spread != "none" and any(curve.seeds > 1 for curve in curves):
        legend[f"band: {_BANDS[spread]}"] = patches.Patch(color="0.45", alpha=0.3, linewidth=0)
    axes.set_xlabel(label)
    axes.set_ylabel(_NAMES.get(y, y), parse_math=False)
    runs = ", ".join(curve.label for curve in curves) if len(curves) <= _NAMED else f"{len(curves)} runs"
    axes.set_title(f"{_NAMES.get(y, y)}: {runs}" if title is None else title, loc="left", parse_math=False)
    if x == "steps":
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))  # 20k, 1.5M
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # Names are shown unchanged: by default matplotlib leaves out labels that begin with "_" and reads "$" as math.
    box = axes.legend(list(legend.values()), ["-"] * len(legend), facecolor="white", edgecolor="none", loc="best")
    for text, name in zip(box.get_texts(), legend, strict=True):
        text.set(text=name, parse_math=False)
    note = f"mean of the last {window} episodes" if window > 1 else "every episode"
    figure.text(0.995, 0.005, note, ha="right", va="bottom", fontsize=7, color="0.45")
    layout: Any = figure.get_layout_engine()
    layout.set(rect=(0.0, 0.035, 1.0, 0.965))
    figure.savefig(os.fspath(path))


def _x_axis(curves: Sequence[Curve], x: str) -> tuple[str, float]:
    if x != "time":
        return ("environment steps" if x == "steps" else "episodes"), 1.0
    longest = max(float(np.max(curve.x)) for curve in curves)
    _, scale, unit = next(entry for entry in _UNITS if longest >= entry[0])
    return f"wall time ({unit})", scale
