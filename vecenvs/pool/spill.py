"""Bytes that are kept in memory up to a limit, and beyond it in a file without a name."""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import Any, NamedTuple

_PAGE = 1 << 16
MEMORY = 64 << 20


class Kept(NamedTuple):
    """Where bytes are: here, or in pages of the file."""

    size: int
    data: bytes | None
    pages: tuple[int, ...] = ()


class Spill:
    """Keeps bytes. `folder` is where the file is made if one is needed; its pages are used again."""

    def __init__(self, folder: str, memory: int = MEMORY) -> None:
        self._folder, self._left = folder, memory
        self._file: Any = None
        self._free: list[int] = []
        self._end = 0

    def put(self, data: bytes) -> Kept:
        """Keep some bytes."""
        if len(data) <= self._left:
            self._left -= len(data)
            return Kept(len(data), data)
        if self._file is None:
            os.makedirs(self._folder, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        pages = []
        for at in range(0, len(data), _PAGE):
            if self._free:
                page = self._free.pop()
            else:
                page, self._end = self._end, self._end + 1
            os.pwrite(self._file.fileno(), data[at : at + _PAGE], page * _PAGE)
            pages.append(page)
        return Kept(len(data), None, tuple(pages))

    def get(self, kept: Kept) -> bytes:
        """Return what was kept."""
        if kept.data is not None:
            return kept.data
        pages = (os.pread(self._file.fileno(), _PAGE, page * _PAGE) for page in kept.pages)
        return b"".join(pages)[: kept.size]

    def free(self, kept: Kept) -> None:
        """Forget it."""
        self._free += kept.pages
        if kept.data is not None:
            self._left += kept.size
