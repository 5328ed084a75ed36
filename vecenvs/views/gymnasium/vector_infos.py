"""Convert a VecEnv's infos to Gymnasium's dict of arrays with masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.info_batches import BatchInfos, Columns
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.errors import VecEnvError

VEC_ENV_KEYS = frozenset({"TimeLimit.truncated", "terminal_observation", "episode_start"})


def without_vec_env_keys(info: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an info without the keys that a VecEnv adds."""
    if VEC_ENV_KEYS.issuperset(info):  # nearly always
        return {}
    return {key: value for key, value in info.items() if key not in VEC_ENV_KEYS}


def vector_infos(columns: Columns, n: int, put: Callable[[dict[str, Any], int], None]) -> dict[str, Any]:
    """Return Gymnasium's dict of arrays and masks, of columns with numbers; all else is passed to `put`, row by row."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        if name in VEC_ENV_KEYS:
            continue
        rows = slice(None) if column.rows is None else column.rows
        if isinstance(column.values, dict):
            found[name] = vector_infos(column.values, n, lambda info, i, name=name: put({name: info}, i))  # type: ignore[misc]
        elif isinstance(column.values, np.ndarray) and column.values.dtype != object:
            array = np.zeros((n, *column.values.shape[1:]), column.values.dtype)
            array[rows] = column.values
            found[name] = array
        else:
            for i in range(n) if column.rows is None else column.rows.tolist():
                put({name: column.value(i)}, i)
            continue
        mask = np.zeros(n, bool)
        mask[rows] = True
        found[f"_{name}"] = mask
    return found


def check_wrapped(dones: NDArray[np.bool_], ended: NDArray[np.bool_], infos: list[dict[str, Any]] | BatchInfos) -> None:
    """Refuse dones that only a wrapper has changed; add the missing key to infos that a wrapper has made."""
    if not np.array_equal(dones, ended):
        raise VecEnvError(
            "a wrapper changes dones, which Gymnasium does not have: define the properties terminated and truncated "
            "in the wrapper"
        )
    for info in infos.looked_at.values() if isinstance(infos, BatchInfos) else infos:
        info.setdefault(TRUNCATED_KEY, False)
