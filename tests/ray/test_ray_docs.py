"""docs/ray.md: its blocks run."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import run
from ray_session import ENVIRONMENT, no_leaks  # noqa: F401

pytestmark = pytest.mark.long


def test_its_blocks_run(tmp_path: Path) -> None:
    run("docs/ray.md", tmp_path, **ENVIRONMENT)
