"""Programs that do more than step envs: that fork, have children and signals of their own, or little room."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import gc
import multiprocessing
import os
import pickle
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import vecenvs
from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.errors import ClosedError, VecEnvError, WorkerDied
from vecenvs.testing.envs import CountingEnv, FailingEnv, counting_fns
from vecenvs.testing.suite.deaths import PROMPT
from vecenvs.worker import process
from vecenvs.worker.process import HeldSignals, child_environment, wait_for_end

FORK = multiprocessing.get_context("fork")
PATIENCE = 60.0  # seconds; what is waited for takes far less
_kept: list[Any] = []  # what a program has in its globals


class NestedEnv(CountingEnv):
    """Steps envs in processes of its own."""

    def __init__(self, *, closes: bool) -> None:
        super().__init__()
        self.inner = SubprocVecEnv(counting_fns(2), 2, "fork")
        self.closes = closes

    def step(self, action: Any) -> Any:
        self.inner.reset()
        self.inner.step([0, 0])
        return super().step(action)

    def close(self) -> None:
        if self.closes:
            self.inner.close()


class ExitingEnv(CountingEnv):
    """Ends its process at its second step."""

    def step(self, action: Any) -> Any:
        if self.steps == 1:
            os._exit(7)
        return super().step(action)


def leave_open() -> None:
    vec = SubprocVecEnv(counting_fns(2), 2, "fork")
    vec.reset()
    _kept.append(vec)


def leave_open_what_fails_to_close() -> None:
    warnings.simplefilter("error")
    _kept.extend(SubprocVecEnv([functools.partial(FailingEnv, 0, "close")], 1, "fork") for _ in range(3))


def make_and_close() -> None:
    SubprocVecEnv(counting_fns(2), 2, "fork").close()


@PROMPT
@pytest.mark.parametrize("target", [leave_open, leave_open_what_fails_to_close])
def test_a_child_of_multiprocessing_that_ends_without_close(target: Callable[[], None]) -> None:
    """It waits for its own children before it ends, and calls no hooks of atexit."""
    child = FORK.Process(target=target)
    child.start()
    child.join(PATIENCE)
    try:
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()


def send_error(end: Connection) -> None:
    try:
        make_and_close()
    except VecEnvError as error:
        end.send(str(error))


def test_a_daemonic_process() -> None:
    """As those of `multiprocessing.Pool` are."""
    ours, theirs = FORK.Pipe(duplex=False)
    child = FORK.Process(target=send_error, args=[theirs], daemon=True)
    child.start()
    theirs.close()
    try:
        with ours:
            assert ours.poll(PATIENCE)
            assert re.search("daemonic.*DummyVecEnv.*ProcessPoolExecutor", ours.recv())
        child.join(PATIENCE)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()


@PROMPT
@pytest.mark.parametrize("closes", [True, False])
def test_a_vec_env_inside_an_env(closes: bool) -> None:
    with SubprocVecEnv([functools.partial(NestedEnv, closes=closes)] * 2, 2, "fork") as vec:
        vec.reset()
        vec.step([0, 0])


def reap(*_: object) -> None:
    """Wait for any child, as programs do that have many."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


