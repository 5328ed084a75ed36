"""The toy simulator of `vecenvs.testing`."""

from __future__ import annotations

import functools
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.backends.subproc import SubprocVecEnv
from vecenvs.errors import WorkerDied
from vecenvs.testing.envs import SimulatorEnv, ToyError
from vecenvs.worker.load import resident_bytes


def play(env: SimulatorEnv, seed: int) -> list[Any]:
    """Return what an episode consists of; an exception is its last part."""
    rows: list[Any] = []
    try:
        rows.append(env.reset(seed=seed))
        over = False
        while not over:
            rows.append(env.step(1))
            over = rows[-1][2]
    except ToyError as exc:
        rows.append(str(exc))
    return [tuple(part.tobytes() if isinstance(part, np.ndarray) else part for part in row) for row in rows]


def memory(_: Any) -> int:
    return resident_bytes()


def step_often(vec: SubprocVecEnv) -> None:
    for _ in range(10):
        vec.step([0])


def test_any_object_plays_the_episode_of_a_seed() -> None:
    one, other = (SimulatorEnv(length=(2, 9), raises=0.4, raises_in_reset=0.2) for _ in range(2))
    play(other, 1000)
    episodes = {seed: play(one, seed) for seed in range(30)}
    for seed in reversed(episodes):
        assert play(other, seed) == episodes[seed]
    assert len({len(rows) for rows in episodes.values()}) > 3


def test_it_leaks() -> None:
    """In a process of its own, which frees nothing meanwhile; a part may be memory that it has had before."""
    with SubprocVecEnv([functools.partial(SimulatorEnv, leak=200)], 1) as vec:
        before = vec.call(memory, [0])[0]
        vec.reset(seed=0)
        assert vec.call(memory, [0])[0] - before > 100e6


def test_it_listens() -> None:
    env = SimulatorEnv(port=0)
    socket.create_connection(("127.0.0.1", env.port), 5).close()
    with pytest.raises(OSError, match="in use"):
        SimulatorEnv(port=env.port)
    env.close()


def test_it_crashes_by_its_seed() -> None:
    with SubprocVecEnv([functools.partial(SimulatorEnv, crashes=1.0)], 1) as vec:
        vec.reset(seed=0)
        with pytest.raises(WorkerDied, match="17"):
            step_often(vec)


def test_it_tells_of_its_starts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with DummyVecEnv([functools.partial(SimulatorEnv, log=log)] * 2):
        assert [line.split()[0] for line in log.read_text().splitlines()] == ["begin", "made"] * 2
