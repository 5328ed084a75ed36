"""A window that shows images, by pygame, which Gymnasium's own envs draw with, too."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.errors import BackendUnavailable, VecEnvError

_NOWHERE = ("offscreen", "dummy")  # what SDL falls back to


class Window:
    """A window with one image. It is opened with the first image, and has its size.

    Args:
        title: the text above it.

    Raises:
        BackendUnavailable: pygame is not installed.
    """

    def __init__(self, title: str) -> None:
        try:
            import pygame
        except ImportError as error:
            raise BackendUnavailable(
                f"render('human') shows images with pygame ({error}): pip install pygame-ce, or use the image that "
                "render() returns"
            ) from error
        self._pygame: Any = pygame
        self._title = title
        self._size: tuple[int, int] | None = None
        self._left = False

    def show(self, image: NDArray[np.uint8]) -> None:
        """Show an image, uint8 (height, width, 3). Nothing is shown once the user has closed the window.

        Args:
            image: the image.

        Raises:
            VecEnvError: there is no display.
        """
        if self._left:
            return
        size = (image.shape[1], image.shape[0])
        display = self._pygame.display
        try:
            if size != self._size or display.get_surface() is None:
                display.init()
                if display.get_driver() in _NOWHERE and "SDL_VIDEODRIVER" not in os.environ:
                    raise self._pygame.error("this machine has no display")
                display.set_mode(size)
                display.set_caption(self._title)
                self._size = size
            surface = self._pygame.image.frombuffer(np.ascontiguousarray(image).tobytes(), size, "RGB")
            display.get_surface().blit(surface, (0, 0))
            display.flip()
            left = any(event.type == self._pygame.QUIT for event in self._pygame.event.get())
        except self._pygame.error as error:
            raise VecEnvError(
                f"render('human') can open no window ({error}): use the image that render() returns"
            ) from error
        if left:
            self.close()

    def close(self) -> None:
        """Close the window. It may be called again."""
        self._left = True
        if self._size is not None:
            self._size = None
            self._pygame.display.quit()
