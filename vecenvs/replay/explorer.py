"""The loop that gathers experience: a policy acts in a VecEnv, every step becomes transitions. No Ray in it."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Protocol

import numpy as np

from vecenvs.arguments import parse_int
from vecenvs.batch.actions import parse_actions
from vecenvs.batch.layout import SpaceLayout
from vecenvs.replay.recorder import Recorder
from vecenvs.replay.schema import Array, Rows, Schema
from vecenvs.vec_env import VecEnv

AGE = 1.0  # seconds after which a fragment is given though it is not full
COUNTERS = ("steps", "transitions", "episodes", "version")
RECENT = 100  # episodes whose returns are remembered


def blank_stats(index: int) -> dict[str, Any]:
    """What `Explorer.stats` gives before the first step."""
    return {"index": index, **dict.fromkeys(COUNTERS, 0), "mean_return": None, "mean_length": None}


class Policy(Protocol):
    """What acts. May also have `episode_start(envs: list[int])`: called before the first act of new episodes.

    That is the place to renew the noise or the recurrent state of these envs.
    """

    def act(self, obs: Any) -> Any:
        """Give one action per env, in any form that `VecEnv.step` takes, for a batch of observations."""

    def set_weights(self, weights: Any) -> None:
        """Take over what the learner has published. Arrays in it may be read-only: copy them."""


class Explorer:
    """Steps `vec` with `policy` and gives transitions, in fragments of about `fragment_size`.

    In every autoreset mode: the next_obs of a terminal step is the terminal observation; rows that repeat or begin an
    episode are no transitions, nor are those by which a VecEnv tells that it has lost a worker's episodes. In
    "disabled" mode the explorer resets the envs itself.

    `index` is what transitions have as `explorer`. `seed` seeds the envs as `VecEnv.reset` does. Episodes are numbered
    from `first_episode` on, in the order in which they begin. Errors of the env and the policy pass through.
    """

    def __init__(
        self,
        vec: VecEnv,
        policy: Policy,
        index: int = 0,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        fragment_size: int = 256,
        seed: int | np.random.SeedSequence | None = None,
        first_episode: int = 0,
    ) -> None:
        self.vec = vec
        self.policy = policy
        self.index = index
        self.fragment_size = parse_int("fragment_size", fragment_size, 1)
        self.schema = Schema(vec.observation_space, vec.action_space, n_step, gamma)
        self.version = 0
        self.steps = self.transitions = self.episodes = 0
        self.recent_returns: deque[float] = deque(maxlen=RECENT)
        self.recent_lengths: deque[int] = deque(maxlen=RECENT)
        n = vec.num_envs
        self._actions = SpaceLayout(vec.action_space)
        self._observations = SpaceLayout(vec.observation_space)
        self._recorder = Recorder(self.schema, n, index)
        self._returns, self._lengths = np.zeros(n), np.zeros(n, np.int64)
        self._episode = np.zeros(n, np.int64)
        self._next_episode = first_episode
        self._seed = seed
        self._obs: Any = None
        self._begun = 0.0

    @property
    def ready(self) -> bool:
        """Tell whether there is a fragment to take: a full one, or one that is a second old."""
        count = self._recorder.count
        return count >= self.fragment_size or (count > 0 and time.monotonic() - self._begun > AGE)

    def step(self) -> None:
        """Step the VecEnv once; first of all reset it."""
        if self._obs is None:
            self._obs = self._own(self.vec.reset(seed=self._seed))
            self._start(np.arange(self.vec.num_envs))
        obs = self._observations.flatten(self._obs)
        actions = self.policy.act(self._obs)
        # Copies: a policy may reuse its array for the next actions.
        noted = [np.array(part) for part in parse_actions(self._actions, actions, self.vec.num_envs)]
        given, rewards, dones, infos = self.vec.step(actions)
        self._obs = self._own(given)
        self.steps += 1
        mask, cut = np.array(self.vec.active), dones
        next_obs = self._observations.flatten(self._obs)
        starts: list[int] = [i for i in np.flatnonzero(~mask).tolist() if infos[i].get("episode_start")]
        ended: list[int] = np.flatnonzero(dones).tolist()
        if ended:
            next_obs = self._with_finals(next_obs, ended, infos)
            for i in ended:
                mask[i] = not infos[i].get("worker_restarted")  # that row is none of the env's
            starts += [i for i in ended if infos[i].get("episode_start")]
        if not self._recorder.count:
            self._begun = time.monotonic()
        scalars = [rewards, np.array(self.vec.terminated), np.array(self.vec.truncated), self._episode]
        self._recorder.add(obs, noted, next_obs, scalars, mask, cut)
        self._count(rewards, mask, [i for i in ended if mask[i]])
        if ended and self.vec.autoreset == "disabled":
            self._reset(ended)
            starts = ended
        if starts:
            self._start(np.array(starts))

    def collect(self) -> dict[str, Any]:
        """Step until a fragment is there, and give it: columns structured as a batch."""
        return self.schema.unpack(self.collect_rows())

    def collect_rows(self) -> Rows:
        """As `collect`, packed. With n_step > 1 a fragment can be smaller: windows that are open come later."""
        while True:
            self.step()
            if self.ready and len(rows := self.take()):
                return rows

    def take(self) -> Rows:
        """Give the transitions since the last time as packed rows, however many there are."""
        return self._recorder.take()

    def set_weights(self, weights: Any, version: int) -> None:
        """Hand weights to the policy; `version` tells which they are."""
        self.policy.set_weights(weights)
        self.version = version

    def stats(self) -> dict[str, Any]:
        """Give the counters, and the means over the last 100 episodes (None before the first has ended)."""
        found = blank_stats(self.index)
        found |= {name: getattr(self, name) for name in COUNTERS}
        if self.recent_returns:
            found["mean_return"] = float(np.mean(self.recent_returns))
            found["mean_length"] = float(np.mean(self.recent_lengths))
        return found

    def close(self) -> None:
        """Close the VecEnv."""
        self.vec.close()

    def _own(self, obs: Any) -> Any:
        """Copy what a VecEnv with copy=False will overwrite."""
        if getattr(self.vec, "copy", False):  # who does not say gets no trust
            return obs
        return self._observations.unflatten([np.array(part) for part in self._observations.flatten(obs)])

    def _with_finals(self, leaves: list[Array], ended: list[int], infos: list[dict[str, Any]]) -> list[Array]:
        """The same rows, with the terminal observation where an episode ended."""
        leaves = [leaf.copy() for leaf in leaves]
        for i in ended:
            for leaf, part in zip(leaves, self._observations.flatten(infos[i]["terminal_observation"]), strict=True):
                leaf[i] = part
        return leaves

    def _reset(self, ended: list[int]) -> None:
        """Reset envs that will not do it themselves. What was recorded stays as it is."""
        leaves = [leaf.copy() for leaf in self._observations.flatten(self._obs)]
        for leaf, part in zip(leaves, self._observations.flatten(self.vec.reset(ended)), strict=True):
            leaf[ended] = part
        self._obs = self._observations.unflatten(leaves)

    def _start(self, envs: Array) -> None:
        """New episodes: number them, and tell the policy."""
        self._episode = self._episode.copy()
        self._episode[envs] = np.arange(self._next_episode, self._next_episode + len(envs))
        self._next_episode += len(envs)
        self._returns[envs] = 0.0
        self._lengths[envs] = 0
        hook = getattr(self.policy, "episode_start", None)
        if hook is not None:
            hook(envs.tolist())

    def _count(self, rewards: Array, mask: Array, ended: list[int]) -> None:
        self.transitions += int(np.count_nonzero(mask))
        self._returns += rewards * mask
        self._lengths += mask
        for i in ended:
            self.episodes += 1
            self.recent_returns.append(float(self._returns[i]))
            self.recent_lengths.append(int(self._lengths[i]))
