"""What is left of a program that ends in any way: nothing."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
import warnings
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from bytecodes import interrupted
from conftest import Configuration

import vecenvs
from vecenvs import SubprocVecEnv
from vecenvs.backends import subproc
from vecenvs.pool.finalizers import Finalizer
from vecenvs.pool.pool_base import PoolBase
from vecenvs.pool.workers import Workers
from vecenvs.testing import leaks
from vecenvs.testing.envs import FailingEnv, counting_fns
from vecenvs.transport.memory import TAG

matrix = "by fork"
SCRIPT = Path(__file__).parent / "scripts" / "stepper.py"
TOKEN = "VECENVS_TEST_TOKEN"
PATIENCE = 60.0  # seconds until a test gives up; what it waits for takes far less


class Program:
    """The script in a process group of its own, and everything it started, found by a token in its environment."""

    def __init__(self, configuration: Configuration, ending: str, directory: Path, **more: Any) -> None:
        self.token = uuid.uuid4().hex
        kwargs = json.dumps({**configuration.kwargs, **more})
        command = [sys.executable, str(SCRIPT), configuration.backend, kwargs, ending]
        self.process = subprocess.Popen(
            [*command, str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, TOKEN: self.token, "PYTHONPATH": str(Path(vecenvs.__file__).parents[1])},
            start_new_session=True,
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "ready\n", self.process.communicate()

    def wait_for_workers(self, count: int) -> None:
        leaks.wait_until_empty(lambda: [] if len(self.alive()) > count else ["too few"], PATIENCE)

    def alive(self) -> dict[int, str]:
        return leaks.processes_with(TOKEN, self.token)

    def end(self) -> tuple[int, str]:
        """Wait for its exit; return exit code and stderr."""
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors

    def assert_all_gone(self) -> None:
        left = leaks.wait_until_empty(self.alive, PATIENCE)
        assert not left


@pytest.fixture
def run(configuration: Configuration, tmp_path: Path) -> Iterator[type]:
    """Start programs; whatever is left of them is killed after the test."""
    programs: list[Program] = []

    def start(ending: str, **more: Any) -> Program:
        programs.append(Program(configuration, ending, tmp_path, **more))
        return programs[-1]

    yield start  # type: ignore[misc]
    for program in programs:
        for pid in program.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.process.communicate()


@pytest.mark.sparse
@pytest.mark.parametrize("where", ["stepping", "in_step", "in_reset", "in_init"])
def test_sigkill_of_the_caller(run, where: str) -> None:
    program = run(where)
    program.wait_ready()
    if where == "in_init":
        program.wait_for_workers(1)
    os.kill(program.process.pid, signal.SIGKILL)
    program.process.wait()
    program.assert_all_gone()


@pytest.mark.parametrize("where", ["stepping", "in_step"])
def test_sigkill_of_a_caller_that_could_restart(run, where: str) -> None:
    """Restarts keep the names of semaphores for workers to come; they go with the caller all the same."""
    program = run(where, on_failure="restart")
    program.wait_ready()
    os.kill(program.process.pid, signal.SIGKILL)
    program.process.wait()
    program.assert_all_gone()


def test_a_caller_that_becomes_another_program(run) -> None:
    """After `os.execv` there is still a process of its number, which knows of no workers."""
    program = run("exec")
    program.wait_ready()
    pid = program.process.pid
    left = leaks.wait_until_empty(lambda: [other for other in program.alive() if other != pid], PATIENCE)
    assert not left
    assert program.process.poll() is None


ENDINGS = {
    "kill": "",
    # As where the system takes its time between closing a killed process's files and telling of its end.
    "hang up": """
    for end in list(subproc._caller_ends):
        end.close()
    for child in multiprocessing.active_children():
        child.join()
