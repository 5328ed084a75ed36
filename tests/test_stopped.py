"""Process groups that are stopped and go on (Ctrl-Z and fg, docker pause), and clocks that are set back."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vecenvs.testing.suite.deaths import PROMPT
from vecenvs.transport import memory

ROOT = Path(__file__).parents[1]

PROGRAM = """
import functools, sys, time
from vecenvs import SubprocVecEnv
from vecenvs.testing.envs import CountingEnv


class Busy(CountingEnv):
    def step(self, action):
        for _ in range(60):  # which goes on after a stop, as a sleep does not
            time.sleep(0.01)
        return super().step(action)


class SlowToMake(CountingEnv):
    def __init__(self):
        super().__init__()
        for _ in range(60):
            time.sleep(0.01)


with SubprocVecEnv([Busy] * 2, 2, "fork", step_timeout=1.0, on_failure="restart") as vec:
    vec.reset()
    for k in range(2):
        vec.step_async([0, 0])
        print("stop", flush=True)
        for _ in range(20 * k):
            time.sleep(0.01)
        infos = vec.step_wait()[3]
        print([info["t"] for info in infos], vec.stats()["restarts"], flush=True)
print("stop", flush=True)
SubprocVecEnv([SlowToMake] * 2, 2, "fork", start_timeout=1.5).close()
print("made", flush=True)
"""


@PROMPT
def test_time_in_which_everybody_was_stopped_does_not_count() -> None:
    """In a wait, in what the caller does between two calls, and while envs are being made."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as program:
        assert program.stdout is not None
        for told in ("[1, 1] 0", "[2, 2] 0", "made"):
            assert program.stdout.readline() == "stop\n"
            time.sleep(0.1)
            os.killpg(program.pid, signal.SIGSTOP)
            time.sleep(3.0)
            os.killpg(program.pid, signal.SIGCONT)
            assert program.stdout.readline() == f"{told}\n"
    assert program.returncode == 0


TERMINAL = (
    "import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp('bash', ['bash', '--norc', '-i'])"
)


@pytest.mark.long
@PROMPT
def test_ctrl_z_and_fg(tmp_path: Path) -> None:
    """In a shell at a terminal: the workers stop and go on with the program."""
    (tmp_path / "program.py").write_text(PROGRAM)
    ours, theirs = pty.openpty()
    heard = b""

    def hear(words: bytes) -> None:
        nonlocal heard
        while words not in heard:
            heard += os.read(ours, 4096)
        heard = heard.partition(words)[2]

    command = f"{sys.executable} {tmp_path / 'program.py'}; echo ended with $?\n"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", TERMINAL],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=environ,
    ) as shell:
        os.write(ours, command.encode())
        hear(b"?\r\n")  # the echo of the command
        for told in (b"[1, 1] 0", b"[2, 2] 0", b"made"):
            hear(b"stop\r\n")
            time.sleep(0.1)
            os.write(ours, b"\x1a")
            hear(b"Stopped")
            time.sleep(3.0)
            os.write(ours, b"fg\n")
            hear(told)
        os.write(ours, b"exit\n")
        shell.wait()
    os.close(ours)
    os.close(theirs)


SET_BACK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <time.h>
int sem_timedwait(sem_t *semaphore, const struct timespec *end) {
    struct timespec later = *end, now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (end->tv_sec - now.tv_sec + 1e-9 * (end->tv_nsec - now.tv_nsec) > 0.05)
        later.tv_sec += 86400;
    return ((int (*)(sem_t *, const struct timespec *)) dlsym(RTLD_NEXT, "sem_timedwait"))(semaphore, &later);
}
"""


@PROMPT
@pytest.mark.skipif(memory._clockwait is None or not shutil.which("cc"), reason="needs glibc 2.30 and cc")
def test_a_clock_that_is_set_back_while_the_caller_waits(tmp_path: Path) -> None:
    """By a day, as a wait of more than a moment that goes by that clock sees it."""
    source, library = tmp_path / "back.c", tmp_path / "back.so"
    source.write_text(SET_BACK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    program = """
import os, signal, time
from vecenvs import SubprocVecEnv
from vecenvs.errors import WorkerDied
from vecenvs.testing.envs import CountingEnv


class Killed(CountingEnv):
    def step(self, action):
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)


for vec in (SubprocVecEnv([Killed], 1, "fork"), SubprocVecEnv([Killed, Killed], 2, "fork")):
    vec.reset()
    vec.send([0] * vec.num_envs)
    try:
        vec.recv()
    except WorkerDied:
        print("told")
    vec.close()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library)}
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=30, env=environment, check=True)
    assert found.stdout == "told\n" * 2
