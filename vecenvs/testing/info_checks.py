"""Check infos as columns against the same infos as dicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenvs.batch.info_arrays import InfoArray, info_columns


def assert_columns(infos: Sequence[dict[str, Any]]) -> None:
    """Fail unless `info_columns` has what the dicts have. Python's numbers may have become NumPy's."""
    n = len(infos)
    columns = info_columns(infos)  # before the dicts of batched envs are made
    expected = [repr(plain(info)) for info in infos]
    assert [repr(plain(_row(columns, row))) for row in range(n)] == expected
    columns = info_columns(infos)
    assert [repr(plain(_row(columns, row))) for row in range(n)] == expected, "of dicts that were looked at"


def _row(columns: dict[str, InfoArray], row: int) -> dict[str, Any]:
    found = {}
    for name, (values, mask) in columns.items():
        assert mask.dtype == np.bool_
        assert isinstance(values, dict) or len(values) == len(mask)
        if mask[row]:
            found[name] = _row(values, row) if isinstance(values, dict) else values[row]
    return found


def plain(value: Any) -> Any:
    """Return a value with Python's numbers for NumPy's, and dicts by their keys in order: of one repr for one value."""
    if isinstance(value, dict):
        return {str(key): plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
