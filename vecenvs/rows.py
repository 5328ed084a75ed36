"""Making what callers get (observations, rewards, flags, infos) out of the board's columns and the rows' extras."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vecenvs.board import TERMINATED, TRUNCATED, Board
from vecenvs.errors import EnvError
from vecenvs.protocol import Extra
from vecenvs.vec_env import Batch, StepReturn


def lock_step(board: Board, extras: Iterable[Extra], *, copy: bool) -> StepReturn:
    """All rows, in the order of their slots."""
    infos = [{"TimeLimit.truncated": False} for _ in range(board.n)]
    flags = board.flags
    for extra in extras:
        infos[extra.slot] = finish_info(extra.info, int(flags[extra.slot]))
    dones = flags != 0
    return board.observations.batch(copy=copy), board.rewards.astype(np.float32), dones, infos


def finish_info(info: dict[str, Any], flags: int) -> dict[str, Any]:
    """Add to an info, which must be the caller's own by now, what every row has."""
    info["TimeLimit.truncated"] = flags == TRUNCATED
    return info


def gather(board: Board, rows: Sequence[tuple[int, Extra | None]]) -> Batch:
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
    failures = sorted((extra.failure for extra in extras if extra.failure is not None), key=lambda f: f.index)
    errors = [failure.to_error() for failure in failures]
    if not errors:
        return None
    errors[0].errors = tuple(errors)
    return errors[0]
