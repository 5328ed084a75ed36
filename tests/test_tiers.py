"""The tests can be run by a script in the background, where Ctrl-C is ignored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SHARE_A_RAY, group_of

IGNORE = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
ASK = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_programs_that_tests_start_heed_ctrl_c() -> None:
    assert subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout == "True\n"


@pytest.mark.parametrize("processes", ["0", "1"])
def test_where_a_script_runs_them_by_an_ampersand(processes: str) -> None:
    """That is a program that ignores SIGINT, and so would all that it starts."""
    test = f"{__file__}::{test_programs_that_tests_start_heed_ctrl_c.__name__}"
    pytest_line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", processes, test]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-c", IGNORE, *pytest_line], cwd=Path(__file__).parent.parent, env=environment,
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_what_shares_a_ray_or_an_mpi_is_one_processs() -> None:
    assert group_of("tests/mpi/test_launching.py::test_not_launched[mpich]") == "mpich"
    assert group_of("tests/mpi/test_launching.py::test_not_launched[openmpi]") == "openmpi"
    assert group_of("tests/ray/test_ray_nodes.py::test_nodes[lost]") == "other Rays"
    assert group_of("tests/conformance/test_contract.py::TestRules::test_one_env[dummy]") is None
    folder = Path(__file__).parent
    sharing = {path.stem for path in folder.glob("*/test_*.py") if '("ray_session")' in path.read_text()}
    assert sharing == {*SHARE_A_RAY, "test_ray_contract"}
