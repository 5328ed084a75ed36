"""Envs that compute with NumPy's BLAS, whose last bits depend on its number of threads: what is promised of these."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import functools, hashlib, sys
import gymnasium, numpy as np
import vecenvs
from gymnasium.spaces import Box, Discrete


class MatrixEnv(gymnasium.Env):
    observation_space, action_space = Box(-np.inf, np.inf, (300,), np.float64), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.a = self.np_random.standard_normal((300, 300))
        return self.a[0].copy(), {}

    def step(self, action):
        self.a = np.linalg.solve(self.a @ self.a + np.eye(300), self.a)
        self.a /= np.abs(self.a).max()
        return self.a[0] @ self.a, float(self.a.sum()), False, False, {}


def rows(make):
    with make([MatrixEnv] * 3) as vec:
        seen = hashlib.sha256(vec.reset(seed=5).tobytes())
        for _ in range(2):
            obs, *_ = vec.step([0] * 3)
            seen.update(obs.tobytes())
            seen.update(vec.rewards64.tobytes())
    return seen.hexdigest()


if __name__ == "__main__":
    fork = functools.partial(vecenvs.SubprocVecEnv, start_method="fork")
    spawn = functools.partial(vecenvs.SubprocVecEnv, start_method="spawn")
    kinds = [functools.partial(fork, num_workers=1), functools.partial(fork, num_workers=3)]
    kinds.append(functools.partial(spawn, num_workers=2))
    if sys.argv[1] == "all":
        kinds += [vecenvs.DummyVecEnv, functools.partial(fork, num_workers=2, caller_steps=True)]
    print(len({*map(rows, kinds)}))
"""


@pytest.mark.sparse
@pytest.mark.timeout(120)
@pytest.mark.parametrize("which", ["all", "workers"])
def test_rows_are_equal_with_one_thread_or_in_workers(which: str, tmp_path) -> None:
    """Of all engines where the caller, too, computes with one thread; of workers, which do, in any case."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if which == "all":
        environment["OMP_NUM_THREADS"] = "1"
    run = subprocess.run([sys.executable, program, which], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "1\n"
