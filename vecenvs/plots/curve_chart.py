"""Draw learning curves with matplotlib."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from vecenvs.plots.curves import Curve

# Okabe and Ito's colours, which colour-blind people can tell apart. After eight curves the line style changes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800")
_LINES = ("-", "--", ":")
_UNITS = ((3 * 3600.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
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
        figure_class = import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise ImportError("plotting needs matplotlib: pip install matplotlib") from error
    figure = figure_class(figsize=(8.0, 5.0), dpi=150, layout="constrained")
    axes: Any = figure.add_subplot()
    label, scale = _x_axis(curves, x)
    lines: list[Any] = []
    labels: list[str] = []
    for k, curve in enumerate(curves):
        colour, style = _COLOURS[k % len(_COLOURS)], _LINES[k // len(_COLOURS) % len(_LINES)]
        seeds = f" ({curve.seeds} seeds)" if curve.seeds > 1 else ""
        marker = "o" if len(curve.x) == 1 else None  # a line needs two points
        lines += axes.plot(curve.x / scale, curve.mean, style, color=colour, lw=1.8, marker=marker)
        labels.append(curve.label + seeds)
        if curve.seeds > 1 and spread != "none":
            axes.fill_between(curve.x / scale, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel(label)
    axes.set_ylabel(_NAMES.get(y, y), parse_math=False)
    if title is not None:
        axes.set_title(title, loc="left", parse_math=False)
    if x == "steps":
        axes.xaxis.set_major_formatter(import_module("matplotlib.ticker").EngFormatter(sep=""))  # 20k, 1.5M
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    # Names are shown unchanged: by default matplotlib leaves out labels that begin with "_" and reads "$" as math.
    legend = axes.legend(lines, ["-"] * len(lines), frameon=False, loc="best")
    for text, name in zip(legend.get_texts(), labels, strict=True):
        text.set(text=name, parse_math=False)
    figure.text(0.995, 0.005, _note(curves, window, spread), ha="right", va="bottom", fontsize=7, color="0.45")
    figure.get_layout_engine().set(rect=(0.0, 0.035, 1.0, 0.965))
    figure.savefig(os.fspath(path))


def _x_axis(curves: Sequence[Curve], x: str) -> tuple[str, float]:
    if x != "time":
        return ("environment steps" if x == "steps" else "episodes"), 1.0
    longest = max(float(np.max(curve.x)) for curve in curves)
    _, scale, unit = next(entry for entry in _UNITS if longest >= entry[0])
    return f"wall time ({unit})", scale


def _note(curves: Sequence[Curve], window: int, spread: str) -> str:
    note = f"mean of the last {window} episodes" if window > 1 else "every episode"
    if spread != "none" and any(curve.seeds > 1 for curve in curves):
        band = {"std": "one standard deviation", "sem": "one standard error", "range": "least to greatest"}[spread]
        note += f"; line and band: mean over seeds and {band}"
    return note
