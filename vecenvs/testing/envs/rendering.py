"""An env that renders."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.testing.envs.counting import CountingEnv


class RenderingEnv(CountingEnv):
    """Render images.

    Args:
        tag: a number, to tell envs apart.
        render_mode: "rgb_array" for images uint8 (4, 6, 3) filled with 10 * tag + t; "human" or None for nothing.
        length: steps per episode.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"], "render_fps": 30}  # noqa: RUF012  as Env has it

    def __init__(self, tag: int = 0, render_mode: str | None = "rgb_array", length: int = 5) -> None:
        super().__init__(tag, length)
        self.render_mode = render_mode

    def render(self) -> NDArray[np.uint8] | None:
        if self.render_mode != "rgb_array":
            return None
        return np.full((4, 6, 3), 10 * self.tag + self.t, np.uint8)
