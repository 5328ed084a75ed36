"""`AgentsRow`: the arrays of one row of an env of several agents, written anew at each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np

from vecenvs.agents.roster import ACTS, FLAGS, MASKS, PRESENT, REWARDS, Roster
from vecenvs.batch.layout import SpaceLayout, coerce

Write = Callable[[Any, int], None]


class AgentsRow:
    """The row of an env. Workers copy it out before the next one.

    Args:
        roster: the agents.

    Attributes:
        value: the row, a value of `roster.observation_space`.
        writers: by agent, the function that writes its observation and flags.
        ends: the flags with which agents have ended on this row.
    """

    def __init__(self, roster: Roster) -> None:
        self.value: dict[str, Any] = _zeros(roster.observation_space)
        self.ends: set[int] = set()
        self._roster = roster
        self._index = {agent: k for k, agent in enumerate(roster.agents)}
        self._flags = memoryview(self.value[FLAGS])
        self._rewards: Any = memoryview(self.value[REWARDS])
        self._none = bytes(len(self._flags))
        self._no_rewards = np.zeros(len(self._index))
        self._last = self._none  # the flags of the row before
        self._clearers: dict[Any, Callable[[], None]] = {}
        self.writers: dict[Any, Write] = {agent: self._writer_of(agent) for agent in roster.agents}
        self._layouts = {name: SpaceLayout(space) for name, space in roster.action_spaces.items()}

    def clear(self) -> None:
        """Begin another row."""
        self._last = bytes(self._flags)
        self._flags[:] = self._none
        self.value[REWARDS][:] = self._no_rewards
        self.ends.clear()

    def known(self, agent: Any) -> Any:
        """Return the agent; ValueError if the env had not named it."""
        if agent not in self._index:
            raise ValueError(f"agent {agent!r} is not in possible_agents, {self._roster.agents}")
        return agent

    def writer(self, agent: Any) -> Write:
        """Return the function that writes an agent's observation and flags; ValueError for an unknown agent."""
        return self.writers[self.known(agent)]

    def end(self, agent: Any, flag: int) -> None:
        """Note that an agent has ended on this row."""
        k = self._index[agent]
        self._flags[k] = self._flags[k] & ~ACTS | flag
        self.ends.add(flag)

    def add_reward(self, agent: Any, reward: Any) -> None:
        """Add to an agent's reward on this row."""
        try:
            self._rewards[self._index[agent]] += float(reward)
        except (TypeError, ValueError):
            raise TypeError(f"the reward of agent {agent!r} must be a number, not {reward!r}") from None

    def finish(self) -> float:
        """Put zeros in the place of observations that only the last row had. Return the sum of the rewards."""
        for agent, was, now in zip(self._index, self._last, self._flags, strict=True):
            if was & PRESENT and not now & PRESENT:
                self._clearers[agent]()
        return float(sum(self._rewards))

    def actions(self, batch: dict[str, Any], agents: Iterable[Any]) -> dict[Any, Any]:
        """Return the actions of agents."""
        leaves = {name: [list(leaf) for leaf in self._layouts[name].flatten(part)] for name, part in batch.items()}
        places = self._roster.places
        found = {}
        for agent in agents:
            name, k = places[agent]
            layout, parts = self._layouts[name], leaves[name]
            found[agent] = parts[0][k] if layout.is_flat else layout.unflatten([part[k] for part in parts])
        return found

    def _writer_of(self, agent: Any) -> Write:
        """Return the function that writes an agent's observation and flags; keep one that clears the first."""
        name, k = self._roster.places[agent]
        layout = SpaceLayout(self._roster.observation_spaces[name])
        parts = [(leaf, array[k : k + 1]) for leaf, array in zip(layout.leaves, _leaves(self.value[name]), strict=True)]
        masked = name in self._roster.masked
        if masked:
            (leaf,) = SpaceLayout(self._roster.masked[name]).leaves
            parts.append((leaf, self.value[MASKS][name][k : k + 1]))
        flags, index = self._flags, self._index[agent]

        def clear() -> None:
            for _, cell in parts:
                cell[0] = 0

        def write_parts(obs: Any, flag: int) -> None:
            try:
                values = layout.observed(obs["observation"] if masked else obs)
                if masked:
                    values.append(obs["action_mask"])
                for (leaf, cell), value in zip(parts, values, strict=True):
                    cell[0] = coerce(value, leaf)
            except (TypeError, ValueError, KeyError) as problem:
                raise type(problem)(f"agent {agent!r}: {problem}") from None
            flags[index] = flag

        self._clearers[agent] = clear
        if len(parts) > 1:
            return write_parts
        ((leaf, cell),) = parts
        shape, dtype = leaf.shape, leaf.dtype

        def write(obs: Any, flag: int) -> None:
            if type(obs) is np.ndarray and obs.dtype == dtype and obs.shape == shape:
                cell[0] = obs
                flags[index] = flag
            else:
                write_parts(obs, flag)

        return write


def _zeros(space: gym.Space[Any]) -> dict[str, Any]:
    layout = SpaceLayout(space)
    value: dict[str, Any] = layout.unflatten([np.zeros(leaf.shape, leaf.dtype) for leaf in layout.leaves])
    return value


def _leaves(batch: Any) -> list[Any]:
    if isinstance(batch, (dict, tuple)):
        parts = batch.values() if isinstance(batch, dict) else batch
        return [leaf for part in parts for leaf in _leaves(part)]
    return [batch]