""",
}


@pytest.mark.sparse
@pytest.mark.parametrize(("ending", "created"), [("kill", 1), ("kill", 2), ("kill", 5), ("hang up", 5)])
def test_sigkill_of_a_caller_that_has_just_created_semaphores(ending: str, created: int) -> None:
    """The batch's, and two of each worker: their names are told to the workers before there is one."""
    program = f"""
import multiprocessing, os, signal
from vecenvs import SubprocVecEnv
from vecenvs.backends import subproc
from vecenvs.testing.envs import counting_fns
from vecenvs.transport.memory import Semaphore
caller, made, create = os.getpid(), [], Semaphore.__init__

def create_and_die(self, *args, **kwargs):
    create(self, *args, **kwargs)
    made.append(self)
    if len(made) == {created} and os.getpid() == caller:
        end()

def end():
    {ENDINGS[ending]}
    os.kill(caller, signal.SIGKILL)

Semaphore.__init__ = create_and_die
SubprocVecEnv(counting_fns(2), 2, "fork")
"""
    before = leaks.shared_memory_files()
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE, check=False).returncode == -signal.SIGKILL
    left = leaks.wait_until_empty(lambda: leaks.files_left(before), PATIENCE)
    for name in left:
        (leaks.SHM / name).unlink()
    assert not left


def test_sigkill_of_everyone_at_once(run) -> None:
    """Nobody is left to clean up, so there must be nothing to clean."""
    program = run("stepping")
    program.wait_ready()
    for pid in program.alive():
        os.kill(pid, signal.SIGKILL)
    program.process.wait()
    program.assert_all_gone()


@pytest.mark.sparse
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_to_the_process_group(run, number: signal.Signals) -> None:
    """Also in restart mode, where workers that are launched later have to find what they share with the caller."""
    program = run("stepping", on_failure="restart")
    program.wait_ready()
    os.killpg(program.process.pid, number)
    program.process.wait()
    program.assert_all_gone()


def test_sigterm_of_the_caller(run) -> None:
    program = run("stepping")
    program.wait_ready()
    program.process.terminate()
    program.end()
    program.assert_all_gone()


@pytest.mark.parametrize("where", ["stepping", "in_step"])
def test_ctrl_c(run, where: str) -> None:
    """The signal goes to the whole group, as from a terminal. One traceback, the caller's; workers keep quiet."""
    program = run(where)
    program.wait_ready()
    os.killpg(program.process.pid, signal.SIGINT)
    code, errors = program.end()
    assert code in (-signal.SIGINT, 130)
    assert errors.count("Traceback") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    program.assert_all_gone()


def test_ctrl_c_in_the_constructor(run) -> None:
    program = run("in_init")
    program.wait_ready()
    program.wait_for_workers(1)
    os.killpg(program.process.pid, signal.SIGINT)
    _, errors = program.end()
    assert errors.count("Traceback") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    program.assert_all_gone()


def test_ctrl_c_that_is_caught(run) -> None:
    """The VecEnv can still be closed in the usual way."""
    program = run("catch")
    program.wait_ready()
    os.killpg(program.process.pid, signal.SIGINT)
    assert program.end() == (0, "")
    program.assert_all_gone()


@pytest.mark.parametrize("ending", ["forget", "forget_mid_step"])
def test_a_program_without_close(run, ending: str) -> None:
    program = run(ending)
    assert program.end() == (0, "")
    program.assert_all_gone()


def test_a_program_that_raises(run) -> None:
    program = run("raise")
    code, errors = program.end()
    assert code == 1
    assert errors.count("Traceback") == 1, errors
    assert "ZeroDivisionError" in errors
    program.assert_all_gone()


def test_descriptors_threads_and_maps(configuration: Configuration, request: pytest.FixtureRequest) -> None:
    """Making and closing again and again costs nothing in the end, without a run of the collector."""
    gc.collect()
    request.addfinalizer(gc.enable)
    gc.disable()

    def cycle() -> tuple[dict[str, int], int, int]:
        with configuration.make_vec(counting_fns(4)) as vec:
            vec.reset()
            vec.step([0] * 4)
        del vec
        maps = [
            line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line or "/dev/shm" in line
        ]
        return leaks.open_files(), threading.active_count(), len(maps)

    cycle()
    cycle()  # what is made once and kept (a fork server's pipe) is there now
    assert cycle() == cycle()


