"""Infos between the two forms: one dict per env here, one dict of arrays with masks in Gymnasium."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenvs.batch.values import copy_containers

OWN_KEYS = frozenset({"TimeLimit.truncated", "terminal_observation", "episode_start"})


def without_ours(info: dict[str, Any]) -> dict[str, Any]:
    """Copy an info without what a VecEnv adds to it."""
    if OWN_KEYS.issuperset(info):  # nearly always
        return {}
    return {key: value for key, value in info.items() if key not in OWN_KEYS}


def to_list(infos: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add Gymnasium's dict of arrays to one dict per env; give these. A key goes to those that its mask "_key" names.

    A key without a mask (as EnvPool gives them) goes to all of them if its value has n entries, else it is left out: it
    says nothing about a single env. `final_obs` and `final_info` are keys like any other here. Arrays are copied.
    """
    n = len(rows)
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        values: Any = to_list(value, [{} for _ in rows]) if isinstance(value, dict) else value
        if isinstance(values, np.ndarray) and values.dtype == bool and values.ndim == 1:
            values = values.tolist()  # Gymnasium makes such arrays of Python's bools only
        if mask is None and not _has_rows(values, n):
            continue
        for i in range(n) if mask is None else np.flatnonzero(mask).tolist():
            rows[i][key] = copy_containers(values[i])
    return rows


def statistics_keys(info: dict[str, Any]) -> list[str]:
    """Name the entries that tell an ended episode's return, length and time, whatever their key.

    RecordEpisodeStatistics around a vector env puts them beside `final_info`, among the infos of the next episode.
    """
    return [key for key, value in info.items() if isinstance(value, dict) and value.keys() == {"r", "l", "t"}]


def _has_rows(values: Any, n: int) -> bool:
    return isinstance(values, (np.ndarray, list, tuple)) and np.ndim(values) > 0 and len(values) == n
