"""Learning curves from monitor files, over steps, episodes or time, with the spread over several seeds.

A *seed* is one training run: the monitor files of all its envs, in one directory. A *run* is a line of the chart: one
seed, or several seeds of the same experiment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vecenvs.wrappers.results import LoadMonitorResultsError, MonitorResults, get_monitor_files, load_results

AXES = ("steps", "episodes", "time")
POINTS = 400

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One run's line: the `mean` over its seeds at `x`, between `low` and `high`. With one seed all three are equal.

    `x` ends where the shortest seed does. `points` are the episodes of all seeds, (x, value). `seeds`, `episodes` and
    `steps` are totals.
    """

    label: str
    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    points: Floats
    seeds: int
    episodes: int
    steps: int


def find_runs(arguments: Sequence[str]) -> dict[str, list[Path]]:
    """Convert arguments `DIR` or `LABEL=DIR` to runs: their labels, and the directory or file of each seed.

    A directory with monitor files is one seed. A directory without monitor files is a run, whose seeds are the
    directories below it that have some. Arguments with the same label are seeds of one run. The default label is the
    shortest end of the path that tells the runs apart.

    Raises:
        LoadMonitorResultsError: there are no monitor files.
    """
    plain = [argument for argument in arguments if not _is_labelled(argument)]
    names = dict(zip(plain, _short_names([Path(path) for path in plain]), strict=True))
    runs: dict[str, list[Path]] = {}
    for argument in arguments:
        label, path = argument.split("=", 1) if argument not in names else (names[argument], argument)
        seeds = runs.setdefault(label, [])
        seeds += [seed for seed in _seeds_in(Path(path)) if seed not in seeds]
    return runs


def curve(
    label: str,
    seeds: Sequence[MonitorResults],
    *,
    x: str = "steps",
    y: str = "r",
    window: int = 100,
    spread: str = "std",
) -> Curve:
    """Compute a run's curve from its seeds' episodes.

    Each seed's line has a point at the end of each episode, starting with the first one that has `window` episodes up
    to it: the mean of column `y` over the last `window` episodes. Means over fewer episodes would begin with those that
    end first, which are the short ones, so that an agent that learns nothing would seem to learn. The curve of one seed
    has these points. The curve of several seeds has POINTS evenly spaced ones, interpolated, as far as all seeds go.

    Args:
        label: the name of the run.
        seeds: the monitor files of each seed.
        x: "steps" or "episodes" of all envs of a seed together, or "time" in seconds.
        y: a column of the monitor files.
        window: the number of episodes in each mean.
        spread: "std" (of the population), "sem" (standard deviation of the sample over the root of its size), "range"
            or "none".

    Raises:
        ValueError: a seed has fewer episodes than `window`, or `y` is not a column of numbers.
    """
    lines = [_line(seed, x, y, window) for seed in seeds]
    first, last = max(ends[0] for ends, _, _ in lines), min(ends[-1] for ends, _, _ in lines)
    if first > last:
        raise ValueError(f"{label}: a seed ends before another one's first episode: there is no part in common")
    grid = np.linspace(first, last, POINTS) if first < last else np.array([last])
    if len(lines) == 1:
        grid, values = lines[0][0], lines[0][1][np.newaxis]
    else:
        values = np.stack([np.interp(grid, ends, means) for ends, means, _ in lines])
    mean = values.mean(axis=0)
    low, high = _around(values, mean, spread)
    episodes, steps = sum(len(seed) for seed in seeds), sum(int(seed.l.sum()) for seed in seeds)
    points = np.concatenate([points for _, _, points in lines])
    return Curve(label, grid, mean, low, high, points, len(seeds), episodes, steps)


def load_seeds(paths: Sequence[Path]) -> list[MonitorResults]:
    """Read each seed's monitor files."""
    return [load_results(path) for path in paths]


def _line(seed: MonitorResults, x: str, y: str, window: int) -> tuple[Floats, Floats, Floats]:
    """Return the places of the means, the means, and all episodes."""
    where = os.path.commonpath(seed.files)
    if not len(seed):
        raise ValueError(f"{where!r} has no finished episode yet")
    if y not in seed.columns:
        raise ValueError(f"{where!r} has no column {y!r}: there are {', '.join(seed.columns)}")
    if seed.columns[y].dtype.kind not in "biuf":
        raise ValueError(f"{where!r}: the column {y!r} has values that are no numbers")
    if len(seed) < window:
        raise ValueError(
            f"{where!r} has {len(seed)} finished episodes, fewer than the {window} of a mean: "
            f"--smooth {len(seed)} takes them all"
        )
    ends: Mapping[str, NDArray[np.float64]] = {
        "steps": np.cumsum(seed.l).astype(np.float64),
        "episodes": np.arange(1, len(seed) + 1, dtype=np.float64),
        "time": seed.t,
    }
    values = seed.columns[y].astype(np.float64)
    means = trailing_mean(values, window)
    return ends[x][window - 1 :], means[window - 1 :], np.stack([ends[x], values], axis=1)


def trailing_mean(values: Floats, window: int) -> Floats:
    """Return the mean of up to `window` values that end at each place. NaNs are left out.

    The mean of NaNs alone is NaN.
    """
    known = ~np.isnan(values)
    totals = _trailing_sum(np.where(known, values, 0.0), window)
    counts = _trailing_sum(known.astype(np.float64), window)
    means: Floats = np.divide(totals, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return means


def _trailing_sum(values: Floats, window: int) -> Floats:
    """Return the sum of the last `window` values at each place.

    Not as a difference of two sums, which would have a rounding error, or be NaN after an infinite value.
    """
    n = len(values)
    with np.errstate(invalid="ignore"):  # both infinities in one window: their sum is NaN
        sums: Floats = np.convolve(values, np.ones(min(window, n)))[:n] if n else values
    return sums


def _around(values: Floats, mean: Floats, spread: str) -> tuple[Floats, Floats]:
    if spread == "range":
        return values.min(axis=0), values.max(axis=0)
    if spread == "none" or len(values) == 1:
        return mean, mean
    with np.errstate(invalid="ignore"):  # there is no spread around an infinite mean
        width = values.std(axis=0) if spread == "std" else values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return mean - width, mean + width


def _is_labelled(argument: str) -> bool:
    return "=" in argument and not os.path.exists(argument)


def _seeds_in(path: Path) -> list[Path]:
    if not path.exists():
        raise LoadMonitorResultsError(f"there is no {os.fspath(path)!r}")
    if path.is_file() or get_monitor_files(path):
        return [path]
    below = sorted({Path(parent) for parent, _, _ in os.walk(path) if get_monitor_files(parent)})
    if not below:
        raise LoadMonitorResultsError(f"no monitor files (*monitor.csv) in {os.fspath(path)!r} or below it")
    return below


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Name each path by its last parts, as few as tell the paths apart."""
    parts = [path.resolve().parts for path in paths]
    for k in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(p[-k:]) for p in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [os.fspath(path) for path in paths]
