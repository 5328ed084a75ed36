"""Systems without room: in /dev/shm, for temporary files and for sockets. In a mount namespace of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vecenvs.testing.suite.deaths import PROMPT

ROOT = Path(__file__).parents[1]
NAMESPACE = ["unshare", "--map-root-user", "--mount"]
allowed = (
    sys.platform == "linux" and subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0
)
pytestmark = pytest.mark.skipif(not allowed, reason="this user cannot make mount namespaces")

BEGINNING = """
import os, signal, sys, threading, time
from vecenvs import SubprocVecEnv
from vecenvs.errors import VecEnvError
from vecenvs.testing.envs import CountingEnv
from vecenvs.transport import memory


def main():
"""
ENDING = """
if __name__ == "__main__":
    try:
        main()
    except VecEnvError as error:
        print(type(error).__name__, error)
"""


def run(tmp_path: Path, mount: str, body: str, **environment: str) -> str:
    """Run a program after `mount`, a command for the shell; return what it prints."""
    script = tmp_path / "program.py"
    script.write_text(BEGINNING + "".join(f"    {line}\n" for line in body.strip().split("\n")) + ENDING)
    command = [*NAMESPACE, "sh", "-c", f"{mount} && exec {sys.executable} {script}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=40, check=True).stdout


SMALL = "mount -t tmpfs -o size=100k tmpfs /dev/shm"
FILL = """
full = threading.Event()

def fill():
    with open("/dev/shm/filler", "wb", 0) as file:
        while full.is_set():
            try:
                file.write(bytes(4096))
            except OSError:
                time.sleep(0.001)
    os.unlink("/dev/shm/filler")

def lose_worker():
    full.set()
    threading.Thread(target=fill).start()
    time.sleep(0.2)
    os.kill(vec.call(lambda _: os.getpid(), [1])[0], signal.SIGKILL)

vec = SubprocVecEnv([CountingEnv] * 2, 2, "fork", on_failure="restart", max_restarts=2)
vec.reset()
lose_worker()
threading.Timer(1.5, full.clear).start()
infos = vec.step([0, 0])[3]
print(infos[1]["worker_restarted"], vec.stats()["restarts"])
lose_worker()
try:
    vec.step([0, 0])
except VecEnvError as error:
    print(type(error).__name__, error)
full.clear()
infos = vec.step_wait()[3]
print(infos[1]["worker_restarted"], vec.stats()["restarts"])
vec.close()
"""


@PROMPT
@pytest.mark.long  # it waits for some seconds, twice
def test_no_room_while_a_worker_is_replaced(tmp_path: Path) -> None:
    """It is made where there is room again within some seconds; else a call raises, and the next one tries again."""
    told = run(tmp_path, SMALL, FILL).splitlines()
    assert told[0] == "True 1"
    assert told[1].startswith("VecEnvError worker 1 with envs 1 has ended, and the system does not give another one")
    assert "/dev/shm" in told[1]
    assert told[2] == "True 2"


MAKE = "SubprocVecEnv([CountingEnv] * 2, 2, {method!r}).close()\nprint('made')"


@PROMPT
def test_no_place_for_semaphores(tmp_path: Path) -> None:
    hidden = "mount -t tmpfs -o ro tmpfs /dev"  # there is no shm in it
    told = run(tmp_path, hidden, MAKE.format(method="fork"))
    assert told.startswith("BackendUnavailable")
    assert "/dev/shm" in told
    assert "dummy" in told


@PROMPT
@pytest.mark.parametrize("folder", ["long", "none"])
def test_no_place_for_the_socket_of_a_fork_server(folder: str, tmp_path: Path) -> None:
    place = tmp_path / ("x" * 100)
    place.mkdir()
    body = MAKE.format(method="forkserver")
    if folder == "none":
        body = f"import tempfile\ntempfile._candidate_tempdir_list = list\n{body}"
    told = run(tmp_path, "true", body, TMPDIR=str(place))
    assert told.startswith("VecEnvError multiprocessing's fork server has no place for its socket")
    assert "TMPDIR" in told
    assert "spawn" in told


@pytest.mark.long
@PROMPT
def test_no_room_for_shared_memory_in_a_file(tmp_path: Path) -> None:
    """As on systems without memfd: an error, not a SIGBUS in whoever writes first."""
    small = tmp_path / "small"
    small.mkdir()
    body = """
del os.memfd_create
SubprocVecEnv([CountingEnv] * 40_000, 1, "fork").close()
"""
    told = run(tmp_path, f"mount -t tmpfs -o size=1m tmpfs {small}", body, TMPDIR=str(small))
    assert told.startswith("VecEnvError the system does not give SubprocVecEnv")
    assert str(small) in told
