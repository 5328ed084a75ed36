"""The rules of EnvPools as batched envs, for every engine: the rows of one EnvPool, threads, seeds, restarts."""

from __future__ import annotations

import functools
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import NO_ENVPOOL

from vecenvs import Batched, EnvError, worker_cores
from vecenvs.testing.suite import Conformance, Make

STEPS = 18  # after which an episode is cut off; most poles fall before
MARKS = [
    pytest.mark.skipif(NO_ENVPOOL, reason="no wheel for this Python"),
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning"),  # of EnvPool's spaces
]
SPLITS = [(12,), (6, 6), (2, 4, 6), (1, 11), (3, 3, 3, 3)]


def cartpole(num_envs: int, **kwargs: Any) -> functools.partial[Any]:
    import envpool

    return functools.partial(envpool.make_gymnasium, "CartPole-v1", num_envs=num_envs, **kwargs)


def made(num_envs: int, kwargs: dict[str, Any]) -> Any:
    """Make an EnvPool where this is called: in its worker."""
    return cartpole(num_envs, **{"num_threads": worker_cores(), **kwargs})()


def cartpoles(num_envs: int, first: int = 0, **kwargs: Any) -> Batched:
    """Return the function of an EnvPool whose first env has this number, and a seed that depends on that alone."""
    seeds = {} if "env_seed" in kwargs else {"seed": 42 + first}
    return Batched(functools.partial(made, num_envs, {**seeds, **kwargs}), num_envs)


def noted(folder: Path, seed: int) -> Any:
    """Make an EnvPool of four envs; note its process."""
    (folder / str(seed)).write_text(str(os.getpid()))
    return cartpole(4, seed=seed, num_threads=worker_cores())()


class EnvPoolRules(Conformance):
    """The rows are those of one EnvPool of all envs, in whichever processes they are made."""

    pytestmark = MARKS

    def cores(self, num_workers: int) -> int:
        """Return how many cores each of so many workers may use."""
        raise NotImplementedError

    @pytest.mark.timeout(180)  # several VecEnvs, which start slowly on Ray
    def test_rows_are_those_of_one_envpool(self, make: Make) -> None:
        for sizes in SPLITS:
            garbage: list[Any] = [cartpole(2)()]  # whose threads a fork does not have, and must not wait for
            garbage.append(garbage)
            del garbage
            one = cartpole(12, num_threads=1, max_episode_steps=STEPS)()
            firsts = itertools.accumulate(sizes, initial=0)
            fns = [cartpoles(size, first, max_episode_steps=STEPS) for size, first in zip(sizes, firsts, strict=False)]
            vec = make(fns, autoreset="next_step")
            rng = np.random.default_rng(0)
            np.testing.assert_array_equal(vec.reset(), one.reset()[0])
            ends = np.zeros(2, int)
            for _ in range(60):
                actions = rng.integers(0, 2, 12)
                obs, rewards, terminated, truncated, columns = one.step(actions)
                ours = vec.step(actions)
                np.testing.assert_array_equal(ours[0], obs)
                np.testing.assert_array_equal(ours[1], rewards)
                np.testing.assert_array_equal(ours[2], terminated | truncated)
                for slot, info in enumerate(ours[3]):
                    assert info["elapsed_step"] == columns["elapsed_step"][slot]
                    assert info["TimeLimit.truncated"] == (truncated[slot] and not terminated[slot])
                    assert ("terminal_observation" in info) == ours[2][slot]
                    if ours[2][slot]:
                        np.testing.assert_array_equal(info["terminal_observation"], obs[slot])
                ends += terminated.sum(), truncated.sum()
            assert (ends > 3).all(), "the episodes end in both ways"
            vec.close()

    def test_threads_are_the_cores_of_the_worker(self, make: Make) -> None:
        for num_workers in (1, 2):
            vec = make([cartpoles(64, 64 * worker) for worker in range(num_workers)], autoreset="next_step")
            threads = [config["num_threads"] for config in vec.get_attr("config", range(0, vec.num_envs, 64))]
            assert threads == [self.cores(num_workers)] * num_workers
            vec.close()

    def test_seeds_are_given_where_it_is_made(self, make: Make) -> None:
        fns = [cartpoles(2, seed=5), cartpoles(3, seed=[7, 8, 9]), cartpoles(1, env_seed=[10])]
        vec = make(fns, autoreset="next_step")
        np.testing.assert_array_equal(vec.reset(), cartpole(6, seed=5, num_threads=1)().reset()[0])
        with pytest.raises(EnvError, match="pass seed= to the function that makes it"):
            vec.reset(seed=0)
        vec.reset()
        vec.step([0] * 6)


class EnvPoolWorkerRules(Conformance):
    """Where EnvPools live in other processes."""

    pytestmark = MARKS

    def test_a_worker_that_is_replaced_has_the_same_seeds(self, make: Make, tmp_path: Path) -> None:
        one = cartpole(8, num_threads=1)()
        fns = [Batched(functools.partial(noted, tmp_path, seed), 4) for seed in (42, 46)]
        vec = make(fns, autoreset="next_step", on_failure="restart")
        first = vec.reset()
        np.testing.assert_array_equal(first, one.reset()[0])
        os.kill(int((tmp_path / "42").read_text()), signal.SIGKILL)
        restarted = False
        while not restarted:
            obs, _, dones, infos = vec.step([0] * 8)
            np.testing.assert_array_equal(obs[4:], one.step(np.zeros(8, int))[0][4:])
            restarted = "worker_restarted" in infos[0]
        assert dones[:4].all()
        obs, *_, infos = vec.step([0] * 8)
        np.testing.assert_array_equal(obs[:4], first[:4])
        assert all(info["episode_start"] and info["elapsed_step"] == 0 for info in infos[:4])
        assert vec.stats()["restarts"] == 1
