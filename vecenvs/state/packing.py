"""Plain data (see `encoding`) as JSON, with all arrays and bytes in one block beside it."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr


class Packer:
    """Turns plain data into JSON and bytes: one block, since a file may have some thousand arrays."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._size = 0

    def packed(self, node: Any) -> Any:
        """Return JSON, in which arrays and bytes are places in the block."""
        if type(node) is list or type(node) is tuple:
            return [self.packed(each) for each in node]
        if type(node) is dict:
            return {key: self.packed(each) for key, each in node.items()}
        if isinstance(node, np.ndarray):
            axes = axes_of(node)
            place = {"axes": axes, "at": self._put(node.transpose(axes).tobytes())}
            return {"@": _text_of(node.dtype), "shape": node.shape, **place}
        return {"@": "", "size": len(node), "at": self._put(node)} if type(node) is bytes else node

    def _put(self, data: bytes) -> int:
        at, self._size = self._size, self._size + len(data)
        self.parts.append(data)
        return at


def unpacked(node: Any, data: bytes) -> Any:
    """Return plain data again, of the JSON and the block that a Packer has made."""
    if type(node) is list:
        return [unpacked(each, data) for each in node]
    if type(node) is not dict:
        return node
    if "@" not in node:
        return {key: unpacked(each, data) for key, each in node.items()}
    if not node["@"]:
        return data[node["at"] : node["at"] + node["size"]]
    dtype, shape = _dtype_of(node["@"]), tuple(node["shape"])
    flat, axes = np.frombuffer(data, dtype, int(np.prod(shape, dtype=np.int64)), node["at"]), node["axes"]
    return flat.reshape([shape[axis] for axis in axes]).transpose(np.argsort(axes)).copy("K")


def axes_of(array: Any) -> list[int]:
    """Return the axes of an array in the order of its memory: 0, 1, ... in C's. What has one item lies anywhere."""
    if array.flags.c_contiguous:
        return [*range(array.ndim)]
    return sorted(range(array.ndim), key=lambda axis: (array.shape[axis] > 1, -abs(array.strides[axis])))


def _text_of(dtype: np.dtype[Any]) -> str:
    """Return a dtype as text: of one with fields the list that NumPy's own files have."""
    return dtype.str if dtype.names is None else repr(dtype_to_descr(dtype))


def _dtype_of(text: str) -> np.dtype[Any]:
    described: Any = ast.literal_eval(text) if text.startswith("[") else text
    return descr_to_dtype(described)
