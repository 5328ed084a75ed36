"""Signals to the whole process group, and what envs have started: with real groups, signals and processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vecenvs.testing import leaks
from vecenvs.testing.suite.deaths import PROMPT

METHODS = ["fork", *(pytest.param(method, marks=pytest.mark.long) for method in ("forkserver", "spawn"))]
PATIENCE = 60.0  # seconds; what is waited for takes far less
TOKEN = "VECENVS_TEST_TOKEN"

PROGRAM = '''
import ctypes, multiprocessing, os, signal, subprocess, sys, time
import gymnasium as gym, numpy as np
from vecenvs import SubprocVecEnv

CHILD = "import signal as s, time; print(s.getsignal(s.SIGINT) is s.default_int_handler, flush=True); time.sleep(300)"


class Env(gym.Env):
    observation_space, action_space = gym.spaces.Box(-9, 9, (1,), np.float64), gym.spaces.Discrete(9)
    level = 5

    def reset(self, *, seed=None, options=None):
        return np.zeros(1), {}

    def step(self, action):
        if action == 1:
            time.sleep(300)
        if action == 3:  # as where a lock of JAX that was held at the fork keeps the interpreter
            ctypes.PyDLL(None).sleep(300)
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(1), 0.0, False, False, {}

    def simulate(self):
        """Start a simulator in a session of its own, by a process that ends."""
        start = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], start_new_session=True); print(p.pid)"
        command = [sys.executable, "-c", start, sys.executable, "-c", CHILD]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            return [process.stdout.readline().strip() for _ in range(2)]

    def terminate_a_child(self):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,))
        child.start()
        child.terminate()
        child.join(10)
        return child.exitcode

    def interrupt_a_child(self):
        pid = os.fork()
        if pid == 0:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(300)
            except KeyboardInterrupt:
                os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def make(**more):
    return SubprocVecEnv([Env] * 2, 2, sys.argv[1], **more)
'''


class Program:
    """A program in a session of its own; all that it has started has a token in its environment."""

    def __init__(self, folder: Path, method: str, body: str, before: str = "") -> None:
        self.token = os.urandom(8).hex()
        script = folder / "program.py"
        script.write_text(
            f"{PROGRAM}{before}\n\nif __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in body.split("\n"))
        )
        self.process = subprocess.Popen(
            [sys.executable, str(script), method],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, TOKEN: self.token, "PYTHONPATH": str(Path(__file__).parents[1])},
            start_new_session=True,
        )

    def line(self) -> str:
        """Return the next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str, str]:
        out, errors = self.process.communicate(timeout=2 * PATIENCE)
        return self.process.returncode, out, errors

    def alive(self) -> dict[int, str]:
        return leaks.processes_with(TOKEN, self.token)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    programs: list[Program] = []

    def start(method: str, body: str, before: str = "") -> Program:
        programs.append(Program(tmp_path, method, body, before))
        return programs[-1]

    yield start
    for program in programs:
        for pid in program.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.process.communicate()


SAVES = """
told = []
def handle(number, _):
    print("handled", flush=True)
    told.append(number)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, handle)
vec = make()
vec.reset()
print("ready", flush=True)
while len(told) < 5:
    vec.step([0] * 2)
for _ in range(20):
    vec.step([0] * 2)
    time.sleep(0.01)
print(vec.get_attr("level"), len({*vec.call(lambda _: os.getpid(), None)}))
vec.close()
"""


@PROMPT
@pytest.mark.parametrize("method", ["fork", "forkserver", METHODS[-1]])
def test_a_learner_saves_its_envs_after_any_signal_to_the_group(method: str, run: Any) -> None:
    """Each is handled once, in the caller, and no worker ends before the caller does."""
    program = run(method, SAVES)
    assert program.line() == "ready"
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        os.killpg(program.process.pid, number)
        time.sleep(0.1)
    assert program.end() == (0, "handled\n" * 5 + "[5, 5] 2\n", "")


