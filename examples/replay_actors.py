"""The replay server with Ray actors of your own: a learner, which samples from it, and explorers, which push to it.

    python examples/replay_actors.py                  # 15 iterations
    python examples/replay_actors.py --num-iterations 30

This is the structure of programs which keep a Buffer class in a Ray actor. `vecenvs.replay.Replay` starts and watches
explorers by itself (replay_dqn.py); here your program does both, and decides what happens if one of them dies. In each
iteration the explorers walk over a frozen lake with the newest table of values, while the learner draws batches from
the transitions of all explorers and computes the next table: tabular Q-learning with NumPy.

Needs: pip install ".[replay]"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from vecenvs import VecEnv, make_vec_env
from vecenvs.replay import Explorer, ReplayServer

Array = NDArray[Any]


def lake(num_envs: int) -> VecEnv:
    """Make the envs: a lake that is not slippery, with 16 fields, 4 directions and a reward of 1 at the goal."""
    return make_vec_env("FrozenLake-v1", num_envs=num_envs, env_kwargs={"is_slippery": False}, backend="dummy")


class Walk:
    """The policy of an explorer: the best direction of the table, or with probability `epsilon` a random one."""

    def __init__(self, explorer: int, epsilon: float) -> None:
        self.values, self.epsilon = np.zeros((16, 4)), epsilon
        self.rng = np.random.default_rng(explorer)

    def act(self, obs: Array) -> Array:
        noise = 1e-6 * self.rng.random((len(obs), 4))  # to break ties at random
        best = (self.values[obs] + noise).argmax(1)
        return np.where(self.rng.random(len(obs)) < self.epsilon, self.rng.integers(4, size=len(obs)), best)

    def set_weights(self, weights: Array) -> None:
        self.values = weights


class ExploringActor:
    """Step envs with the policy and push fragments of transitions to the server, in one call per fragment."""

    def __init__(self, index: int, inserter: Any, epsilon: float) -> None:
        self.walk = Walk(index, epsilon)
        self.explorer = Explorer(lake(4), self.walk, index, fragment_size=64, seed=index)
        self.inserter = inserter

    def explore(self, values: Array, fragments: int) -> dict[str, Any]:
        """Walk with these values; return statistics."""
        self.walk.set_weights(values)
        for _ in range(fragments):
            self.inserter.add(self.explorer.collect())
        self.inserter.flush()
        return self.explorer.stats()


class LearningActor:
    """Own the server, and sample from it."""

    def __init__(self, capacity: int, batch_size: int) -> None:
        with lake(1) as vec:
            spaces = vec.observation_space, vec.action_space
        self.server = ReplayServer(*spaces, capacity, batch_size=batch_size, server_options={"num_cpus": 0})
        self.values = np.zeros((16, 4))

    def inserter(self, explorer: int) -> Any:
        """Return the object by which an explorer pushes. It can be sent to any actor or task."""
        return self.server.inserter(explorer)

    def learn(self, updates: int) -> tuple[Array, dict[str, Any]]:
        """Learn from this many batches, as soon as there are enough transitions; return the table and statistics."""
        for _ in range(updates):
            update(self.values, self.server.sample())
        return self.values, self.server.stats()

    def stop(self) -> None:
        """End the server."""
        self.server.stop()


def update(values: Array, batch: dict[str, Any], gamma: float = 0.95, rate: float = 0.5) -> None:
    """Do one step of Q-learning on a batch, in place. Of repeated entries the mean error counts."""
    target = batch["reward"] + gamma * ~batch["terminated"] * values[batch["next_obs"]].max(1)
    error, count = np.zeros_like(values), np.zeros_like(values)
    place = batch["obs"], batch["action"]
    np.add.at(error, place, target - values[place])
    np.add.at(count, place, 1)
    values += rate * error / np.maximum(count, 1)


def run(args: argparse.Namespace) -> None:
    """Start the actors, and run all iterations."""
    print(f"starting {args.num_explorers} explorers", flush=True)
    learner: Any = ray.remote(num_cpus=0)(LearningActor).remote(args.buffer_size, args.batch_size)
    exploring = ray.remote(num_cpus=0)(ExploringActor)
    epsilons = np.linspace(0.9, 0.1, args.num_explorers)  # from mostly random to mostly greedy
    inserters = [learner.inserter.remote(k) for k in range(args.num_explorers)]
    explorers: list[Any] = [exploring.remote(k, inserters[k], epsilons[k]) for k in range(args.num_explorers)]
    values: Any = np.zeros((16, 4))
    for number in range(1, args.num_iterations + 1):
        walks = [explorer.explore.remote(values, args.num_fragments) for explorer in explorers]
        values, buffer = ray.get(learner.learn.remote(args.updates_per_iteration))
        careful = ray.get(walks)[-1]
        print(
            f"iteration {number:3}  stored {buffer['stored']}  inserted {buffer['inserted']}"
            f"  sampled {buffer['sampled']}  mean return of the careful explorer {careful['mean_return'] or 0.0:.2f}",
            flush=True,
        )
    ray.get(learner.stop.remote())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--num-iterations", type=int, default=15)
    parser.add_argument("--num-explorers", type=int, default=3)
    parser.add_argument("--num-fragments", type=int, default=10, help="of each explorer in an iteration")
    parser.add_argument("--updates-per-iteration", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--buffer-size", type=int, default=20_000)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    ray.init(include_dashboard=False, logging_level="error")
    try:
        run(args)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
