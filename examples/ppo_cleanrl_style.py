"""PPO in one file, in the style of CleanRL, written for Gymnasium's vector envs.

    python examples/ppo_cleanrl_style.py                        # over as_gymnasium: worker processes
    python examples/ppo_cleanrl_style.py --backend gymnasium    # over gymnasium.make_vec: the same curve

Only `make_vec` differs between the two. Needs: pip install torch
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Categorical

from vecenvs import as_gymnasium, make_vec_env


def make_vec(args: argparse.Namespace) -> gym.vector.VectorEnv:
    """Make the envs with either library."""
    if args.backend == "gymnasium":
        same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
        return gym.make_vec(args.env_id, args.num_envs, vectorization_mode="sync", vector_kwargs=same_step)
    return as_gymnasium(make_vec_env(args.env_id, num_envs=args.num_envs, backend=args.backend))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--backend", default="subproc", help="dummy, subproc, ..., or gymnasium for its make_vec")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    parser.add_argument("--num-steps", type=int, default=64, help="steps of each env between updates")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--update-epochs", type=int, default=8)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.005)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    return parser.parse_args(argv)


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    """A policy network and a separate value network."""

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        super().__init__()
        assert isinstance(envs.single_action_space, gym.spaces.Discrete), "this script is for discrete actions"
        size, actions = int(np.prod(envs.single_observation_space.shape)), int(envs.single_action_space.n)
        self.critic = nn.Sequential(layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        self.actor = nn.Sequential(layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01))

    def policy(self, obs: torch.Tensor) -> Categorical:
        return Categorical(logits=self.actor(obs))

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)


def advantages(args: argparse.Namespace, rewards: Any, dones: Any, values: Any, last_value: Any) -> torch.Tensor:
    """Return the generalised advantage estimates. `dones[t]` means that the episode ended with step t."""
    result, running = torch.zeros_like(rewards), torch.zeros(args.num_envs)
    following = last_value
    for t in reversed(range(args.num_steps)):
        alive = 1.0 - dones[t]
        delta = rewards[t] + args.gamma * following * alive - values[t]
        running = delta + args.gamma * args.gae_lambda * alive * running
        result[t] = running
        following = values[t]
    return result


def update(args: argparse.Namespace, agent: Agent, optimizer: torch.optim.Optimizer, batch: dict[str, Any]) -> None:
    """Improve the agent on one batch of experience."""
    size = len(batch["actions"])
    for _ in range(args.update_epochs):
        for chosen in torch.randperm(size).chunk(args.num_minibatches):
            obs, advantage = batch["obs"][chosen], batch["advantages"][chosen]
            policy = agent.policy(obs)
            ratio = (policy.log_prob(batch["actions"][chosen]) - batch["log_probs"][chosen]).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
            value_loss = 0.5 * (agent.value(obs) - batch["returns"][chosen]).pow(2).mean()
            loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train; return the returns of all episodes, in the order in which they ended."""
    args = parse(argv)
    random.seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002  as CleanRL's scripts do
    torch.manual_seed(args.seed)

    envs = make_vec(args)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    rows = (args.num_steps, args.num_envs)
    obs = torch.zeros((*rows, *envs.single_observation_space.shape))
    actions, log_probs = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows)
    rewards, dones, values = torch.zeros(rows), torch.zeros(rows), torch.zeros(rows)

    returns: list[float] = []
    running, recent = np.zeros(args.num_envs), deque[float](maxlen=50)
    start = time.monotonic()
    next_obs = torch.as_tensor(envs.reset(seed=args.seed)[0], dtype=torch.float32)
    updates = max(1, args.total_timesteps // (args.num_steps * args.num_envs))
    for iteration in range(updates):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - iteration / updates)
        for t in range(args.num_steps):
            obs[t] = next_obs
            with torch.no_grad():
                policy = agent.policy(next_obs)
                actions[t] = policy.sample()
                log_probs[t] = policy.log_prob(actions[t])
                values[t] = agent.value(next_obs)
            given, reward, terminated, truncated, _ = envs.step(actions[t].numpy())
            next_obs = torch.as_tensor(given, dtype=torch.float32)
            ended = np.logical_or(terminated, truncated)
            rewards[t], dones[t] = torch.as_tensor(reward), torch.as_tensor(ended)
            running += reward
            for i in np.flatnonzero(ended):
                returns.append(float(running[i]))
                recent.append(returns[-1])
                running[i] = 0.0
        with torch.no_grad():
            advantage = advantages(args, rewards, dones, values, agent.value(next_obs))
        batch = {"obs": obs, "actions": actions, "log_probs": log_probs, "advantages": advantage}
        batch["returns"] = advantage + values
        update(args, agent, optimizer, {name: value.flatten(0, 1) for name, value in batch.items()})
        if iteration % 10 == 9 or iteration == updates - 1:
            steps = (iteration + 1) * args.num_steps * args.num_envs
            mean = np.mean(recent) if recent else float("nan")
            print(f"step {steps}: mean return {mean:.1f}, {steps / (time.monotonic() - start):.0f} steps/s", flush=True)
    envs.close()
    return returns


if __name__ == "__main__":
    main()
