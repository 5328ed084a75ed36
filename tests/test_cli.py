"""`python -m vecenvs`: finding commands, and the benchmark from the command line to its files."""

from __future__ import annotations

import json
import os
import platform
import pty
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import vecenvs
from vecenvs.__main__ import commands, main
from vecenvs.bench import contest, limit, workloads

QUICK = ["--seconds", "0.02", "--repeats", "2"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    """Return the exit code of a command, also where argparse exits by itself."""
    try:
        return main(arguments)
    except SystemExit as leaving:
        return int(str(leaving.code))


class TestCommands:
    def test_help_lists_every_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--help") == 0
        out = capsys.readouterr().out
        assert "bench" in commands()
        for name in commands():
            (line,) = (line for line in out.splitlines() if line.split()[:1] == [name])
            summary = import_module(f"vecenvs.cli.{name}").__doc__
            assert summary is not None
            assert line.split(maxsplit=1)[1] == summary.splitlines()[0]

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--version") == 0
        assert capsys.readouterr().out == f"vecenvs {vecenvs.__version__}\n"

    def test_no_command_is_bad_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run() == 2
        assert "COMMAND" in capsys.readouterr().out

    def test_a_command_explains_itself(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("bench", "--help") == 0
        out = capsys.readouterr().out
        assert "--num-envs" in out
        assert "spin:100us" in out

    @pytest.mark.parametrize(("name", "hint"), [("bnech", "did you mean 'bench'?"), ("qqq", "there are bench")])
    def test_an_unknown_command_names_those_there_are(
        self, name: str, hint: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(name) == 2
        err = capsys.readouterr().err
        assert hint in err
        assert err.count("\n") == 1


SMALL = ["CartPole-v1", "--num-envs", "2"]


class TestOutputWithoutReader:
    """As with `| head -1`: a command ends, has written its files, and prints no error."""

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["--help"],
            ["run", *SMALL, "--backend", "dummy", "--steps", "20", "--quiet"],
            *(
                pytest.param(arguments, marks=pytest.mark.long)
                for arguments in (
                    ["bench", *SMALL, "--backends", "dummy", *QUICK, "--no-chart", "--json", "out"],
                    ["run", "--help"],
                    ["tune", *SMALL, "--budget", "0.5", "--json", "out"],
                    ["plot", str(Path(__file__).parent / "data" / "monitor"), "--smooth", "1", "--out", "out.png"],
                    ["doctor"],
                )
            ),
        ],
        ids=" ".join,
    )
    def test_stdout(self, arguments: list[str], here: Path) -> None:
        code, err = run_unread(arguments, "stdout")
        assert code in ((0, 141) if "--help" in arguments else (141,))  # argparse drops what it cannot write
        assert "Error" not in err
        assert "Exception" not in err
        assert all((here / name).stat().st_size > 0 for name in ("out", "out.png") if name in arguments)

    @pytest.mark.long
    def test_each_line_at_once(self, here: Path) -> None:
        arguments = ["bench", *SMALL, "--backends", "dummy", *QUICK, "--no-chart", "--json", "out"]
        assert run_unread(arguments, "stdout", PYTHONUNBUFFERED="1")[0] == 141
        assert (here / "out").stat().st_size > 0

    @pytest.mark.long
    def test_stderr(self, here: Path) -> None:
        assert run_unread(["bench", *SMALL, "--backends", "dummy", *QUICK, "--no-chart"], "stderr") == (141, "")
        assert run_unread(["bench", "--repeats", "0"], "stderr") == (2, "")


def run_unread(arguments: list[str], unread: str, **environ: str) -> tuple[int, str]:
    """Return the exit code of a command with no reader for one stream, and what it wrote to the other."""
    reader, writer = os.pipe()
    os.close(reader)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environ}
    read = {"stdout": "stderr", "stderr": "stdout"}[unread]
    command = [sys.executable, "-m", "vecenvs", *arguments]
    streams = {unread: writer, read: subprocess.PIPE}
    try:
        done = subprocess.run(command, **streams, text=True, env=environ, timeout=60, check=False)  # type: ignore[call-overload]
    finally:
        os.close(writer)
    return done.returncode, getattr(done, read)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # nobody has the other end any more
        return b""