@pytest.fixture(params=[signal.SIG_IGN, reap], ids=["ignore", "reap"])
def taken_sigchld(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run as a program that reaps its children itself, so that multiprocessing cannot."""
    before = signal.signal(signal.SIGCHLD, request.param)
    yield
    signal.signal(signal.SIGCHLD, before)


@PROMPT
@pytest.mark.usefixtures("taken_sigchld")
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_deaths_of_which_somebody_else_is_told(start_method: str) -> None:
    with SubprocVecEnv([CountingEnv, ExitingEnv], 2, start_method) as vec:
        vec.reset()
        vec.step([0, 0])
        with pytest.raises(WorkerDied) as caught:
            vec.step([0, 0])
    assert caught.value.worker == 1
    assert not [child for child in multiprocessing.active_children() if "vecenvs" in child.name]


@PROMPT
@pytest.mark.usefixtures("taken_sigchld")
def test_restarts_of_which_somebody_else_is_told() -> None:
    with SubprocVecEnv([CountingEnv, ExitingEnv], 2, "fork", on_failure="restart") as vec:
        vec.reset()
        vec.step([0, 0])
        assert vec.step([0, 0])[3][1]["worker_restarted"]


@PROMPT
def test_signals_of_workers_are_not_the_callers() -> None:
    """An event loop learns of its signals through a descriptor, which a fork inherits."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno())
    try:
        with SubprocVecEnv(counting_fns(2), 2, "fork") as vec:
            vec.reset()
            os.kill(vec.call(lambda _: os.getpid(), [1])[0], signal.SIGTERM)
            vec.step([0, 0])
        with pytest.raises(BlockingIOError):
            ours.recv(1)
    finally:
        signal.set_wakeup_fd(before)
        ours.close()
        theirs.close()


@PROMPT
def test_an_exception_at_the_end_of_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Ctrl-C may come anywhere: the workers, which stand by then, are ended, and the program is not held up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vecenvs.pool.pool_base.RemoteCalls", interrupt)
    with pytest.raises(KeyboardInterrupt):
        SubprocVecEnv(counting_fns(2), 2, "fork")
    assert not [child for child in multiprocessing.active_children() if "vecenvs" in child.name]


def test_signals_wait_until_a_worker_has_been_started() -> None:
    """What their handlers raise would else come in the midst of a fork. The fork has the handlers as they were."""

    def handle(*_: object) -> None:
        raise ZeroDivisionError

    before = signal.signal(signal.SIGALRM, handle)
    reached = []
    try:
        with pytest.raises(ZeroDivisionError), child_environment():  # noqa: PT012  it raises at the end
            signal.raise_signal(signal.SIGALRM)
            child = os.fork()
            if child == 0:
                os._exit(signal.getsignal(signal.SIGALRM) is not handle)
            reached.append(os.waitpid(child, 0)[1])
        assert reached == [0]
        assert signal.getsignal(signal.SIGALRM) is handle
    finally:
        signal.signal(signal.SIGALRM, before)


def test_signals_held_within_a_block_that_holds_them_already() -> None:
    """As when an unused VecEnv is collected while a worker is being started."""
    handled: list[int] = []

    def handle(number: int, _: object) -> None:
        handled.append(number)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with child_environment():
            with HeldSignals():
                pass
            signal.raise_signal(signal.SIGALRM)
            assert handled == []
        assert handled == [signal.SIGALRM]
        assert signal.getsignal(signal.SIGALRM) is handle
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_block_that_lets_no_second_signal_through_inside_one_that_does() -> None:
    handled: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: handled.append(number))
    try:
        with HeldSignals(first_only=True):
            with HeldSignals():
                for _ in range(3):
                    signal.raise_signal(signal.SIGALRM)
                assert handled == []
            signal.raise_signal(signal.SIGALRM)
            assert handled == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_held_signals_are_all_handled() -> None:
    """Each of two handlers raises, as without the block: the second one at the next call after the first."""
    handled: list[int] = []

    def handle(number: int, _: object) -> None:
        handled.append(number)
        raise KeyError(number)

    numbers = [signal.SIGUSR2, signal.SIGALRM]
    before = [signal.signal(number, handle) for number in numbers]
    raised = 0
    try:
        with contextlib.suppress(KeyError):  # of the second one
            with contextlib.suppress(KeyError):
                with HeldSignals():
                    list(map(signal.raise_signal, numbers))
                raised += 1
            time.sleep(0)
            raised += 1
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert not raised
    assert sorted(handled) == sorted(numbers)


def test_a_signal_just_before_the_handlers_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has been started by then; the signal is handled all the same."""
    restore = process._restore_handlers
    handled: list[int] = []

    def raise_and_restore() -> None:
        signal.raise_signal(signal.SIGALRM)
        restore()

    before = signal.signal(signal.SIGALRM, lambda number, _: handled.append(number))
    monkeypatch.setattr(process, "_restore_handlers", raise_and_restore)
    try:
        with child_environment():
            pass
        assert handled == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_directory_that_has_been_deleted(start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(VecEnvError, match=r"current directory.*has been deleted: os\.chdir.*'fork'"):
        SubprocVecEnv(counting_fns(2), 1, start_method)
    with SubprocVecEnv(counting_fns(2), 1, "fork") as vec:
        vec.reset()


def test_a_fork_that_leaves_by_sys_exit() -> None:
    """multiprocessing, which has not made it, takes the workers for its children there, and complains."""
    program = """