STARTING = """
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, lambda *_: None)
signals = threading.Thread(target=signal_the_group, daemon=True)
signals.start()
with make() as vec:
    vec.reset()
made.append(True)
signals.join()
other = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(300,))
other.start()
other.terminate()
other.join(30)
print("made", other.exitcode)
"""

SLOW_STARTS = """
import threading
from multiprocessing import util

made = []
if __name__ == "__mp_main__":  # in the fork server: each of its processes waits as it begins
    util.register_after_fork(sys.modules[__name__], lambda _: time.sleep(0.5))

def signal_the_group():
    while not made:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM):
            os.killpg(0, number)
            time.sleep(0.02)
"""


@pytest.mark.long
@PROMPT
def test_signals_to_the_group_while_a_fork_server_starts_workers(run: Any) -> None:
    """Workers hold them back until they take them. Other processes of the server can be ended."""
    program = run("forkserver", STARTING, SLOW_STARTS)
    assert program.end() == (0, f"made {-signal.SIGTERM}\n", "")


@PROMPT
@pytest.mark.parametrize("method", METHODS)
def test_what_envs_start_has_the_usual_handlers(method: str, run: Any) -> None:
    program = run(
        method,
        "vec = make()\nprint(vec.env_method('terminate_a_child'), vec.env_method('interrupt_a_child'))\n"
        "print([interrupted for _, interrupted in map(sorted, vec.env_method('simulate'))])\nvec.close()",
    )
    assert program.line() == f"{[-signal.SIGTERM] * 2} [7, 7]"
    assert program.line() == "['True', 'True']"


def simulators(program: Program) -> list[int]:
    return [pid for pid, words in program.alive().items() if "time.sleep(300)" in words]


HUNG_OR_KILLED = """
vec = make(step_timeout=1, on_failure="restart")
vec.reset()
vec.env_method("simulate")
vec.step([{action}, 0])
print("restarted", flush=True)
sys.stdin.readline()
vec.step_async([0, 1])
vec.close()
print("closed", flush=True)
sys.stdin.readline()
"""


@PROMPT
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("action", [1, 2], ids=["hung", "killed"])
def test_what_an_env_has_started_ends_with_its_worker(action: int, method: str, run: Any) -> None:
    """Though it is in a session of its own, and its parent has ended. What other envs have started goes on."""
    program = run(method, HUNG_OR_KILLED.format(action=action))
    for line, left in (("restarted", 1), ("closed", 0)):
        assert program.line() == line
        leaks.wait_until_empty(lambda left=left: simulators(program)[left:], PATIENCE)
        assert len(simulators(program)) == left
        program.process.stdin.write("\n")
        program.process.stdin.flush()


@pytest.mark.sparse
@PROMPT
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("whom", "action"), [("caller", 1), ("all", 1), ("group", 1), ("caller", 3)])
def test_what_envs_have_started_ends_after_their_caller(whom: str, action: int, method: str, run: Any) -> None:
    """Also where workers are killed with it, and where they hang in the midst of a step, deaf to signals."""
    program = run(
        method,
        "vec = make()\nvec.reset()\nvec.env_method('simulate')\npid = vec.call(lambda _: os.getpid(), [0])[0]\n"
        f"vec.step_async([0, {action}])\nprint(pid, flush=True)\nvec.step_wait()",
    )
    worker = int(program.line())
    assert len(simulators(program)) == 2
    if whom == "group":
        os.killpg(program.process.pid, signal.SIGKILL)
    else:
        program.process.kill()
        if whom == "all":
            os.kill(worker, signal.SIGKILL)
    assert not leaks.wait_until_empty(program.alive, PATIENCE)


@pytest.mark.long
def test_signals_reach_what_a_fork_server_of_the_users_forks(run: Any) -> None:
    """Where the user has set a list of modules, so that the server knows nothing of workers."""
    program = run(
        "forkserver",
        """
multiprocessing.set_forkserver_preload(["json"])
vec = make()
child = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(300,))
child.start()
child.terminate()
child.join(10)
print(child.exitcode)
vec.close()
""",
    )
    assert program.end()[:2] == (0, "-15\n")
