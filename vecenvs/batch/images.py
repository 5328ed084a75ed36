"""Tile the images of many envs into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def tile(images: Sequence[Any]) -> NDArray[np.uint8]:
    """Tile n images (h, w, c), row by row, into one (H * h, W * w, c), about square. The rest of it is black."""
    stack = np.stack([np.asarray(image, dtype=np.uint8) for image in images])
    n, h, w, c = stack.shape
    rows = int(np.ceil(np.sqrt(n)))
    columns = -(-n // rows)
    full = np.zeros((rows * columns, h, w, c), np.uint8)
    full[:n] = stack
    return full.reshape(rows, columns, h, w, c).swapaxes(1, 2).reshape(rows * h, columns * w, c)
