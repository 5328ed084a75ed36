"""docs/replay.md: its blocks run."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import run
from ray_session import ENVIRONMENT, no_leaks  # noqa: F401

pytestmark = pytest.mark.long


@pytest.mark.timeout(120)
def test_its_blocks_run(tmp_path: Path) -> None:
    said = run("docs/replay.md", tmp_path, timeout=100.0, **ENVIRONMENT)
    assert "'capacity': 100000" in said
    assert (tmp_path / "buffer.npz").exists()
