"""The loop that collects transitions: a policy acts in a VecEnv. It needs no Ray."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any, Protocol

import numpy as np

from vecenvs.arguments import parse_int
from vecenvs.batch.actions import parse_actions
from vecenvs.batch.layout import SpaceLayout
from vecenvs.batch.lazy_infos import Infos
from vecenvs.errors import EnvError, NotSteppingError, VecEnvError
from vecenvs.replay.recorder import Recorder
from vecenvs.replay.schema import Array, Rows, Schema
from vecenvs.vec_env import VecEnv
from vecenvs.worker.process import HeldSignals
from vecenvs.wrappers.kept_rows import KeptRows
from vecenvs.wrappers.vec_rows import is_lost

MAX_AGE = 1.0  # seconds after which a fragment that is not full is ready
COUNTERS = ("steps", "transitions", "episodes", "version")
RECENT = 100  # episodes whose returns are remembered


def blank_stats(index: int) -> dict[str, Any]:
    """Return the stats of an explorer before its first step."""
    return {"index": index, **dict.fromkeys(COUNTERS, 0), "mean_return": None, "mean_length": None}


class Policy(Protocol):
    """Chooses actions in an explorer.

    A policy may also have `episode_start(envs: list[int])`, which is called before the first action of new episodes, to
    reset the noise or the recurrent state of these envs.
    """

    def act(self, obs: Any) -> Any:
        """Choose actions.

        Args:
            obs: a batch of observations, as from `VecEnv.step`.

        Returns:
            One action per env, in any form that `VecEnv.step` takes.
        """

    def set_weights(self, weights: Any) -> None:
        """Use new weights.

        Args:
            weights: the argument of the learner's `publish`. Its arrays may be read-only: copy them.
        """


class Explorer:
    """Steps a VecEnv with a policy, and returns transitions in fragments.

    The transitions are the same in every autoreset mode. The `next_obs` of a terminal step is the terminal observation.
    Rows that repeat an observation or begin an episode are no transitions, nor are the rows of a lost worker. In
    "disabled" mode the explorer resets the envs. Exceptions of the envs and the policy are raised as they are: after an
    EnvError the next step begins new episodes in all envs, after a time-out or a Ctrl-C it waits for the same rows.

    Args:
        vec: the VecEnv, in any autoreset mode.
        policy: the policy.
        index: the field `explorer` of the transitions.
        n_step: the number of steps in a transition.
        gamma: the discount per step, from 0 to 1.
        fragment_size: the number of transitions in a fragment, approximately.
        seed: seeds the envs as `VecEnv.reset` does.
        first_episode: the number of the first episode. Episodes are numbered in the order in which they begin.

    Raises:
        ValueError: a number is out of range, or a space has a part without a fixed shape.
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
        self._taken: list[Array] | None = None  # the actions of a step whose rows have not come
        self._ended: list[int] = []  # envs that the explorer has to reset
        self._kept = KeptRows()
        self._fragment_begun = 0.0
        self._fragment = self.schema.empty(0)  # which `collect` has not returned yet

    @property
    def ready(self) -> bool:
        """Whether there is a fragment to take: a full one, or one that is a second old."""
        count = self._recorder.count
        return count >= self.fragment_size or (count > 0 and time.monotonic() - self._fragment_begun > MAX_AGE)

    def step(self) -> None:
        """Step the VecEnv once. The first call resets it before."""
        self._reset_ended()
        if self._obs is None:
            first = self.vec.reset(seed=self._seed)
            with HeldSignals(first_only=True):  # first_only: the policy is called
                self._obs, self._seed = self._owned(first), None
                self._begin_episodes(np.arange(self.vec.num_envs))
        again = self._taken is not None  # an exception has ended the last step before its rows came
        if self._taken is None:
            actions = self.policy.act(self._obs)
            # Copies, because a policy may reuse its array for the next actions.
            self._taken = [np.array(part) for part in parse_actions(self._actions, actions, self.vec.num_envs)]
        self._kept.take(lambda _: self._step(again=again), self._record, "step")
        self._reset_ended()

    def _step(self, *, again: bool) -> Any:
        """Step the envs; with `again` wait for rows of the step before, if it has begun."""
        if again:
            with contextlib.suppress(NotSteppingError):
                return self.vec.step_wait()
        return self.vec.step(self._actions.unflatten(self._taken or []))

    def _record(self, rows: Any, *_: Any) -> Any:
        """Record the transitions of a step, whatever interrupts that. Return what is to be raised, or True."""
        if isinstance(rows, EnvError):
            self._begin_anew()
            return rows
        taken, self._taken = self._taken or [], None
        obs = self._observations.flatten(self._obs)
        received, rewards, dones, infos = rows
        self._obs = self._owned(received)
        self.steps += 1
        mask, cut = np.array(self.vec.active), dones
        next_obs = self._observations.flatten(self._obs)
        starts: list[int] = [i for i in np.flatnonzero(~mask).tolist() if infos[i].get("episode_start")]
        ended: list[int] = np.flatnonzero(dones).tolist()
        if ended:
            next_obs = self._with_terminal_observations(next_obs, ended, infos)
            for i in ended:
                mask[i] = not is_lost(infos[i])
            starts += [i for i in ended if infos[i].get("episode_start")]
        if not self._recorder.count:
            self._fragment_begun = time.monotonic()
        scalars = [rewards, np.array(self.vec.terminated), np.array(self.vec.truncated), self._episode]
        self._recorder.add(obs, taken, next_obs, scalars, mask, cut)
        self._update_stats(rewards, mask, [i for i in ended if mask[i]])
        if self.vec.autoreset == "disabled":
            self._ended = ended
        elif starts:
            self._begin_episodes(np.array(starts))
        return True

    def _begin_anew(self) -> None:
        """After an EnvError, by which there is no whole row, let the next step begin episodes in all envs."""
        n = self.vec.num_envs
        obs = self._observations.flatten(self._obs)
        actions = [np.zeros((n, *leaf.shape), leaf.dtype) for leaf in self._actions.leaves]
        nothing = [np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool), self._episode]
        self._recorder.add(obs, actions, obs, nothing, np.zeros(n, bool), np.ones(n, bool))
        self._obs, self._taken, self._ended = None, None, []

    def _reset_ended(self) -> None:
        """Reset envs in "disabled" mode, in a copy of the observations: the old ones have been recorded."""
        if not self._ended:
            return
        leaves = [leaf.copy() for leaf in self._observations.flatten(self._obs)]
        try:
            first = self.vec.reset(self._ended)
        except EnvError:
            self._begin_anew()
            raise
        for leaf, part in zip(leaves, self._observations.flatten(first), strict=True):
            leaf[self._ended] = part
        self._obs = self._observations.unflatten(leaves)
        self._begin_episodes(np.array(self._ended))
        self._ended = []

    def collect(self) -> dict[str, Any]:
        """Step until a fragment is ready.

        Returns:
            The fragment: a dict of columns structured as a batch, for `ReplayBuffer.add` or `Inserter.add`. With
            n_step > 1 it may be smaller, because the last n - 1 steps of each env are still incomplete.
        """
        while not len(self._fragment):
            self.step()
            if self.ready:
                self._fragment = self.take()
        batch = self.schema.unpack(self._fragment)
        self._fragment = self.schema.empty(0)  # last: a signal's handler may raise in any call
        return batch

    def take(self) -> Rows:
        """Return the transitions since the last call as packed rows, ready or not."""
        return self._recorder.take()

    def set_weights(self, weights: Any, version: int) -> None:
        """Pass weights to the policy.

        Args:
            weights: the weights.
            version: their version, which is stored in `version`.
        """
        self.policy.set_weights(weights)
        self.version = version

    def stats(self) -> dict[str, Any]:
        """Return the explorer's counters.

        Returns:
            A dict: index, steps, transitions, episodes, version; mean_return and mean_length over the last 100
            episodes, None before the first has ended.
        """
        found = blank_stats(self.index)
        found |= {name: getattr(self, name) for name in COUNTERS}
        if self.recent_returns:
            found["mean_return"] = float(np.mean(self.recent_returns))
            found["mean_length"] = float(np.mean(self.recent_lengths))
        return found

    def close(self) -> None:
        """Close the VecEnv."""
        self.vec.close()

    def _owned(self, obs: Any) -> Any:
        """Return observations that the VecEnv will not overwrite: a copy if it has copy=False."""
        if getattr(self.vec, "copy", False):  # without the attribute, assume False
            return obs
        return self._observations.unflatten([np.array(part) for part in self._observations.flatten(obs)])

    def _with_terminal_observations(self, leaves: list[Array], ended: list[int], infos: Infos) -> list[Array]:
        """Return a copy of the rows with the terminal observations of the envs in `ended`."""
        leaves = [leaf.copy() for leaf in leaves]
        for i in ended:
            if "terminal_observation" not in infos[i]:
                raise VecEnvError(
                    f"env {i} keeps no last observation of an episode, which its last transition needs: put a class "
                    "around the batched env whose infos have 'final_obs'"
                )
            for leaf, part in zip(leaves, self._observations.flatten(infos[i]["terminal_observation"]), strict=True):
                leaf[i] = part
        return leaves

    def _begin_episodes(self, envs: Array) -> None:
        """Assign numbers to the new episodes of `envs`, and call the policy's `episode_start`."""
        self._episode = self._episode.copy()
        self._episode[envs] = np.arange(self._next_episode, self._next_episode + len(envs))
        self._next_episode += len(envs)
        self._returns[envs] = 0.0
        self._lengths[envs] = 0
        hook = getattr(self.policy, "episode_start", None)
        if hook is not None:
            hook(envs.tolist())

    def _update_stats(self, rewards: Array, mask: Array, ended: list[int]) -> None:
        self.transitions += int(np.count_nonzero(mask))
        self._returns += rewards * mask
        self._lengths += mask
        for i in ended:
            self.episodes += 1
            self.recent_returns.append(float(self._returns[i]))
            self.recent_lengths.append(int(self._lengths[i]))
