"""A VecEnv per worker of an MpiVecEnv, with a process for each core that the worker may use."""

from __future__ import annotations

from typing import Any

import numpy as np

from vecenvs import Batched, DummyVecEnv, MpiVecEnv, SubprocVecEnv, worker_cores
from vecenvs.testing.envs import CountingEnv, counting_fns


class CoresEnv(CountingEnv):
    """Tells how many workers the VecEnv has that made it, at most."""

    def __init__(self, tag: int, cores: int) -> None:
        super().__init__(tag)
        self.cores = cores


def node(first: int) -> Any:
    cores = worker_cores()
    return SubprocVecEnv([lambda tag=tag: CoresEnv(tag, cores) for tag in range(first, first + 4)])


def main() -> None:
    hosts = [Batched(lambda first=first: node(first), 4) for first in (0, 4)]
    with MpiVecEnv(hosts, num_workers=2, placement="spread") as vec, DummyVecEnv(counting_fns(8)) as plain:
        np.testing.assert_array_equal(vec.reset(seed=3), plain.reset(seed=3))
        for _ in range(12):
            for ours, theirs in zip(vec.step([0] * 8)[:3], plain.step([0] * 8)[:3], strict=True):
                np.testing.assert_array_equal(ours, theirs)
        print("workers on ranks", [worker["rank"] for worker in vec.stats()["workers"]])
        print("cores of the two", vec.get_attr("cores", [0, 4]), "of", worker_cores())
    print("rows agree")


if __name__ == "__main__":
    main()
