"""PPO of RLlib over a VecEnv."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "rllib_ppo.py"


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="the tests install RLlib from Python 3.11 on")
def test_ppo_of_rllib() -> None:
    command = [sys.executable, str(EXAMPLE), "--total-timesteps", "4000"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert run.returncode == 0, run.stderr
    first, *_, last = (float(each) for each in re.findall(r"steps, mean return ([\d.]+)", run.stdout))
    assert 10 < first < last
