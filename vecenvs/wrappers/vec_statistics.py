"""The statistics of VecNormalize: running means and variances of rows, of this process or of all MPI ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd, update_mean_var_count_from_moments
from numpy.typing import NDArray

from vecenvs import array_file
from vecenvs.wrappers.vec_rows import TERMINAL, dict_space

Moments = tuple[NDArray[np.float64], NDArray[np.float64], float]
PARTS = ("mean", "var", "count")

FILE = array_file.Kind("a file that VecNormalize.save wrote", "vecenvs-normalize", 2)
# The settings in a file, and their types there: users may have set the attributes to numpy's numbers.
SETTINGS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("norm_obs", "norm_reward"), bool),
    **dict.fromkeys(("clip_obs", "clip_reward", "gamma", "epsilon"), float),
    "norm_obs_keys": lambda keys: None if keys is None else list(keys),
}


class Merger(Protocol):
    """The interface of VecNormalize's `merge`: it makes one batch of all ranks' batches."""

    def merge(self, mean: NDArray[np.float64], var: NDArray[np.float64], count: float) -> Moments:
        """Merge this rank's values with those of all ranks. Every rank calls it, some perhaps with count 0.

        Args:
            mean: the mean of this rank's values.
            var: their variance, of the population.
            count: their number.

        Returns:
            Mean, variance and count of all ranks' values, the same on every rank.
        """


class MergeOverRanks:
    """Merge statistics over the ranks of an MPI communicator.

    Args:
        comm: the mpi4py communicator, such as `MPI.COMM_WORLD`.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def merge(self, mean: NDArray[np.float64], var: NDArray[np.float64], count: float) -> Moments:
        """Do what `Merger.merge` says, by one small message per rank."""
        total: Moments = (np.zeros_like(mean), np.zeros_like(var), 0.0)
        for theirs in self._comm.allgather((mean, var, count)):  # in the order of ranks, so that all get the same bits
            total = merge_moments(total, theirs)
        return total


