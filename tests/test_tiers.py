"""How the tests are run: by a script in the background, where Ctrl-C is ignored; in groups; without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SHARE_A_RAY, group_of

from vecenvs.testing.suite import WorkerConformance

IGNORE = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
ASK = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def test_programs_that_tests_start_heed_ctrl_c() -> None:
    assert subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout == "True\n"


@pytest.mark.parametrize("processes", ["0", pytest.param("1", marks=pytest.mark.long)])
def test_where_a_script_runs_them_by_an_ampersand(processes: str) -> None:
    """Such a script ignores SIGINT, and so would every program that it starts."""
    test = f"{__file__}::{test_programs_that_tests_start_heed_ctrl_c.__name__}"
    pytest_line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", processes, test]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-c", IGNORE, *pytest_line], cwd=Path(__file__).parent.parent, env=environment,
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_what_loads_torch_does_so_in_one_process() -> None:
    """The top of a module is run by every process."""
    assert group_of("tests/wrappers/test_vec_monitor.py::test_as_sb3") == "torch"
    heavy = ("\nimport torch", "\nfrom torch", "\nimport stable_baselines3", "\nfrom stable_baselines3")
    texts = {path: path.read_text() for path in Path(__file__).parent.rglob("*.py") if "programs" not in path.parts}
    found = [path.name for path, text in texts.items() if any(line in text for line in heavy)]
    assert sorted(found) == ["test_sb3_examples.py", "test_sb3_training.py"], (
        "which are long: see pytest_ignore_collect"
    )


def test_what_shares_a_ray_or_an_mpi_is_one_processs() -> None:
    assert group_of("tests/mpi/test_launching.py::test_not_launched[mpich]") == "mpich"
    assert group_of("tests/mpi/test_launching.py::test_not_launched[openmpi]") == "openmpi"
    assert group_of("tests/ray/test_ray_nodes.py::test_nodes[lost]") == "other Rays"
    assert group_of("tests/conformance/test_contract.py::TestRules::test_one_env[dummy]") is None
    folder = Path(__file__).parent
    sharing = {path.stem for path in folder.glob("*/test_*.py") if '("ray_session")' in path.read_text()}
    assert sharing == {*SHARE_A_RAY, "test_ray_contract"}


@pytest.mark.long
def test_each_test_is_in_one_tier() -> None:
    """The short tier does not collect what is long, and leaves out the same combinations as the long one takes in."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}

    def collected(*arguments: str) -> list[str]:
        line = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments, "tests"]
        done = subprocess.run(
            line, cwd=Path(__file__).parents[1], env=environment, capture_output=True, text=True, check=True
        )
        return sorted(line for line in done.stdout.splitlines() if "::" in line)

    assert sorted(collected("-m", "not long") + collected("-m", "long")) == collected()


def test_the_whole_contract_has_each_test_of_the_suite() -> None:
    """A class that inherits from two with a test of one name has the first one's alone."""
    named: dict[str, list[str]] = {}
    for part in WorkerConformance.__mro__:
        for name in vars(part):
            if name.startswith("test_"):
                named.setdefault(name, []).append(part.__name__)
    assert {name: parts for name, parts in named.items() if len(parts) > 1} == {}
