"""Running means and variances for VecNormalize, of this process or of all MPI ranks."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from gymnasium.wrappers.utils import RunningMeanStd, update_mean_var_count_from_moments
from numpy.typing import NDArray

Moments = tuple[NDArray[np.float64], NDArray[np.float64], float]


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
        """Merge this rank's values with those of all ranks, by one small message per rank. Every rank calls it.

        Args:
            mean: as in `Merger`.
            var: as in `Merger`.
            count: as in `Merger`.

        Returns:
            Mean, variance and count of all ranks' values, the same on every rank.
        """
        total: Moments = (np.zeros_like(mean), np.zeros_like(var), 0.0)
        for theirs in self._comm.allgather((mean, var, count)):  # in the order of ranks, so that all get the same bits
            total = joined(total, theirs)
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

    def add(self, values: NDArray[Any]) -> None:
        """Add a batch (k, *shape), k >= 0."""
        if len(values):
            values = values.astype(np.float64)
            moments: Moments = (values.mean(axis=0), values.var(axis=0), float(len(values)))
            if self._merger is None:
                self.rms.update_from_moments(*moments)  # type: ignore[no-untyped-call]
            else:
                self._waiting = joined(self._waiting, moments)

    def flush(self) -> None:
        """Add the values that wait on all ranks: every rank must call this equally often."""
        if self._merger is not None:
            waiting, self._waiting = self._waiting, self._none
            merged = self._merger.merge(*waiting)
            if merged[2]:
                self.rms.update_from_moments(*merged)  # type: ignore[no-untyped-call]

    def as_arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return copies of mean, var and count."""
        named = {"mean": self.rms.mean, "var": self.rms.var, "count": self.rms.count}
        return {name: np.array(value, np.float64) for name, value in named.items()}

    def check(self, rms: Any) -> None:
        """Raise if `rms` is not a RunningMeanStd of this shape: Gymnasium's, SB3's or baselines', which are alike."""
        if not all(hasattr(rms, name) for name in ("mean", "var", "count", "update_from_moments")):
            raise TypeError(f"statistics must be a RunningMeanStd with mean, var and count, not {rms!r}")
        _check_shapes(rms.mean, rms.var, np.shape(self.rms.mean))

    def share(self, rms: Any) -> None:
        """Use `rms` from now on, the object itself: others that have it share the statistics."""
        self.check(rms)
        self.rms, self._waiting = rms, self._none

    def take(self, arrays: dict[str, NDArray[np.float64]]) -> None:
        """Replace the statistics by those that `as_arrays` returned elsewhere; ValueError for impossible values."""
        _check_shapes(arrays["mean"], arrays["var"], np.shape(self.rms.mean))
        if np.shape(arrays["count"]) != () or (arrays["var"] < 0.0).any() or arrays["count"] <= 0.0:
            raise ValueError("a variance is negative, or the count is not a number above 0")
        rms = RunningMeanStd(shape=np.shape(self.rms.mean))  # type: ignore[no-untyped-call]  # others may share the old one
        rms.mean, rms.var, rms.count = arrays["mean"].copy(), arrays["var"].copy(), float(arrays["count"])
        self.rms, self._waiting = rms, self._none


def joined(first: Moments, second: Moments) -> Moments:
    """Return the moments of two batches together."""
    if not first[2] or not second[2]:
        return first if first[2] else second
    mean, var, count = update_mean_var_count_from_moments(*first, *second)  # type: ignore[no-untyped-call]
    return mean, var, float(count)


def _check_shapes(mean: Any, var: Any, shape: tuple[int, ...]) -> None:
    for name, value in (("mean", mean), ("var", var)):
        if np.shape(value) != shape:
            raise ValueError(f"{name} has shape {np.shape(value)}, but the values have {shape}")
