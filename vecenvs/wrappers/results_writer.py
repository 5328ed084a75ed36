"""Write monitor files, of the format that results.py reads."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from vecenvs.arguments import check_path, parse_path
from vecenvs.wrappers.results import EXT, read_monitor_file

_FIELDS = ("r", "l", "t")


class ResultsWriter:
    """Write a monitor file: header and column names when constructed, then one row per call, flushed at once.

    Args:
        filename: as in Monitor, but not None.
        header: the contents of the first line; "t_start" is required.
        extra_keys: the columns after r, l and t.
        override_existing: if False, append to a file that exists.

    Attributes:
        path: the absolute path of the file.
        t_start: the time from which the file's `t` counts: the header's, or that of the file appended to.

    Raises:
        ValueError: the file to append to has other columns.
        LoadMonitorResultsError: the file to append to is malformed.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        header: Mapping[str, Any],
        extra_keys: Sequence[str] = (),
        override_existing: bool = True,
    ) -> None:
        self.path = monitor_path(filename)
        self.t_start = float(header["t_start"])
        fields = (*_FIELDS, *extra_keys)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        if override_existing:
            with open(self.path, "w"):
                pass
        # Opened to append, always, so that it does not write over rows that other processes append.
        self._file = open(self.path, "a", encoding="utf-8", newline="")  # noqa: SIM115 - until close()
        self._rows = csv.DictWriter(self._file, fieldnames=fields)
        try:
            with _locked(self._file):
                if os.path.getsize(self.path):
                    self._continue(fields)
                else:
                    self._file.write(f"#{json.dumps(dict(header))}\n")
                    self._rows.writeheader()
                self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def write_row(self, episode: Mapping[str, Any]) -> None:
        """Write one row.

        Args:
            episode: the value of each column.
        """
        with _locked(self._file):
            self._rows.writerow(episode)
            self._file.flush()

    def close(self) -> None:
        """Close the file. May be called again."""
        self._file.close()

    def _continue(self, fields: tuple[str, ...]) -> None:
        """Take the `t_start` of the existing file; remove a last row that was cut short."""
        found = read_monitor_file(self.path)
        if found.names != fields:
            raise ValueError(
                f"cannot append to {self.path!r}: it has the columns {', '.join(found.names)}, this Monitor writes "
                f"{', '.join(fields)}. Give another filename, the same keywords, or override_existing=True"
            )
        self.t_start = float(found.header["t_start"])
        self._file.truncate(found.whole)
        with open(self.path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                self._file.write("\n")


@contextmanager
def _locked(file: TextIO) -> Iterator[None]:
    """Lock the file against other processes that append to it: they would find half a row, and remove it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
    except (ImportError, OSError):  # Windows, or a file system without locks; one writer per file needs none
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def monitor_path(filename: str | os.PathLike[str]) -> str:
    """Return the absolute path of the monitor file for `filename`, a directory, a prefix or a file."""
    path = parse_path("filename", filename)
    if check_path("filename", filename).endswith(os.sep) or os.path.isdir(path):
        return os.path.join(path, EXT)
    return path if path.endswith(EXT) else f"{path}.{EXT}"


def check_keywords(name: str, keywords: Any) -> tuple[str, ...]:
    """Return keywords as a tuple. TypeError for other than strings, ValueError for the names of r, l and t."""
    found = None if isinstance(keywords, str) or not isinstance(keywords, Iterable) else tuple(keywords)
    if found is None or not all(isinstance(keyword, str) for keyword in found):
        raise TypeError(f"{name} should be a sequence of strings, like ('is_success',), not {keywords!r}")
    taken = [keyword for keyword in found if keyword in _FIELDS]
    if taken:
        raise ValueError(f"{name} has {taken[0]!r}, which every monitor file has already")
    return found
