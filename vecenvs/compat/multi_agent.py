"""Multi-agent envs as envs of Gymnasium: PettingZoo's ParallelEnv and RLlib's dict envs, without importing either.

An action of such an env is a dict agent -> action, an observation a dict agent -> observation. Agents may differ from
one row to the next, so both are object spaces. Rewards, flags and infos by agent travel in the info.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

import gymnasium as gym
from gymnasium import spaces

from vecenvs.compat.old_env import call_reset, takes_seed

ALL = "__all__"
AGENT = "agent0"
"""RLlib's id of the agent of a single-agent env."""
AGENTS = "agents"
"""The key of a row's `AgentRow` in its info."""

ByAgent = dict[Any, Any]


class AgentRow(TypedDict):
    """The results of a step by agent, besides observations. The flags also have `"__all__"`: the episode is over."""

    rewards: ByAgent
    terminateds: ByAgent
    truncateds: ByAgent
    infos: ByAgent


class AgentRows(NamedTuple):
    """One env's part of the result of a poll."""

    obs: ByAgent
    row: AgentRow


class DictOfAgents(spaces.Space[ByAgent]):
    """Dicts agent -> value, with any agents and values."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def contains(self, x: Any) -> bool:
        return isinstance(x, Mapping)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DictOfAgents)

    def __hash__(self) -> int:
        return hash(DictOfAgents)


class MultiAgentAdapter(gym.Env[ByAgent, ByAgent]):
    """One multi-agent env as a `gymnasium.Env`: the reward is the sum over the agents, the flags those of `"__all__"`.

    `inner` follows one of these contracts, recognized by the values that it returns:

    * PettingZoo's ParallelEnv: five dicts, no `"__all__"`. The episode is over when its `agents` is empty; then it is
      truncated if an agent was truncated on the last step, else terminated.
    * RLlib's MultiAgentEnv on Gymnasium: five dicts, the flags with `"__all__"`.
    * RLlib's older MultiAgentEnv: observations, rewards, dones with `"__all__"`, infos. An agent is truncated if its
      info has "TimeLimit.truncated". Its `reset` may take no arguments and return observations alone; a seed is passed
      to its `seed` method, if it has one.

    Args:
        inner: the multi-agent env.

    Raises:
        TypeError: it has no `reset` or no `step`.
    """

    def __init__(self, inner: Any) -> None:
        for name in ("reset", "step"):
            if not callable(getattr(inner, name, None)):
                raise TypeError(
                    f"make_env returned a {type(inner).__name__} without {name}(): it must make multi-agent envs"
                )
        self.inner = inner
        self.observation_space = DictOfAgents()
        self.action_space = DictOfAgents()
        self.metadata = dict(getattr(inner, "metadata", None) or {})
        self.render_mode = getattr(inner, "render_mode", None)
        self._takes_seed = takes_seed(inner)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ByAgent, dict[str, Any]]:
        """Return the first observation of each agent, and an info with an AgentRow: rewards 0, flags of `"__all__"`.

        TypeError if the env takes no options, or returns something else than its contract says.
        """
        result = call_reset(self.inner, self._takes_seed, seed, options)
        obs, infos = result if isinstance(result, tuple) else (result, {})
        obs = self._dict("reset", "observations", obs)
        row = AgentRow(
            rewards=dict.fromkeys(obs, 0.0),
            terminateds={ALL: False},
            truncateds={ALL: False},
            infos={**{agent: {} for agent in obs}, **self._dict("reset", "infos", infos)},
        )
        return obs, {AGENTS: row}

    def step(self, action: ByAgent) -> tuple[ByAgent, float, bool, bool, dict[str, Any]]:
        """Return each agent's observation, the sum of rewards, the flags of `"__all__"`, and an info with an AgentRow.

        TypeError if the env returns something else than its contract says.
        """
        result = self.inner.step(action)
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            raise TypeError(f"{type(self.inner).__name__}.step() must return four or five dicts, not {result!r}")
        obs, rewards, terminateds, *more = (self._dict("step", "each result", part) for part in result)
        infos = more[-1]
        if len(more) == 2:
            terminateds, truncateds = self._completed(terminateds, more[0])
        else:
            terminateds, truncateds = self._divided(terminateds, infos)
        row = AgentRow(rewards=rewards, terminateds=terminateds, truncateds=truncateds, infos=infos)
        return obs, float(sum(rewards.values())), bool(terminateds[ALL]), bool(truncateds[ALL]), {AGENTS: row}

    def spaces_by_agent(self) -> tuple[Any, Any]:
        """Return the observation and action space that the env declares, as a Dict by agent if possible, or None."""
        return self._declared("observation_space"), self._declared("action_space")

    def render(self) -> Any:
        return self.inner.render()

    def close(self) -> None:
        close = getattr(self.inner, "close", None)
        if close is not None:
            close()

    def _dict(self, method: str, what: str, value: Any) -> ByAgent:
        if not isinstance(value, Mapping):
            kind = type(self.inner).__name__
            raise TypeError(f"{kind}.{method}() must return {what} as a dict by agent, not {value!r}")
        return dict(value)

    def _completed(self, terminateds: ByAgent, truncateds: ByAgent) -> tuple[ByAgent, ByAgent]:
        """Return the flags with `"__all__"`, which a ParallelEnv's lack."""
        if ALL in terminateds:
            return terminateds, {ALL: False, **truncateds}
        if not hasattr(self.inner, "agents"):
            raise TypeError(
                f"{type(self.inner).__name__} has no `agents`, which a ParallelEnv has, and its terminateds have no "
                "'__all__', which those of RLlib's envs have: the end of its episodes cannot be recognized"
            )
        over = not self.inner.agents
        cut = over and any(truncateds.values())
        return {**terminateds, ALL: over and not cut}, {**truncateds, ALL: cut}

    def _divided(self, dones: ByAgent, infos: ByAgent) -> tuple[ByAgent, ByAgent]:
        """Divide dones of the older interface into terminations and truncations."""
        if ALL not in dones:
            raise TypeError(f"{type(self.inner).__name__}.step() returned dones without '__all__': {dones!r}")
        cut = {agent: bool(infos.get(agent, {}).get("TimeLimit.truncated")) and bool(dones[agent]) for agent in dones}
        cut[ALL] = bool(dones[ALL]) and any(cut.values())
        return {agent: bool(done) and not cut[agent] for agent, done in dones.items()}, cut

    def _declared(self, name: str) -> Any:
        found = getattr(self.inner, name, None)
        if isinstance(found, spaces.Space):
            return found
        agents = getattr(self.inner, "possible_agents", None)
        if callable(found) and agents:
            return spaces.Dict({agent: found(agent) for agent in agents})
        by_agent = getattr(self.inner, f"{name}s", None)
        return spaces.Dict(dict(by_agent)) if isinstance(by_agent, Mapping) else None