class Statistics:
    """The running statistics of values of one shape, float64.

    `rms` is Gymnasium's RunningMeanStd: it starts with mean 0, variance 1 and a count of 1e-4, as in baselines. With
    a `merger` added values wait for `flush`.
    """

    def __init__(self, shape: tuple[int, ...], merger: Merger | None) -> None:
        self.rms = RunningMeanStd(shape=shape)  # type: ignore[no-untyped-call]
        self._merger = merger
        self._none: Moments = (np.zeros(shape), np.zeros(shape), 0.0)
        self._waiting = self._none
        self._scratch = np.zeros((0, *shape))

    def add(self, values: NDArray[Any]) -> None:
        """Add a batch (k, *shape), k >= 0."""
        if len(values):
            # Less the first value, which is about as large as the others, sums of squares lose no digits.
            first, count = np.asarray(values[0], np.float64), float(len(values))
            rows = np.subtract(values, first, out=self.scratch(len(values)))
            mean = np.einsum("i...->...", rows) / count
            variance = np.maximum(np.einsum("i...,i...->...", rows, rows) / count - mean * mean, 0.0)
            moments: Moments = (first + mean, variance, count)
            if self._merger is None:
                self.rms.update_from_moments(*moments)  # type: ignore[no-untyped-call]
            else:
                self._waiting = merge_moments(self._waiting, moments)

    def flush(self) -> None:
        """Add the values that wait on all ranks: every rank must call this equally often."""
        if self._merger is not None:
            waiting, self._waiting = self._waiting, self._none
            merged = self._merger.merge(*waiting)
            if merged[2]:
                self.rms.update_from_moments(*merged)  # type: ignore[no-untyped-call]

    def scratch(self, count: int) -> NDArray[np.float64]:
        """Return memory for `count` values, until the next call: on new pages arithmetic takes several times longer."""
        if len(self._scratch) < count:
            self._scratch = np.empty((count, *self._scratch.shape[1:]))
        return self._scratch[:count]

    def normalize(
        self, values: Any, epsilon: float, clip: float, scratch: NDArray[np.float64] | None = None
    ) -> NDArray[np.float32]:
        """Return a value or a batch less the mean, divided by the spread and clipped; compute it in `scratch`."""
        scaled = np.asarray(np.subtract(values, self.rms.mean, out=scratch))
        scaled /= self.spread(epsilon)
        found = scaled.astype(np.float32)
        return np.clip(found, -clip, clip, out=found)

    def unnormalize(self, values: Any, epsilon: float) -> NDArray[np.float64]:
        """Undo `normalize`, except for clipping."""
        return np.asarray(values * self.spread(epsilon) + self.rms.mean, np.float64)

    def spread(self, epsilon: float) -> Any:
        """Return the root of variance + `epsilon`."""
        return np.sqrt(self.rms.var + epsilon)

    def check(self, rms: Any) -> None:
        """Raise if `rms` is not a RunningMeanStd of this shape: Gymnasium's, SB3's or baselines', which are alike."""
        if not all(hasattr(rms, name) for name in (*PARTS, "update_from_moments")):
            raise TypeError(f"statistics must be a RunningMeanStd with mean, var and count, not {rms!r}")
        for name in ("mean", "var"):
            given, own = np.shape(getattr(rms, name)), np.shape(self.rms.mean)
            if given != own:
                raise ValueError(f"{name} has shape {given}, but the values have {own}")

    def share(self, rms: Any) -> None:
        """Use `rms` from now on, the object itself: others that have it share the statistics."""
        self.check(rms)
        self.rms, self._waiting = rms, self._none

    def copy_of(
        self, mean: NDArray[np.float64], var: NDArray[np.float64], count: NDArray[np.float64]
    ) -> RunningMeanStd:
        """Return a copy of other statistics for `share`; ValueError for impossible values."""
        if np.shape(count) != () or (var < 0.0).any() or count <= 0.0:
            raise ValueError("a variance is negative, or the count is not a number above 0")
        rms = RunningMeanStd(shape=self._none[0].shape)  # type: ignore[no-untyped-call]  # others may share the old one
        rms.mean, rms.var, rms.count = mean.copy(), var.copy(), float(count)
        self.check(rms)
        return rms


def normalize_last(
    infos: Sequence[dict[str, Any]], by_key: Mapping[str | None, Statistics], epsilon: float, clip: float
) -> None:
    """Normalize the "terminal_observation" of infos: all at once, because one by one takes longer."""
    for key, statistics in by_key.items() if infos else ():
        given = [info[TERMINAL] if key is None else info[TERMINAL][key] for info in infos]
        for info, value in zip(infos, statistics.normalize(np.stack(given), epsilon, clip), strict=True):
            info[TERMINAL] = value if key is None else {**info[TERMINAL], key: value}


def merge_moments(first: Moments, second: Moments) -> Moments:
    """Return the moments of two batches together."""
    if not first[2] or not second[2]:
        return first if first[2] else second
    mean, var, count = update_mean_var_count_from_moments(*first, *second)  # type: ignore[no-untyped-call]
    return mean, var, float(count)


