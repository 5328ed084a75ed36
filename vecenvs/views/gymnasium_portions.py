"""Handing out the rows of one lock-step in portions, as `recv` promises."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenvs.errors import NotSteppingError
from vecenvs.vec_env import Batch
from vecenvs.views.gymnasium_forms import BatchForm


def check_portion(due: int, min_envs: int, max_envs: int | None) -> None:
    """Refuse what `recv` cannot give while `due` rows are pending."""
    if not due:
        raise NotSteppingError("recv while nothing is pending: send or reset_async first")
    if not 1 <= min_envs <= due:
        raise ValueError(f"min_envs={min_envs} while {due} envs have a command pending: give 1 to {due}")
    if max_envs is not None and max_envs < min_envs:
        raise ValueError(f"max_envs={max_envs} is less than min_envs={min_envs}")


def first_rows(slots: list[int], obs: Any, infos: list[dict[str, Any]]) -> Batch:
    """Make the rows on which episodes begin."""
    none = np.zeros(len(slots), dtype=bool)
    rewards = np.zeros(len(slots), dtype=np.float32)
    return Batch(np.array(slots, dtype=np.int64), obs, rewards, none, none.copy(), infos, none.copy())


def divide(form: BatchForm, batch: Batch, k: int | None) -> tuple[Batch, Batch | None]:
    """Give the first k rows, and the rest if there is one."""
    if k is None or k >= len(batch):
        return batch, None
    return _part(form, batch, slice(k)), _part(form, batch, slice(k, None))


def _part(form: BatchForm, batch: Batch, rows: slice) -> Batch:
    return Batch(
        batch.indices[rows],
        form.rows(batch.obs, rows),
        batch.rewards[rows],
        batch.terminated[rows],
        batch.truncated[rows],
        batch.infos[rows],
        batch.active[rows],
    )
