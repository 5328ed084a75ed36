"""Learning curves: what monitor files say about episodes, over steps, episodes or time, over several seeds.

A *seed* is one training run: the monitor files in one directory, of all its envs. A *run* is a line of the chart: one
or several seeds of the same thing.
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
SPREADS = ("std", "sem", "range", "none")
POINTS = 400

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One run's line: `mean` over its seeds at `x`, `low` and `high` around it (equal to it for one seed).

    `x` ends where the shortest seed does. `seeds`, `episodes` and `steps` are what went into it, in all.
    """

    label: str
    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: int
    episodes: int
    steps: int


def find_runs(arguments: Sequence[str]) -> dict[str, list[Path]]:
    """Turn arguments `DIR` or `LABEL=DIR` into runs: their labels, and the directory or file of each seed.

    A directory with monitor files is one seed. One without is a run whose seeds are the directories below it that have
    some. Arguments with the same label are seeds of one run. A label not given is the path, without what all have in
    common. LoadMonitorResultsError if there are no monitor files.
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

    Each seed's line is the mean of column `y` over the last `window` episodes, at the end of each from the first one on
    that has so many; between two ends it goes straight. (Means over fewer would begin with the episodes that end first,
    which are the short ones: an agent that learns nothing would seem to.) One seed's curve has its own points, that of
    several POINTS even ones, as far as all seeds go. `x` counts what all envs of the seed did: "steps", "episodes", or
    "time" in seconds. `spread` over the seeds is "std" (of the population), "sem" (that of a sample, over its root),
    "range" or "none". ValueError if a seed has fewer episodes than `window`, or no numbers in `y`.
    """
    lines = [_line(seed, x, y, window) for seed in seeds]
    first, last = max(ends[0] for ends, _ in lines), min(ends[-1] for ends, _ in lines)
    if first > last:
        raise ValueError(f"{label}: a seed ends before another one's first episode: there is no part in common")
    grid = np.linspace(first, last, POINTS) if first < last else np.array([last])
    if len(lines) == 1:
        grid, values = lines[0][0], lines[0][1][np.newaxis]
    else:
        values = np.stack([np.interp(grid, ends, means) for ends, means in lines])
    mean = values.mean(axis=0)
    low, high = _around(values, mean, spread)
    episodes, steps = sum(len(seed) for seed in seeds), sum(int(seed.l.sum()) for seed in seeds)
    return Curve(label, grid, mean, low, high, len(seeds), episodes, steps)


def load_seeds(paths: Sequence[Path]) -> list[MonitorResults]:
    """Read each seed's monitor files."""
    return [load_results(path) for path in paths]


def _line(seed: MonitorResults, x: str, y: str, window: int) -> tuple[Floats, Floats]:
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
    means = trailing_mean(seed.columns[y].astype(np.float64), window)
    return ends[x][window - 1 :], means[window - 1 :]


def trailing_mean(values: Floats, window: int) -> Floats:
    """Give the mean of the last `window` values at each place, of those there are at the beginning; NaNs are left out.

    Where all of them are NaN, so is the mean.
    """
    known = ~np.isnan(values)
    totals = _trailing_sum(np.where(known, values, 0.0), window)
    counts = _trailing_sum(known.astype(np.float64), window)
    means: Floats = np.divide(totals, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return means


def _trailing_sum(values: Floats, window: int) -> Floats:
    """Give the sum of the last `window` values at each place.

    By additions alone: a value taken off again would leave its rounding behind, an infinite one NaN for good.
    """
    n = len(values)
    window = min(window, max(n, 1))
    blocks = np.pad(values, (0, -n % window)).reshape(-1, window)
    with np.errstate(invalid="ignore"):  # both infinities in one window: their sum is NaN
        sums: Floats = np.cumsum(blocks, axis=1).ravel()[:n]  # from its block's beginning to each place
        rest = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1].copy()  # from each place to its block's end
        rest[:, 0] = 0.0  # a window that is a block is summed already
        sums[window:] += rest.ravel()[1 : n - window + 1]
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
    """Name each path by its last parts, as many as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for k in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(p[-k:]) for p in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [os.fspath(path) for path in paths]
