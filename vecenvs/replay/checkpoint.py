"""Files of saved buffers: .npz without pickles, written and read in pieces.

Members: `header` (JSON as uint8); `rows` uint64 (n, words) from the oldest on; `priorities` float32 (n,), optional.
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
}  # in every header
PIECE = 65536  # rows: the memory that saving and restoring take besides the buffer

Path = str | os.PathLike[str]


def write(
    path: Path,
    header: Mapping[str, Any],
    rows: Iterable[Rows],
    shape: tuple[int, int],
    priorities: NDArray[np.float32] | None,
) -> None:
    """Write to a file beside `path`, and move it to `path` when it is complete."""
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
    """A file is no saved buffer, or a damaged one."""


class Reader:
    """An open file with its header; `rows` reads the rows in pieces.

    ForeignFileError if the file is no saved buffer, or damaged: the whole file is checked first, so that a restore
    which has begun does not fail. `header` has the MEMBERS of every header, in their types. There are `count` rows of
    `words`, with one entry of `priorities` each unless that is None. The caller checks `schema`, `random` and `extra`.
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
            # zipfile, zlib, numpy and json may raise anything for other files.
            raise self.foreign(f"that cannot be read ({type(exc).__name__}: {exc})") from exc

    def rows(self) -> Iterator[Rows]:
        """Yield all rows in order, in pieces of at most PIECE."""
        with self._archive.open("rows.npy") as file:
            _read_npy_header(file)
            for begin in range(0, self.count, PIECE):
                n = min(PIECE, self.count - begin)
                yield np.frombuffer(file.read(n * self.words * 8), np.uint64).reshape(n, self.words)

    def foreign(self, why: str) -> ForeignFileError:
        """Return the error of a file `why`."""
        return ForeignFileError(f"{self.path} is no saved replay buffer: it is a file {why}")

    def _check_members(self) -> None:
        # `write` compresses nothing: a small file cannot claim gigabytes.
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
    """Read up to the first row; return the rows' shape and dtype."""
    npy.read_magic(file)
    (count, words), _, dtype = npy.read_array_header_1_0(file)
    return (int(count), int(words)), dtype
