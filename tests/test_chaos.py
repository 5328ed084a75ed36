"""A few rounds of the chaos program, which `make chaos` plays for as long as one likes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.rounds import ENGINES

HERE = Path(__file__).parent


SHORT = ["subproc-fork"]
LONG = ["caller", "dummy"]
RELEASE = [name for name in ENGINES if name not in SHORT + LONG]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "engine",
    [
        *SHORT,
        *(pytest.param(name, marks=pytest.mark.long) for name in LONG),
        *(pytest.param(name, marks=[pytest.mark.long, pytest.mark.release]) for name in RELEASE),
    ],
)
def test_a_few_rounds(engine: str) -> None:
    """Nothing is lost, doubled, hung or left behind."""
    found = subprocess.run(
        [sys.executable, "-m", "chaos", "--quick", "--engine", engine],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout
