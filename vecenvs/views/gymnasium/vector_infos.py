"""Convert a VecEnv's infos to Gymnasium's dict of arrays with masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.agents.flat import FlatVecEnv
from vecenvs.batch.info_arrays import info_array
from vecenvs.batch.info_batches import Columns, info_of, select_rows
from vecenvs.batch.lazy_infos import LazyInfos, LazyResetInfos
from vecenvs.vec_env import VecEnv

VEC_ENV_KEYS = frozenset({"TimeLimit.truncated", "terminal_observation", "episode_start"})

AddInfo = Callable[[dict[str, Any], dict[str, Any], int], dict[str, Any]]  # VectorEnv._add_info


class VectorInfos:
    """Makes Gymnasium's infos of those of a VecEnv. `add_info` is Gymnasium's own way to add those of one env."""

    def __init__(self, vec: VecEnv, add_info: AddInfo) -> None:
        self._vec = vec
        self._add_info = add_info
        self._n = vec.num_envs
        self._same_step = vec.autoreset == "same_step"
        self._agents = vec.unwrapped if isinstance(vec.unwrapped, FlatVecEnv) else None

    def of_reset(self, indices: Iterable[int]) -> dict[str, Any]:
        """Return the infos of the last resets of these envs."""
        infos: dict[str, Any] = {}
        given = self._vec.reset_infos
        info_at = given.own if isinstance(given, LazyResetInfos) else given.__getitem__
        for i in indices:
            own = without_vec_env_keys(info_at(i))
            infos = self._add_info(infos, own, i) if own else infos
        return infos

    def of_step(self, infos: Sequence[dict[str, Any]], dones: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the infos of a step."""
        if isinstance(infos, LazyInfos):
            return self._of_columns(infos, dones)
        found: dict[str, Any] = {}
        for i, info in enumerate(infos):
            if len(info) > 1:  # more than "TimeLimit.truncated"
                found = self._add_row(found, info, i, dones)
        return found

    def _add_row(self, infos: dict[str, Any], info: dict[str, Any], i: int, dones: NDArray[np.bool_]) -> dict[str, Any]:
        """Add a row's info to the infos of the batch. `_add_info` is slow, so it is not called for an empty info."""
        own = without_vec_env_keys(info)
        # An env's own info may have "terminal_observation" on any row.
        if "terminal_observation" in info and self._same_step and dones[i]:
            if "final_obs" not in infos:
                infos["final_obs"] = np.empty(self._n, dtype=object)  # filled with None
                infos.setdefault("_final_obs", np.zeros(self._n, dtype=bool))  # an env's info may have this key
            if "final_info" not in infos:
                infos["final_info"] = {}
                infos.setdefault("_final_info", np.zeros(self._n, dtype=bool))
            infos["final_obs"][i] = info["terminal_observation"]
            if own:
                infos["final_info"] = self._add_info(infos["final_info"], own, i)
            infos["_final_obs"][i] = infos["_final_info"][i] = True
            gone = self._agents is not None and "absent" in info
            own = {} if gone else without_vec_env_keys(self._vec.reset_infos[i])
        elif self._agents is not None and self._same_step and self._agents.over[i]:  # this agent had left before
            own = without_vec_env_keys(self._vec.reset_infos[i])
        return self._add_info(infos, own, i) if own else infos

    def _of_columns(self, infos: LazyInfos, dones: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the infos of envs that are batched already, without work for each env.

        Ended episodes, and rows whose dicts a wrapper has looked at, go one by one.
        """
        # In the other modes the VecEnv adds nothing that Gymnasium has.
        columns, made = infos.columns if self._same_step else infos.given, infos.materialized
        if not (columns or made):
            return {}
        apart: NDArray[np.bool_] = np.zeros(self._n, bool)  # rows that take `_add_row`
        if self._same_step and "terminal_observation" in columns:
            apart |= dones
        apart[list(made)] = True
        if apart.any():
            columns = select_rows(columns, ~apart)
        rest: list[tuple[dict[str, Any], int]] = []
        found = _arrays(columns, self._n, lambda info, i: rest.append((info, i)))
        for info, i in rest:
            found = self._add_info(found, info, i)
        for i in np.flatnonzero(apart).tolist():
            found = self._add_row(found, made[i] if i in made else info_of(infos.columns, i), i, dones)
        return found


def without_vec_env_keys(info: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an info without the keys that a VecEnv adds."""
    if VEC_ENV_KEYS.issuperset(info):  # nearly always
        return {}
    return {key: value for key, value in info.items() if key not in VEC_ENV_KEYS}


def _arrays(columns: Columns, n: int, put: Callable[[dict[str, Any], int], None]) -> dict[str, Any]:
    """Return Gymnasium's dict of arrays and masks, of columns with numbers; all else is passed to `put`, row by row."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        if name in VEC_ENV_KEYS:
            continue
        if isinstance(column.values, dict):
            found[name] = _arrays(column.values, n, lambda info, i, name=name: put({name: info}, i))  # type: ignore[misc]
            found[f"_{name}"] = column.mask(n)
        elif isinstance(column.values, np.ndarray) and column.values.dtype != object:
            found[name], found[f"_{name}"] = info_array(column, n)
        else:
            for i in range(n) if column.rows is None else column.rows.tolist():
                put({name: column.value(i)}, i)
    return found
