"""PPO on 4096 CartPoles at once, in one file: learns to a mean return of 475 in under a minute on two cores.

    python examples/ppo_batched_cartpole.py
    python examples/ppo_batched_cartpole.py --num-workers 1     # step the envs in this process

The envs come batched (Gymnasium's CartPole in NumPy): one batch for each worker, and no Python code runs for each env.
In `next_step` mode an env that has ended an episode ignores its next action, and returns the first observation. These
rows are no transitions (`vec.active`), and get weight 0. Needs: pip install torch
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from vecenvs import VecEnv, VecTorch, make_vec_env


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1", help="an id with a vector_entry_point and two actions")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--total-timesteps", type=int, default=10_000_000, help="at most, of all envs together")
    parser.add_argument(
        "--target-return", type=float, default=475.0, help="ends at this mean of the last num-envs episodes"
    )
    parser.add_argument("--num-steps", type=int, default=16, help="steps of each env between updates")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--gamma", type=float, default=0.98)
    parser.add_argument("--gae-lambda", type=float, default=0.9)
    parser.add_argument("--update-epochs", type=int, default=1)
    parser.add_argument("--num-minibatches", type=int, default=32)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    return parser.parse_args(argv)


def network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    last = nn.Linear(64, outputs)
    nn.init.orthogonal_(last.weight, gain)
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), last)


class Returns:
    """The mean return of the last episodes, as many as there are envs."""

    def __init__(self, num_envs: int) -> None:
        self.running = np.zeros(num_envs)
        self.last = np.zeros(0)

    def add(self, rewards: np.ndarray, dones: np.ndarray) -> None:
        self.running += rewards
        self.last = np.concatenate([self.last, self.running[dones]])[-len(self.running) :]
        self.running[dones] = 0.0

    def mean(self) -> float:
        return float(self.last.mean()) if len(self.last) == len(self.running) else 0.0


class Learner:
    """A policy network and a value network, and the envs that they learn from."""

    def __init__(self, args: argparse.Namespace, vec: VecEnv) -> None:
        self.args = args
        self.vec = vec
        size = vec.observation_space.shape[0]
        self.actor, self.critic = network(size, 2, 0.01), network(size, 1, 1.0)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=args.learning_rate)
        self.returns = Returns(vec.num_envs)
        self.obs = vec.reset(seed=args.seed)

    @torch.no_grad()
    def collect(self) -> dict[str, torch.Tensor]:
        """Step all envs `num_steps` times; return the transitions, with advantages."""
        rows: dict[str, list[torch.Tensor]] = {
            name: [] for name in ("obs", "actions", "log_probs", "rewards", "terminated", "dones", "active")
        }
        for _ in range(self.args.num_steps):
            logits = functional.log_softmax(self.actor(self.obs), 1)
            actions = (torch.rand(len(logits)) < logits[:, 1].exp()).long()
            following, rewards, dones, _ = self.vec.step(actions)
            self.returns.add(rewards.numpy(), dones.numpy())
            values = {
                "obs": self.obs,
                "actions": actions,
                "log_probs": logits.gather(1, actions[:, None])[:, 0],
                "rewards": rewards,
                "terminated": torch.from_numpy(self.vec.terminated).float(),
                "dones": dones.float(),
                "active": torch.from_numpy(self.vec.active).float(),
            }
            for name, value in values.items():
                rows[name].append(value)
            self.obs = following
        batch = {name: torch.stack(values) for name, values in rows.items()}
        values = self.critic(torch.cat([batch["obs"], self.obs[None]]))[..., 0]
        advantages, running = torch.zeros_like(batch["rewards"]), torch.zeros(self.vec.num_envs)
        for t in reversed(range(self.args.num_steps)):  # an episode that was cut off goes on in its last value
            target = batch["rewards"][t] + self.args.gamma * values[t + 1] * (1 - batch["terminated"][t])
            decay = self.args.gamma * self.args.gae_lambda * (1 - batch["dones"][t])
            advantages[t] = running = (target - values[t] + decay * running) * batch["active"][t]
        batch["advantages"], batch["returns"] = advantages, advantages + values[:-1]
        return {name: value.flatten(0, 1) for name, value in batch.items()}

    def update(self, batch: dict[str, torch.Tensor]) -> None:
        """Improve policy and values on the transitions."""
        args = self.args
        size = len(batch["actions"])
        for _ in range(args.update_epochs):
            for chosen in torch.randperm(size).chunk(args.num_minibatches):
                part = {name: value[chosen] for name, value in batch.items()}
                weight = part["active"] / part["active"].sum()
                logits = functional.log_softmax(self.actor(part["obs"]), 1)
                ratio = (logits.gather(1, part["actions"][:, None])[:, 0] - part["log_probs"]).exp()
                mean = (part["advantages"] * weight).sum()
                spread = ((part["advantages"] - mean).square() * weight).sum().sqrt()
                advantage = (part["advantages"] - mean) / (spread + 1e-8)
                policy_loss = torch.max(
                    -advantage * ratio, -advantage * ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                )
                value_loss = (self.critic(part["obs"])[:, 0] - part["returns"]).square()
                loss = ((policy_loss + 0.5 * value_loss / 100) * weight).sum()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, 0.5)
                self.optimizer.step()


def main(argv: Sequence[str] | None = None) -> float:
    """Train until the target is reached; return the mean return of the last episodes."""
    args = parse(argv)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # more of them cost more than they gain with networks this small
    inner = make_vec_env(args.env_id, num_envs=args.num_envs, vectorization="native", num_workers=args.num_workers)
    updates = max(1, args.total_timesteps // (args.num_steps * args.num_envs))
    start, mean = time.monotonic(), 0.0
    with VecTorch(inner) as vec:
        learner = Learner(args, vec)
        for update in range(1, updates + 1):
            learner.optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - update / (updates + 1))
            learner.update(learner.collect())
            mean = learner.returns.mean()
            if update % 5 == 0 or mean >= args.target_return:
                steps, seconds = update * args.num_steps * args.num_envs, time.monotonic() - start
                print(
                    f"step {steps}: mean return {mean:.1f}, {seconds:.1f} s, {steps / seconds:.0f} steps/s", flush=True
                )
            if mean >= args.target_return:
                break
    return mean


if __name__ == "__main__":
    main()
