"""Files of arrays: an uncompressed `.npz` whose member "header" is JSON. Nothing in it is pickled or executed."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import zipfile
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vecenvs.arguments import parse_json
from vecenvs.worker.process import HeldSignals

HEADER = "header"
_OLD_HEADER = "settings"  # of VecNormalize in version 0.1.0


class ArrayFileError(ValueError):
    """Raised for a file that is of another kind or version, or damaged. The message names the file and the reason."""


class Kind(NamedTuple):
    """What a file holds: `what` in errors, `name` and `version` in its header. Older versions can be read, too."""

    what: str
    name: str
    version: int


def write(
    path: str | os.PathLike[str], kind: Kind, header: Mapping[str, Any], arrays: Iterable[tuple[str, NDArray[Any]]]
) -> None:
    """Write a file. An old one is replaced only when the new one is complete.

    Args:
        path: the file.
        kind: the kind.
        header: everything that is no array, as JSON takes it.
        arrays: names and arrays. They are taken one by one, so large ones may be made as they are written.

    Raises:
        TypeError: `header` has a value that JSON does not take.
    """
    text = json.dumps({"format": kind.name, "version": kind.version, **header})
    part = f"{os.fsdecode(path)}.{os.getpid()}.part"
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            for name, array in itertools.chain([(HEADER, np.frombuffer(text.encode(), np.uint8))], arrays):
                # Held, as an archive with an open member raises where it is closed.
                with HeldSignals(), archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    npy.write_array(file, np.asarray(array), version=(1, 0), allow_pickle=False)
        os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


class ArrayFile:
    """An open file. All of it is checked first, so that what begins to use it does not fail halfway.

    Args:
        path: the file.
        kind: the kind that it must have.

    Attributes:
        header: the mapping given to `write`, with "format" and "version". Its values are unchecked.
        arrays: the dtype and shape of each array by its name, in the order in which they were written.

    Raises:
        ArrayFileError: the file is of another kind or version, or damaged.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], kind: Kind) -> None:
        self.path, self._kind = os.fsdecode(path), kind
        self._file = open(path, "rb")  # noqa: SIM115 - until __exit__
        try:
            self._archive = zipfile.ZipFile(self._file)
            self._check_whole()
            self.arrays = {
                member.filename.removesuffix(".npy"): self._described(member) for member in self._archive.infolist()
            }
            self.header = self._read_header()
        except Exception as exc:  # zipfile, zlib, numpy and json may raise anything for other files
            self._file.close()
            raise exc if isinstance(exc, ArrayFileError) else self.wrong(f"{type(exc).__name__}: {exc}") from exc

    def read(self, name: str) -> NDArray[Any]:
        """Read an array.

        Args:
            name: its name, a key of `arrays`.

        Returns:
            The array, which belongs to the caller.
        """
        with self._archive.open(f"{name}.npy") as file:
            array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
        return array

    def wrong(self, why: str) -> ArrayFileError:
        """Return an error.

        Args:
            why: what is wrong with the file.

        Returns:
            The error, whose message names the file and what it should be.
        """
        return ArrayFileError(f"{self.path!r} is not {self._kind.what}: {why[:500]}")

    def _check_whole(self) -> None:
        # `write` compresses nothing, and a few compressed bytes could become gigabytes.
        if any(member.compress_type != zipfile.ZIP_STORED for member in self._archive.infolist()):
            raise self.wrong("it is compressed")
        damaged = self._archive.testzip()
        if damaged is not None:
            raise self.wrong(f"its part {damaged!r} is damaged")

    def _described(self, member: zipfile.ZipInfo) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return an array's dtype and shape. ArrayFileError unless it can be read, and without a pickle."""
        with self._archive.open(member) as file:
            version = npy.read_magic(file)
            shape, _, dtype = npy.read_array_header_1_0(file)
            size = member.file_size - file.tell()
        fits = all(n >= 0 for n in shape) and size == dtype.itemsize * math.prod(shape)
        if version != (1, 0) or dtype.hasobject or not fits:
            raise self.wrong(f"its part {member.filename!r} has {size} bytes for {dtype} {shape}")
        return dtype, shape

    def _read_header(self) -> dict[str, Any]:
        found = next((name for name in (HEADER, _OLD_HEADER) if self.arrays.pop(name, None)), None)
        if found is None:
            raise self.wrong("it has no header")
        array = self.read(found)
        header: Any = parse_json(array.tobytes() if found == HEADER else str(array))
        if found == _OLD_HEADER:
            header = {**header, "format": "vecenvs-normalize", "version": header["format"]}
        if not isinstance(header, dict) or header.get("format") != self._kind.name:
            raise self.wrong(f"its header is {header!r}")
        version = header.get("version")
        if type(version) is not int or not 1 <= version <= self._kind.version:
            newer = "read it with the version of vecenvs that wrote it"
            raise self.wrong(f"it has version {version!r}, and 1 to {self._kind.version} are read here: {newer}")
        return header

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