class TestBench:
    @pytest.mark.long
    def test_measures_prints_and_writes(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code = run("bench", "CartPole-v1", "--num-envs", "1", "2", *QUICK, "--json", "out.json")
        out = capsys.readouterr().out
        assert code == 0
        for text in ("dummy", "subproc:caller", "share of the limit", "no Monitor", "chart: bench-CartPole-v1.png"):
            assert text in out
        assert (here / "bench-CartPole-v1.png").read_bytes().startswith(b"\x89PNG")
        data = json.loads((here / "out.json").read_text())
        assert {(row["candidate"], row["num_envs"]) for row in data["results"]} >= {("dummy", 1), ("subproc", 2)}
        assert data["settings"] == {"num_envs": [1, 2], "seconds": 0.02, "repeats": 2}
        expected = "python -m vecenvs bench CartPole-v1 --num-envs 1 2 --seconds 0.02 --repeats 2"
        assert data["command"] == expected

    @pytest.mark.long
    def test_the_record_does_not_identify_the_machine(self, here: Path) -> None:
        run("bench", "spin:0us", "--num-envs", "1", "--backends", "dummy", *QUICK, "--json", str(here / "out.json"))
        text = (here / "out.json").read_text()
        assert str(here) not in text
        assert json.dumps(platform.node())[1:-1] not in text.replace(platform.release(), "")
        assert "gymnasium" in json.loads(text)["versions"]

    @pytest.mark.long
    def test_native(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        few = ["--num-envs", "64", "--seconds", "0.02", "--repeats", "1", "--json", "found.json"]
        assert main(["bench", "CartPole-v1", "--vectorization", "native", "--backends", "dummy", *few]) == 0
        said = capsys.readouterr().out
        assert "Every row counts" in said
        assert "native loop" in said
        assert "chart: bench-CartPole-v1-native.png" in said
        record = json.loads(Path("found.json").read_text(encoding="utf-8"))
        assert record["command"].endswith("--vectorization native")
        assert record["results"][0]["share"]["median"] > 0
        assert main(["bench", "Acrobot-v1", "--vectorization", "native", "--backends", "dummy", *few]) == 2
        assert "no vector_entry_point" in capsys.readouterr().err

    @pytest.mark.long
    def test_with_monitor(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["--num-envs", "2", "--backends", "dummy", "--monitor", "--no-chart"]
        assert run("bench", "CartPole-v1", *arguments, *QUICK) == 0
        assert "Monitor included" in capsys.readouterr().out
        assert list(here.iterdir()) == []

    @pytest.mark.long
    def test_a_backend_that_fails_does_not_end_the_others(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["--num-envs", "2", "--backends", "subproc:w=3", "dummy", "--no-chart"]
        assert run("bench", "spin:0us", *arguments, *QUICK) == 1
        out = capsys.readouterr().out
        assert "subproc:w=3 failed with 2 envs" in out
        assert "KiB" in out

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["CartPol-v1"], "unknown env 'CartPol-v1'"),
            (["CartPole-v1", "--backends", "subprocess"], "unknown backend 'subprocess'"),
            (["CartPole-v1", "--num-envs", "0"], "at least 1"),
            (["CartPole-v1", "--num-envs", "8", "-3"], "-3"),
            (["CartPole-v1", "--seconds", "0"], "above 0"),
            (["CartPole-v1", "--seconds", "inf"], "above 0"),
            (["CartPole-v1", "--repeats", "x"], "at least 1"),
            (["CartPole-v1", "--env-kwargs", "[1]"], "JSON object"),
            (["CartPole-v1", "--env-kwargs", '{"no_such": 1}'], "cannot make the env"),
            (["CartPole-v1", "--json", "nowhere/out.json"], "cannot be written"),
            (["CartPole-v1", "--chart", "chart.gif"], ".png"),
            (["spin:fast"], "'fast' is no time"),
            ([], "ENV"),
        ],
    )
    def test_bad_input_is_one_line(
        self, here: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("bench", *arguments) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.startswith("python -m vecenvs bench: error: ")
        assert err.count("\n") == 1
        assert list(here.iterdir()) == []

    @pytest.mark.parametrize("name", ["rich", "matplotlib", "psutil"])
    def test_a_missing_library_is_named(
        self, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = sys.modules["vecenvs.bench"].find_spec
        monkeypatch.setattr("vecenvs.bench.find_spec", lambda asked: None if asked == name else found(asked))
        assert run("bench", "CartPole-v1") == 2
        err = capsys.readouterr().err
        assert f"pip install {name}" in err

    @pytest.mark.long
    def test_messages_are_printed_above_the_bar(self, here: Path) -> None:
        """Of this process and of workers; a bar and a message never share a line of the terminal."""
        (here / "loud.py").write_text(
            "import gymnasium, sys\n"
            "def make():\n"
            "    print('to stdout', flush=True)\n"
            "    sys.stderr.write('to stderr\\n')\n"
            "    return gymnasium.make('CartPole-v1')\n"
        )
        terminal, inside = pty.openpty()
        command = ["bench", "loud:make", "--num-envs", "2", "--backends", "subproc:fork", *QUICK, "--no-chart"]
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TERM": "xterm", "COLUMNS": "120"}
        process = subprocess.Popen(
            [sys.executable, "-m", "vecenvs", *command],
            stdin=subprocess.DEVNULL, stdout=inside, stderr=inside, cwd=here, env=environ,
        )  # fmt: skip
        os.close(inside)
        shown = b""
        try:
            while chunk := _read(terminal):
                shown += chunk
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
            process.wait()
            os.close(terminal)
        lines = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown).decode().replace("\r", "\n").splitlines()
        messages = [line for line in lines if "to std" in line]
        assert {"to stdout", "to stderr"} == {*messages}
        assert len(messages) >= 2 * 2 * 2, "two envs of two rounds, and those that were weighed"
        assert any("round 2 of 2" in line for line in lines)

    @pytest.mark.long
    def test_keeps_what_was_measured_before_a_bare_loop_failed(
        self, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Results are written after each turn, since what is measured may also end the process."""
        rounds = []

        def run_limit(loops: limit.BareLoops, seconds: float, warmup: float) -> contest.Timing:
            rounds.append(json.loads(Path("out.json").read_text())["readings"] if Path("out.json").exists() else [])
            if len(rounds) == 3:
                raise workloads.BadRequest("the env's process died")
            return contest.Timing(1000, 1.0)

        monkeypatch.setattr(limit.BareLoops, "run", run_limit)
        arguments = ["--num-envs", "2", "--backends", "dummy", "--no-chart", "--json", "out.json"]
        assert run("bench", "spin:0us", *arguments, *QUICK) == 1
        out, err = capsys.readouterr()
        assert "share of the limit" in out
        assert err.splitlines()[-1] == "the env's process died: the table has the turns up to then"
        assert [len(readings) for readings in rounds] == [0, 0, 3]
        assert len(json.loads(Path("out.json").read_text())["readings"]) == 4

    @pytest.mark.long
    def test_ctrl_c_ends_it_cleanly(self, here: Path) -> None:
        sizes = [str(size) for size in range(1, 60)]
        command = [sys.executable, "-m", "vecenvs", "bench", "spin:0us", "--num-envs", *sizes, *QUICK]
        with subprocess.Popen(
            [*command, "--backends", "dummy", "subproc:caller"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            start_new_session=True,
        ) as process:
            assert process.stderr is not None
            assert "measured 1 env" in process.stderr.readline()
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the whole foreground process group
            out, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in err
        assert "interrupted" in err
        assert "share of the limit" in out
