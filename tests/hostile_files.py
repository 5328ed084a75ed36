"""Damaged files and files made to do harm, for the tests of what reads them."""

from __future__ import annotations

import io
import random
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

DEEP = "[" * 100_000
HUGE = "9" * 400  # no float
LONG = "9" * 10_000  # no int that Python reads


def mutations(content: bytes, count: int) -> Iterator[bytes]:
    """Damage the content: cut it, change bytes, put parts of it elsewhere. Always the same ones."""
    dice = random.Random(18)
    yield from (content[:k] for k in range(0, len(content), max(len(content) // 100, 1)))
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(dice.randint(1, 4)):
            k = dice.randrange(len(changed))
            what = dice.randrange(4)
            if what == 0:
                changed[k] ^= 1 << dice.randrange(8)
            elif what == 1:
                changed[k] = dice.choice(b'\x00\xff0919-e[]{}",\n#:')
            elif what == 2:
                changed[k:k] = changed[dice.randrange(len(changed)) :][: dice.randint(1, 40)]
            else:
                del changed[k : k + dice.randint(1, 40)]
            changed = changed or bytearray(b"#")
        yield bytes(changed)


def read_or_refuse(read: Callable[[], Any], refusal: type[Exception], name: str) -> bool:
    """Tell whether it is read. Another error fails, and so does one that does not name the file, or is long."""
    told = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read()
    except refusal as error:
        told = str(error)
    assert told is None or (name in told and len(told) < 5000)
    return told is None


# Archives of arrays: checksums catch damage, so what does harm is made whole.


def npy(text: str, data: bytes = b"") -> bytes:
    """Return an array's file with another header."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


def array(value: Any) -> bytes:
    """Return an array's file as NumPy writes it."""
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return file.getvalue()


def rewritten(path: Path, compression: int = zipfile.ZIP_STORED, **members: bytes | None) -> None:
    """Exchange members of an archive by others; None leaves one out."""
    with zipfile.ZipFile(path) as archive:
        found: dict[str, bytes | None] = {name: archive.read(name) for name in archive.namelist()}
    found.update({f"{name}.npy": content for name, content in members.items()})
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in found.items():
            if content is not None:
                archive.writestr(name, content)


HEADERS = [
    npy("{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999999,), }"),
    npy("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999999,), }"),
    npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"),
    npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4,), }", b"\0" * 8),
    npy("{'descr': '<f8', 'fortran_order': 7, 'shape': (True,), }"),
    npy("{'descr': '|O', 'fortran_order': False, 'shape': (4,), }", b"\x80\x04."),
    npy("{'descr': [('a', 'b')], 'fortran_order': False, 'shape': (), }"),
    npy("(" * 9000),
    npy("-" * 60000 + "1"),
    npy("{'descr': '<f8'"),
    b"\x93NUMPY\x09\x09",
    b"",
    array(np.zeros((3, 3, 3))),
    array(np.array("text")),
]
TEXTS = [DEEP, HUGE, LONG, "", "[]", "null", '"text"', "{}", "\udce9", "[[1, 2]]", "NaN", '{"format": 1}']


def as_bytes(text: str) -> bytes:
    return array(np.frombuffer(text.encode(errors="surrogateescape"), np.uint8))