@pytest.mark.sparse
@pytest.mark.parametrize("call", ["step", "recv", "get_attr"])
def test_an_error_that_is_forgotten_holds_no_memory(request: pytest.FixtureRequest, call: str) -> None:
    """No cycle leads from an EnvError over its traceback to the VecEnv. That of an env in this process has frames."""
    gc.collect()
    request.addfinalizer(gc.enable)
    gc.disable()

    def fail(vec: SubprocVecEnv) -> None:
        if call == "step":
            vec.step([0] * 4)
        elif call == "recv":
            vec.send([0] * 4, range(4))
            vec.recv(indices=range(4))
        else:
            vec.get_attr("no_such_attribute")

    def cycle() -> int:
        vec = SubprocVecEnv([FailingEnv] * 4, num_workers=2, start_method="fork", caller_steps=False)
        vec.reset()
        failed = 0
        try:
            fail(vec)
        except vecenvs.EnvError as exc:
            failed = len(exc.errors)
        vec.close()
        assert failed == 4
        return leaks.open_files()

    cycle()
    assert cycle() == cycle()


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_dropped_without_close(configuration: Configuration, on_failure: str) -> None:
    """It is warned of, and closed, at once: no garbage collector knows how large its memory is."""
    vec = configuration.make_vec(counting_fns(4), on_failure=on_failure)
    vec.reset()
    alive = weakref.ref(vec)
    try:
        with pytest.warns(ResourceWarning, match="not closed"):
            del vec
    finally:
        if (vec := alive()) is not None:
            vec.close()


def test_envs_of_this_process_are_closed_without_a_warning(tmp_path: Path) -> None:
    """As in Gymnasium's SyncVectorEnv and SB3's DummyVecEnv: there are no workers to forget."""
    path = tmp_path / "closed"
    vec = vecenvs.DummyVecEnv(counting_fns(2, closed_file=path))
    vec.reset()
    del vec
    gc.collect()
    assert path.read_text().split() == ["0", "1"]


