"""Helpers of SPMD programs, in which every rank is a learner with envs of its own.

All functions are collective: every rank of `comm` (default: MPI.COMM_WORLD) must call them, in the same order. An
argument that is wrong on one rank is the same error on every rank, and no array is changed then (see `agreement`).
Arrays are NumPy arrays or torch tensors on any device. Statistics are computed in float64.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vecenvs.arguments import parse_int
from vecenvs.backends.mpi.library import load_mpi
from vecenvs.mpi.agreement import agreed, by_rank
from vecenvs.mpi.arrays import (
    as_numpy,
    assign,
    compare_digests,
    compare_layouts,
    digest,
    gradient,
    is_frozen,
    is_tensor,
    layout,
    of_numbers,
)

RANK_STRIDE = 10000  # as make_vec_env and baselines: env i of rank r has seed + 10000 * r + i


def rank_seed(seed: int, comm: Any = None) -> int:
    """Return this rank's seed, which is far from those of the other ranks.

    Args:
        seed: the seed of rank 0.
        comm: the communicator.

    Returns:
        `seed + 10000 * rank`.

    Raises:
        TypeError: `seed` is not an int.
    """
    return parse_int("seed", seed) + RANK_STRIDE * int(_comm(comm).Get_rank())


def sync_from_root(arrays: Iterable[Any], comm: Any = None) -> None:
    """Overwrite each array or tensor (such as `model.parameters()`) with rank 0's values, in place.

    Args:
        arrays: the arrays or tensors, in the same order on every rank.
        comm: the communicator.

    Raises:
        VecEnvError: their numbers, shapes or dtypes are not the same everywhere.
        TypeError: a dtype is not of numbers in this machine's byte order.
        ValueError: an array cannot be written to.
    """
    comm = _comm(comm)

    def prepare() -> tuple[list[tuple[Any, NDArray[Any]]], Any]:
        targets = list(arrays)
        data = [of_numbers(target) for target in targets]
        return list(zip(targets, data, strict=True)), layout(data)

    for target, values in agreed("sync_from_root", comm, prepare, compare_layouts):
        whole = np.ascontiguousarray(values).reshape(values.shape)
        comm.Bcast(whole)
        assign(target, whole)


def assert_synced(arrays: Iterable[Any], comm: Any = None) -> None:
    """Check that arrays are bit for bit the same on all ranks.

    Args:
        arrays: the arrays or tensors, in the same order on every rank.
        comm: the communicator.

    Raises:
        VecEnvError: they are not. It is raised on every rank.
    """
    agreed("assert_synced", _comm(comm), lambda: (None, [digest(as_numpy(each)) for each in arrays]), compare_digests)


def average_gradients(parameters: Iterable[Any], weight: float = 1.0, comm: Any = None) -> None:
    """Replace gradients by their mean over the ranks, in place, by one message for all of them.

    Args:
        parameters: torch parameters, whose `.grad` is averaged (a missing one counts as zeros; frozen ones are left
            out), or gradient arrays.
        weight: how much this rank's gradients count: its batch size.
        comm: the communicator.

    Raises:
        ValueError: all weights are 0, or an array cannot be written to.
        VecEnvError: as in `sync_from_root`.
        TypeError: as in `sync_from_root`, or a gradient is not of floats.
    """
    comm = _comm(comm)

    def prepare() -> tuple[tuple[list[Any], list[NDArray[Any]], NDArray[Any]], Any]:
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight must be a number from 0 on, not {weight!r}")
        grads = [gradient(parameter) for parameter in parameters if not is_frozen(parameter)]
        data = [of_numbers(grad) for grad in grads]
        for part in data:
            if part.dtype.kind not in "fc":
                raise TypeError(f"gradients are floats: an array of dtype {part.dtype} cannot have their mean")
        dtype = np.result_type(np.float32, *(part.dtype for part in data))
        flat = np.concatenate(
            # Without weight a gradient does not count, and may be the NaN of an empty batch.
            [
                np.ravel(part).astype(dtype) * dtype.type(weight) if weight else np.zeros(part.size, dtype)
                for part in data
            ]
            + [np.array([weight], dtype)]
        )
        return (grads, data, flat), layout(data)

    grads, data, flat = agreed("average_gradients", comm, prepare, compare_layouts)
    if not grads:
        return
    comm.Allreduce(load_mpi().IN_PLACE, flat)
    if flat[-1].real <= 0:  # gradients may be complex
        raise ValueError("the weights of all ranks sum to nothing: give each rank's batch size")
    flat /= flat[-1]
    at = 0
    for grad, part in zip(grads, data, strict=True):
        assign(grad, flat[at : at + part.size].reshape(part.shape).astype(part.dtype))
        at += part.size


@dataclass(frozen=True)
class Moments:
    """The mean and variance of values.

    Attributes:
        mean: the mean, float64.
        var: the variance of the population, float64.
        count: the number of values.
    """

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    count: float

    @property
    def std(self) -> NDArray[np.float64]:
        """The standard deviation, float64."""
        return np.sqrt(self.var)


def moments(values: ArrayLike, comm: Any = None) -> Moments:
    """Compute mean and variance of all ranks' values.

    Args:
        values: this rank's values (n, ...). A rank may have none: shape (0, ...).
        comm: the communicator.

    Returns:
        The moments along the first axis, float64 (...), the same on every rank.

    Raises:
        ValueError: no rank has any values.
        VecEnvError: the shapes behind the first axis are not the same everywhere.
    """
    return _moments("moments", values, comm, None)


class RunningMeanStd:
    """Running mean and variance of the values of all ranks, the same on all of them.

    Starts as in baselines: mean 0, variance 1, and a count of `epsilon`.

    Args:
        shape: the shape of one value.
        epsilon: the count before the first values.
        comm: the communicator.

    Attributes:
        mean: the mean, float64 of `shape`.
        var: the variance, float64 of `shape`.
        count: the number of values plus `epsilon`.
    """

    def __init__(self, shape: Sequence[int] = (), epsilon: float = 1e-4, comm: Any = None) -> None:
        self.mean: NDArray[np.float64] = np.zeros(tuple(shape))
        self.var: NDArray[np.float64] = np.ones(tuple(shape))
        self.count = epsilon
        self._comm = comm

    @property
    def std(self) -> NDArray[np.float64]:
        """The standard deviation, float64."""
        return np.sqrt(self.var)

    def update(self, values: ArrayLike) -> None:
        """Add a batch of this rank's values. The other ranks add theirs in the same call.

        Args:
            values: the values `(n, *shape)`; n may be 0.

        Raises:
            ValueError: no rank has any values, or they have another shape.
            VecEnvError: as in `moments`.
        """
        batch = _moments("RunningMeanStd.update", values, self._comm, self.mean.shape)
        delta = batch.mean - self.mean
        total = self.count + batch.count
        self.mean = self.mean + delta * batch.count / total
        squares = self.var * self.count + batch.var * batch.count + np.square(delta) * self.count * batch.count / total
        self.var, self.count = squares / total, total


def mean_of_dicts(local: Mapping[str, float | tuple[float, float]], comm: Any = None) -> dict[str, float]:
    """Compute the mean of each key over the ranks that have it.

    Args:
        local: this rank's values by key: a number, or a tuple of a number and its weight, which is otherwise 1.
        comm: the communicator.

    Returns:
        The means by key, the same on every rank. A key that has no weight on any rank is left out.

    Raises:
        TypeError: a value is neither a number nor such a tuple.
        ValueError: a weight is below 0, or not a finite number.
    """
    comm = _comm(comm)
    totals: dict[str, tuple[float, float]] = {}
    for theirs in comm.allgather(agreed("mean_of_dicts", comm, lambda: (_weighed(local), None))):
        for key, (x, weight) in pickle.loads(theirs).items():
            before = totals.get(key, (0.0, 0.0))
            totals[key] = before[0] + x * weight, before[1] + weight
    return {key: total / weight for key, (total, weight) in totals.items()}


def _weighed(local: Mapping[str, float | tuple[float, float]]) -> bytes:
    """Return the entries with a weight, as (x, weight), pickled: a key that cannot be is this rank's error."""
    found = {}
    for key, value in dict(local).items():
        try:
            x, weight = value if isinstance(value, tuple) else (value, 1.0)
            counts = 0 <= weight < math.inf
            if weight:  # else it does not count, and may be the NaN that is the mean of nothing
                found[key] = float(x), float(weight)
        except (TypeError, ValueError):
            raise TypeError(f"{key!r} is {value!r}: give a number, or a tuple of a number and its weight") from None
        if not counts:
            raise ValueError(f"{key!r} has the weight {weight!r}: it must be a number from 0 on")
    return pickle.dumps(found)


