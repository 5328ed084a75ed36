"""The beginning of every collective helper: all ranks go on together, or all raise the same error.

A rank that raised alone would leave the others waiting for it, and arrays of unlike sizes make MPI fail on some ranks
and wait on others. So everything that can go wrong with one rank's arguments is done before the first message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from vecenvs.backends.mpi.library import load_mpi
from vecenvs.errors import VecEnvError, describe_indices
from vecenvs.transport.protocol import safe_text

T = TypeVar("T")


def agreed(
    name: str, comm: Any, prepare: Callable[[], tuple[T, Any]], compare: Callable[[Sequence[Any]], str] | None = None
) -> T:
    """Return the first value of `prepare()`. The second is what all ranks of `comm` must have alike, by its repr.

    Raises:
        TypeError: `prepare` has raised it on some rank, which the message names.
        ValueError: the same.
        VecEnvError: `prepare` has raised anything else, the second values differ (`compare` describes how, given
            every rank's), or the ranks are in different helpers.
    """
    ready, alike, problem = None, None, None
    try:
        ready, alike = prepare()
    except Exception as exc:  # whatever an argument's own code raises
        problem = exc
    digest = hashlib.blake2b(repr((name, alike)).encode(), digest_size=7).digest()
    number = int.from_bytes(digest, "little")
    extremes = np.array([number, -number, problem is not None], np.int64)
    comm.Allreduce(load_mpi().IN_PLACE, extremes, op=load_mpi().MAX)
    if extremes[0] == -extremes[1] and not extremes[2]:
        return cast("T", ready)
    names, everywhere, problems = zip(*comm.allgather((name, alike, _told(problem))), strict=True)
    if len(set(names)) > 1:
        calls = by_rank(names)
        raise VecEnvError(
            f"the ranks are in different calls ({calls}): make the same ones in the same order everywhere"
        )
    if told := [each for each in problems if each]:
        kind = told[0][0]
        raise kind(f"{name}: {by_rank([each and each[1] for each in problems])}") from problem
    raise VecEnvError(f"{name}: {compare(everywhere) if compare else by_rank(everywhere)}")


def by_rank(values: Sequence[Any]) -> str:
    """Write `["a", "b", "a"]` as `rank 0, 2: a; rank 1: b`, leaving out what is None."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            ranks.setdefault(str(value), []).append(rank)
    return "; ".join(f"rank {describe_indices(where)}: {text}" for text, where in ranks.items())


def _told(problem: Exception | None) -> tuple[type[Exception], str] | None:
    """Return a class and a text for an exception that can be pickled, whatever its own class is."""
    if problem is None:
        return None
    for kind in (TypeError, ValueError, VecEnvError):
        if isinstance(problem, kind):
            return kind, safe_text(problem)
    return VecEnvError, f"{type(problem).__name__}: {safe_text(problem)}"
