"""DDPG on envs that reset on their own, without the others waiting for them.

    python examples/ddpg_async_reset.py                   # some minutes on two cores; writes ddpg_async_reset.png
    python examples/ddpg_async_reset.py --env-id MountainCarContinuous-v0 --total-timesteps 50000

With `autoreset="async"` a learner has to observe these rules, all of them in `Collector.step`:

* A row is a transition only where `vec.active` is True. It leads from the last row's observation to the row's own. That
  also holds for the last row of an episode, whose observation is not that of the reset.
* While an env is being reset its row repeats; then follows the first row of its next episode. These rows are inactive.
* A row with info["episode_start"] begins an episode, so the noise of that env starts anew.

Needs: pip install torch matplotlib
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vecenvs import VecEnv, make_vec_env

Array = NDArray[Any]


class Noise:
    """Ornstein-Uhlenbeck noise, one process per env: x += theta * (0 - x) * dt + sigma * sqrt(dt) * N(0, 1)."""

    def __init__(self, num_envs: int, size: int, rng: np.random.Generator, theta: float = 0.15, sigma: float = 0.2):
        self.state = np.zeros((num_envs, size))
        self.rng, self.theta, self.sigma, self.dt = rng, theta, sigma, 0.05

    def reset(self, env: int) -> None:
        self.state[env] = 0.0

    def __call__(self) -> Array:
        kick = self.sigma * np.sqrt(self.dt) * self.rng.standard_normal(self.state.shape)
        self.state += -self.theta * self.state * self.dt + kick
        return self.state


class ReplayBuffer:
    """The last `capacity` transitions. `ended` means termination only: after a time limit the value is bootstrapped."""

    def __init__(self, capacity: int, obs_size: int, action_size: int) -> None:
        self.obs = np.empty((capacity, obs_size), np.float32)
        self.actions = np.empty((capacity, action_size), np.float32)
        self.rewards = np.empty(capacity, np.float32)
        self.next_obs = np.empty((capacity, obs_size), np.float32)
        self.ended = np.empty(capacity, np.float32)
        self.capacity, self.added = capacity, 0

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, obs: Array, actions: Array, rewards: Array, next_obs: Array, ended: Array) -> None:
        where = np.arange(self.added, self.added + len(obs)) % self.capacity
        self.obs[where], self.actions[where], self.rewards[where] = obs, actions, rewards
        self.next_obs[where], self.ended[where] = next_obs, ended
        self.added += len(obs)

    def sample(self, count: int, rng: np.random.Generator) -> list[torch.Tensor]:
        rows = rng.integers(len(self), size=count)
        return [torch.from_numpy(a[rows]) for a in (self.obs, self.actions, self.rewards, self.next_obs, self.ended)]


class Collector:
    """Step the envs and store the transitions. `policy` returns actions in [-1, 1] for a batch of observations."""

    def __init__(
        self, vec: VecEnv, policy: Callable[[Array], Array], noise: Noise, replay: ReplayBuffer, seed: int
    ) -> None:
        self.vec, self.policy, self.noise, self.replay = vec, policy, noise, replay
        self.obs = vec.reset(seed=seed)

    def step(self) -> int:
        """Step all envs that are not being reset; return the number of transitions."""
        actions = np.clip(self.policy(self.obs) + self.noise(), -1.0, 1.0).astype(np.float32)
        next_obs, rewards, _, infos = self.vec.step(scaled(actions, self.vec))
        active = self.vec.active
        ended = self.vec.terminated[active]
        self.replay.add(self.obs[active], actions[active], rewards[active], next_obs[active], ended)
        for env, info in enumerate(infos):
            if info.get("episode_start"):
                self.noise.reset(env)
        self.obs = next_obs
        return int(active.sum())


class Agent:
    """An actor, a critic, and slowly updated copies of both (Lillicrap et al. 2015)."""

    def __init__(self, obs_size: int, action_size: int, args: argparse.Namespace) -> None:
        self.actor = network(obs_size, action_size, args.hidden_size, nn.Tanh())
        self.critic = network(obs_size + action_size, 1, args.hidden_size)
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=args.learning_rate)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=args.learning_rate)
        self.gamma, self.tau = args.gamma, args.tau

    def act(self, obs: Array) -> Array:
        """Return the actor's actions in [-1, 1], without noise."""
        with torch.no_grad():
            actions: Array = self.actor(torch.as_tensor(obs, dtype=torch.float32)).numpy()
        return actions

    def learn(self, obs: Any, actions: Any, rewards: Any, next_obs: Any, ended: Any) -> None:
        with torch.no_grad():
            future = self.target_critic(torch.cat([next_obs, self.target_actor(next_obs)], 1)).squeeze(1)
            target = rewards + self.gamma * (1.0 - ended) * future
        value = self.critic(torch.cat([obs, actions], 1)).squeeze(1)
        descend(self.critic_optimizer, nn.functional.mse_loss(value, target))
        descend(self.actor_optimizer, -self.critic(torch.cat([obs, self.actor(obs)], 1)).mean())
        for net, slow in ((self.actor, self.target_actor), (self.critic, self.target_critic)):
            with torch.no_grad():
                for new, old in zip(net.parameters(), slow.parameters(), strict=True):
                    old.lerp_(new, self.tau)


