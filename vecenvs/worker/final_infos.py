"""Tell the infos of ended episodes from those of the new ones, which Gymnasium's batched envs give on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.info_arrays import columns_of_dicts
from vecenvs.batch.info_batches import Columns, InfoColumn, merge_disjoint, select_rows

_FINAL_NAMES = ("final_obs", "final_observation")
_LAST = "terminal_observation"
_STATISTICS = {"r", "l", "t"}  # the keys that RecordEpisodeStatistics writes, under a name of the user's choice


class SplitInfos(NamedTuple):
    """The infos of a step, those of the resets in it, and the last observations of ended episodes, if there are."""

    infos: Columns
    resets: Columns
    finals: list[object] | None


def split_infos(infos: Columns, ended: NDArray[np.int64], n: int, *, as_gymnasium: bool) -> SplitInfos:
    """Take last infos and observations of the `ended` rows out of the infos of n rows. `infos` is changed.

    Where episodes end, Gymnasium's infos are those of the resets. So are others' that have "final_info"; else these are
    infos of the step on all rows.
    """
    finals = next((column for name in _FINAL_NAMES if (column := infos.pop(name, None)) is not None), None)
    last = infos.pop("final_info", None)
    if last is None and not as_gymnasium:
        return SplitInfos(infos, {}, _items(finals, ended))
    statistics = {name: column for name, column in infos.items() if _is_statistics(column)}
    others = {name: column for name, column in infos.items() if name not in statistics}
    over = mask_of(ended, n)
    resets, kept = select_rows(others, over), select_rows(others, ~over)
    if last is not None and not isinstance(last.values, dict):  # Gymnasium's form before 1.0: a dict for each env
        last = InfoColumn(ended, columns_of_dicts([last.value(row) for row in ended.tolist()], ended))
    kept = merge_disjoint(kept, {**(select_rows(last.values, over) if last is not None else {}), **statistics})
    return SplitInfos(kept, resets, _items(finals, ended))


def columns_of_list(infos: Sequence[dict[str, Any]], ended: NDArray[np.bool_], *, same_step: bool) -> Columns:
    """Return the columns of infos that are a list, as SB3 has them, those of ended rows as `split_infos` takes them.

    "terminal_observation" in these becomes "final_obs", unless one lacks it; but for `same_step` it is left out. If all
    have "final_obs", they are Gymnasium's (DictInfoToList): "final_info" is of the episode, the rest of the reset.
    """
    rows = np.flatnonzero(ended)
    last = [infos[row] for row in rows.tolist()]
    if last and all("final_obs" in info for info in last):
        columns = columns_of_dicts(
            [{name: value for name, value in info.items() if name not in ("final_obs", "final_info")} for info in infos]
        )
        columns["final_info"] = InfoColumn(rows, columns_of_dicts([info.get("final_info", {}) for info in last], rows))
        columns["final_obs"] = InfoColumn(rows, [info["final_obs"] for info in last])
        return columns
    finals = [info[_LAST] for info in last if _LAST in info]
    if len(finals) == len(last):
        last = [{name: value for name, value in info.items() if name != _LAST} for info in last]
    columns = columns_of_dicts([{} if over else info for info, over in zip(infos, ended.tolist(), strict=True)])
    if not (same_step and last):
        return merge_disjoint(columns, columns_of_dicts(last, rows))
    columns["final_info"] = InfoColumn(rows, columns_of_dicts(last, rows))
    if len(finals) == len(last):
        columns["final_obs"] = InfoColumn(rows, finals)
    return columns


def mask_of(rows: NDArray[np.int64], n: int) -> NDArray[np.bool_]:
    """Return which of n rows are `rows`."""
    mask: NDArray[np.bool_] = np.zeros(n, bool)
    mask[rows] = True
    return mask


def _is_statistics(column: InfoColumn) -> bool:
    return isinstance(column.values, dict) and column.values.keys() == _STATISTICS


def _items(finals: InfoColumn | None, ended: NDArray[np.int64]) -> list[object] | None:
    return None if finals is None else [finals.value(row) for row in ended.tolist()]
