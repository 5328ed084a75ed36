"""Envs of several agents: rows by agent equal those of a loop over the bare env, whatever comes and goes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vecenvs.agents.agents_env import AgentsEnv
from vecenvs.agents.multi_agent_vec_env import MultiAgentVecEnv
from vecenvs.agents.rows import AgentRows
from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same, rows_at
from vecenvs.testing.envs.teams import Teams, TeamsByTurns, TeamsOfRllib
from vecenvs.testing.suite.base import Conformance, Make

FORMS: dict[str, Callable[[int], Any]] = {"parallel": Teams, "rllib": TeamsOfRllib, "turns": TeamsByTurns}
MODES = ("same_step", "next_step", "async", "disabled")
STEPS = 30


def agents_env(make: Callable[[int], Any], tag: int) -> AgentsEnv:
    """Make the env of a slot, as `make_multi_agent` does."""
    return AgentsEnv(make(tag))


class Seen:
    """What a loop over a bare env sees on one row, by agent."""

    def __init__(self) -> None:
        self.obs: dict[str, Any] = {}
        self.rewards: dict[str, float] = {}
        self.terminated: set[str] = set()
        self.truncated: set[str] = set()
        self.started: set[str] = set()
        self.acts: set[str] = set()
        self.infos: dict[str, Any] = {}
        self.over = False


class BareLoop:
    """One env, stepped by a loop that keeps to PettingZoo's and RLlib's own rules."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.turns = isinstance(env, TeamsByTurns)
        self.alive: set[str] = set()
        self.acting: set[str] = set()
        self.met: set[str] = set()

    def reset(self, seed: int | None = None) -> Seen:
        """Begin an episode."""
        first = self.env.reset(**({} if seed is None else {"seed": seed}))
        self.met = set()
        if self.turns:
            self.alive = set(self.env.agents)
            return self._look(Seen())
        seen = Seen()
        seen.obs, seen.infos = dict(first[0]), {agent: info for agent, info in first[1].items() if info}
        seen.started = seen.acts = self.alive = self.acting = set(seen.obs)
        return seen

    def step(self, actions: dict[str, Any]) -> Seen:
        """Step with the actions of those agents that act."""
        given = {agent: actions[agent] for agent in self.acting}
        seen = Seen()
        if self.turns:
            self.env.step(*given.values())
            return self._look(seen)
        obs, rewards, dead, cut, infos = self.env.step(given)
        ended = {agent for agent in obs if dead[agent] or cut[agent]}
        seen.obs, seen.rewards = dict(obs), dict(rewards)
        seen.terminated = {agent for agent in obs if dead[agent]}
        seen.truncated = ended - seen.terminated
        seen.started = set(obs) - self.alive
        self.alive = self.acting = seen.acts = set(obs) - ended
        seen.infos = {agent: info for agent, info in infos.items() if info}
        seen.over = not self.alive
        return seen

    def _look(self, seen: Seen) -> Seen:
        while self.env.agents:
            agent = self.env.agent_selection
            obs, reward, dead, cut, info = self.env.last()
            seen.obs[agent], seen.rewards[agent] = obs, reward
            if info:
                seen.infos[agent] = info
            if agent not in self.met:
                seen.started.add(agent)
                self.met.add(agent)
            if not (dead or cut):
                seen.acts = self.acting = {agent}
                return seen
            (seen.terminated if dead else seen.truncated).add(agent)
            self.alive.discard(agent)
            self.env.step(None)
        self.acting = set()
        seen.over = True
        return seen


def check(vec: MultiAgentVecEnv, rows: AgentRows, obs: Any, rewards: Any, j: int, now: Seen, last: Seen | None) -> None:
    """Check row j: what it shows is `now`; the ends and rewards are those of `last`, the step that led there."""
    for agent, (group, k) in vec.roster.places.items():
        masked = group in vec.roster.masked
        seen = now.obs.get(agent)
        own = rows_at(obs[group], (j, k))
        there = seen["observation"] if masked and seen is not None else seen
        zeros = (
            {name: np.zeros_like(part) for name, part in own.items()} if isinstance(own, dict) else np.zeros_like(own)
        )
        assert_same(own, zeros if seen is None else there, f"obs of {agent}")
        for name in ("started", "acts"):
            assert getattr(rows, name)[group][j, k] == (agent in getattr(now, name)), (name, agent)
        assert rows.present[group][j, k] == (agent in now.obs), agent
        for name in ("terminated", "truncated"):
            assert getattr(rows, name)[group][j, k] == (last is not None and agent in getattr(last, name)), (
                name,
                agent,
            )
        if rewards is not None:
            reward = np.float32(0.0 if last is None else last.rewards.get(agent, 0.0))
            assert rewards[group][j, k] == reward, (agent, rewards[group][j, k], reward)


