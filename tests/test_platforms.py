"""What works where there is no POSIX, as on Windows: the modules and functions that are missing there are hidden."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Modules, and attributes of os and signal, that CPython's documentation says are not on Windows.
AS_ON_WINDOWS = """
import multiprocessing.resource_tracker, os, signal, sys
for name in ("fcntl", "grp", "pwd", "resource", "termios", "_posixshmem", "_posixsubprocess"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "geteuid", "getuid", "memfd_create", "pidfd_open", "register_at_fork",
             "sched_getaffinity", "sched_setaffinity", "sched_yield", "waitid"):
    delattr(os, name) if hasattr(os, name) else None
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pidfd_send_signal", "pthread_sigmask", "sigwait"):
    delattr(signal, name) if hasattr(signal, name) else None
"""

EPISODES = """
import vecenvs
from vecenvs.wrappers import load_results

assert set(vecenvs.__all__) <= set(dir(vecenvs))
vec = vecenvs.make_vec_env("CartPole-v1", num_env=3, seed=0, backend="dummy", monitor_dir=".")
vec.reset()
for _ in range(100):
    vec.step([0, 1, 0])
vec.close()
print(len(load_results(".").r), "episodes")
"""

REFUSED = """
import gymnasium, vecenvs

for engine in (vecenvs.SubprocVecEnv, vecenvs.MpiVecEnv, vecenvs.RayVecEnv):
    try:
        engine([lambda: gymnasium.make("CartPole-v1")] * 2)
    except vecenvs.BackendUnavailable as error:
        assert "backend='dummy'" in str(error), error
        print(engine.__name__)
"""


def run_as_on_windows(program: str, folder: Path) -> str:
    """Run a program where these are missing."""
    done = subprocess.run(
        [sys.executable, "-c", AS_ON_WINDOWS + program], cwd=folder, capture_output=True, text=True, timeout=50,
        env={"PYTHONPATH": str(Path(__file__).parents[1])}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_envs_in_this_process(tmp_path: Path) -> None:
    assert run_as_on_windows(EPISODES, tmp_path).endswith(" episodes\n")


def test_engines_with_workers_say_what_is_missing(tmp_path: Path) -> None:
    assert run_as_on_windows(REFUSED, tmp_path).split() == ["SubprocVecEnv", "MpiVecEnv", "RayVecEnv"]
