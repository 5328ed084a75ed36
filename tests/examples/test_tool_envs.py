"""Envs of text that ask a tool over HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "tool_envs.py"


@pytest.mark.long
@pytest.mark.timeout(120)
def test_text_envs_that_ask_a_server() -> None:
    command = [sys.executable, str(EXAMPLE), "--num-envs", "16", "--total-timesteps", "160"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    rows, solved = re.findall(r"(\d+) rows, \d+ a second, (\d+)% solved", run.stdout)[-1]
    assert int(rows) >= 160
    assert 70 <= int(solved) <= 100
    assert not run.stderr
