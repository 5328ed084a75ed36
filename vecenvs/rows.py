"""Making what callers get (observations, rewards, flags, infos) out of the board's columns and the rows' extras."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.board import TERMINATED, TRUNCATED, Board
from vecenvs.errors import EnvError
from vecenvs.protocol import Extra
from vecenvs.vec_env import Batch, StepReturn

Row = tuple[int, "Extra | None"]  # a slot whose row has come, and what came with it


def lock_step(
    board: Board, flags: NDArray[np.uint8], extras: Iterable[Extra], repeats: Mapping[int, list[Any]], *, copy: bool
) -> StepReturn:
    """All rows, in the order of their slots. `repeats` are rows to give instead of what the columns hold."""
    infos = [{"TimeLimit.truncated": False} for _ in range(board.n)]
    for extra in extras:
        infos[extra.slot] = finish_info(extra.info, int(flags[extra.slot]))
    observations, rewards = board.observations.batch(copy=copy or bool(repeats)), board.rewards.astype(np.float32)
    for slot, parts in repeats.items():
        board.observations.layout.set_row(observations, slot, parts)
        rewards[slot] = 0.0
    return observations, rewards, flags != 0, infos


def plain_lock_step(board: Board, *, copy: bool) -> StepReturn:
    """All rows of a step in which nothing came besides the columns."""
    infos = [{"TimeLimit.truncated": False} for _ in range(board.n)]
    observations = board.observations.batch(copy=copy)
    return observations, board.rewards.astype(np.float32), np.zeros(board.n, bool), infos


def finish_info(info: dict[str, Any], flags: int) -> dict[str, Any]:
    """Add to an info, which must be the caller's own by now, what every row has."""
    info["TimeLimit.truncated"] = flags == TRUNCATED
    return info


def gather(board: Board, rows: Sequence[Row]) -> Batch:
    """Some rows, in the order given."""
    indices = np.array([slot for slot, _ in rows], dtype=np.int64)
    flags = board.flags[indices]
    infos = [finish_info(extra.info if extra else {}, int(f)) for (_, extra), f in zip(rows, flags, strict=True)]
    first_row = [bool(extra and extra.reset_info is not None) for _, extra in rows]
    return Batch(
        indices,
        board.observations.batch(indices),
        board.rewards[indices].astype(np.float32),
        (flags & TERMINATED) != 0,
        (flags & TRUNCATED) != 0,
        infos,
        active=(flags != 0) | ~np.array(first_row, dtype=bool),
    )


def env_error(extras: Iterable[Extra]) -> EnvError | None:
    """One error for all envs that failed, the lowest index first; None if none did."""
    extras = list(extras)
    if not any(extra.failure for extra in extras):
        return None
    failures = sorted((extra.failure for extra in extras if extra.failure is not None), key=lambda f: f.slot)
    errors = [failure.to_error() for failure in failures]
    errors[0].errors = tuple(errors)
    return errors[0]
