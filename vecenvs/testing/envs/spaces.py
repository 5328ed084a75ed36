"""Named spaces that cover everything that a batch can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class LabelSpace(spaces.Space[str]):
    """A space of a class unknown to all libraries: strings "label-0" to "label-9"."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return f"label-{self.np_random.integers(10)}"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and x.startswith("label-")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelSpace)

    def __hash__(self) -> int:
        return hash(LabelSpace)


NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 3, 3), np.uint8),
        "inner": spaces.Dict({"speed": spaces.Box(-5.0, 5.0, (2,), np.float64), "gear": spaces.Discrete(5, start=-1)}),
        "pair": spaces.Tuple((spaces.MultiBinary(4), spaces.MultiDiscrete([3, 7]))),
    }
)

SPACES: dict[str, spaces.Space[Any]] = {
    "nested": NESTED,
    "tuple": spaces.Tuple((spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(4), NESTED)),
    "scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "float64": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "float16": spaces.Box(-1.0, 1.0, (5,), np.float16),
    "uint8": spaces.Box(0, 255, (7,), np.uint8),
    "int32": spaces.Box(-9, 9, (1,), np.int32),
    "bool": spaces.Box(0, 1, (3,), np.bool_),
    "empty": spaces.Box(0.0, 1.0, (2, 0), np.float32),
    "discrete": spaces.Discrete(6, start=3),
    "multidiscrete": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multibinary": spaces.MultiBinary((2, 3)),
    "text": spaces.Text(12),
    "sequence": spaces.Sequence(spaces.Box(0.0, 1.0, (2,), np.float32)),
    "stacked_sequence": spaces.Sequence(spaces.Discrete(4), stack=True),
    "graph": spaces.Graph(spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3)),
    "one_of": spaces.OneOf((spaces.Discrete(3), spaces.Box(0.0, 1.0, (2,), np.float32))),
    "custom": LabelSpace(),
    "objects_inside": spaces.Dict({"name": spaces.Text(5), "x": spaces.Box(0.0, 1.0, (2,), np.float32)}),
}
