"""Write monitor files, of the format that results.py reads."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from vecenvs.arguments import check_path, parse_path
from vecenvs.wrappers.results import EXT, read_monitor_file

_FIELDS = ("r", "l", "t")
_LARGEST = 1 << 16  # bytes of a row that is written at once
_writers: dict[int, weakref.WeakSet[ResultsWriter]] = {}  # that are open, by process: a fork has copies


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
        ValueError: the file to append to has other columns; or, with `override_existing`, another process writes it.
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
        self._pid = os.getpid()
        self.t_start = float(header["t_start"])
        fields = (*_FIELDS, *extra_keys)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        # Opened to append, always, and each row is one write, so that nothing comes between rows of several processes.
        self._file = open(self.path, "a", encoding="utf-8", newline="", buffering=_LARGEST)  # noqa: SIM115 - until close()
        self._rows = csv.DictWriter(self._file, fieldnames=fields)
        try:
            alone = _lock_alone(self._file)
            if override_existing:
                if not alone and not any(each.path == self.path for each in _writers.get(os.getpid(), ())):
                    raise ValueError(
                        f"{self.path!r} is written by another process that runs: close what writes it, give each "
                        "process another filename (make_vec_env: monitor_dir or start_index), or append, with "
                        "override_existing=False"
                    )
                self._file.truncate(0)
            if os.path.getsize(self.path):
                self._continue(fields, alone)
            else:
                self._file.write(f"#{json.dumps(dict(header))}\n")
                self._rows.writeheader()
            self._file.flush()
            _share_lock(self._file)
        except BaseException:
            self._file.close()
            raise
        _writers.setdefault(os.getpid(), weakref.WeakSet()).add(self)

    def write_row(self, episode: Mapping[str, Any]) -> None:
        """Write one row.

        Args:
            episode: the value of each column.
        """
        self._rows.writerow(episode)
        self._file.flush()

    @property
    def length(self) -> int:
        """The bytes that the file has."""
        return os.path.getsize(self.path)

    def cut(self, length: int | None) -> None:
        """Remove what the file has beyond a length: rows that a run has written after its last save.

        Args:
            length: the length; None for all of it.
        """
        if length is not None and length < self.length:
            self._file.truncate(length)

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._pid == os.getpid() and not self._file.closed:
            _unlock(self._file)  # processes that were forked since have it, too
        self._file.close()
        _writers.get(os.getpid(), weakref.WeakSet()).discard(self)

    def _continue(self, fields: tuple[str, ...], alone: bool) -> None:
        """Take the `t_start` of the existing file; if `alone`, remove a last row that was cut short."""
        found = read_monitor_file(self.path)
        with open(self.path, "rb") as file:
            lines = file.readlines()
            if alone and len(lines) == 1:  # a first write that got no further than that
                self._file.write("" if lines[0].endswith(b"\n") else "\n")
                self._rows.writeheader()
                self.t_start = float(found.header["t_start"])
                return
        if found.names != fields:
            raise ValueError(
                f"cannot append to {self.path!r}: it has the columns {', '.join(found.names)}, this Monitor writes "
                f"{', '.join(fields)}. Give another filename, the same keywords, or override_existing=True"
            )
        self.t_start = float(found.header["t_start"])
        if not alone:
            return
        self._file.truncate(found.whole)
        with open(self.path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                self._file.write("\n")


def _lock_alone(file: TextIO) -> bool:
    """Lock the file, and return True, if no other writer has it; else wait until others can have it, too."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(file, fcntl.LOCK_SH)  # its header is complete then
        return False
    except (ImportError, OSError):  # Windows, or a file system without locks
        return True
    return True


def _unlock(file: TextIO) -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


def _share_lock(file: TextIO) -> None:
    """Let others append from now on. As long as this one is open they see that it is written."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH)


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
