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

supervise._LOOK, supervise.PATIENCE = 0.05, 0.5
supervisor = supervise.Supervisor(alone={alone}, grace={grace})
sys.exit(supervisor.run([sys.executable, "-c", {program!r}, supervisor.status, *sys.argv[1:]], None))
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


END = "said.script_ends(0); said.end()"


def launcher(program: str, *arguments: str, alone: bool = True, grace: float = 20.0) -> list[str]:
    return [sys.executable, "-c", LAUNCHER.format(alone=alone, program=program, grace=grace), *arguments]


def run(program: str, *arguments: str, alone: bool = True) -> tuple[int, str]:
    done = subprocess.run(
        launcher(program, *arguments, alone=alone), check=False, capture_output=True, text=True, timeout=50
    )
    return done.returncode, done.stderr


@pytest.mark.sparse
@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        (END, 0),
        ("said.script_ends(3); said.end()", 3),
        (f"{END}; sys.exit(3)", 0),  # some rank has failed after the end of the script
        ("sys.exit(3)", 3),
        pytest.param("", 1, marks=pytest.mark.long),
        ("said.script_ends(0)", 1),
        ("os.kill(os.getpid(), 9)", 137),
    ],
)
def test_exit_code(rest: str, expected: int) -> None:
    assert run(RANK_0 + rest)[0] == expected


@pytest.mark.long
def test_a_rank_0_elsewhere_says_nothing() -> None:
    assert run("") == (0, "")
    assert run("import sys; sys.exit(3)") == (3, "")


def test_without_a_word_of_success() -> None:
    assert "the script on rank 0 has not come to its end" in run(RANK_0)[1]


@pytest.mark.long
def test_what_is_lost() -> None:
    said = "said.note_worker(4, 'rank 2, with envs 4-7'); said.note_worker(5, 'rank 3, with envs 8-11')\n"
    text = run(RANK_0 + said + "said.forget_worker(5); os._exit(1)")[1]
    assert "it had used rank 2, with envs 4-7\n" in text  # it was killed before it saw a connection end
    text = run(RANK_0 + said + "said.note_lost(5); said.note_lost(5); said.note_lost(6); os._exit(1)")[1]
    assert text.count("vecenvs.mpi: the worker on rank 3, with envs 8-11 was lost\n") == 1
    assert "it had used rank 2, with envs 4-7\n" in text
    assert run(RANK_0 + said + f"said.note_lost(5); {END}")[1] == ""
    text = run(RANK_0 + said + "said.note_lost(5); said.end()")[1]
    assert "rank 3" in text
    assert "rank 2" not in text


@pytest.mark.sparse
@pytest.mark.parametrize(("rest", "expected"), [(END, 0), ("said.script_ends(3); said.end()", 3), ("", 1)])
def test_mpirun_does_not_end(rest: str, expected: int) -> None:
    code, text = run(BESIDE_RANK_0, rest)
    assert code == expected
    assert "mpirun has not ended" in text


def test_an_mpirun_that_refuses_to_end() -> None:
    code, _ = run("import signal; signal.signal(15, signal.SIG_IGN)\n" + BESIDE_RANK_0, "said.end()")
    assert code == 1


@pytest.mark.long
def test_every_rank_runs_the_script() -> None:
    """Then the others may go on after rank 0, and fail."""
    program = BESIDE_RANK_0.partition("subprocess.Popen")[0] + "time.sleep(0.5); sys.exit(4)"
    assert run(program, END, alone=False) == (4, "")


@pytest.mark.long
def test_a_line_that_was_cut_short() -> None:
    """By a kill, or on a full disk: what was said before and after it counts."""
    said = "said.script_ends(3); os.write(said._file, b'{worker: 4, te' + bytes([10])); said.end()"
    assert run(RANK_0 + said)[0] == 3
    assert run(RANK_0 + f"{END}; os.write(said._file, b'{{')")[0] == 0


GOES_ON = """
import signal, time
def handler(number, _):
    open(sys.argv[2], "a").write(f"{number}\\n")
    {then}
for number in (1, 10, 12, 15):
    signal.signal(number, handler)
said.note_worker(4, "rank 2")
open(sys.argv[2], "a").write("ready\\n")
time.sleep(60)
"""


def lines(path: Path, count: int) -> list[str]:
    for _ in range(1500):
        if path.exists() and len(found := path.read_text().splitlines()) >= count:
            return found
        time.sleep(0.02)
    raise AssertionError(path.read_text() if path.exists() else "nothing")


def signalled(folder: Path, then: str, grace: float, *numbers: int) -> tuple[int, list[str]]:
    """Send signals to a launcher, each when rank 0 has had the one before; give exit code and what rank 0 has had."""
    program, path = RANK_0 + GOES_ON.replace("{then}", then), folder / "had"
    with subprocess.Popen(launcher(program, str(path), grace=grace)) as running:
        lines(path, 1)
        for count, number in enumerate(numbers):
            running.send_signal(number)
            lines(path, count + 2)
        code = running.wait(30)
    return code, path.read_text().split()[1:]


def test_signals_reach_rank_0_once(tmp_path: Path) -> None:
    end = "if number == 15: said.script_ends(7); said.end(); os._exit(0)"
    assert signalled(tmp_path, end, 60.0, 10, 12, 1, 15) == (7, ["10", "12", "1", "15"])


def test_the_grace_ends(tmp_path: Path) -> None:
    """Then mpirun is told to end, which ends its ranks; here it is the same process, which is told twice."""
    end = "if open(sys.argv[2]).read().count('15') == 2: os._exit(4)"
    assert signalled(tmp_path, end, 0.1, 15) == (4, ["15", "15"])


def test_a_second_sigterm_does_not_wait(tmp_path: Path) -> None:
    end = "if open(sys.argv[2]).read().count('15') == 2: os._exit(4)"
    assert signalled(tmp_path, end, 60.0, 15, 15) == (4, ["15", "15"])


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


def test_a_file_of_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another host the launcher's path may lead to one: nothing is written to it."""
    monkeypatch.setenv("PMI_RANK", "0")
    descriptor, where = status_file.new()
    path = where.partition("=")[0]
    with (tmp_path / "theirs").open("w") as file:
        elsewhere = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        for other in (
            f"{path}=vecenvs-mpi-of-another",
            where.replace(path, elsewhere),
            where.replace(path, "/gone"),
            "",
        ):
            status_file.begin(other)
            assert not status_file.has_reader()
    assert status_file.read(descriptor).pid is None
    os.close(descriptor)
