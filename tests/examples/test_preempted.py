"""The program of docs/clusters.md, preempted as schedulers do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from vecenvs.testing.suite.deaths import PROMPT

PROGRAM = Path(__file__).parents[2] / "examples" / "preempted.py"


@pytest.mark.sparse
@PROMPT
@pytest.mark.parametrize("backend", ["subproc", "dummy"])
def test_each_run_goes_on_where_the_last_one_was_preempted(backend: str, tmp_path: Path) -> None:
    """By signals to the whole process group."""
    checkpoint = tmp_path / "checkpoint.npz"
    steps = 0
    for number in (signal.SIGUSR1, signal.SIGTERM):
        with subprocess.Popen(
            [sys.executable, str(PROGRAM), str(checkpoint), "--backend", backend],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])},
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"begins at step {steps}\n"
            time.sleep(1.0)
            os.killpg(process.pid, number)
            out, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
        with np.load(checkpoint) as saved:
            assert saved["steps"] >= steps
            steps = int(saved["steps"])
            assert saved["states"].shape == (8, 4)
        assert out == f"saved at step {steps}\n"
