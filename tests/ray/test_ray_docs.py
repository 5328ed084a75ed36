"""Pages about Ray: their blocks run, and print what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import run
from ray_session import ENVIRONMENT, no_leaks  # noqa: F401

pytestmark = pytest.mark.long


@pytest.mark.parametrize("page", ["docs/ray.md", "docs/tutorials/ray.md"])
@pytest.mark.timeout(150)
def test_its_blocks_run(page: str, tmp_path: Path) -> None:
    run(page, tmp_path, timeout=140, **ENVIRONMENT)