class RowStatistics:
    """The statistics of observations and returns.

    `obs` has one Statistics for each normalized entry of Dict observations, or one under the key None for Box
    observations.
    """

    def __init__(self, boxes: Mapping[str | None, spaces.Box], merger: Merger | None) -> None:
        self.obs = {key: Statistics(box.shape, merger) for key, box in boxes.items()}
        self.returns = Statistics((), merger)
        self.named = {"obs" if key is None else f"obs/{key}": statistics for key, statistics in self.obs.items()}
        self.named["returns"] = self.returns

    def share_obs(self, rms: Any) -> None:
        """Use `rms`, one RunningMeanStd or a dict of them, from now on; ValueError if it is of other observations."""
        given: dict[Any, Any] = dict(rms) if isinstance(rms, Mapping) else {None: rms}
        if given.keys() != self.obs.keys():
            names = ", ".join("obs_rms" if key is None else f"obs_rms[{key!r}]" for key in self.obs) or "none"
            raise ValueError(f"obs_rms is set to the statistics of other observations: those here are {names}")
        for key, statistics in self.obs.items():
            statistics.check(given[key])
        for key, statistics in self.obs.items():
            statistics.share(given[key])

    def arrays(self) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """Yield names and copies of all arrays."""
        for name, statistics in self.named.items():
            for part in PARTS:
                yield f"{name}/{part}", np.array(getattr(statistics.rms, part), np.float64)

    def take(self, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        """Replace the statistics by other `arrays`; ValueError if these are of other observations, or impossible."""
        wanted = {f"{name}/{part}" for name in self.named for part in PARTS}
        if set(arrays) != wanted:
            raise ValueError(f"there are {sorted(arrays)}, {sorted(wanted)} are needed")
        copies = [
            statistics.copy_of(*(arrays[f"{name}/{part}"] for part in PARTS)) for name, statistics in self.named.items()
        ]
        for statistics, rms in zip(self.named.values(), copies, strict=True):
            statistics.share(rms)


def write(path: str, settings: Mapping[str, Any], statistics: RowStatistics) -> None:
    """Write a file of VecNormalize; `settings` has the keys of SETTINGS."""
    plain = {name: as_plain(settings[name]) for name, as_plain in SETTINGS.items()}
    array_file.write(path, FILE, plain, statistics.arrays())


def read(path: str) -> tuple[dict[str, Any], dict[str, NDArray[np.float64]]]:
    """Return the settings and arrays of a file; ArrayFileError if `write` did not write it."""
    with array_file.ArrayFile(path, FILE) as file:
        settings = {name: file.header.get(name, ...) for name in SETTINGS}
        wrong = {name: value for name, value in settings.items() if not _is_right(name, value)}
        wrong |= {name: dtype for name, (dtype, _) in file.arrays.items() if dtype != np.float64}
        if wrong:
            raise file.wrong(f"it has {wrong}")
        return settings, {name: file.read(name) for name in file.arrays}


def _is_right(name: str, value: Any) -> bool:
    """Tell whether `write` writes such a setting."""
    if name == "norm_obs_keys":
        return value is None or (isinstance(value, list) and all(isinstance(key, str) and key for key in value))
    return type(value) is SETTINGS[name]


def boxes_of(space: spaces.Space[Any], keys: Sequence[str] | None) -> dict[str | None, spaces.Box]:
    """Return the Boxes to normalize by their keys; ValueError if there are none."""
    if isinstance(space, spaces.Box):
        if keys is not None:
            raise ValueError("norm_obs_keys is for Dict observations; these are a Box: leave it out")
        return {None: space}
    if not isinstance(space, spaces.Dict):
        raise ValueError(f"VecNormalize normalizes Box and Dict observations, not {space}: give norm_obs=False")
    boxes: dict[str | None, spaces.Box] = {}
    for key in space.spaces if keys is None else keys:
        if key not in space.spaces:
            raise ValueError(f"the observations have no key {key!r}: there are {', '.join(map(str, space.spaces))}")
        sub = space.spaces[key]
        if not isinstance(sub, spaces.Box):
            raise ValueError(f"the observation {key!r} is {sub}, not a Box: name those to normalize in norm_obs_keys")
        boxes[key] = sub
    return boxes


def normalized_space(
    space: spaces.Space[Any], boxes: Mapping[str | None, spaces.Box], clip: float
) -> spaces.Space[Any]:
    """Return `space` with Boxes from -clip to clip in the place of `boxes`."""
    made = {key: spaces.Box(-clip, clip, box.shape, np.float32) for key, box in boxes.items()}
    if not made or None in made:
        return made.get(None, space)
    assert isinstance(space, spaces.Dict)
    return dict_space({key: made.get(key, sub) for key, sub in space.spaces.items()})
