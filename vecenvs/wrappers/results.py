"""Read monitor files: Stable-Baselines3's, baselines' and our own, which have one format.

A file has one line `#{"t_start": ..., "env_id": ...}` (some have a space after `#`), one line of column names, `r,l,t`
and the keywords, then one row per episode: its return, its length in steps, and the seconds from `t_start` to its end.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import reprlib
from dataclasses import dataclass
from glob import escape, glob
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.arguments import check_path, parse_json

EXT = "monitor.csv"
_NUMBERS: dict[str, type] = {"r": np.float64, "l": np.int64, "t": np.float64}
_short = reprlib.Repr()  # a damaged row may have any values, of any length
_short.maxlist, _short.maxstring, _short.maxother = 20, 80, 80


class LoadMonitorResultsError(Exception):
    """Raised when there are no monitor files, or one is malformed. The message names the file and the place."""


@dataclass(frozen=True)
class MonitorResults:
    """The n episodes of some monitor files, in the order in which they ended. `results["r"]` is the column "r".

    Attributes:
        columns: an array (n,) for each column: `r` (return, float64), `l` (length in steps, int64) and `t` (seconds
            from the earliest `t_start` of all files to the episode's end, float64), then the keywords: bool, int64
            or float64 if all values are bools or numbers, else objects. A missing value, also of an episode whose file
            lacks the column, is NaN among bools and numbers, which are float64 then; otherwise it is None.
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


class MonitorFile(NamedTuple):
    """The contents of one monitor file: in its rows, `r`, `l` and `t` are numbers, other values text.

    The file's first `whole` bytes hold these rows. A last row that was cut short may follow them.
    """

    header: dict[str, Any]
    names: tuple[str, ...]
    rows: list[dict[str, Any]]
    whole: int


def get_monitor_files(path: str | os.PathLike[str]) -> list[str]:
    """List the monitor files in a directory.

    Args:
        path: the directory.

    Returns:
        The paths of its files `*monitor.csv`, sorted by name.
    """
    directory = escape(check_path("path", path))
    return sorted(glob(os.path.join(directory, "*" + EXT)))


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
    episodes = [row for file in files for row in file.rows]
    file_index = np.repeat(np.arange(len(files)), [len(file.rows) for file in files])
    row = np.array([k for file in files for k in range(len(file.rows))], dtype=np.int64)

    names = dict.fromkeys([*_NUMBERS, *(name for file in files for name in file.names)])
    given = {name: [episode.get(name) for episode in episodes] for name in names}
    columns = {name: _column(v) if name not in _NUMBERS else np.array(v, _NUMBERS[name]) for name, v in given.items()}
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


def read_monitor_file(path: str) -> MonitorFile:
    """Read one monitor file; LoadMonitorResultsError, with the place, if it is malformed."""
    header = read_header(path)
    with open(path, "rb") as file:
        begin, content = len(file.readline()), file.read()
    try:
        text, decoded = codecs.utf_8_decode(content)  # without a last character cut short
        torn = decoded < len(content)
        lines = list(io.StringIO(text + "?" * torn, newline=""))
        (names, whole), *rows = _csv_rows(lines)
    except (UnicodeDecodeError, csv.Error) as error:
        raise LoadMonitorResultsError(f"{path!r} cannot be read: {error}") from None
    missing = [name for name in _NUMBERS if name not in names]
    if missing:
        raise LoadMonitorResultsError(f"{path!r} has the columns {_short.repr(names)}, without {', '.join(missing)}")
    found: list[dict[str, Any]] = []
    for k, (values, end) in enumerate(rows):
        row = _parsed(names, values)
        unended = end == len(lines) and not lines[-1].endswith("\n")
        if end > len(lines) or (unended and (torn or row is None)):
            break  # the last row, cut short
        if row is None:
            raise LoadMonitorResultsError(
                f"{path!r}: row {k + 1} is {_short.repr(values)}, the columns are {_short.repr(names)}"
            )
        found.append(row)
        whole = end
    return MonitorFile(header, tuple(names), found, begin + len("".join(lines[:whole]).encode()))


def read_header(path: str) -> dict[str, Any]:
    """Read the first line of a monitor file; LoadMonitorResultsError if it is not a header."""
    with open(path, "rb") as file:
        line = file.readline()
    try:
        if not line.startswith(b"#"):
            raise ValueError
        header = dict(parse_json(line[1:]))
        if not abs(_as_number(header["t_start"])) < 2**63:  # so that NaN is refused, too
            raise ValueError
    except (ValueError, TypeError, KeyError):
        begin = line.decode(errors="replace")[:80]
        raise LoadMonitorResultsError(
            f'{path!r} should begin with a header like #{{"t_start": 0.0, "env_id": null}}, not with {begin!r}'
        ) from None
    return header


def _csv_rows(lines: list[str]) -> list[tuple[list[str], int]]:
    """Return names and rows, each with the number of lines up to its end: more than there are if it is cut short."""
    reader = csv.reader([*lines, "\n"])  # the empty line belongs to the last row if that ends within quotes
    return [(row, reader.line_num) for row in reader if row] or [(list(_NUMBERS), 0)]


def _parsed(names: list[str], values: list[str]) -> dict[str, Any] | None:
    """Return a row by the names of its columns, `r`, `l` and `t` as numbers; None if it is malformed."""
    try:
        row: dict[str, Any] = dict(zip(names, values, strict=True))
        row.update({name: _as_number(row[name]) for name in _NUMBERS})
    except (TypeError, ValueError):
        return None
    return row if row["l"].is_integer() and abs(row["l"]) < 2**63 and abs(row["t"]) < 2**63 else None


def _as_number(value: Any) -> float:
    # Python reads "1_000" as a number; in a file it is text.
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise ValueError
    try:
        return float(value)
    except OverflowError:  # an int of hundreds of digits
        raise ValueError from None


def _column(values: list[str | None]) -> NDArray[Any]:
    """Return texts, "" or None for missing ones, as an array of one type of numbers, else of objects."""
    values = [value or None for value in values]
    numbers: NDArray[Any] = np.array([np.nan if value is None else _as_value(value) for value in values])
    return numbers if numbers.dtype.kind in "biuf" else np.array(values, dtype=object)


def _as_value(value: str) -> Any:
    """Return the number or bool that a text says; another text unchanged."""
    if "_" in value:
        return value
    for convert in (int, float):
        try:
            return convert(value)
        except ValueError:
            pass
    return {"True": True, "False": False}.get(value, value)