import os, sys
from vecenvs import SubprocVecEnv
from vecenvs.testing.envs import counting_fns
with SubprocVecEnv(counting_fns(2), 2, "fork") as vec:
    vec.reset()
    if not (child := os.fork()):
        sys.exit(0)
    print(os.waitpid(child, 0)[1])
    vec.step([0, 0])
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)


class SleepyEnv(CountingEnv):
    """Takes a minute for a step."""

    def step(self, action: Any) -> Any:
        time.sleep(60)
        return super().step(action)


@PROMPT
@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_close_while_another_thread_is_in_a_step(on_failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one is told so at once, and starts no new worker."""
    monkeypatch.setattr("vecenvs.pool.pool_base.CLOSE_GRACE", 0.2)
    monkeypatch.setattr("vecenvs.pool.workers.EXIT_GRACE", 0.2)
    vec = SubprocVecEnv([SleepyEnv] * 2, 2, "fork", on_failure=on_failure)
    vec.reset()
    raised: list[Exception] = []

    def step() -> None:
        try:
            vec.step([0, 0])
        except Exception as exc:
            raised.append(exc)

    thread = threading.Thread(target=step)
    thread.start()
    while not vec._commands.stepping:
        time.sleep(0.01)
    vec.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert [type(exc) for exc in raised] == [ClosedError]
    assert "another thread" in str(raised[0])


@PROMPT
def test_a_fork_cannot_step_what_its_parent_steps() -> None:
    with SubprocVecEnv(counting_fns(2), 2, "fork") as vec, DummyVecEnv(counting_fns(2)) as own:
        vec.reset()
        own.reset()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                own.step([0, 0])
                vec.step([0, 0])
            except ClosedError as exc:
                code = 0 if "forked" in str(exc) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert vec.step([0, 0])[0][:, 2].tolist() == [1, 1]


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("make", [DummyVecEnv, functools.partial(SubprocVecEnv, start_method="fork")])
def test_copies(make: Callable[..., Any], do: Callable[[Any], Any]) -> None:
    """Two would use the same workers."""
    with make(counting_fns(2)) as vec:
        with pytest.raises(TypeError, match="VecEnv holds envs that are running.*neither copied nor pickled"):
            do(vec)
        vec.reset()
        vec.step([0, 0])


@pytest.fixture
def room() -> Iterator[Callable[[int], None]]:
    """Lets this process open so many files more, and no others."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/dev/fd")))
    fillers = [os.open(os.devnull, os.O_RDONLY)]
    while fillers[-1] <= highest:
        fillers.append(os.open(os.devnull, os.O_RDONLY))

    def leave(files: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + files, before[1]))

    yield leave
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for filler in fillers:
        os.close(filler)


@PROMPT
def test_too_few_descriptors(room: Callable[[int], None]) -> None:
    """Whatever could not be opened, this is the error, and no name of a semaphore is left (see conftest)."""
    make_and_close()
    refused = 0
    for files in range(3, 24):
        room(files)
        try:
            make_and_close()
        except VecEnvError as exc:
            refused += "Too many open files" in str(exc) and "ulimit -n" in str(exc)
    assert refused
    assert files > refused


PIPED = """
from vecenvs import SubprocVecEnv
from vecenvs.testing.envs import CountingEnv

class Piped(CountingEnv):
    pass

if __name__ == "__main__":
    with SubprocVecEnv([Piped] * 2, 2, START_METHOD) as vec:
        vec.reset()
        print(vec.step([0, 0])[0][:, 2].tolist(), __file__)
"""