def _comm(comm: Any) -> Any:
    return load_mpi().COMM_WORLD if comm is None else comm


def _moments(name: str, values: ArrayLike, comm: Any, shape: tuple[int, ...] | None) -> Moments:
    """Return the moments of values (n, *shape); of any shape, if that is None."""
    comm = _comm(comm)

    def prepare() -> tuple[NDArray[np.float64], Any]:
        array = np.asarray(as_numpy(values) if is_tensor(values) else values, np.float64)
        if not array.ndim:
            raise ValueError("a single number: the first axis must be that of the values")
        if shape is not None and array.shape[1:] != shape:
            expected = ", ".join(["n", *map(str, shape)])
            raise ValueError(f"values of shape {array.shape} for a RunningMeanStd({shape}): give ({expected})")
        return array, array.shape[1:]

    array = agreed(name, comm, prepare, _compare_rows)
    sums = np.append(array.sum(axis=0), len(array))
    comm.Allreduce(load_mpi().IN_PLACE, sums)
    if not (count := float(sums[-1])):
        raise ValueError("no rank has any values")
    mean = sums[:-1].reshape(array.shape[1:]) / count
    squares = np.square(array - mean).sum(axis=0)  # two passes: no cancellation
    total = np.empty_like(squares)
    comm.Allreduce(np.ascontiguousarray(squares), total)
    return Moments(mean, total / count, count)


def _compare_rows(shapes: Sequence[Any]) -> str:
    return f"each value has another shape ({by_rank(shapes)}): give (n, *shape) of one shape; n may differ, and be 0"
