"""Sixteen explorers, one replay buffer, one learner: each update prints what is in its batch.

    python examples/replay_ray.py                  # 200 updates
    python examples/replay_ray.py --num-updates 1000

The env shows a light in one of the four cells of a 2x2 board. Naming the cell gives a reward; a miss ends the episode.
Each explorer is a Ray actor which plays a VecEnv of such boards with its newest weights. The learner, this process,
draws batches of 16 from the transitions of all explorers. Ctrl-C ends everything.

Needs: pip install ".[replay]" rich
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vecenvs import DummyVecEnv, VecEnv
from vecenvs.replay import Replay

Array = NDArray[Any]


class Light(gym.Env[Any, Any]):
    """An env in which the action names the cell that is lit. A miss terminates the episode, 20 steps truncate it."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2, 2), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._lit(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        hit = int(action) == self.cell
        return self._lit(), float(hit), not hit, self.steps >= 20, {}

    def _lit(self) -> Array:
        self.cell = int(self.np_random.integers(4))
        board = np.zeros((2, 2), np.float32)
        board.flat[self.cell] = 1.0
        return board


class Policy:
    """The policy of an explorer: the best action of a linear Q function, or with some probability a random one."""

    def __init__(self, explorer: int, explorers: int) -> None:
        self.weights = np.zeros((4, 4), np.float32)
        self.epsilon = 0.5 ** (1 + 4 * explorer / explorers)  # from bold to careful
        self.rng = np.random.default_rng(explorer)

    def act(self, obs: Array) -> Array:
        best = (obs.reshape(-1, 4) @ self.weights).argmax(1)
        return np.where(self.rng.random(len(obs)) < self.epsilon, self.rng.integers(4, size=len(obs)), best)

    def set_weights(self, weights: Array) -> None:
        self.weights = weights


def boards(explorer: int, num_envs: int) -> VecEnv:
    """Make the VecEnv of one explorer."""
    return DummyVecEnv([Light] * num_envs)


def update(weights: Array, batch: dict[str, Any], gamma: float = 0.9, rate: float = 0.1) -> float:
    """Do one step of Q-learning on a batch, in place; return the loss. Truncated episodes are bootstrapped."""
    obs, next_obs = batch["obs"].reshape(-1, 4), batch["next_obs"].reshape(-1, 4)
    rows = np.arange(len(obs))
    target = batch["reward"] + gamma * ~batch["terminated"] * (next_obs @ weights).max(1)
    error = target - (obs @ weights)[rows, batch["action"]]
    np.add.at(weights.T, batch["action"], rate * error[:, None] * obs)
    return float(np.mean(error**2))


def run(args: argparse.Namespace, progress: Progress) -> None:
    """Start the explorers, and learn."""
    task = progress.add_task(f"starting {args.num_explorers} explorers", total=args.num_updates)
    weights = np.zeros((4, 4), np.float32)
    with Replay(
        functools.partial(boards, num_envs=args.num_envs),
        lambda vec, explorer: Policy(explorer, args.num_explorers),
        num_explorers=args.num_explorers,
        capacity=args.buffer_size,
        batch_size=args.batch_size,
        samples_per_insert=1.0,  # on average each transition is drawn once: the explorers wait for the learner
        fragment_size=8,
        prefetch=1,  # fresh batches matter more here than how fast they come
        seed=args.seed,
        explorer_options={"num_cpus": 0},  # they compute next to nothing
    ) as replay:
        for number in range(1, args.num_updates + 1):
            batch = replay.sample()
            loss = update(weights, batch)
            replay.publish(weights)
            stats = replay.stats()
            returns = [each["mean_return"] for each in stats["explorers"] if each["mean_return"] is not None]
            progress.console.print(
                f"update {number:4}  loss {loss:.4f}  batch {batch['obs'].shape}  stored {stats['stored']}"
                f"  explorers {' '.join(map(str, batch['explorer']))}",
                soft_wrap=True,
            )
            mean = f"mean return {np.mean(returns):.1f}" if returns else "exploring"
            progress.update(task, completed=number, description=mean)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--num-updates", type=int, default=200)
    parser.add_argument("--num-explorers", type=int, default=16)
    parser.add_argument("--num-envs", type=int, default=2, help="of each explorer")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--buffer-size", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    args = parse(argv)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(highlight=False, markup=False)) as progress:
        try:
            run(args, progress)
        except KeyboardInterrupt:
            progress.console.print("stopped")
            return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
