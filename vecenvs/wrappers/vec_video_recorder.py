"""VecVideoRecorder: record videos of all envs of a VecEnv, tiled into one picture, by ffmpeg."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.arguments import parse_int, parse_number, parse_path
from vecenvs.batch.images import tile
from vecenvs.errors import VecEnvError
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.worker.process import HeldSignals
from vecenvs.wrappers.vec_rows import VecBatchWrapper, begins

_FFMPEG_SECONDS = 20.0  # ffmpeg's time to finish a file: it is killed then, so that close() ends


class VecVideoRecorder(VecBatchWrapper):
    """Record videos `<video_folder>/<name_prefix>-step-<a>-to-step-<a + video_length>.mp4` (SB3's wrapper).

    After a reset, and after each step while no video is being recorded, `record_video_trigger` is called. A video
    begins with the picture of that moment. A `recv` counts as a step, unless all its rows are the first of an episode:
    its envs are rendered anew, the others show their last image. Frames are written as they come. `close` finishes a
    video, also after a KeyboardInterrupt.

    Args:
        venv: a VecEnv whose envs have `render_mode="rgb_array"`.
        video_folder: the directory; it is made if it is missing.
        record_video_trigger: a function of the number of steps taken, which says whether a video begins.
        video_length: steps per video, at least 1.
        name_prefix: the beginning of the files' names.
        fps: frames per second of the video; None for the envs' `metadata["render_fps"]`, or 30.

    Attributes:
        step_id: the number of steps taken.
        video_path: the file of the last video, or None.

    Raises:
        VecEnvError: the envs have another render mode.
        ImportError: imageio-ffmpeg is missing.
        TypeError: `record_video_trigger` is not a function, or another argument has a wrong type.
        ValueError: `video_length` is less than 1, or `fps` not more than 0.
    """

    def __init__(
        self,
        venv: VecEnv,
        video_folder: str | os.PathLike[str],
        record_video_trigger: Callable[[int], bool],
        video_length: int = 200,
        name_prefix: str = "rl-video",
        fps: float | None = None,
    ) -> None:
        super().__init__(venv)
        if venv.render_mode != "rgb_array":
            raise VecEnvError(
                f"VecVideoRecorder needs images, but the envs have render_mode={venv.render_mode!r}: "
                "make them with render_mode='rgb_array'"
            )
        if not callable(record_video_trigger):
            raise TypeError(f"record_video_trigger must be a function of the step number, not {record_video_trigger!r}")
        self.video_length = parse_int("video_length", video_length, 1)
        load_ffmpeg()  # here, so that a missing library is noticed before the first video begins
        self.video_folder = parse_path("video_folder", video_folder)
        os.makedirs(self.video_folder, exist_ok=True)
        self.record_video_trigger = record_video_trigger
        self.name_prefix = name_prefix
        self.fps = float((venv.metadata or {}).get("render_fps") or 30) if fps is None else parse_number("fps", fps)
        if not self.fps > 0:
            raise ValueError(f"fps must be more than 0, not {fps!r}")
        self.step_id = 0
        self.video_path: str | None = None
        self._writer: VideoWriter | None = None
        self._images: list[Any] = []

    @property
    def recording(self) -> bool:
        """Whether a video is being recorded."""
        return self._writer is not None

    def _on_batch(self, batch: Batch, call: str, *, lock_step: bool) -> None:
        if not len(batch):  # a reset of no env shows nothing
            return
        slots = None if len(batch) == self.num_envs else batch.indices.tolist()
        if call == "step" or (call == "recv" and not begins(batch).all()):
            self.step_id += 1
        if self._writer is None:
            self._maybe_begin(slots)
        elif call != "reset":
            self._film(self._writer, slots)
            if self._writer.frames > self.video_length:
                self._finish()

    def close(self) -> None:
        """Finish the video, then close the envs."""
        try:
            self._finish()
        finally:
            super().close()
            self._images = []  # a closed VecEnv, which may be kept, holds no images

    def _maybe_begin(self, slots: Sequence[int] | None) -> None:
        if not self.record_video_trigger(self.step_id):
            return
        name = f"{self.name_prefix}-step-{self.step_id}-to-step-{self.step_id + self.video_length}.mp4"
        self.video_path = os.path.join(self.video_folder, name)
        self._writer = VideoWriter(self.video_path, self.fps)
        self._film(self._writer, slots)

    def _film(self, writer: VideoWriter, slots: Sequence[int] | None) -> None:
        if slots is None:
            self._images = self.venv.get_images()
        else:  # the others may be stepping
            images = self.venv.get_images(slots)
            each = len(slots) // max(1, len(images))  # rows of an image: agents of one env have one
            for slot, image in zip(slots[:: each or 1], images, strict=True):
                if not self._images:
                    self._images = [image * 0] * (self.num_envs // each)
                self._images[slot // each] = image
        writer.write(tile(self._images))

    def _finish(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class VideoWriter:
    """One video file, H.264; the ending of its name chooses the container. Frames are encoded as they come.

    All frames, uint8 (h, w, 3), have the size of the first; an odd height or width gets a black line. In the main
    thread signals are held back while a frame is being written: within one they would leave an unreadable file. The
    same signal once more is not: ffmpeg may have stopped.

    OSError if the file cannot be written, ImportError if imageio-ffmpeg is missing, VecEnvError if ffmpeg fails.
    """

    def __init__(self, path: str, fps: float) -> None:
        self._ffmpeg = load_ffmpeg()
        self.path, self.frames = path, 0
        self._fps = fps
        self._shape: tuple[int, ...] | None = None
        self._pipe: Generator[None, Any, None] | None = None
        with open(self.path, "wb"):  # an error should come before the first frame
            pass

    def write(self, frame: NDArray[Any]) -> None:
        """Append a frame."""
        frame = np.asarray(frame)
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise ValueError(f"a frame is uint8 (h, w, 3), not {frame.dtype} {frame.shape}")
        with HeldSignals(first_only=True):
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
            with HeldSignals(first_only=True):
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
