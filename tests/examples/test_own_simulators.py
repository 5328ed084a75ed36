"""Envs with a port, a display and a GPU each. tests/mpi and tests/ray run it on these engines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from own_simulators import assert_own_simulators, free_ports

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_simulators.py"


@pytest.mark.long
@pytest.mark.parametrize(("backend", "num_workers"), [("dummy", 1), ("subproc", 2)])
def test_own_simulators(backend: str, num_workers: int) -> None:
    command = [sys.executable, str(EXAMPLE), "--backend", backend, "--total-timesteps", "40"]
    command += ["--first-port", str(free_ports(4))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert_own_simulators(done.stdout, num_workers)
