"""VecVideoRecorder: its videos are read again, frame by frame."""

from __future__ import annotations

import gc
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from later import Later

from vecenvs import DummyVecEnv
from vecenvs.errors import VecEnvError
from vecenvs.testing.envs import RenderingEnv
from vecenvs.views import from_gymnasium
from vecenvs.wrappers import VecVideoRecorder
from vecenvs.wrappers.vec_video_recorder import VideoWriter

cv2 = Later("cv2")


class Large(RenderingEnv):
    """A picture large enough for a codec to keep its colour."""

    def render(self) -> Any:
        small = super().render()
        return None if small is None else np.repeat(np.repeat(small, 9, axis=0), 9, axis=1)[:35]


class Bright(Large):
    """A picture that is different at each step."""

    def render(self) -> Any:
        return super().render() * np.uint8(10)


def make(n: int = 3) -> DummyVecEnv:
    return DummyVecEnv([partial(Large, tag, length=100) for tag in range(n)])


def frames(path: Path) -> list[Any]:
    reader = cv2.VideoCapture(str(path))
    found = []
    while (read := reader.read())[0]:
        found.append(read[1])
    reader.release()
    return found


def test_a_reset_of_no_env_shows_nothing(tmp_path: Path) -> None:
    with VecVideoRecorder(make(), tmp_path, lambda step: True, video_length=1) as vec:
        assert vec.reset([]).shape == (0, 3)
        assert not vec.recording
        vec.reset([1])
        assert vec.recording


def test_a_closed_one_holds_no_images(tmp_path: Path) -> None:
    """Also where a program keeps it."""
    vec = VecVideoRecorder(make(), tmp_path, lambda step: True, video_length=1)
    vec.reset()
    image = weakref.ref(vec._images[0])
    vec.close()
    gc.collect()
    assert image() is None


def test_films_by_step(tmp_path: Path) -> None:
    with VecVideoRecorder(make(), tmp_path / "films", lambda step: step in (0, 6), video_length=4) as vec:
        vec.reset()
        for _ in range(8):
            vec.step([0, 0, 0])
    names = sorted(path.name for path in (tmp_path / "films").iterdir())
    assert names == ["rl-video-step-0-to-step-4.mp4", "rl-video-step-6-to-step-10.mp4"]
    first, second = (frames(tmp_path / "films" / name) for name in names)
    assert len(first) == 5
    assert len(second) == 3  # closed before its end
    assert first[0].shape == (70, 108, 3)
    for t, frame in enumerate(first):
        for tag, (y, x) in enumerate([(17, 27), (17, 81), (52, 27)]):
            assert frame[y, x] == pytest.approx(10 * tag + t, abs=4)
        assert frame[52, 81] == pytest.approx(0, abs=4)


def test_films_by_recv(tmp_path: Path) -> None:
    with VecVideoRecorder(make(), tmp_path, lambda step: step == 0, video_length=3, name_prefix="x") as vec:
        vec.reset()
        vec.send([0, 0, 0])
        vec.recv(1, 1)
        vec.send([0], [0])
        vec.recv(3)
        vec.send([0], [1])
        vec.recv(1)
        assert vec.video_path is not None
        assert not vec.recording
        found = frames(Path(vec.video_path))
    assert len(found) == 4
    assert found[-1][17, 27] == pytest.approx(2, abs=4)
    assert found[-1][17, 81] == pytest.approx(12, abs=4)


def test_first_rows_that_come_by_recv_are_no_step(tmp_path: Path) -> None:
    with VecVideoRecorder(make(), tmp_path, lambda step: step == 0, video_length=3) as vec:
        vec.reset_async()
        received = len(vec.recv())
        assert (vec.step_id, vec.recording) == (0, True)
        while received < 3:
            received += len(vec.recv())
        assert vec.step_id == 0
        vec.send([0] * 3)
        vec.recv(3)
        assert vec.step_id == 1
    assert [path.name for path in tmp_path.iterdir()] == ["rl-video-step-0-to-step-3.mp4"]


def test_a_step_on_which_all_episodes_begin_counts(tmp_path: Path) -> None:
    env_fns = [partial(Large, tag, length=2) for tag in range(2)]
    with VecVideoRecorder(DummyVecEnv(env_fns, autoreset="next_step"), tmp_path, lambda step: False) as vec:
        vec.reset()
        for _ in range(6):
            vec.step([0, 0])
        assert vec.step_id == 6


def test_films_of_a_vector_env_by_portions(tmp_path: Path) -> None:
    """It steps all its envs at once; videos show the rows that have been received."""
    vector_env = SyncVectorEnv([partial(Bright, tag, length=100) for tag in range(3)])
    with VecVideoRecorder(from_gymnasium(vector_env), tmp_path, lambda step: step == 0, video_length=5) as vec:
        vec.reset()
        vec.send([0, 0, 0])
        for _ in range(3):
            vec.recv(1, 1)
        vec.send([0, 0, 0])
        vec.recv(2, 2)
        vec.recv(1)
        assert not vec.recording
        vec.record_video_trigger = lambda step: True
        vec.reset([1])
        assert vec.recording
        path = vec.video_path
    film = frames(tmp_path / "rl-video-step-0-to-step-5.mp4")
    found = [[float(frame[y, x].mean()) for y, x in ((17, 27), (17, 81), (52, 27))] for frame in film]
    expected = [[0, 10, 20], [1, 10, 20], [1, 11, 20], [1, 11, 21], [2, 12, 21], [2, 12, 22]]
    assert np.array(found) == pytest.approx(10 * np.array(expected), abs=4)
    assert path is not None
    assert len(frames(Path(path))) == 1


def test_what_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DummyVecEnv([partial(RenderingEnv, render_mode=None)]) as vec, pytest.raises(VecEnvError, match="rgb_array"):
        VecVideoRecorder(vec, tmp_path, lambda step: True)
    with make() as vec:
        with pytest.raises(ValueError, match="video_length"):
            VecVideoRecorder(vec, tmp_path, lambda step: True, video_length=0)
        with pytest.raises(TypeError, match="video_length must be an int, not '9'"):
            VecVideoRecorder(vec, tmp_path, lambda step: True, video_length="9")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="record_video_trigger"):
            VecVideoRecorder(vec, tmp_path, 3)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
        with pytest.raises(ImportError, match="pip install imageio-ffmpeg"):
            VecVideoRecorder(vec, tmp_path, lambda step: True)


def test_a_writer_checks_its_frames(tmp_path: Path) -> None:
    writer = VideoWriter(str(tmp_path / "film.mp4"), 10.0)
    writer.write(np.zeros((20, 30, 3), np.uint8))
    with pytest.raises(ValueError, match="shape"):
        writer.write(np.zeros((20, 32, 3), np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        writer.write(np.zeros((20, 30, 3)))
    writer.close()
    writer.close()
    with pytest.raises(VecEnvError, match="closed"):
        writer.write(np.zeros((20, 30, 3), np.uint8))
    assert len(frames(tmp_path / "film.mp4")) == 1
    VideoWriter(str(tmp_path / "none.mp4"), 10.0).close()
    assert not (tmp_path / "none.mp4").exists()
    with pytest.raises(IsADirectoryError):
        VideoWriter(str(tmp_path), 10.0)
