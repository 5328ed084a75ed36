"""PPO in one loop, in the style of CleanRL: rollout, advantages, epochs of minibatches. One thread, on the CPU.

`LockStep` steps all envs and computes, by turns. `Halves` computes on the half of the envs that is ready while the
other half is being stepped. Both use rollouts of the same size from the current policy only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.training.agent import Agent
from benchmarks.training.candidates import Driven
from benchmarks.training.grid import EPOCHS, MINIBATCHES
from benchmarks.training.phases import Phases, clock

GAMMA, GAE_LAMBDA, CLIP, VALUES, ENTROPY, LEARNING_RATE, GRADIENT = 0.99, 0.95, 0.2, 0.5, 0.01, 2.5e-4, 0.5


class Learner:
    """The agent, the memory of a rollout of `length` steps of all envs, and the update."""

    def __init__(self, driven: Driven, num_envs: int, length: int) -> None:
        torch.manual_seed(0)
        self.driven, self.num_envs, self.length = driven, num_envs, length
        self.phases = Phases()
        self.agent = Agent(driven.observation_space, driven.action_space)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
        self.next_obs = self.agent.tensor(driven.obs)
        rows = (length, num_envs)
        self.obs = torch.zeros((*rows, *self.next_obs.shape[1:]), dtype=self.next_obs.dtype)
        actions, _, _ = self.agent.act(self.next_obs)
        self.actions = torch.zeros((*rows, *actions.shape[1:]), dtype=actions.dtype)
        self.log_probs, self.rewards, self.dones, self.values = (torch.zeros(rows) for _ in range(4))

    def collect(self) -> int:
        """Fill the memory; return the number of transitions."""
        raise NotImplementedError

    def update(self) -> None:
        """Improve the agent on the rollout."""
        with torch.no_grad():
            advantages = self._advantages(self.agent(self.next_obs)[1])
        returns = advantages + self.values
        batch = [one.flatten(0, 1) for one in (self.obs, self.actions, self.log_probs, advantages, returns)]
        for _ in range(EPOCHS):
            for chosen in torch.randperm(self.length * self.num_envs).chunk(MINIBATCHES):
                self._improve(*(one[chosen] for one in batch))

    def _advantages(self, last_values: torch.Tensor) -> torch.Tensor:
        result, running, following = torch.zeros_like(self.rewards), torch.zeros(self.num_envs), last_values
        for t in reversed(range(self.length)):
            alive = 1.0 - self.dones[t]
            delta = self.rewards[t] + GAMMA * following * alive - self.values[t]
            running = delta + GAMMA * GAE_LAMBDA * alive * running
            result[t] = running
            following = self.values[t]
        return result

    def _improve(
        self,
        obs: torch.Tensor,
        actions: torch.Tensor,
        log_probs: torch.Tensor,
        advantages: torch.Tensor,
        returns: torch.Tensor,
    ) -> None:
        policy, values = self.agent(obs)
        ratio = (policy.log_prob(actions) - log_probs).exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = -torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
        value_loss = 0.5 * (values - returns).pow(2).mean()
        loss = policy_loss + VALUES * value_loss - ENTROPY * policy.entropy().mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), GRADIENT)
        self.optimizer.step()


class LockStep(Learner):
    """Step all envs, compute, and so on."""

    def collect(self) -> int:
        driven, phases, made = self.driven, self.phases, 0
        step = driven.vec.step
        for t in range(self.length):
            self.obs[t] = self.next_obs
            begin = clock()
            self.actions[t], self.log_probs[t], self.values[t] = self.agent.act(self.next_obs)
            given = self.agent.to_env(self.actions[t])
            sent = clock()
            result = step(given)
            got = clock()
            phases.inference += sent - begin
            phases.step += got - sent
            obs, rewards, dones = driven.rows(result)
            self.next_obs = self.agent.tensor(obs)
            self.rewards[t], self.dones[t] = torch.as_tensor(rewards), torch.as_tensor(dones)
            made += driven.transitions(dones)
        return made


class Halves(Learner):
    """Take the rows of the half that is ready, compute on them, send it on: `recv(n/2, n/2)` and `send`.

    The envs of a half are not always the same. Each env makes as many steps in a rollout as in lock-step.
    """

    def __init__(self, driven: Driven, num_envs: int, length: int) -> None:
        super().__init__(driven, num_envs, length)
        self.half = max(1, num_envs // 2)

    def collect(self) -> int:
        vec, phases = self.driven.vec, self.phases
        taken = np.zeros(self.num_envs, np.int64)  # steps of each env
        for indices in np.array_split(np.arange(self.num_envs), 2):
            self._send(indices, taken)
        flying = self.num_envs
        while flying:
            begin = clock()
            batch = vec.recv(min(self.half, flying), self.half)
            phases.step += clock() - begin
            indices = batch.indices
            t = taken[indices]
            self.rewards[t, indices] = torch.as_tensor(batch.rewards)
            self.dones[t, indices] = torch.as_tensor(batch.dones, dtype=torch.float32)
            self.next_obs[indices] = self.agent.tensor(batch.obs)
            taken[indices] += 1
            going = indices[taken[indices] < self.length]
            flying -= len(indices) - len(going)
            if len(going):
                self._send(going, taken)
        return self.length * self.num_envs

    def _send(self, indices: NDArray[np.int64], taken: NDArray[np.int64]) -> None:
        t = taken[indices]
        obs = self.next_obs[indices]
        self.obs[t, indices] = obs
        begin = clock()
        actions, self.log_probs[t, indices], self.values[t, indices] = self.agent.act(obs)
        given = self.agent.to_env(actions)
        sent = clock()
        self.driven.vec.send(given, indices)
        self.phases.inference += sent - begin
        self.phases.step += clock() - sent
        self.actions[t, indices] = actions


def train(learner: Learner, seconds: float) -> tuple[int, Phases]:
    """Train for whole rollouts and updates, at least one; return the number of transitions and the times.

    A rollout that does not count comes first.
    """
    learner.collect()
    learner.phases = phases = Phases()
    update = phases.timed("update", learner.update)
    made, begin = 0, clock()
    while not made or clock() - begin < seconds:
        made += learner.collect()
        update()
    phases.wall = clock() - begin
    return made, phases


def learner_of(driven: Driven, num_envs: int, rollout: int, *, halves: bool) -> Learner:
    """Return the learner of a candidate, with rollouts of so many transitions."""
    made: Any = Halves if halves else LockStep
    return made(driven, num_envs, max(1, rollout // num_envs))
