"""Several nodes: rows between them, and nodes that are lost. Each scenario is a program with a cluster of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray_session import ENVIRONMENT, ROOT, no_leaks  # noqa: F401

pytestmark = pytest.mark.long


@pytest.mark.timeout(260)
@pytest.mark.parametrize(
    "scenario",
    ["compare", "leader", "killed", "mixed", "lost", "restart", "move", "wait", "elastic", "elastic_subsets"],
)
def test_nodes(scenario: str) -> None:
    script = Path(__file__).with_name("two_nodes.py")
    found = subprocess.run(
        [sys.executable, str(script), scenario],
        env={**os.environ, **ENVIRONMENT},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    assert found.stdout.rstrip().endswith("done")
