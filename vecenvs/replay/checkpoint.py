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

from vecenvs.replay.schema import Rows

FORMAT = "vecenvs-replay"
VERSION = 1
MEMBERS = ("schema", "inserted", "random", "extra")  # of every header
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


class Reader:
    """An open file: its header at once, its rows in pieces. ValueError if it is none of ours, or damaged.

    The whole file is read through for that first, so that nobody begins to restore what cannot be finished.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        try:
            self._archive = zipfile.ZipFile(self._path)
        except zipfile.BadZipFile:
            raise self._foreign("no .npz file") from None
        try:
            damaged = self._archive.testzip()
            if damaged is not None:
                raise self._foreign(f"whose part {damaged!r} is damaged")
            self.header = self._read_header()
            with self._archive.open("rows.npy") as file:
                self.count = self._shape(file)[0]
        except (zipfile.BadZipFile, EOFError):
            self._archive.close()
            raise self._foreign("that is damaged") from None
        except BaseException:
            self._archive.close()
            raise

    def _read_header(self) -> dict[str, Any]:
        try:
            with self._archive.open("header.npy") as file:
                header: Any = json.loads(npy.read_array(file, allow_pickle=False).tobytes())
        except (KeyError, ValueError):
            raise self._foreign("without a header") from None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise self._foreign(f"of format {header.get('format') if isinstance(header, dict) else header!r}")
        if header.get("version") != VERSION:
            raise self._foreign(f"of version {header.get('version')!r}, and version {VERSION} is read here")
        missing = [member for member in MEMBERS if member not in header]
        if missing:
            raise self._foreign(f"whose header lacks {', '.join(missing)}")
        found: dict[str, Any] = header
        return found

    def rows(self) -> Iterator[Rows]:
        """Give all rows, in order, in pieces of up to PIECE. ValueError if the file is cut short."""
        with self._archive.open("rows.npy") as file:
            count, words = self._shape(file)
            for begin in range(0, count, PIECE):
                n = min(PIECE, count - begin)
                data = file.read(n * words * 8)
                if len(data) != n * words * 8:
                    raise self._foreign("cut short")
                yield np.frombuffer(data, np.uint64).reshape(n, words)

    def priorities(self) -> NDArray[np.float32] | None:
        """Give the priorities, if any were saved."""
        if "priorities.npy" not in self._archive.namelist():
            return None
        with self._archive.open("priorities.npy") as file:
            found: NDArray[np.float32] = npy.read_array(file, allow_pickle=False)
        return found

    def _shape(self, file: Any) -> tuple[int, int]:
        npy.read_magic(file)
        shape, _, _ = npy.read_array_header_1_0(file)
        return int(shape[0]), int(shape[1])

    def _foreign(self, why: str) -> ValueError:
        return ValueError(f"{self._path} is no saved replay buffer: it is a file {why}")

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._archive.close()
