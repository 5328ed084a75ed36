"""The file of a saved buffer: an .npz without pickle, written and read piece by piece.

Members: `header` (JSON as uint8), `rows` uint64 (n, words) from the oldest on, and `priorities` float32 (n,) if there
are any.
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vecenvs.arguments import parse_json
from vecenvs.replay.schema import Rows

FORMAT = "vecenvs-replay"
VERSION = 1
MEMBERS: dict[str, type | tuple[type, ...]] = {
    "schema": dict,
    "inserted": int,
    "random": (dict, type(None)),
    "extra": dict,
}  # of every header
PIECE = 65536  # rows at a time: what saving and restoring need besides the buffer itself

Path = str | os.PathLike[str]


def write(
    path: Path,
    header: Mapping[str, Any],
    rows: Iterable[Rows],
    shape: tuple[int, int],
    priorities: NDArray[np.float32] | None,
) -> None:
    """Write the file beside its place and move it there when it is complete."""
    part = f"{os.fspath(path)}.{os.getpid()}.part"
    text = json.dumps({"format": FORMAT, "version": VERSION, **header})
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            with archive.open("header.npy", "w") as file:
                npy.write_array(file, np.frombuffer(text.encode(), np.uint8), allow_pickle=False)
            with archive.open("rows.npy", "w", force_zip64=True) as file:
                described = {"descr": npy.dtype_to_descr(np.dtype(np.uint64)), "fortran_order": False, "shape": shape}
                npy.write_array_header_1_0(file, described)
                for piece in rows:
                    file.write(np.ascontiguousarray(piece).data.cast("B") if piece.size else b"")
            if priorities is not None:
                with archive.open("priorities.npy", "w", force_zip64=True) as file:
                    npy.write_array(file, priorities, allow_pickle=False)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


class ForeignFileError(ValueError):
    """A file is no saved buffer of ours, or a damaged one."""


class Reader:
    """An open file: its header at once, its rows in pieces. ValueError if it is none of ours, or damaged.

    The whole file is read through for that first, so that no restoring begins which cannot be finished. `header` has
    what every header has, in the types that `write` gives it; there are `count` rows of `words`; `priorities`, if there
    are any, are one per row. What `schema`, `random` and `extra` hold is for the caller to judge (`foreign`).
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self._file = open(self.path, "rb")  # noqa: SIM115  until `__exit__`
        try:
            self._archive = zipfile.ZipFile(self._file)
            self._check_members()
            self.header = self._read_header()
            self.count, self.words = self._rows_shape()
            self.priorities = self._read_priorities()
            if not self.count <= self.header["inserted"] < 2**63:
                raise self.foreign(f"of {self.count} rows, of which {self.header['inserted']} were inserted")
        except BaseException as exc:
            self._file.close()
            if isinstance(exc, ForeignFileError) or not isinstance(exc, Exception):
                raise
            # Whatever zipfile, zlib, numpy and json make of any other file.
            raise self.foreign(f"that cannot be read ({type(exc).__name__}: {exc})") from exc

    def rows(self) -> Iterator[Rows]:
        """Return all rows, in order, in pieces of up to PIECE."""
        with self._archive.open("rows.npy") as file:
            _read_npy_header(file)
            for begin in range(0, self.count, PIECE):
                n = min(PIECE, self.count - begin)
                yield np.frombuffer(file.read(n * self.words * 8), np.uint64).reshape(n, self.words)

    def foreign(self, why: str) -> ForeignFileError:
        """Return the error that says so of this file."""
        return ForeignFileError(f"{self.path} is no saved replay buffer: it is a file {why}")

    def _check_members(self) -> None:
        # Nothing that is written is compressed: a few bytes that claim to be gigabytes are none of it.
        if any(member.compress_type != zipfile.ZIP_STORED for member in self._archive.infolist()):
            raise self.foreign("that is compressed")
        damaged = self._archive.testzip()
        if damaged is not None:
            raise self.foreign(f"whose part {damaged!r} is damaged")

    def _read_header(self) -> dict[str, Any]:
        if "header.npy" not in self._archive.namelist():
            raise self.foreign("without a header")
        with self._archive.open("header.npy") as file:
            header: Any = parse_json(npy.read_array(file, allow_pickle=False).tobytes())
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise self.foreign(f"of format {header.get('format') if isinstance(header, dict) else header!r}")
        if header.get("version") != VERSION:
            raise self.foreign(f"of version {header.get('version')!r}, and version {VERSION} is read here")
        wrong = [name for name, kinds in MEMBERS.items() if not isinstance(header.get(name, ...), kinds)]
        if wrong:
            raise self.foreign(f"whose header lacks {', '.join(wrong)}")
        found: dict[str, Any] = header
        return found

    def _rows_shape(self) -> tuple[int, int]:
        with self._archive.open("rows.npy") as file:
            (count, words), dtype = _read_npy_header(file)
            size = self._archive.getinfo("rows.npy").file_size - file.tell()
        if dtype != np.uint64 or count < 0 or words < 0 or size != count * words * 8:
            raise self.foreign(f"of {size} bytes, which says that it has {count} rows of {words} {dtype}")
        return count, words

    def _read_priorities(self) -> NDArray[np.float32] | None:
        if "priorities.npy" not in self._archive.namelist():
            return None
        with self._archive.open("priorities.npy") as file:
            found: NDArray[np.float32] = npy.read_array(file, allow_pickle=False)
        if found.dtype != np.float32 or found.shape != (self.count,) or not (np.isfinite(found) & (found >= 0)).all():
            raise self.foreign("whose priorities are not one number from 0 on for each row")
        return found

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _read_npy_header(file: Any) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Return shape and dtype of the rows; the file then stands where these begin."""
    npy.read_magic(file)
    (count, words), _, dtype = npy.read_array_header_1_0(file)
    return (int(count), int(words)), dtype