def agent_row(obs: ByAgent, info: Mapping[str, Any]) -> AgentRow:
    """Return a row's `AgentRow`. That of a lost step, or of an exception, has none: all agents are truncated."""
    if AGENTS in info:
        row: AgentRow = info[AGENTS]
        return row
    why = {key: info[key] for key in ("env_error", "worker_restarted") if key in info}
    return AgentRow(
        rewards=dict.fromkeys(obs, 0.0),
        terminateds=dict.fromkeys([*obs, ALL], False),
        truncateds=dict.fromkeys([*obs, ALL], True),
        infos={agent: dict(why) for agent in obs},
    )


def lone_row(reward: float, terminated: bool, truncated: bool, info: dict[str, Any], *, first: bool) -> AgentRow:
    """Return the row of an env with one agent. The flags of an episode's first row have no agent, as in RLlib."""
    return AgentRow(
        rewards={AGENT: reward},
        terminateds={ALL: False} if first else {AGENT: terminated, ALL: terminated},
        truncateds={ALL: False} if first else {AGENT: truncated, ALL: truncated},
        infos={AGENT: info},
    )


def dones(row: AgentRow) -> ByAgent:
    """Return whether an agent, or `"__all__"`, is terminated or truncated."""
    ended, cut = row["terminateds"], row["truncateds"]
    return {agent: bool(ended.get(agent, False) or cut.get(agent, False)) for agent in {**ended, **cut}}


def infos_of_dones(row: AgentRow) -> ByAgent:
    """Return the infos that go with `dones`: "TimeLimit.truncated" is True for truncated agents."""
    cut = [a for a, flag in row["truncateds"].items() if flag and a != ALL and not row["terminateds"].get(a, False)]
    infos = row["infos"]
    return {**infos, **{agent: {**infos.get(agent, {}), "TimeLimit.truncated": True} for agent in cut}}
