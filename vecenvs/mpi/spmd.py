"""SPMD programs: every rank is a learner with envs of its own, and the learners are kept equal.

All functions are collective: every rank of `comm` (default: MPI.COMM_WORLD) must call them, in the same order. Arrays
are numpy arrays or torch tensors on any device; sums are taken in float64 where a result is a statistic.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vecenvs.errors import VecEnvError
from vecenvs.mpi.library import load_mpi

RANK_STRIDE = 10000  # as make_vec_env and baselines: env i of rank r has seed + 10000 * r + i


def rank_seed(seed: int, comm: Any = None) -> int:
    """Give this rank's seed, far from those of the others."""
    return seed + RANK_STRIDE * int(_comm(comm).Get_rank())


def sync_from_root(arrays: Iterable[Any], comm: Any = None) -> None:
    """Overwrite each array or tensor (such as `model.parameters()`) with rank 0's values, in place.

    VecEnvError on every rank, with nothing overwritten, if their numbers, shapes or dtypes are not the same everywhere.
    """
    comm = _comm(comm)
    targets = list(arrays)
    data = [_as_numpy(target) for target in targets]
    _check_layout(data, comm)
    for target, values in zip(targets, data, strict=True):
        whole = np.ascontiguousarray(values).reshape(values.shape)
        comm.Bcast(whole)
        _assign(target, whole)


def assert_synced(arrays: Iterable[Any], comm: Any = None) -> None:
    """Raise VecEnvError, on every rank, if an array is not bit for bit the same on all of them."""
    comm = _comm(comm)
    digests = [_digest(_as_numpy(array)) for array in arrays]
    everywhere = comm.allgather(digests)
    for rank, theirs in enumerate(everywhere):
        if len(theirs) != len(everywhere[0]):
            raise VecEnvError(f"rank {rank} has {len(theirs)} arrays, rank 0 has {len(everywhere[0])}")
        differing = [str(k) for k, pair in enumerate(zip(theirs, everywhere[0], strict=True)) if pair[0] != pair[1]]
        if differing:
            raise VecEnvError(
                f"array {', '.join(differing)} of rank {rank} differs from rank 0's: sync_from_root after making the "
                "model, and apply the same averaged gradients everywhere"
            )


def average_gradients(parameters: Iterable[Any], weight: float = 1.0, comm: Any = None) -> None:
    """Replace gradients by their mean over the ranks, in place, a rank counting `weight` times (its batch size).

    `parameters` are torch parameters, whose `.grad` is averaged (a missing one counts as zeros; frozen ones are left
    out), or gradient arrays. One message for all of them. ValueError if all weights are 0; VecEnvError on every rank if
    the gradients' numbers, shapes or dtypes are not the same everywhere. Either way no gradient is changed.
    """
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight must be a number from 0 on, not {weight!r}")
    comm = _comm(comm)
    grads = [_gradient(parameter) for parameter in parameters if not _is_frozen(parameter)]
    data = [_as_numpy(grad) for grad in grads]
    _check_layout(data, comm)
    if not grads:
        return
    dtype = np.result_type(np.float32, *(part.dtype for part in data))
    flat = np.concatenate(
        # Without weight a gradient does not count, and may be the NaN of an empty batch.
        [np.ravel(part).astype(dtype) * dtype.type(weight) if weight else np.zeros(part.size, dtype) for part in data]
        + [np.array([weight], dtype)]
    )
    comm.Allreduce(load_mpi().IN_PLACE, flat)
    if flat[-1] <= 0:
        raise ValueError("the weights of all ranks sum to nothing: give each rank's batch size")
    flat /= flat[-1]
    at = 0
    for grad, part in zip(grads, data, strict=True):
        _assign(grad, flat[at : at + part.size].reshape(part.shape).astype(part.dtype))
        at += part.size


@dataclass(frozen=True)
class Moments:
    """Mean and variance (of the population) in float64, and how many values they are of."""

    mean: NDArray[np.float64]
    var: NDArray[np.float64]
    count: float

    @property
    def std(self) -> NDArray[np.float64]:
        return np.sqrt(self.var)


def moments(values: ArrayLike, comm: Any = None) -> Moments:
    """Give the moments of all ranks' values along their first axis. A rank may have none: shape (0, ...)."""
    comm = _comm(comm)
    array = np.asarray(values, np.float64)
    count = float(comm.allreduce(float(len(array))))
    if not count:
        raise ValueError("no rank has any values")
    mean = _sum(array.sum(axis=0), comm) / count
    var = _sum(np.square(array - mean).sum(axis=0), comm) / count  # two passes: no cancellation
    return Moments(mean, var, count)


