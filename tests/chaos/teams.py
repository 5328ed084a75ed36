"""Envs of several agents in the chaos program: each agent's row has all that a `ChaosEnv`'s has, and its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from chaos.disturb import undisturbed
from chaos.env import ChaosEnv
from chaos.plan import Violation
from vecenvs import MultiAgentVecEnv, VecEnvWrapper
from vecenvs.agents.rows import MultiAgentBatch
from vecenvs.errors import EnvError
from vecenvs.vec_env import Batch

AGENTS = 3


class TeamEnv(ChaosEnv):
    """A ChaosEnv as an env of agents, in RLlib's form. Agent 0 is always there; its hash tells which others are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.possible_agents = list(range(AGENTS))
        self.present: set[int] = set()
        (length,) = self.observation_space.shape or ()
        self.observation_space = Box(-1, 2**62, (length + 1,), np.int64)

    def reset(self, **kwargs: Any) -> Any:
        row, info = super().reset(**kwargs)
        self.present = self._there()
        return {agent: np.append(row, agent) for agent in self.present}, {0: info}

    def step(self, actions: Any) -> Any:
        assert set(actions) == self.present, (actions, self.present)
        row, reward, terminated, truncated, info = super().step(actions[0])
        before, self.present = self.present, self._there()
        ends = {agent: agent not in self.present for agent in before}
        rows = {agent: np.append(row, agent) for agent in sorted(before | self.present, reverse=True)}
        cut = {"__all__": truncated}
        return rows, {**dict.fromkeys(before, reward)}, {**ends, "__all__": terminated}, cut, {0: info}

    def _there(self) -> set[int]:
        return {agent for agent in self.possible_agents if not agent or self.hash >> agent & 3}


class TeamView(VecEnvWrapper):
    """The rows of agent 0 of a MultiAgentVecEnv, as those of single envs. What the others have is checked beside it.

    Args:
        multi: the VecEnv.
        direct: step the VecEnv behind it instead: an interrupt between a row and what the view keeps of it may lose it.
    """

    def __init__(self, multi: MultiAgentVecEnv, *, direct: bool) -> None:
        super().__init__(multi.vec, multi.observation_spaces["agents"], multi.action_spaces["agents"])
        self.rows: Any = multi.vec if direct else multi
        self.direct = direct

    @property
    def reset_infos(self) -> Any:  # type: ignore[override]
        return [*map(_own_info, self.venv.reset_infos)]

    def reset(self, indices: Any = None, *, seed: Any = None, options: Any = None) -> Any:
        return self._call(
            lambda: self.rows.reset(indices, seed=seed, options=options), lambda obs: self._first(obs["agents"])
        )

    def step_async(self, actions: Any) -> None:
        self.rows.step_async(self._all(actions))

    def step_wait(self, timeout: float | None = None) -> Any:
        return self._call(lambda: self.rows.step_wait(timeout), self._step)

    def send(self, actions: Any, indices: Any = None) -> None:
        self.rows.send(self._all(actions), indices)

    def reset_async(self, indices: Any = None, **kwargs: Any) -> None:
        self.rows.reset_async(indices, **kwargs)

    def recv(self, *args: Any, **kwargs: Any) -> Batch:
        found: Batch = self._call(lambda: self.rows.recv(*args, **kwargs), self._batch)
        return found

    def _call(self, call: Callable[[], Any], convert: Callable[[Any], Any]) -> Any:
        """Return what a call gives, converted as a whole: Ctrl-C is the library's to survive."""
        try:
            found = call()
        except EnvError as error:
            with undisturbed():
                error.batch = error.batch if error.batch is None else self._batch(error.batch)
            raise
        with undisturbed():
            return convert(found)

    def _step(self, found: Any) -> Any:
        obs, rewards, dones, infos = found
        if not self.direct:
            rewards = self._checked(self.rows, obs, rewards, dones, infos)
        else:
            rewards = self._of_one(obs, rewards, infos)
        return self._first(obs["agents"]), rewards, dones, [*map(_own_info, infos)]

    def _all(self, actions: Any) -> Any:
        return {"agents": np.repeat(actions[:, None], AGENTS, axis=1)}

    def _batch(self, batch: Any) -> Batch:
        if isinstance(batch, MultiAgentBatch):
            rewards = self._checked(batch, batch.obs, batch.rewards, batch.dones, batch.infos)
            truncated = batch.dones & np.array([info["TimeLimit.truncated"] for info in batch.infos], bool)
            terminated = batch.dones & ~truncated
        else:
            rewards = self._of_one(batch.obs, batch.rewards, batch.infos)
            terminated, truncated = batch.terminated, batch.truncated
        obs, infos = self._first(batch.obs["agents"]), [*map(_own_info, batch.infos)]
        return Batch(batch.indices, obs, rewards, terminated, truncated, infos, batch.active)

    def _first(self, rows: Any) -> Any:
        """Return the rows of agent 0, without its number; others are the same, or zeros."""
        there = rows.any(axis=2)
        wrong = there & ((rows[..., -1] != np.arange(AGENTS)) | (rows[..., :-1] != rows[:, :1, :-1]).any(axis=2))
        if wrong.any():
            raise Violation("an agent has another one's row", f"{rows[wrong.any(axis=1)]}")
        return rows[:, 0, :-1]

    def _checked(self, rows: Any, obs: Any, rewards: Any, dones: Any, infos: Any) -> Any:
        present, started, ended = (rows.present["agents"], rows.started["agents"],
                                   rows.terminated["agents"] | rows.truncated["agents"])  # fmt: skip
        shown = np.array(["resetting" not in info for info in infos], bool)  # else the last row is repeated
        if (present != obs["agents"].any(axis=2) & shown[:, None]).any() or (rows.acts["agents"] & ~present).any():
            raise Violation("masks that do not fit the rows", f"{present} {rows.acts} {obs}")
        lost = np.array(["worker_restarted" in info for info in infos], bool)  # perhaps after its episode's end
        if (started & ~present).any() or (dones & ~lost & ~ended.any(axis=1)).any():
            raise Violation("agents that start or end nowhere", f"{started} {ended} {dones}")
        return rewards["agents"][:, 0]

    def _of_one(self, obs: Any, rewards: Any, infos: Any) -> Any:
        """Return the rewards of agent 0, where the engine's own are the sums over agents."""
        own = obs["__rewards__"][:, 0].astype(np.float32)
        for k, info in enumerate(infos):
            if "terminal_observation" in info and not info.get("worker_restarted"):
                own[k] = info["terminal_observation"]["__rewards__"][0]
            elif not rewards[k]:
                own[k] = 0.0
        return own


def _own_info(info: dict[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in info.items() if key != "agents"} | info.get("agents", {}).get(0, {})
    if isinstance(info.get("terminal_observation"), dict):
        found["terminal_observation"] = info["terminal_observation"]["agents"][0, :-1]
    return found