@pytest.mark.sparse
@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_a_program_from_standard_input(start_method: str) -> None:
    """Nothing can import its `__main__` once more, and nothing needs to."""
    done = subprocess.run(
        [sys.executable, "-"],
        input=PIPED.replace("START_METHOD", repr(start_method)),
        env={**os.environ, "PYTHONPATH": str(Path(vecenvs.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[1, 1] <stdin>\n"), done.stderr


def step_as_another_user() -> None:
    """As programs that drop their privileges; who has none to drop has the kernel treat it so all the same."""
    resource_tracker.ensure_running()  # a program of multiprocessing: the other user may not be allowed to run Python
    if os.geteuid() == 0:
        os.setuid(65534)
    else:
        ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE
    with SubprocVecEnv(counting_fns(2), 2, "fork") as vec:
        vec.reset()
        vec.step([0, 0])


class ReplacedEnv(CountingEnv):
    """Replaces its program at its second step."""

    def step(self, action: Any) -> Any:
        if self.steps == 1:
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])
        return super().step(action)


@PROMPT
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_an_env_that_becomes_another_program(start_method: str) -> None:
    with SubprocVecEnv([CountingEnv, ReplacedEnv], 2, start_method) as vec:
        vec.reset()
        vec.step([0, 0])
        with pytest.raises(WorkerDied, match="has replaced its program" if start_method == "fork" else "exit code"):
            vec.step([0, 0])
    with SubprocVecEnv([CountingEnv, ReplacedEnv], 2, start_method, on_failure="restart") as vec:
        vec.reset()
        vec.step([0, 0])
        assert vec.step([0, 0])[3][1]["worker_restarted"]


TWO_THREADS = """
import sys, threading, time
from vecenvs import SubprocVecEnv
from vecenvs.errors import VecEnvError
from vecenvs.testing.envs import counting_fns

sys.setswitchinterval(1e-5)
vec = SubprocVecEnv(counting_fns(4), 2, "fork", caller_steps=True)
vec.reset()
end, told = time.monotonic() + 2, set()

def go_on():
    while time.monotonic() < end:
        try:
            vec.step([0] * 4)
        except VecEnvError as error:
            told.add(type(error).__name__)

threads = [threading.Thread(target=go_on) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(bool(told))
"""


@PROMPT
def test_two_threads_in_one_vec_env() -> None:
    """An error in one of them, or in both, and no wait without an end."""
    command = [sys.executable, "-W", "ignore", "-c", TWO_THREADS]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "True\n"


DAEMON = """
import sys, threading, time
from vecenvs import SubprocVecEnv
from vecenvs.testing.envs import counting_fns

def go_on():
    try:
        while True:
            vec.step([0] * 4)
    except BaseException as error:
        print(type(error).__name__, flush=True)

vec = SubprocVecEnv(counting_fns(4), 2, "fork", caller_steps=CALLER)
vec.reset()
threading.Thread(target=go_on, daemon=True).start()
time.sleep(0.2)
"""


@pytest.mark.sparse
@PROMPT
@pytest.mark.parametrize("caller_steps", [False, True])
def test_the_main_thread_ends_while_another_one_steps(caller_steps: bool) -> None:
    """Which may end before it is told, too. Once it is, that is a ClosedError."""
    command = [sys.executable, "-c", DAEMON.replace("CALLER", str(caller_steps))]
    for _ in range(5):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
        assert done.stdout.strip() in ("", "ClosedError")  # also where it ends between the word and the end of its line


if sys.platform == "linux":

    def test_a_program_whose_descriptors_proc_does_not_show() -> None:
        child = FORK.Process(target=step_as_another_user)
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == 0


class Threaded:
    """Ends a process that frees it in place of its own, as an object may whose threads a fork does not have."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.pid:
            os._exit(1)


class CollectingEnv(CountingEnv):
    @property
    def collects(self) -> bool:
        return gc.isenabled()


@pytest.mark.parametrize("collects", [True, False])
def test_a_fork_does_not_free_its_callers_garbage(collects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = os.fork

    def fork_beside_garbage() -> int:
        garbage: list[Any] = [Threaded()]
        garbage.append(garbage)
        del garbage
        pid = fork()
        if pid == 0:
            gc.set_threshold(1)
        return pid

    monkeypatch.setattr(os, "fork", fork_beside_garbage)
    (gc.enable if collects else gc.disable)()
    try:
        with SubprocVecEnv([CollectingEnv] * 2, 2, "fork") as vec:
            vec.reset()
            vec.step([0, 0])
            assert vec.get_attr("collects") == [collects] * 2
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def test_watching_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older kernels and some containers do not have it, though Python does."""

    def refuse(_: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    with subprocess.Popen(["true"]) as child:
        child.wait()
        assert wait_for_end(child.pid, None)
