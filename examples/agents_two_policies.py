"""Train two policies that play against each other: three adversaries hunt one agent (MPE2's simple_tag), by groups.

    python examples/agents_two_policies.py
    python examples/agents_two_policies.py --num-envs 64 --total-timesteps 400000 --backend subproc

Each group has a policy of its own, and learns by policy gradients from its own rows.

Needs: pip install ".[agents]" mpe2 torch
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from vecenvs import MultiAgentVecEnv, make_multi_agent

STEPS = 25  # of an episode


class Learner:
    """One group's policy and its optimizer."""

    def __init__(self, vec: MultiAgentVecEnv, name: str, learning_rate: float) -> None:
        size, actions = vec.observation_spaces[name].shape[0], int(vec.action_spaces[name].n)
        self.net = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, actions))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=learning_rate)
        self.rows: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.rewards: list[np.ndarray[Any, Any]] = []

    def act(self, obs: Any) -> np.ndarray[Any, Any]:
        """Draw actions (num_envs, agents) and keep what the update needs."""
        seen = torch.as_tensor(obs)
        actions = Categorical(logits=self.net(seen)).sample()
        self.rows.append((seen, actions))
        return actions.numpy()

    def update(self) -> float:
        """Learn from the kept rows. Return the mean reward of an agent in a step."""
        rewards = np.stack(self.rewards)
        ahead = np.flip(np.flip(rewards, 0).cumsum(0), 0)  # of each step until the episode's end
        better = (ahead - ahead.mean(axis=(1, 2), keepdims=True)) / (ahead.std() + 1e-6)
        gains = torch.as_tensor(np.ascontiguousarray(better))
        seen, actions = (torch.stack(parts) for parts in zip(*self.rows, strict=True))
        policy = Categorical(logits=self.net(seen))
        loss = -(policy.log_prob(actions) * gains).mean() - 0.01 * policy.entropy().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.rows, self.rewards = [], []
        return float(rewards.mean())


def main(argv: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Train; return the mean rewards of each group by update."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="simple_tag_v3", help="a module of mpe2")
    parser.add_argument("--backend", default="dummy")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--total-timesteps", type=int, default=80_000, help="steps of envs")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    means: dict[str, list[float]] = {}
    make = importlib.import_module(f"mpe2.{args.env_id}").parallel_env
    with make_multi_agent(make, args.num_envs, backend=args.backend, seed=args.seed) as vec:
        learners = {name: Learner(vec, name, args.learning_rate) for name in vec.groups}
        obs = vec.reset()
        for update in range(args.total_timesteps // (STEPS * args.num_envs)):
            for _ in range(STEPS):
                actions = {name: learner.act(obs[name]) for name, learner in learners.items()}
                obs, rewards, _, _ = vec.step(actions)
                for name, learner in learners.items():
                    learner.rewards.append(rewards[name])
            for name, learner in learners.items():
                means.setdefault(name, []).append(learner.update())
            if (update + 1) % 10 == 0:
                told = ", ".join(f"{name} {np.mean(values[-10:]):+.3f}" for name, values in means.items())
                print(f"update {update + 1}: mean reward in a step {told}", flush=True)
    return means


if __name__ == "__main__":
    main()
