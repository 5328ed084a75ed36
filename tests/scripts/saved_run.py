"""Run some steps, saving now and then, from the last save on: `saved_run.py FOLDER ENGINE STEPS`.

Prints the number of each step, and reads a line before the next one (not under MPI). After SIGUSR1 it saves and ends.
FOLDER/pid has its process.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import vecenvs.backends
from vecenvs.state import load, save

N, EVERY = 4, 5
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "dummy": ("dummy", {}),
    "fork": ("subproc", {"num_workers": 2, "start_method": "fork"}),
    "spawn": ("subproc", {"num_workers": 3, "start_method": "spawn"}),
    "caller": ("subproc", {"num_workers": 2, "start_method": "fork", "caller_steps": True}),
    "ray": ("ray", {"num_workers": 2}),
    "ray-1": ("ray", {"num_workers": 1}),
    "mpi": ("mpi", {}),
}


def env(file: Path) -> gymnasium.Env[Any, Any]:
    return vecenvs.Monitor(gymnasium.make("CartPole-v1", max_episode_steps=30), file, override_existing=False)


def make(folder: Path, engine: str) -> vecenvs.VecEnv:
    backend, kwargs = ENGINES[engine]
    fns = [partial(env, folder / f"{slot}") for slot in range(N)]
    vec = vecenvs.backends.backend_class(backend)(fns, **kwargs)
    warnings.simplefilter("ignore", UserWarning)  # of two kinds of Monitors
    vec = vecenvs.VecMonitor(vec, folder / "all", override_existing=False)
    return vecenvs.VecNormalize(vecenvs.VecFrameStack(vec, 3))


def episodes_in(folder: Path) -> str:
    """Return the returns and lengths in all monitor files."""
    files = sorted(folder.glob("*.monitor.csv"))
    return repr([[line.split(",")[:2] for line in file.read_text().splitlines()[1:]] for file in files])


def run(folder: Path, engine: str, steps: int) -> str:
    """Return a checksum of all rows since the first step."""
    path = folder / "run.npz"
    (folder / "pid").write_text(str(os.getpid()))
    signals: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))  # before the end of an allocation
    with make(folder, engine) as vec:
        if path.exists():
            at, rng, rows, obs = load(vec, path)
        else:
            at, rng, rows = 0, np.random.default_rng(3), ""
            obs = vec.reset(seed=7)
        while at < steps:
            actions = (obs[:, -2] + rng.normal(size=N) > 0).astype(int)
            obs, rewards, dones, infos = vec.step(actions)
            told = [{key: value for key, value in info.items() if key != "episode"} for info in infos]
            told = [
                (info, [infos[j]["episode"][key] for key in "rl"] if dones[j] else None) for j, info in enumerate(told)
            ]
            rows = hashlib.sha256(pickle.dumps((rows, obs, rewards, dones, repr(told)))).hexdigest()
            at += 1
            preempted = bool(signals)
            if at % EVERY == 0 or preempted:
                save(vec, path, extra=(at, rng, rows, obs))
            sys.stdout.write(f"{at}\n")
            sys.stdout.flush()
            if preempted:
                return "preempted"
            if engine != "mpi":
                sys.stdin.readline()
    return hashlib.sha256((rows + episodes_in(folder)).encode()).hexdigest()


if __name__ == "__main__":
    sys.stdout.write(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])) + "\n")
