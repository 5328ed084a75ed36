"""Step envs on both hosts of a Ray cluster until the link between these is cut: the program of test_ray_hosts.py."""

from __future__ import annotations

import functools
import sys

import ray

from vecenvs.backends.ray import RayVecEnv
from vecenvs.errors import WorkerDied
from vecenvs.testing.envs import CountingEnv

ACTIONS = [0] * 4


def main(address: str, on_failure: str) -> None:
    ray.init(address=address, logging_level="error")
    fns = [functools.partial(CountingEnv, index) for index in range(4)]
    options = {"actor_options": {"num_cpus": 1}, "placement": "spread", "on_failure": on_failure}
    with RayVecEnv(fns, 2, **options) as vec:  # type: ignore[arg-type]
        vec.reset()
        far = next(worker for worker in vec.stats()["workers"] if worker["why"])
        print("up", flush=True)
        try:
            back: list[int] = []
            while not back:
                infos = vec.step(ACTIONS)[3]
                back = [slot for slot, info in enumerate(infos) if "worker_restarted" in info]
        except WorkerDied as exc:
            back = list(exc.indices)
            print(exc)
        else:
            vec.step(ACTIONS)
            print("restarted")
        assert back == list(far["slots"])


if __name__ == "__main__":
    main(*sys.argv[1:])
