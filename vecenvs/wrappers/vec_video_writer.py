"""Write frames to a video file as they come, by ffmpeg."""

from __future__ import annotations

import os
from collections.abc import Generator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.errors import VecEnvError
from vecenvs.worker.process import HeldSignals

_FFMPEG_SECONDS = 20.0  # ffmpeg's time to finish a file: it is killed then, so that close() ends


class VideoWriter:
    """One video file, H.264; the ending of its name chooses the container. Frames are encoded as they come.

    All frames, uint8 (h, w, 3), have the size of the first; an odd height or width gets a black line. In the main
    thread signals are held back while a frame is being written: within one they would leave an unreadable file.

    OSError if the file cannot be written, ImportError if imageio-ffmpeg is missing, VecEnvError if ffmpeg fails.
    """

    def __init__(self, path: str | os.PathLike[str], fps: float = 30.0) -> None:
        self._ffmpeg = load_ffmpeg()
        if not fps > 0:
            raise ValueError(f"fps must be more than 0, not {fps!r}")
        self.path = os.path.abspath(os.fspath(path))
        self.frames = 0
        self._fps = float(fps)
        self._shape: tuple[int, ...] | None = None
        self._pipe: Generator[None, Any, None] | None = None
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(self.path, "wb"):  # an error should come before the first frame
            pass

    def write(self, frame: NDArray[Any]) -> None:
        """Append a frame."""
        frame = np.asarray(frame)
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ValueError(f"a frame is uint8 (h, w, 3), not {frame.dtype} {frame.shape}")
        with HeldSignals():
            if self._pipe is None:
                if self.frames:
                    raise VecEnvError(f"the video {self.path!r} is closed")
                self._shape, self._pipe = frame.shape, self._open(frame.shape)
            if frame.shape != self._shape:
                raise ValueError(f"a frame of shape {frame.shape} in a video of frames {self._shape}")
            even = np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)))
            try:
                self._pipe.send(np.ascontiguousarray(even))
            except OSError as error:
                self._pipe = None
                raise VecEnvError(
                    f"ffmpeg could not write {self.path!r}: {str(error).partition(chr(10))[0]}"
                ) from error
            self.frames += 1

    def close(self) -> None:
        """Finish the file. May be called again. A file without frames is removed."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with HeldSignals():
                pipe.close()
        elif not self.frames and os.path.exists(self.path):
            os.remove(self.path)

    def _open(self, shape: tuple[int, ...]) -> Generator[None, Any, None]:
        height, width = (size + size % 2 for size in shape[:2])
        pipe: Generator[None, Any, None] = self._ffmpeg.write_frames(
            self.path,
            (width, height),
            fps=self._fps,
            macro_block_size=2,
            quality=7,
            ffmpeg_log_level="error",
            ffmpeg_timeout=_FFMPEG_SECONDS,
        )
        pipe.send(None)
        return pipe


def load_ffmpeg() -> Any:
    """Import imageio-ffmpeg; ImportError, with the pip command, if it is missing."""
    try:
        return import_module("imageio_ffmpeg")
    except ImportError as error:
        raise ImportError("writing videos needs imageio-ffmpeg: pip install imageio-ffmpeg") from error
