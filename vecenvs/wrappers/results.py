"""Read monitor files: Stable-Baselines3's, baselines' and our own, which have one format.

A file has one line `#{"t_start": ..., "env_id": ...}` (some have a space after `#`), one line of column names, `r,l,t`
and the keywords, then one row per episode: its return, its length in steps, and the seconds from `t_start` to its end.
Old versions of baselines wrote the same as lines of JSON, in files `*monitor.json`; those are read, too.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from glob import escape, glob
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.arguments import check_path, parse_json

EXT = "monitor.csv"
_OLD_EXT = "monitor.json"
_NUMBERS = ("r", "l", "t")
_short = reprlib.Repr()  # a damaged row may have any values, of any length
_short.maxlist, _short.maxstring, _short.maxother = 20, 80, 80


class LoadMonitorResultsError(Exception):
    """Raised when there are no monitor files, or one is malformed. The message names the file and the place."""


@dataclass(frozen=True)
class MonitorResults:
    """The n episodes of some monitor files, in the order in which they ended. `results["r"]` is the column "r".

    Attributes:
        columns: an array (n,) for each column: `r` (return, float64), `l` (length in steps, int64) and `t` (seconds
            from the earliest `t_start` of all files to the episode's end, float64), then the keywords: int64, float64
            or bool if all values are, else objects. Episodes of a file without a column have NaN in it (a column of
            ints is float64 then), or None if it is not a column of numbers.
        file_index: for each episode the index of its file in `files`, int64 (n,).
        row: for each episode its number in its file, from 0, int64 (n,).
        files: the paths of the files.
        headers: the header of each file.
    """

    columns: dict[str, NDArray[Any]]
    file_index: NDArray[np.int64]
    row: NDArray[np.int64]
    files: tuple[str, ...]
    headers: tuple[dict[str, Any], ...]

    @property
    def r(self) -> NDArray[np.float64]:
        """The returns, float64 (n,)."""
        return self.columns["r"]

    @property
    def l(self) -> NDArray[np.int64]:  # noqa: E743 - it is the column's name in every monitor file
        """The lengths in steps, int64 (n,)."""
        return self.columns["l"]

    @property
    def t(self) -> NDArray[np.float64]:
        """The ends in seconds from the earliest `t_start`, float64 (n,)."""
        return self.columns["t"]

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column.

        Args:
            name: its name.

        Returns:
            The array, as in `columns`.

        Raises:
            KeyError: there is no such column.
        """
        if name not in self.columns:
            raise KeyError(f"no column {name!r}: there are {', '.join(self.columns)}")
        return self.columns[name]

    def to_pandas(self) -> Any:
        """Return the DataFrame that SB3's `load_results` returns.

        Returns:
            A pandas.DataFrame with one row per episode: `index` (its number in its file), then `columns`.

        Raises:
            ImportError: pandas is missing.
        """
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install pandas") from error
        return pandas.DataFrame({"index": self.row, **self.columns})


@dataclass(frozen=True)
class MonitorFile:
    """The contents of one monitor file. The values of `rows` are text, or of JSON; None stands for a missing one.

    The file's first `whole` bytes hold these rows. A last row that was cut short may follow them.
    """

    path: str
    header: dict[str, Any]
    names: tuple[str, ...]
    rows: list[list[Any]]
    whole: int

    def values(self, name: str) -> list[Any]:
        """Return the column `name`, with None for missing values."""
        if name not in self.names:
            return [None] * len(self.rows)
        k = self.names.index(name)
        return [None if row[k] == "" else row[k] for row in self.rows]


def get_monitor_files(path: str | os.PathLike[str]) -> list[str]:
    """List the monitor files in a directory.

    Args:
        path: the directory.

    Returns:
        The paths of its files `*monitor.csv` and `*monitor.json`, sorted by name.
    """
    directory = escape(check_path("path", path))
    return sorted(name for ext in (EXT, _OLD_EXT) for name in glob(os.path.join(directory, "*" + ext)))


def load_results(path: str | os.PathLike[str]) -> MonitorResults:
    """Read the episodes of monitor files, without a last row that was cut short or is just being written.

    Args:
        path: a directory, whose monitor files are read, or one file.

    Returns:
        The episodes of all files, in the order in which they ended.

    Raises:
        LoadMonitorResultsError: there is no monitor file, or one is malformed.
    """
    path = check_path("path", path)
    paths = [path] if os.path.isfile(path) else get_monitor_files(path)
    if not paths:
        raise LoadMonitorResultsError(f"no monitor files (*{EXT}) in {path!r}")
    files = [read_monitor_file(name) for name in paths]
    file_index = np.array([i for i, file in enumerate(files) for _ in file.rows], dtype=np.int64)
    row = np.array([k for file in files for k in range(len(file.rows))], dtype=np.int64)

    names = dict.fromkeys([*_NUMBERS, *(name for file in files for name in file.names)])
    columns = {name: _column([value for file in files for value in file.values(name)]) for name in names}
    columns["r"] = columns["r"].astype(np.float64)
    columns["l"] = columns["l"].astype(np.int64)
    starts = np.array([file.header["t_start"] for file in files], dtype=np.float64)
    ends = columns["t"] + starts[file_index]
    columns["t"] = ends - starts.min()

    order = np.argsort(ends, kind="stable")
    return MonitorResults(
        columns={name: column[order] for name, column in columns.items()},
        file_index=file_index[order],
        row=row[order],
        files=tuple(paths),
        headers=tuple(file.header for file in files),
    )


def read_monitor_file(path: str | os.PathLike[str]) -> MonitorFile:
    """Read one monitor file; LoadMonitorResultsError, with the place, if it is malformed."""
    path = os.fspath(path)
    header = read_header(path)
    with open(path, "rb") as file:
        begin, content = len(file.readline()), file.read()
    try:
        text, decoded = codecs.utf_8_decode(content)  # without a last character cut short
        table, cut = _json_rows(text) if path.endswith("json") else _csv_rows(text)
    except (UnicodeDecodeError, csv.Error) as error:
        raise LoadMonitorResultsError(f"{path!r} cannot be read: {error}") from None
    cut = cut or decoded < len(content)
    names = table.pop(0)[1] if table else list(_NUMBERS)
    missing = [name for name in _NUMBERS if name not in names]
    if missing:
        raise LoadMonitorResultsError(f"{path!r} has the columns {_short.repr(names)}, without {', '.join(missing)}")
    checks = [(names.index(name), _CHECKS[name]) for name in _NUMBERS]
    for k, (start, row) in enumerate(table):
        last = k == len(table) - 1
        good = len(row) == len(names) and all(_reads_as(check, row[i]) for i, check in checks)
        if last and (cut or not (good or text.endswith("\n"))):
            whole = begin + len(text[:start].encode())
            return MonitorFile(path, header, tuple(names), [row for _, row in table[:-1]], whole)
        if not good:
            found, columns = _short.repr(row), _short.repr(list(names))
            raise LoadMonitorResultsError(f"{path!r}: row {k + 1} is {found}, the columns are {columns}")
    return MonitorFile(path, header, tuple(names), [row for _, row in table], begin + len(content))


def read_header(path: str) -> dict[str, Any]:
    """Read the first line of a monitor file; LoadMonitorResultsError if it is not a header."""
    with open(path, "rb") as file:
        line = file.readline()
    is_json = path.endswith("json")
    try:
        if not is_json and not line.startswith(b"#"):
            raise ValueError
        header = dict(parse_json(line if is_json else line[1:]))
        _as_time(header["t_start"])
    except (ValueError, TypeError, KeyError):
        begin = line.decode(errors="replace")[:80]
        raise LoadMonitorResultsError(
            f'{path!r} should begin with a header like #{{"t_start": 0.0, "env_id": null}}, not with {begin!r}'
        ) from None
    return header


_Table = list[tuple[int, list[Any]]]  # the column names and the rows, each with the position where its line begins


def _csv_rows(text: str) -> tuple[_Table, bool]:
    """Return the rows, and whether the text ends inside quotes of the last row."""
    lines, table, start, over = io.StringIO(text, newline=""), [], 0, False

    def remaining() -> Iterator[str]:
        nonlocal over
        yield from lines
        over = True

    for row in csv.reader(remaining()):
        if row:
            table.append((start, row))
        start = lines.tell()
        if over:  # this row needed more text
            return table, True
    return table, False


def _json_rows(text: str) -> tuple[_Table, bool]:
    episodes: list[tuple[int, dict[str, Any]]] = []
    start = 0
    for line in text.split("\n"):
        try:
            if line:
                episodes.append((start, dict(parse_json(line))))
        except (ValueError, TypeError):
            episodes.append((start, {"r": line}))  # not a number: an error later, or left out as a last row cut short
        start += len(line) + 1
    names = list(dict.fromkeys([*_NUMBERS, *(name for _, episode in episodes for name in episode)]))
    return [(0, names), *((start, [episode.get(name) for name in names]) for start, episode in episodes)], False


def _reads_as(convert: Callable[[Any], Any], value: Any) -> bool:
    try:
        convert(value)
    except (TypeError, ValueError):
        return False
    return True


def _column(values: list[Any]) -> NDArray[Any]:
    """Return text or JSON values, None for missing ones, as an array of ints, floats or bools, else of objects."""
    present = [value for value in values if value is not None]
    complete = len(present) == len(values)
    for dtype, convert in ((np.int64, _as_int), (np.float64, _as_float), (np.bool_, _as_bool)):
        try:
            converted = iter([convert(value) for value in present])
        except (TypeError, ValueError):
            continue
        if complete:
            return np.array(list(converted), dtype=dtype)
        if dtype is not np.bool_:
            return np.array([np.nan if value is None else next(converted) for value in values], dtype=np.float64)
        values = [None if value is None else next(converted) for value in values]
    column = np.empty(len(values), dtype=object)
    for k, value in enumerate(values):  # one by one: assigned together, lists of JSON would become rows
        column[k] = value
    return column


def _as_int(value: Any) -> int:
    number = _as_float(value)
    exact = int(value) if isinstance(value, (int, str)) else None  # text like "1.0" raises: the column has floats
    if exact is None or abs(number) >= 2**63:
        raise ValueError
    return exact


def _as_float(value: Any) -> float:
    # Python reads "1_000" as a number; in a file it is text.
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise ValueError
    try:
        return float(value)
    except OverflowError:  # an int of hundreds of digits
        raise ValueError from None


def _as_length(value: Any) -> int:
    number = _as_float(value)
    if not number.is_integer() or abs(number) >= 2**63:
        raise ValueError
    return int(number)


def _as_time(value: Any) -> float:
    seconds = _as_float(value)
    if not abs(seconds) < 2**63:  # so that NaN is refused, too
        raise ValueError
    return seconds


def _as_bool(value: Any) -> bool:
    text = str(value) if isinstance(value, (bool, str)) else ""
    if text not in ("True", "False"):
        raise ValueError
    return text == "True"


_CHECKS: dict[str, Callable[[Any], Any]] = {"r": _as_float, "l": _as_length, "t": _as_time}
