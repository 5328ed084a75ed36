"""`AgentsEnv`: one env of several agents as a gymnasium.Env whose rows are arrays with an axis of agents.

It lives in a worker. A row has the observations of each group, (a, ...), and under keys that no group can have each
agent's reward and flags (see `roster`). What is written there stays zero for agents that have no part in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from vecenvs.agents.agents_row import AgentsRow
from vecenvs.agents.roster import ACTS, PRESENT, STARTED, TERMINATED, TRUNCATED, Groups, roster_of
from vecenvs.batch.values import shown

ALL = "__all__"
AGENTS = "agents"
"""The key of a slot's info under which the infos of its agents are, by agent."""

ByAgent = dict[Any, Any]
Result = tuple[dict[str, Any], float, bool, bool, dict[str, Any]]


class AgentsEnv(gym.Env[dict[str, Any], dict[str, Any]]):
    """An env whose action and observation are Dicts by group. See `make_multi_agent` for the rules.

    Args:
        env: the env of several agents.
        groups: as in `make_multi_agent`.
        ends: "all": an episode ends with its last agent; "any": with the first.
    """

    def __init__(self, env: Any, groups: Groups = None, ends: str = "all") -> None:
        for name in ("reset", "step"):
            if not callable(getattr(env, name, None)):
                raise TypeError(f"the env function gave a {type(env).__name__} without {name}(): see make_multi_agent")
        self.env = env
        self.roster = roster_of(env, groups)
        self.observation_space = self.roster.observation_space
        self.action_space = self.roster.action_space
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.spec = getattr(env, "spec", None)
        self._first_ends = ends == "any"
        self._row = AgentsRow(self.roster)
        self._alive: dict[Any, None] = {}  # the agents of this episode that have not ended, in their order
        self._met: set[Any] = set()  # agents of this episode that had a row; by turns, and have not ended
        self._acting: list[Any] = []  # the agents that act next
        self._owed: dict[Any, float] = {}  # rewards of agents that had no row since
        self._advance: Callable[[dict[str, Any]], ByAgent] = self._turn if self.roster.by_turns else self._step_all

    @property
    def unwrapped(self) -> Any:
        """The env of several agents without its wrappers."""
        return getattr(self.env, "unwrapped", self.env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reset the env and return the first row: its agents are those that are there."""
        given = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
        first = self.env.reset(**given)
        self._row.clear_all()
        self._met.clear()
        self._alive, self._owed = {}, {}
        if self.roster.by_turns:
            self._alive = dict.fromkeys(map(self._row.known, self.env.agents))
            infos = self._next_turn()
        else:
            if not isinstance(first, tuple) or len(first) != 2:
                raise TypeError(f"{type(self.env).__name__}.reset() must return observations and infos by agent")
            obs, infos = (self._dict("reset", part) for part in first)
            for agent, value in obs.items():
                self._row.write(agent, value, PRESENT | STARTED | ACTS)
                self._alive[agent] = None
            self._acting = list(obs)
            self._met.update(obs)
        self._row.finish()
        if not self._acting:
            raise ValueError(f"{type(self.env).__name__}.reset() gave no agent that could act")
        return self._row.value, _shown(infos)

    def step(self, action: dict[str, Any]) -> Result:
        """Step the env with the actions of the agents that act; those of all others are ignored."""
        self._row.clear()
        infos = self._advance(action)
        total = self._row.finish()
        over = not self._alive
        cut = over and TRUNCATED in self._row.ends
        return self._row.value, total, over and not cut, cut, _shown(infos)

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    # Agents that act at once

    def _step_all(self, action: dict[str, Any]) -> ByAgent:
        row, alive, met = self._row, self._alive, self._met
        obs, rewards, ended, cut, infos = self._five(self.env.step(row.actions(action, self._acting)))
        there = None if ALL in ended or ALL in cut else self._there()
        if (
            len(self._acting) == len(row.everyone)
            and not (any(ended.values()) or any(cut.values()))
            and (there is None or there.issuperset(row.everyone))
            and row.write_all(obs, rewards)
        ):
            return infos
        acting: list[Any] = []
        for agent, value in obs.items():
            if agent in alive:
                flags = PRESENT
            elif there is None or agent in there or (agent not in met and (ended.get(agent) or cut.get(agent))):
                flags = PRESENT | STARTED
                alive[row.known(agent)] = None
                met.add(agent)
            else:  # some envs go on returning observations of agents whose part has ended
                row.known(agent)
                continue
            if (there is None or agent in there) and not (ended.get(agent) or cut.get(agent)):
                flags |= ACTS
                acting.append(agent)
            row.write(agent, value, flags)
        self._take_rewards(rewards, obs)
        if len(acting) < len(alive) or ended.get(ALL) or cut.get(ALL):
            self._end_some(ended, cut, there)
            acting = [agent for agent in acting if agent in alive]
        self._acting = acting
        return infos

    def _take_rewards(self, rewards: ByAgent, obs: ByAgent) -> None:
        """Write rewards. Those of agents that have no row now wait until they have one."""
        row, alive, owed = self._row, self._alive, self._owed
        for agent, reward in rewards.items():
            if agent not in alive:
                row.known(agent)
                if reward:
                    raise ValueError(f"a reward of {reward!r} for agent {agent!r}, which is absent")
            elif agent in obs:
                row.add_reward(agent, reward)
            else:
                owed[agent] = owed.get(agent, 0.0) + float(reward)
        if owed:
            for agent in [agent for agent in owed if agent in obs]:
                row.add_reward(agent, owed.pop(agent))

    def _end_some(self, ended: ByAgent, cut: ByAgent, there: set[Any] | None) -> None:
        """End the agents whose part is over; all if the episode is."""
        rest = _flags(ended.get(ALL), cut.get(ALL))
        for agent in list(self._alive):
            if flags := _flags(ended.get(agent), cut.get(agent)) or rest:
                self._end(agent, flags)
            elif there is not None and agent not in there:
                raise ValueError(
                    f"agent {agent!r} is no longer in {type(self.env).__name__}.agents, but is neither terminated nor "
                    "truncated"
                )
        if self._first_ends and self._row.ends:
            self._end_all()

    def _end_all(self) -> None:
        for agent in list(self._alive):
            self._end(agent, TRUNCATED if TRUNCATED in self._row.ends else TERMINATED)

    def _end(self, agent: Any, flag: int) -> None:
        del self._alive[agent]
        self._row.end(agent, flag)
        if agent in self._owed:
            self._row.add_reward(agent, self._owed.pop(agent))

    def _there(self) -> set[Any]:
        """Return the agents that the env says are there; TypeError if it has no way to say so."""
        if not hasattr(self.env, "agents"):
            raise TypeError(
                f"{type(self.env).__name__} has no `agents`, which a ParallelEnv has, and its terminations have no "
                "'__all__', which those of RLlib's envs have: the end of its episodes cannot be recognized"
            )
        return set(self.env.agents)

    # Agents that act by turns

    def _turn(self, action: dict[str, Any]) -> ByAgent:
        (act,) = self._row.actions(action, self._acting).values()
        self.env.step(act)
        for other in self.env.agents:
            if other not in self._alive:
                self._alive[self._row.known(other)] = None
        return self._next_turn()

    def _next_turn(self) -> ByAgent:
        """Take out the agents whose part has ended, and show the one that acts next."""
        env, row = self.env, self._row
        infos = {}
        self._acting = []
        while env.agents:
            agent = env.agent_selection
            obs, reward, ended, cut, infos[agent] = env.last()
            flags = PRESENT if agent in self._met else PRESENT | STARTED
            self._met.add(agent)
            if ended or cut:
                row.write(agent, obs, flags)
                row.add_reward(agent, reward)
                self._end(agent, _flags(ended, cut))
                self._met.discard(agent)
                env.step(None)
                continue
            if self._first_ends and row.ends:
                for other in self._alive:  # what the last turn has brought the others
                    row.write(other, env.observe(other), PRESENT if other in self._met else PRESENT | STARTED)
                    row.add_reward(other, env._cumulative_rewards[other])  # noqa: SLF001  as `last` does
                break
            row.write(agent, obs, flags | ACTS)
            row.add_reward(agent, reward)
            self._acting = [agent]
            return infos
        self._end_all()  # by ends="any", or agents that vanished with the last one
        return infos

    # What the env returns

    def _dict(self, method: str, value: Any) -> ByAgent:
        if not isinstance(value, Mapping):
            raise TypeError(f"{type(self.env).__name__}.{method}() must return dicts by agent, not {shown(value)}")
        return value  # type: ignore[return-value]

    def _five(self, result: Any) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        if (
            type(result) is not tuple
            or len(result) != 5
            or not ({*map(type, result)} == {dict} or all(isinstance(part, Mapping) for part in result))
        ):
            raise TypeError(
                f"{type(self.env).__name__}.step() must return five dicts by agent (observations, rewards, "
                f"terminations, truncations, infos), not {shown(result)}"
            )
        return result


def _flags(ended: Any, cut: Any) -> int:
    return TERMINATED * bool(ended) | TRUNCATED * bool(cut)


def _shown(infos: ByAgent) -> dict[str, Any]:
    """Return the slot's info: the infos of agents that have something in theirs."""
    return {AGENTS: {agent: info for agent, info in infos.items() if info}} if any(infos.values()) else {}
