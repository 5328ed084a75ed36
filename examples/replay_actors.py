"""Actors of one's own around the replay server: the learner is one, and so are the explorers, which push to it.

    python examples/replay_actors.py                  # 15 rounds
    python examples/replay_actors.py --rounds 30

This is how programs look that keep a Buffer class in a Ray actor. `vecenvs.replay.Replay` starts and watches explorers
by itself (replay_dqn.py); here they are yours, and so is what happens if one of them dies. In each round the explorers
walk over a frozen lake with the newest table of values, while the learner draws batches of what all have found and
makes the next table. Q-learning in a table, NumPy alone.

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
    """A lake on which nobody slips: 16 fields, 4 directions, a reward of 1 at the goal."""
    return make_vec_env("FrozenLake-v1", num_env=num_envs, env_kwargs={"is_slippery": False}, backend="dummy")


class Walk:
    """The policy of an explorer: the best direction of the table, with some chance of any other."""

    def __init__(self, explorer: int, epsilon: float) -> None:
        self.values, self.epsilon = np.zeros((16, 4)), epsilon
        self.rng = np.random.default_rng(explorer)

    def act(self, obs: Array) -> Array:
        noise = 1e-6 * self.rng.random((len(obs), 4))  # among equals any
        best = (self.values[obs] + noise).argmax(1)
        return np.where(self.rng.random(len(obs)) < self.epsilon, self.rng.integers(4, size=len(obs)), best)

    def set_weights(self, weights: Array) -> None:
        self.values = weights


class ExploringActor:
    """Steps envs with the policy and pushes fragments of transitions to the server: one call per fragment."""

    def __init__(self, index: int, inserter: Any, epsilon: float) -> None:
        self.walk = Walk(index, epsilon)
        self.explorer = Explorer(lake(4), self.walk, index, fragment_size=64, seed=index)
        self.inserter = inserter

    def explore(self, values: Array, fragments: int) -> dict[str, Any]:
        """Walk with these values; tell how it goes."""
        self.walk.set_weights(values)
        for _ in range(fragments):
            self.inserter.add(self.explorer.collect())
        self.inserter.flush()
        return self.explorer.stats()


class LearningActor:
    """Owns the server, and samples from it."""

    def __init__(self, capacity: int, batch_size: int) -> None:
        with lake(1) as vec:
            spaces = vec.observation_space, vec.action_space
        self.server = ReplayServer(*spaces, capacity, batch_size=batch_size, server_options={"num_cpus": 0})
        self.values = np.zeros((16, 4))

    def inserter(self, explorer: int) -> Any:
        """What an explorer pushes with. It may be sent to any actor or task."""
        return self.server.inserter(explorer)

    def learn(self, updates: int) -> tuple[Array, dict[str, Any]]:
        """Learn from so many batches; give the table and how full the buffer is. Waits until there is enough."""
        for _ in range(updates):
            update(self.values, self.server.sample())
        return self.values, self.server.stats()

    def stop(self) -> None:
        """End the server."""
        self.server.stop()


def update(values: Array, batch: dict[str, Any], gamma: float = 0.95, rate: float = 0.5) -> None:
    """One step of Q-learning on a batch, in place. What occurs several times counts by its mean."""
    target = batch["reward"] + gamma * ~batch["terminated"] * values[batch["next_obs"]].max(1)
    error, count = np.zeros_like(values), np.zeros_like(values)
    place = batch["obs"], batch["action"]
    np.add.at(error, place, target - values[place])
    np.add.at(count, place, 1)
    values += rate * error / np.maximum(count, 1)


def run(args: argparse.Namespace) -> None:
    """Start the actors and go round."""
    learner: Any = ray.remote(num_cpus=0)(LearningActor).remote(args.capacity, args.batch_size)
    exploring = ray.remote(num_cpus=0)(ExploringActor)
    epsilons = np.linspace(0.9, 0.1, args.explorers)  # from bold to careful
    inserters = [learner.inserter.remote(k) for k in range(args.explorers)]
    explorers: list[Any] = [exploring.remote(k, inserters[k], epsilons[k]) for k in range(args.explorers)]
    values: Any = np.zeros((16, 4))
    for number in range(1, args.rounds + 1):
        walks = [explorer.explore.remote(values, args.fragments) for explorer in explorers]
        values, buffer = ray.get(learner.learn.remote(args.updates))
        careful = ray.get(walks)[-1]
        print(
            f"round {number:3}  stored {buffer['stored']}  inserted {buffer['inserted']}  sampled {buffer['sampled']}"
            f"  mean return of the careful explorer {careful['mean_return'] or 0.0:.2f}",
            flush=True,
        )
    ray.get(learner.stop.remote())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--explorers", type=int, default=3)
    parser.add_argument("--fragments", type=int, default=10, help="of each explorer, per round")
    parser.add_argument("--updates", type=int, default=100, help="per round")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--capacity", type=int, default=20_000)
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
