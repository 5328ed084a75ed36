"""NumPy arrays and torch tensors alike: read them, write to them, and compare those of all ranks."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a torch tensor, without importing torch."""
    return type(value).__module__.partition(".")[0] == "torch"


def is_frozen(value: Any) -> bool:
    """Tell whether a value is a torch parameter that is not trained."""
    return is_tensor(value) and isinstance(value, sys.modules["torch"].nn.Parameter) and not value.requires_grad


def gradient(parameter: Any) -> Any:
    """Return a parameter's gradient, or a new one of zeros. A value that is not a parameter is a gradient itself."""
    if not is_tensor(parameter) or not parameter.requires_grad:
        return parameter
    if not parameter.is_leaf:
        raise TypeError("gradients belong to whole parameters: give a list of them, not one parameter")
    if parameter.grad is None:
        parameter.grad = parameter.detach().new_zeros(parameter.shape)
    return parameter.grad


def as_numpy(value: Any) -> NDArray[Any]:
    """Return the values of an array or tensor; TypeError for anything else."""
    if is_tensor(value):
        plain = value.detach().cpu()
        if plain.dtype == sys.modules["torch"].bfloat16:  # which numpy lacks
            plain = plain.float()
        array: NDArray[Any] = plain.numpy()
        return array
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a numpy array or a torch tensor is needed, to write into, not {type(value).__name__}")
    return value


def of_numbers(target: Any) -> NDArray[Any]:
    """Return a target's values.

    Raises:
        TypeError: MPI has no name for their dtype.
        ValueError: the target cannot be written to.
    """
    array = as_numpy(target)
    if array.dtype.kind not in "biufc" or not array.dtype.isnative:
        raise TypeError(
            f"MPI does not carry arrays of dtype {array.dtype.str}: numbers in native byte order are needed"
        )
    if is_tensor(target):
        fixed = any(step == 0 and n > 1 for step, n in zip(target.stride(), target.shape, strict=True))
    else:
        fixed = not target.flags.writeable
    if fixed:
        raise ValueError(f"an array of shape {array.shape} cannot be written to, being read-only or expanded: copy it")
    return array


def assign(target: Any, data: NDArray[Any]) -> None:
    """Write values to an array or tensor."""
    if is_tensor(target):
        plain = target.detach()
        plain.copy_(plain.new_tensor(data))
    elif target is not data:
        target[...] = data


def digest(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    """Return dtype, shape and a hash of an array's values."""
    return str(array.dtype), array.shape, hashlib.blake2b(array.tobytes()).digest()


def compare_digests(everywhere: Sequence[Any]) -> str:
    """Describe how the digests of the ranks differ."""
    return _compare(
        everywhere,
        lambda rank, which: (
            f"array {', '.join(map(str, which))} of rank {rank} differs from rank 0's: sync_from_root after making the "
            "model, and apply the same averaged gradients everywhere"
        ),
    )


def layout(arrays: Sequence[NDArray[Any]]) -> list[tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of each array."""
    return [(str(array.dtype), array.shape) for array in arrays]


def compare_layouts(everywhere: Sequence[Any]) -> str:
    """Describe how the layouts of the ranks differ."""

    def describe(rank: int, which: list[int]) -> str:
        (dtype, shape), (roots, root_shape) = everywhere[rank][which[0]], everywhere[0][which[0]]
        return (
            f"array {which[0]} of rank {rank} has dtype {dtype} and shape {shape}, rank 0's {roots} and {root_shape}: "
            "make the same model on every rank"
        )

    return _compare(everywhere, describe)


def _compare(everywhere: Sequence[Any], describe: Callable[[int, list[int]], str]) -> str:
    """Describe the first rank that differs from rank 0: its number of arrays, or which of them differ."""
    rank = next(rank for rank, theirs in enumerate(everywhere) if theirs != everywhere[0])
    theirs, roots = everywhere[rank], everywhere[0]
    if len(theirs) != len(roots):
        return f"rank {rank} has {len(theirs)} arrays, rank 0 has {len(roots)}"
    return describe(rank, [k for k, (one, other) in enumerate(zip(theirs, roots, strict=True)) if one != other])
