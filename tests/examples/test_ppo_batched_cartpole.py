"""examples/ppo_batched_cartpole.py learns CartPole, over workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "ppo_batched_cartpole.py"


@pytest.mark.timeout(400)  # under a minute with two idle cores
def test_learns_to_475() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1].split("mean return ")[1].split(",")[0]) >= 475
