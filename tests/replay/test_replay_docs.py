"""docs/replay.md: its blocks run."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import run
from ray_session import ENVIRONMENT, no_leaks  # noqa: F401


@pytest.mark.timeout(120)
def test_its_blocks_run(tmp_path: Path) -> None:
    said = run("docs/replay.md", tmp_path, timeout=100.0, **ENVIRONMENT)
    assert "'ignored_priorities': 0, 'version': 1," in said  # 0 and 1 were published, at the updates 0 and 10
    assert (tmp_path / "buffer.npz").exists()
