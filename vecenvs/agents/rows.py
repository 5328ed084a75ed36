"""Rows of envs of several agents: what each agent's flags say, and `MultiAgentBatch`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.agents.agents_env import AGENTS
from vecenvs.agents.roster import ACTS, PRESENT, STARTED, TERMINATED, TRUNCATED, Roster
from vecenvs.errors import EnvError

ByGroup = dict[str, Any]
Masks = dict[str, NDArray[np.bool_]]


class AgentRows:
    """What is known of the agents on n rows, one of each env. Masks are dicts group -> bool (n, agents of the group).

    Attributes:
        roster: the agents and their spaces.
        flags: the bits of each agent (see `roster`), uint8 (n, all agents).
    """

    roster: Roster
    flags: NDArray[np.uint8]

    @property
    def present(self) -> Masks:
        """Whether the row has an observation of this agent; for others it has zeros."""
        return self._having(PRESENT)

    @property
    def acts(self) -> Masks:
        """Whether the agent's next action counts. The actions of others are ignored."""
        return self._having(ACTS)

    @property
    def started(self) -> Masks:
        """Whether this is the agent's first row since it came, or came back."""
        return self._having(STARTED)

    @property
    def terminated(self) -> Masks:
        """Whether the agent's part has ended by the task's own rule on this row."""
        return self._having(TERMINATED)

    @property
    def truncated(self) -> Masks:
        """Whether the agent's part was ended from outside the task on this row."""
        return self._having(TRUNCATED)

    @property
    def acting(self) -> NDArray[np.int64]:
        """The agent that acts next, as its place among `roster.agents`, int64 (n,); -1 where the episode is over.

        Where several agents act at once it is the first of them.
        """
        acts = (self.flags & ACTS) != 0
        return np.where(acts.any(axis=1), acts.argmax(axis=1), -1)

    def _having(self, bit: int) -> Masks:
        return self.roster.by_group((self.flags & bit) != 0)


@dataclass
class MultiAgentBatch(AgentRows):
    """Rows of some envs, in the order in which they were finished. Row j of each attribute is of env `indices[j]`.

    Attributes:
        indices: the envs, int64 (k,).
        obs: by group, the observations of its agents, (k, agents, ...).
        rewards: by group, float32 (k, agents).
        dones: whether the env's episode ended, bool (k,).
        infos: a sequence of k dicts; "agents" has the infos of the agents by their names.
        active: whether the row is a transition of the env, bool (k,), as in `Batch`.
        action_mask: by group, (k, agents, actions), as `MultiAgentVecEnv.action_mask`; None if the envs have none.
        moved: whether the row is a transition of the agent: it had acted.
        roster: the agents and their spaces.
        flags: the bits of each agent, uint8 (k, all agents).
        latency: seconds, float32 (k,), as in `Batch`.
    """

    indices: NDArray[np.int64]
    obs: ByGroup
    rewards: ByGroup
    dones: NDArray[np.bool_]
    infos: Any
    active: NDArray[np.bool_]
    action_mask: ByGroup | None
    moved: Masks
    roster: Roster
    flags: NDArray[np.uint8]
    latency: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.indices)


def masks_in_infos(
    roster: Roster, infos: Sequence[dict[str, Any]], shapes: dict[str, tuple[int, ...]]
) -> ByGroup | None:
    """Return the "action_mask" of the agents' infos by group, int8 (n, agents, actions).

    Agents without a mask may do anything: theirs is all ones. `shapes` has that of each group's masks, and gets those
    that come first. None as long as it is empty.
    """
    found: ByGroup = {
        name: np.ones((len(infos), len(roster.groups[name]), *shape), np.int8) for name, shape in shapes.items()
    }
    for row, info in enumerate(infos):
        for agent, own in info.get(AGENTS, {}).items():
            if "action_mask" in own and agent in roster.places:
                name, k = roster.places[agent]
                mask = np.asarray(own["action_mask"])
                if name not in found:
                    shapes[name] = mask.shape
                    found[name] = np.ones((len(infos), len(roster.groups[name]), *mask.shape), np.int8)
                found[name][row, k] = mask
    return found or None


@contextlib.contextmanager
def batches_made(convert: Callable[[Any], Any]) -> Iterator[None]:
    """Convert the rows of other envs that an EnvError has."""
    try:
        yield
    except EnvError as error:
        if error.batch is not None:
            error.batch = convert(error.batch)
        raise
