"""DQN on CartPole-v1: four explorers play, this process learns, until the greedy policy's mean return is 400.

    python examples/replay_dqn.py
    python examples/replay_dqn.py --seed 2 --num-explorers 8

Double DQN with 3-step returns and a slowly updated target network (Mnih et al. 2015, van Hasselt et al. 2016). The
explorers act with a NumPy copy of the network, each with its own epsilon (Horgan et al. 2018), so their processes do
not import torch. Every 500 updates this process plays 20 episodes without exploration.

Needs: pip install ".[replay]" torch
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vecenvs import VecEnv, make_vec_env
from vecenvs.replay import Replay

Array = NDArray[Any]


class Greedy:
    """A policy: the network's best action, computed by NumPy, or with probability `epsilon` a random one."""

    def __init__(self, num_actions: int, epsilon: float, seed: int) -> None:
        self.layers: list[tuple[Array, Array]] = []
        self.num_actions, self.epsilon, self.rng = num_actions, epsilon, np.random.default_rng(seed)

    def set_weights(self, layers: list[tuple[Array, Array]]) -> None:
        self.layers = layers

    def act(self, obs: Array) -> Array:
        random = self.rng.integers(self.num_actions, size=len(obs))
        if not self.layers:  # before the first weights of the learner
            return random
        values = obs
        for weight, bias in self.layers[:-1]:
            values = np.maximum(values @ weight + bias, 0.0)
        weight, bias = self.layers[-1]
        return np.where(self.rng.random(len(obs)) < self.epsilon, random, (values @ weight + bias).argmax(1))


class Learner:
    """The network, its target network, and the update."""

    def __init__(self, obs_size: int, num_actions: int, args: argparse.Namespace) -> None:
        sizes = [obs_size, args.hidden_size, args.hidden_size, num_actions]
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1])
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=args.learning_rate)
        self.tau, self.gamma = args.tau, args.gamma

    def weights(self) -> list[tuple[Array, Array]]:
        linear = [layer for layer in self.net if isinstance(layer, nn.Linear)]
        return [(layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy()) for layer in linear]

    def update(self, batch: dict[str, Array]) -> float:
        """Learn from one batch; return the loss."""
        names = ("obs", "action", "reward", "next_obs", "terminated")
        obs, action, reward, next_obs, terminated = (torch.from_numpy(batch[name]) for name in names)
        # With n-step returns, gamma to the power of the number of steps in `reward`.
        discount = torch.from_numpy(batch["discount"]) if "discount" in batch else self.gamma
        with torch.no_grad():
            best = self.net(next_obs).argmax(1, keepdim=True)
            future = self.target(next_obs).gather(1, best).squeeze(1)
            target = reward + discount * ~terminated * future
        loss = nn.functional.smooth_l1_loss(self.net(obs).gather(1, action[:, None]).squeeze(1), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for new, old in zip(self.net.parameters(), self.target.parameters(), strict=True):
                old.lerp_(new, self.tau)
        return float(loss.detach())


def evaluate(vec: VecEnv, policy: Greedy) -> float:
    """Play one episode in each env; return the mean return."""
    obs, returns = vec.reset(), np.full(vec.num_envs, np.nan)
    while np.isnan(returns).any():
        obs, _, dones, infos = vec.step(policy.act(obs))
        for env in np.flatnonzero(dones & np.isnan(returns)):
            returns[env] = infos[env]["episode"]["r"]
    return float(returns.mean())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-explorers", type=int, default=4)
    parser.add_argument("--num-envs", type=int, default=4, help="of each explorer")
    parser.add_argument("--target-return", type=float, default=400.0, help="mean return to stop at")
    parser.add_argument("--num-updates", type=int, default=40_000, help="stop after these at the latest")
    parser.add_argument("--eval-frequency", type=int, default=500, help="updates between evaluations")
    parser.add_argument("--publish-frequency", type=int, default=20, help="updates between new weights")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--buffer-size", type=int, default=50_000)
    parser.add_argument("--learning-starts", type=int, default=1_000, help="transitions before the first update")
    parser.add_argument("--samples-per-insert", type=float, default=32.0)
    parser.add_argument("--n-step", type=int, default=3)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--tau", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> float:
    """Train; return the mean return of the last evaluation."""
    args = parse(argv)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # a network this small is slower on more, and the explorers want the cores

    def make_vec(explorer: int) -> VecEnv:
        return make_vec_env(args.env_id, num_envs=args.num_envs, backend="dummy")

    def make_policy(vec: VecEnv, explorer: int) -> Greedy:
        epsilon = 0.4 ** (1 + 7 * explorer / max(1, args.num_explorers - 1))
        return Greedy(vec.action_space.n, epsilon, 1000 * args.seed + explorer)

    evaluation = make_vec_env(args.env_id, num_envs=20, seed=args.seed, backend="dummy")
    print(f"starting {args.num_explorers} explorers", flush=True)
    replay = Replay(
        make_vec,
        make_policy,
        num_explorers=args.num_explorers,
        capacity=args.buffer_size,
        batch_size=args.batch_size,
        min_size=args.learning_starts,
        samples_per_insert=args.samples_per_insert,
        n_step=args.n_step,
        gamma=args.gamma,
        fragment_size=32,
        prefetch=8,
        seed=args.seed,
    )
    with evaluation, replay:
        learner = Learner(replay.observation_space.shape[0], replay.action_space.n, args)
        judged = Greedy(replay.action_space.n, 0.0, args.seed)
        start, mean = time.monotonic(), float("-inf")
        for number in range(1, args.num_updates + 1):
            loss = learner.update(replay.sample())
            if number % args.publish_frequency == 0:
                replay.publish(learner.weights())
            if number % args.eval_frequency == 0 or number == args.num_updates:
                judged.set_weights(learner.weights())
                mean, inserted = evaluate(evaluation, judged), replay.stats()["inserted"]
                print(
                    f"{time.monotonic() - start:4.0f} s, {number} updates, {inserted} transitions:"
                    f" loss {loss:.3f}, mean return {mean:.1f}",
                    flush=True,
                )
                if mean >= args.target_return:
                    break
    outcome = "reached" if mean >= args.target_return else "did not reach"
    print(f"{outcome} a mean return of {args.target_return:g}: {mean:.1f}")
    return mean


if __name__ == "__main__":
    main()
