"""Making what callers get (observations, rewards, flags, infos) out of the batch's columns and the rows' extras."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vecenvs.batch.batch_columns import DONE, FINAL, FIRST, TERMINATED, TRUNCATED, BatchColumns
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.errors import EnvError
from vecenvs.transport.protocol import RowExtras
from vecenvs.vec_env import Batch, StepReturn

Row = tuple[int, "RowExtras | None"]  # a slot whose row has come, and what came with it


def all_rows(batch: BatchColumns, infos: list[dict[str, Any]], *, copy: bool) -> StepReturn:
    """All rows, in the order of their slots, as if no episode had ended."""
    observations = batch.observations.copies() if copy else batch.observations.views()
    return observations, batch.rewards.astype(np.float32), np.zeros(batch.n, bool), infos


def complete(infos: Iterable[dict[str, Any]], batch: BatchColumns, slots: Iterable[int], flags: Iterable[int]) -> None:
    """Add to the infos of these slots' rows what their flags say."""
    finals = batch.finals
    for info, slot, flag in zip(infos, slots, flags, strict=True):
        info[TRUNCATED_KEY] = flag & DONE == TRUNCATED
        if flag & FINAL and finals is not None:
            info["terminal_observation"] = finals.row(slot)
        if flag & FIRST:
            info["episode_start"] = True


def gather(batch: BatchColumns, rows: Sequence[Row]) -> Batch:
    """Some rows, in the order given."""
    slots = [slot for slot, _ in rows]
    indices = np.array(slots, dtype=np.int64)
    flags = batch.flags[indices]
    infos: list[dict[str, Any]] = [{**extra.info} if extra else {} for _, extra in rows]
    complete(infos, batch, slots, flags.tolist())
    return Batch(
        indices,
        batch.observations.batch(indices),
        batch.rewards[indices].astype(np.float32),
        (flags & TERMINATED) != 0,
        (flags & TRUNCATED) != 0,
        infos,
        active=((flags & DONE) != 0) | ((flags & FIRST) == 0),
    )


def env_error(extras: Iterable[RowExtras]) -> EnvError | None:
    """One error for all envs that failed, the lowest index first; None if none did."""
    extras = list(extras)
    if not any(extra.failure for extra in extras):
        return None
    failures = sorted((extra.failure for extra in extras if extra.failure is not None), key=lambda f: f.slot)
    errors = [failure.to_error() for failure in failures]
    errors[0].errors = tuple(errors)
    return errors[0]
