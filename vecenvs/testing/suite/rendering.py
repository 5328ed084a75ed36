"""Images of the envs."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from vecenvs.testing.envs import RenderingEnv, counting_fns
from vecenvs.testing.suite.base import Conformance, Make


class RenderingConformance(Conformance):
    """render and get_images."""

    def test_get_images(self, make: Make) -> None:
        vec = make([functools.partial(RenderingEnv, tag) for tag in range(5)])
        assert vec.render_mode == "rgb_array"
        assert vec.metadata["render_fps"] == 30
        vec.reset()
        vec.step([0] * 5)
        images = vec.get_images()
        assert [(image.shape, image.dtype) for image in images] == [((4, 6, 3), np.uint8)] * 5
        assert [int(image[0, 0, 0]) for image in images] == [1, 11, 21, 31, 41]
        assert [int(image[0, 0, 0]) for image in vec.get_images([3, 1])] == [31, 11]

    def test_render_tiles_them(self, make: Make) -> None:
        """Images lie row by row in a nearly square grid; empty cells are black."""
        vec = make([functools.partial(RenderingEnv, tag + 1) for tag in range(5)])
        vec.reset()
        tiled = vec.render()
        assert isinstance(tiled, np.ndarray)
        assert tiled.dtype == np.uint8
        rows, columns = tiled.shape[0] // 4, tiled.shape[1] // 6
        assert tiled.shape == (rows * 4, columns * 6, 3)
        assert rows * columns >= 5
        values = [int(tiled[4 * r, 6 * c, 0]) for r in range(rows) for c in range(columns)]
        assert values == [10, 20, 30, 40, 50] + [0] * (rows * columns - 5)

    def test_human_mode_returns_nothing(self, make: Make) -> None:
        vec = make([functools.partial(RenderingEnv, tag, "human") for tag in range(2)])
        vec.reset()
        assert vec.render() is None

    def test_no_render_mode(self, make: Make) -> None:
        vec = make(counting_fns(2))
        assert vec.render_mode is None
        vec.reset()
        with pytest.raises((RuntimeError, ValueError), match="render_mode"):
            vec.render()

    def test_render_modes_that_differ(self, make: Make) -> None:
        with pytest.raises((RuntimeError, ValueError), match="render_mode.*1|1.*render_mode"):
            make([functools.partial(RenderingEnv, 0), functools.partial(RenderingEnv, 1, None)])