def test_dropped_where_warnings_are_errors(configuration: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers are ended before anything is raised."""
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: raised.append(unraisable.exc_type))
    vec = configuration.make_vec(counting_fns(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del vec
        gc.collect()
    assert raised == [ResourceWarning]
    assert not leaks.wait_until_empty(leaks.child_processes, PATIENCE)


class TestNotByFork:
    """What above all differs where the caller steps envs, too, and by the fork server. The long tier has all of it."""

    matrix = "not fork"

    def test_sigkill_of_the_caller(self, run) -> None:
        test_sigkill_of_the_caller(run, "in_step")

    def test_ctrl_c(self, run) -> None:
        test_ctrl_c(run, "in_step")

    def test_a_program_without_close(self, run) -> None:
        test_a_program_without_close(run, "forget_mid_step")


def leave_a_semaphore(environ: Mapping[str, str]) -> Path:
    """Run a program that makes one, and ends; return its file."""
    program = "from vecenvs.transport import memory; print(memory.Semaphore().name, end='')"
    environ = {**environ, "PYTHONPATH": str(Path(vecenvs.__file__).parents[1])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    return leaks.SHM / f"sem.{done.stdout[1:]}"


class TestTheWatch:
    """The checks themselves: a leak must not pass."""

    def test_a_process(self) -> None:
        with pytest.raises(AssertionError, match="left behind: process"), leaks.no_leaks(patience=0.1):
            child = subprocess.Popen(["sleep", "60"])
        child.kill()
        child.wait()

    def test_a_zombie(self) -> None:
        with pytest.raises(AssertionError, match="zombie"), leaks.no_leaks(patience=0.1):
            child = subprocess.Popen(["true"])
        child.wait()

    def test_a_file(self) -> None:
        path = leaks.SHM / f"{leaks.tag_names()}test"
        with pytest.raises(AssertionError, match=path.name), leaks.no_leaks(patience=0.1):
            path.touch()
        path.unlink()

    def test_a_semaphore_of_a_program(self) -> None:
        with pytest.raises(AssertionError) as caught, leaks.no_leaks(patience=0.1):
            path = leave_a_semaphore(os.environ)
        path.unlink()
        assert path.name.startswith(leaks.tag_names())
        assert str(caught.value) == f"left behind: {path}"

    def test_a_semaphore_that_another_process_of_tests_has_left(self) -> None:
        with leaks.no_leaks(patience=0.1):
            path = leave_a_semaphore({name: value for name, value in os.environ.items() if name != TAG})
        path.unlink()

    def test_a_file_of_another_program(self, tmp_path: Path) -> None:
        """Who has made a semaphore maps it under another name than who has opened it."""
        name = f"/test-{os.getpid()}"
        program = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "from vecenvs.transport.memory import Semaphore, unlink_semaphores\n"
            "name, folder = sys.argv[1], Path(sys.argv[2])\n"
            "made = Semaphore(name, create=True)\n"
            "(folder / 'ready').touch()\n"
            f"for _ in range(int({PATIENCE} / 0.02)):\n"
            "    time.sleep(0.02)\n"
            "    if (folder / 'stop').exists():\n"
            "        break\n"
            "unlink_semaphores([name])\n"
        )
        with leaks.no_leaks(patience=0.1):
            # By way of a shell that ends: then it is no descendant of this process.
            command = [sys.executable, "-c", program, name, str(tmp_path)]
            subprocess.run(["sh", "-c", '"$@" >/dev/null 2>&1 &', "sh", *command], check=True)
            ready = leaks.wait_until_empty(lambda: [] if (tmp_path / "ready").exists() else ["not yet"], PATIENCE)
            assert not ready
        assert f"sem.{name[1:]}" in leaks.shared_memory_files()
        (tmp_path / "stop").touch()
        assert not leaks.wait_until_empty(lambda: leaks.shared_memory_files() & {f"sem.{name[1:]}"}, PATIENCE)


@pytest.mark.long
def test_an_interrupted_close_is_made_good_by_the_next_one() -> None:
    """At whatever bytecode of `close` the handler of a signal raises."""
    files = {inspect.getsourcefile(each) for each in (PoolBase, Finalizer, Workers)}
    for bytecodes in itertools.count(0, 3):
        vec = SubprocVecEnv(counting_fns(2), 2, "fork")
        pids = [worker["pid"] for worker in vec.stats()["workers"]]
        came = interrupted(vec.close, bytecodes, files)
        vec.close()
        assert vec.closed
        assert not {*vars(vec)} & {*vec._parts}, bytecodes  # else one that is referenced keeps its memory
        left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        for process in left:
            process.kill()
        assert not left, bytecodes
        if not came:
            break


@pytest.mark.parametrize("made", ["vecenvs.transport.shared.Rings", "vecenvs.pool.pool_base.SharedBatchColumns"])
def test_ctrl_c_between_making_memory_and_keeping_it(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No semaphore is left, though nothing refers to what was made."""
    module, name = made.rsplit(".", 1)
    make = getattr(sys.modules[module], name)

    def interrupted_make(*args: Any, **kwargs: Any) -> None:
        make(*args, **kwargs)
        raise KeyboardInterrupt

    before = leaks.shared_memory_files()
    monkeypatch.setattr(made, interrupted_make)
    with pytest.raises(KeyboardInterrupt):
        SubprocVecEnv(counting_fns(2), 2)
    assert not leaks.files_left(before)


def test_ctrl_c_while_semaphores_are_unlinked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does so once more. Its workers would, too; but they may be killed before that."""
    serve = subproc.serve_worker

    def interrupted_unlink(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    def serve_without_names(*args: Any) -> None:
        serve(*args[:-2], (), args[-1])

    before = leaks.shared_memory_files()
    monkeypatch.setattr("vecenvs.backends.subproc.serve_worker", serve_without_names)
    monkeypatch.setattr("vecenvs.transport.shared.unlink_semaphores", interrupted_unlink)
    with pytest.raises(KeyboardInterrupt):
        SubprocVecEnv(counting_fns(2), 2, "fork")
    assert not leaks.files_left(before)