def network(inputs: int, outputs: int, hidden: int, *last: nn.Module) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*layers, *last)


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def scaled(actions: Array, vec: VecEnv) -> Array:
    """Scale actions in [-1, 1] to the bounds of the action space."""
    space = vec.action_space
    assert isinstance(space, gym.spaces.Box), "this script is for actions in a Box"
    stretched: Array = space.low + (actions + 1.0) * 0.5 * (space.high - space.low)
    return stretched


def evaluate(vec: VecEnv, agent: Agent, seed: int) -> list[float]:
    """Play one episode in each env without noise; return the returns."""
    obs, returns = vec.reset(seed=seed), np.full(vec.num_envs, np.nan)
    while np.isnan(returns).any():
        obs, _, dones, infos = vec.step(scaled(agent.act(obs), vec))
        for env in np.flatnonzero(dones & np.isnan(returns)):
            returns[env] = infos[env]["episode"]["r"]
    return returns.tolist()


def plot(steps: Sequence[int], returns: Sequence[Sequence[float]], env_id: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    axes.fill_between(steps, np.min(returns, 1), np.max(returns, 1), alpha=0.25, label="worst to best episode")
    axes.plot(steps, np.mean(returns, 1), label="mean")
    axes.set(xlabel="transitions", ylabel="return of evaluation episodes", title=f'DDPG, {env_id}, autoreset="async"')
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env-id", default="Pendulum-v1")
    parser.add_argument("--backend", default="subproc")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--total-timesteps", type=int, default=20_000, help="transitions to collect")
    parser.add_argument("--learning-starts", type=int, default=1_000, help="transitions with random actions at first")
    parser.add_argument("--eval-frequency", type=int, default=1_000, help="transitions between evaluations")
    parser.add_argument("--num-eval-envs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--buffer-size", type=int, default=100_000)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--tau", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, default=Path("ddpg_async_reset.png"))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> float:
    """Train; return the mean return of the last 20 evaluation episodes."""
    args = parse(argv)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # networks this small are slower on more, and the envs want the cores
    rng = np.random.default_rng(args.seed)
    vec = make_vec_env(args.env_id, num_envs=args.num_envs, backend=args.backend, autoreset="async")
    evaluation = make_vec_env(args.env_id, num_envs=args.num_eval_envs, backend="dummy")
    with vec, evaluation:
        obs_size, action_size = gym.spaces.flatdim(vec.observation_space), gym.spaces.flatdim(vec.action_space)
        agent, replay = Agent(obs_size, action_size, args), ReplayBuffer(args.buffer_size, obs_size, action_size)
        warming = True

        def policy(obs: Array) -> Array:
            return rng.uniform(-1.0, 1.0, (len(obs), action_size)) if warming else agent.act(obs)

        noise = Noise(args.num_envs, action_size, rng)
        collector = Collector(vec, policy, noise, replay, args.seed)
        steps, returns, start = [0], [evaluate(evaluation, agent, args.seed + 1000)], time.monotonic()
        while replay.added < args.total_timesteps:
            transitions = collector.step()
            warming = replay.added < args.learning_starts
            for _ in range(0 if warming else transitions):
                agent.learn(*replay.sample(args.batch_size, rng))
            if replay.added >= steps[-1] + args.eval_frequency or replay.added >= args.total_timesteps:
                steps.append(replay.added)
                returns.append(evaluate(evaluation, agent, args.seed + 1000 * len(steps)))
                rate = replay.added / (time.monotonic() - start)
                print(f"{replay.added} transitions, {rate:.0f}/s: mean return {np.mean(returns[-1]):.1f}", flush=True)
    plot(steps, returns, args.env_id, args.plot)
    mean = float(np.mean([r for episodes in returns for r in episodes][-20:]))
    print(f"mean return of the last 20 evaluation episodes: {mean:.1f}; curve in {args.plot}")
    return mean


if __name__ == "__main__":
    main()
