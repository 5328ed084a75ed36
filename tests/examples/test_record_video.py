"""examples/record_video.py films envs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from later import Later

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "record_video.py"
cv2 = Later("cv2")


def test_a_film(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--num-envs", "2", "--total-timesteps", "10", "--video-folder", "films"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "films").iterdir()
    film = cv2.VideoCapture(str(path))
    frames = []
    while (read := film.read())[0]:
        frames.append(read[1])
    film.release()
    assert len(frames) >= 5
    assert frames[0].shape == (800, 600, 3)
    assert frames[0].std() > 5