class RunningMeanStd:
    """Mean and variance of everything that every rank has given so far, the same on all of them.

    Starts as baselines' does: mean 0, variance 1, and `epsilon` values seen.
    """

    def __init__(self, shape: Sequence[int] = (), epsilon: float = 1e-4, comm: Any = None) -> None:
        self.mean: NDArray[np.float64] = np.zeros(tuple(shape))
        self.var: NDArray[np.float64] = np.ones(tuple(shape))
        self.count = epsilon
        self._comm = comm

    @property
    def std(self) -> NDArray[np.float64]:
        return np.sqrt(self.var)

    def update(self, values: ArrayLike) -> None:
        """Add a batch (n, *shape) of this rank's; the others add theirs in the same call."""
        batch = moments(values, self._comm)
        delta = batch.mean - self.mean
        total = self.count + batch.count
        self.mean = self.mean + delta * batch.count / total
        squares = self.var * self.count + batch.var * batch.count + np.square(delta) * self.count * batch.count / total
        self.var, self.count = squares / total, total


def mean_of_dicts(local: Mapping[str, float | tuple[float, float]], comm: Any = None) -> dict[str, float]:
    """Give the mean of each key over the ranks that have it; a value (x, w) counts w times. The same on every rank.

    ValueError on every rank for a weight below 0, or that is no finite number. A key that has no weight anywhere is
    left out.
    """
    totals: dict[str, tuple[float, float]] = {}
    for theirs in _comm(comm).allgather(dict(local)):
        for key, value in theirs.items():
            x, weight = value if isinstance(value, tuple) else (value, 1.0)
            if not 0 <= weight < math.inf:
                raise ValueError(f"{key!r} of some rank has the weight {weight!r}: it must be a number from 0 on")
            before = totals.get(key, (0.0, 0.0))
            if weight:  # else it does not count, and may be the NaN that is the mean of nothing
                totals[key] = before[0] + float(x) * weight, before[1] + weight
    return {key: total / weight for key, (total, weight) in totals.items() if weight}


def _comm(comm: Any) -> Any:
    return load_mpi().COMM_WORLD if comm is None else comm


def _sum(array: NDArray[np.float64], comm: Any) -> NDArray[np.float64]:
    total = np.empty_like(array)
    comm.Allreduce(np.ascontiguousarray(array), total)
    return total


def _digest(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return str(array.dtype), array.shape, hashlib.blake2b(array.tobytes()).digest()


def _check_layout(arrays: Sequence[NDArray[Any]], comm: Any) -> None:
    """Raise VecEnvError on every rank unless all have arrays of the same shapes and dtypes."""
    layout = [(str(array.dtype), array.shape) for array in arrays]
    number = int.from_bytes(hashlib.blake2b(repr(layout).encode(), digest_size=7).digest(), "little")
    extremes = np.array([number, -number])
    comm.Allreduce(load_mpi().IN_PLACE, extremes, op=load_mpi().MAX)
    if extremes[0] == -extremes[1]:
        return
    everywhere = comm.allgather(layout)
    for rank, theirs in enumerate(everywhere):
        if len(theirs) != len(everywhere[0]):
            raise VecEnvError(f"rank {rank} has {len(theirs)} arrays, rank 0 has {len(everywhere[0])}")
        for k, (one, other) in enumerate(zip(theirs, everywhere[0], strict=True)):
            if one != other:
                raise VecEnvError(
                    f"array {k} of rank {rank} has dtype {one[0]} and shape {one[1]}, "
                    f"rank 0's {other[0]} and {other[1]}: make the same model on every rank"
                )


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"


def _is_frozen(value: Any) -> bool:
    return _is_tensor(value) and isinstance(value, sys.modules["torch"].nn.Parameter) and not value.requires_grad


def _gradient(parameter: Any) -> Any:
    if not _is_tensor(parameter) or not parameter.requires_grad:
        return parameter
    if parameter.grad is None:
        parameter.grad = parameter.detach().new_zeros(parameter.shape)
    return parameter.grad


def _as_numpy(value: Any) -> NDArray[Any]:
    if _is_tensor(value):
        plain = value.detach().cpu()
        if plain.dtype == sys.modules["torch"].bfloat16:  # which numpy lacks
            plain = plain.float()
        array: NDArray[Any] = plain.numpy()
        return array
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a numpy array or a torch tensor is needed, to write into, not {type(value).__name__}")
    return value


def _assign(target: Any, data: NDArray[Any]) -> None:
    if _is_tensor(target):
        plain = target.detach()
        plain.copy_(plain.new_tensor(data))
    elif target is not data:
        target[...] = data
