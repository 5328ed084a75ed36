"""The exit code of a job on several nodes: mpirun's, as far as it agrees with what rank 0 has said. Needs no MPI."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vecenvs.backends.mpi import status_file

LAUNCHER = """
import sys
from vecenvs.mpi import supervise

supervise.LOOK, supervise.END_PATIENCE, supervise.SHORT_PATIENCE = 0.05, 0.2, 0.1
supervisor = supervise.Supervisor(alone={alone})
sys.exit(supervisor.run([sys.executable, "-c", {program!r}, str(supervisor.status), *sys.argv[1:]], None))
"""
# The module by itself: with the package around it, each of these processes would take most of a second to start.
RANK_0 = f"""
import os, sys
os.environ["PMI_RANK"] = "0"
sys.path.append({os.path.dirname(status_file.__file__)!r})
import status_file as said
said.begin(sys.argv[1])
"""
BESIDE_RANK_0 = f"""
import subprocess, sys, time
subprocess.run([sys.executable, "-c", {RANK_0!r} + sys.argv[2], sys.argv[1]])
subprocess.Popen(["sleep", "60"])  # in place of ssh
time.sleep(60)
"""


def launcher(program: str, *arguments: str, alone: bool = True) -> list[str]:
    return [sys.executable, "-c", LAUNCHER.format(alone=alone, program=program), *arguments]


def run(program: str, *arguments: str, alone: bool = True) -> tuple[int, str]:
    done = subprocess.run(
        launcher(program, *arguments, alone=alone), check=False, capture_output=True, text=True, timeout=50
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("said.succeed()", 0),
        pytest.param("said.succeed(); sys.exit(3)", 3, marks=pytest.mark.long),  # some rank has failed
        ("said.succeed(); said.incomplete(); sys.exit(3)", 0),  # as ranks are lost; the script is not to blame
        ("sys.exit(3)", 3),
        pytest.param("", 1, marks=pytest.mark.long),
        ("os.kill(os.getpid(), 9)", 137),
    ],
)
def test_exit_code(rest: str, expected: int) -> None:
    assert run(RANK_0 + rest)[0] == expected


def test_a_rank_0_elsewhere_says_nothing() -> None:
    assert run("") == (0, "")
    assert run("import sys; sys.exit(3)") == (3, "")


def test_without_a_word_of_success() -> None:
    assert "the script on rank 0 has not come to its end" in run(RANK_0)[1]


def test_a_rank_0_that_is_killed_before_it_sees_a_connection_end() -> None:
    said = "said.note_placed('rank 2, with envs 4-7'); "
    assert "it had used rank 2, with envs 4-7" in run(RANK_0 + said + "os._exit(1)")[1]
    assert "rank 2" not in run(RANK_0 + said + "said.ending(); os._exit(1)")[1]


def test_what_is_lost() -> None:
    said = "said.note_hang_up(4, 'rank 2 is gone'); said.note_hang_up(5, 'rank 3 is gone'); said.explain(5)\n"
    assert "vecenvs.mpi: rank 2 is gone" in run(RANK_0 + said)[1]
    cut_short = run(RANK_0 + said + "os._exit(1)")[1]
    assert "rank 3 is gone" in cut_short  # explained a moment ago: by the loss of its node
    in_order = run(RANK_0 + said + "said.ending(); sys.exit(1)")[1]
    assert "rank 3 is gone" not in in_order
    assert "is gone" not in run(RANK_0 + said + "said.succeed()")[1]


@pytest.mark.parametrize(("rest", "expected"), [("said.succeed()", 0), ("said.incomplete()", 1), ("said.ending()", 1)])
def test_mpirun_does_not_end(rest: str, expected: int) -> None:
    code, text = run(BESIDE_RANK_0, rest)
    assert code == expected
    assert "mpirun has not ended" in text


def test_an_mpirun_that_refuses_to_end() -> None:
    code, _ = run("import signal; signal.signal(15, signal.SIG_IGN)\n" + BESIDE_RANK_0, "said.ending()")
    assert code == 1


def test_every_rank_runs_the_script() -> None:
    """Then the others may go on after rank 0, and fail."""
    program = BESIDE_RANK_0.partition("subprocess.Popen")[0] + "time.sleep(0.5); sys.exit(4)"
    assert run(program, "said.succeed(); said.ending()", alone=False) == (4, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals(number: int, tmp_path: Path) -> None:
    """Reach mpirun; if the launcher is killed, mpirun is ended all the same."""
    program = "import os, sys, time; open(sys.argv[2], 'w').write(str(os.getpid())); time.sleep(60)"
    with subprocess.Popen(launcher(program, str(tmp_path / "pid")), start_new_session=True) as running:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.02)
        pid = int((tmp_path / "pid").read_text())
        running.send_signal(number)
        assert running.wait(30) != 0
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("mpirun lives")