def random_actions(vec: MultiAgentVecEnv, rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Draw actions for all agents, also those that do not act."""
    found = {}
    for group, members in vec.groups.items():
        space = vec.action_spaces[group]
        shape = n, len(members), *(space.shape or ())
        found[group] = rng.integers(5, size=shape) if shape[2:] == () else rng.uniform(-1, 1, shape).astype(np.float32)
    return found


def of_env(vec: MultiAgentVecEnv, actions: dict[str, Any], j: int) -> dict[str, Any]:
    """Return row j of actions by agent."""
    return {agent: actions[group][j, k] for agent, (group, k) in vec.roster.places.items()}


class AgentsConformance(Conformance):
    """MultiAgentVecEnv over this engine."""

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("form", FORMS)
    def test_agents_in_lock_step(self, make: Make, form: str, mode: str) -> None:
        """Rows of all modes by agent, through births, deaths and ends of episodes."""
        vec = MultiAgentVecEnv(make([functools.partial(agents_env, FORMS[form], i) for i in range(3)], autoreset=mode))
        loops, rng = [BareLoop(FORMS[form](i)) for i in range(3)], np.random.default_rng(0)
        first = vec.reset(seed=[10, 20, 30])
        shown: list[Seen | None] = [loop.reset(10 * i + 10) for i, loop in enumerate(loops)]
        for i, seen in enumerate(shown):
            check(vec, vec, first, None, i, seen, None)  # type: ignore[arg-type]
        waiting = [False] * 3  # for the first row of an episode
        for _ in range(STEPS):
            actions = random_actions(vec, rng, 3)
            obs, rewards, dones, infos = vec.step(actions)
            for i, loop in enumerate(loops):
                if waiting[i]:
                    if mode == "async" and infos[i].get("resetting"):
                        assert not vec.flags[i].any()
                        continue
                    check(vec, vec, obs, rewards, i, loop.reset(), None)
                    waiting[i] = False
                    continue
                last = loop.step(of_env(vec, actions, i))
                assert dones[i] == last.over
                assert infos[i].get("agents", {}) == last.infos
                if last.over and mode == "same_step":
                    check(vec, vec, obs, rewards, i, loop.reset(), last)
                    self._check_last(vec, infos[i]["terminal_observation"], last)
                else:
                    check(vec, vec, obs, rewards, i, last, last)
                    waiting[i] = last.over
            if mode == "disabled" and any(waiting):
                over = [i for i, each in enumerate(waiting) if each]
                again = vec.reset(over, seed=[7 * i for i in over])
                for j, i in enumerate(over):
                    seen = loops[i].reset(7 * i)
                    for name in vec.groups:  # rows of the reset envs alone
                        assert len(vec.present[name]) == 3
                    whole = {name: _spread(part, over, 3) for name, part in again.items()}
                    check(vec, vec, whole, None, i, seen, None)
                    waiting[i] = False
                    assert j < len(over)

    @pytest.mark.parametrize("mode", ["same_step", "next_step"])
    @pytest.mark.parametrize("form", FORMS)
    def test_agents_by_subsets(self, make: Make, form: str, mode: str) -> None:
        """The same by send and recv, in random order."""
        vec = MultiAgentVecEnv(make([functools.partial(agents_env, FORMS[form], i) for i in range(4)], autoreset=mode))
        loops, rng = [BareLoop(FORMS[form](i)) for i in range(4)], np.random.default_rng(1)
        vec.reset(seed=5)
        for i, loop in enumerate(loops):
            loop.reset(5 + i)
        sent: dict[int, Any] = {}
        waiting = [False] * 4
        for _ in range(STEPS):
            free = [i for i in range(4) if i not in sent]
            chosen = rng.permutation(free)[: rng.integers(1, len(free) + 1)] if free else np.array([], int)
            if len(chosen):
                actions = random_actions(vec, rng, len(chosen))
                vec.send(actions, chosen)
                sent.update({int(i): of_env(vec, actions, j) for j, i in enumerate(chosen)})
            batch = vec.recv()
            for j, i in enumerate(batch.indices.tolist()):
                given, loop = sent.pop(i), loops[i]
                if waiting[i]:
                    check(vec, batch, batch.obs, batch.rewards, j, loop.reset(), None)
                    waiting[i] = False
                    continue
                last = loop.step(given)
                assert batch.dones[j] == last.over
                if last.over and mode == "same_step":
                    check(vec, batch, batch.obs, batch.rewards, j, loop.reset(), last)
                else:
                    check(vec, batch, batch.obs, batch.rewards, j, last, last)
                    waiting[i] = last.over

    def test_an_agent_that_is_not_named(self, make: Make) -> None:
        """An agent outside possible_agents is that env's error alone; the others have their rows."""
        vec = MultiAgentVecEnv(make([functools.partial(agents_env, NamesAStranger, i) for i in range(3)]))
        vec.reset(seed=0)
        with pytest.raises(EnvError, match=r"env 1 .*'stranger' is not in possible_agents") as caught:
            vec.step({"cat": np.zeros((3, 3), int), "dog": np.zeros((3, 2, 2), np.float32)})
        assert caught.value.batch is not None
        assert caught.value.batch.indices.tolist() == [0, 2]
        assert set(caught.value.batch.obs) == {"cat", "dog"}

    @staticmethod
    def _check_last(vec: MultiAgentVecEnv, obs: Any, last: Seen) -> None:
        assert set(obs) == set(vec.groups)
        for agent, seen in last.obs.items():
            group, k = vec.roster.places[agent]
            expected = seen["observation"] if group in vec.roster.masked else seen
            assert_same(rows_at(obs[group], k), expected, f"last obs of {agent}")


class NamesAStranger(Teams):
    """Env 1 gives a row to an agent that it has not named."""

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step as Teams does."""
        obs, *rest = super().step(actions)
        if self.tag == 1:
            self.agents.append("stranger")
            obs = {**obs, "stranger": np.zeros(4)}
        return obs, *rest  # type: ignore[return-value]


def _spread(rows: Any, slots: list[int], n: int) -> Any:
    if isinstance(rows, dict):
        return {name: _spread(part, slots, n) for name, part in rows.items()}
    whole = np.zeros((n, *rows.shape[1:]), rows.dtype)
    whole[slots] = rows
    return whole
