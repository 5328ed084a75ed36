"""A policy with values, in torch: small networks for vectors, the network of DQN's Nature paper for images."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributions import Categorical, Independent, Normal


def _small(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def _convolutions(channels: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *(
            nn.Conv2d(channels, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
        ),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, outputs)),
    )


class Agent(nn.Module):
    """An actor and a critic for Box observations, and Discrete or Box actions. Images share one network."""

    def __init__(self, observation_space: gym.spaces.Box, action_space: gym.Space[Any]) -> None:
        super().__init__()
        shape = observation_space.shape
        self.image = len(shape) == 3
        self.discrete = hasattr(action_space, "n")
        outputs = int(action_space.n) if self.discrete else int(np.prod(action_space.shape))
        self._space = action_space
        if self.image:
            self.both = _convolutions(shape[0], outputs + 1)
        else:
            self.actor, self.critic = _small(int(np.prod(shape)), outputs), _small(int(np.prod(shape)), 1)
        self.log_std = nn.Parameter(torch.zeros(outputs))

    def forward(self, obs: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """Return the distribution of actions, and the values."""
        if self.image:
            out = self.both(obs.float() / 255)
            logits, values = out[:, :-1], out[:, -1]
        else:
            logits, values = self.actor(obs), self.critic(obs).squeeze(-1)
        if self.discrete:
            return Categorical(logits=logits), values
        return Independent(Normal(logits, self.log_std.exp().expand_as(logits)), 1), values

    @torch.no_grad()
    def act(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return actions, their log-probabilities, and the values."""
        policy, values = self(obs)
        actions = policy.sample()
        return actions, policy.log_prob(actions), values

    def to_env(self, actions: torch.Tensor) -> NDArray[Any]:
        """Return the actions as the envs take them: in the dtype of the space, clipped to its bounds."""
        found = actions.numpy()
        if not self.discrete:
            found = np.clip(found, self._space.low, self._space.high)
        return found.astype(self._space.dtype, copy=False)

    def tensor(self, obs: Any) -> torch.Tensor:
        """Return observations as the tensor that `forward` takes."""
        return torch.as_tensor(obs, dtype=torch.uint8 if self.image else torch.float32)
