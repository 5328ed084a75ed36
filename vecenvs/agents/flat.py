"""`FlatVecEnv`: the agents of one group as the envs of a VecEnv, for learners that share one policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.agents.agents_env import AGENTS
from vecenvs.agents.roster import ENDED, PRESENT, STARTED, TRUNCATED
from vecenvs.agents.rows import ByGroup, batches_made
from vecenvs.arguments import parse_indices
from vecenvs.batch.actions import parse_actions
from vecenvs.batch.info_batches import map_leaves
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.batch.layout import SpaceLayout
from vecenvs.batch.lazy_infos import Infos
from vecenvs.errors import EnvError, VecEnvError
from vecenvs.vec_env import Batch, Indices, Options, Seeds, StepReturn, VecEnv
from vecenvs.wrappers.kept_rows import KeptRows
from vecenvs.wrappers.vec_rows import ABSENT, REPEAT, START, TERMINAL

if TYPE_CHECKING:
    from vecenvs.agents.multi_agent_vec_env import MultiAgentVecEnv

_OF_ROWS = (AGENTS, TRUNCATED_KEY, TERMINAL, START, REPEAT)  # keys of an env's info that are not its agents'


class FlatVecEnv(VecEnv):
    """The agents of the only group of `vec` as envs: row i * a + k is agent k of env i, of a agents.

    A row of an agent that did not act, or has no observation, is not `active`: learners leave it out. Where an agent
    has no part in a row its observation is zeros, its reward 0, and its info has "resetting", as that of an env in
    async mode whose reset has not ended; its action is ignored. A row is done once, when the agent's part ends; its
    info has "terminal_observation", and "absent" unless the row shows its next episode.

    Commands are for whole envs: `indices` that name some of an env's agents must name all of them. Seeds and options
    are the envs': of a list with one for each row an env takes that of its first agent. What calls return is repeated
    for each agent.

    Args:
        vec: the VecEnv of envs with one group of agents.

    Raises:
        ValueError: it has several groups.
    """

    def __init__(self, vec: MultiAgentVecEnv) -> None:
        if len(vec.groups) > 1:
            raise ValueError(
                f"flat() shows agents of one group, but there are {', '.join(vec.groups)}, whose spaces or policies "
                "differ: step the MultiAgentVecEnv with actions by group"
            )
        self.multi = vec
        (self._group,) = vec.groups
        self._size = len(vec.agents)
        self.num_envs = vec.num_envs * self._size
        self.observation_space = vec.observation_spaces[self._group]
        self.action_space = vec.action_spaces[self._group]
        self._actions = SpaceLayout(self.action_space)
        self.spec = None
        self.metadata = vec.vec.metadata
        self.render_mode = vec.vec.render_mode
        self.autoreset = vec.autoreset
        self.copy = vec.vec.copy
        self._kept = KeptRows()
        self.over = np.zeros(self.num_envs, bool)  # rows of envs that need a reset, where nothing resets them

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """Whether `close` was called."""
        return self.multi.closed

    @property
    def reset_infos(self) -> Infos:  # type: ignore[override]
        """The info of the last reset of each agent's env, with the agent's own; {} for agents that are absent now."""
        infos: list[dict[str, Any]] = []
        for info, flags in zip(self.multi.reset_infos, self.multi.flags.tolist(), strict=True):
            common = {key: value for key, value in info.items() if key != AGENTS}
            for agent, flag in zip(self.multi.agents, flags, strict=True):
                infos.append({**common, **info.get(AGENTS, {}).get(agent, {})} if flag & PRESENT else {})
        return infos

    @property
    def unwrapped(self) -> VecEnv:
        return self

    # Rows

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        envs = self._envs_of(indices)
        self._kept.check_free("reset")
        with batches_made(self._batch):
            obs = self.multi.reset(envs, seed=self._by_env(seed, envs), options=self._by_env(options, envs))
        return self._flat(obs[self._group])

    def step_async(self, actions: Any) -> None:
        self._kept.check_free("step_async")
        self.multi.step_async(self._divided(actions, self.multi.num_envs))

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        return self._kept.take(lambda _: self.multi.step_wait(timeout), self._work, "step")  # type: ignore[no-any-return]

    def _work(self, value: Any, call: str, indices: Indices) -> Any:
        if isinstance(value, EnvError):
            value.batch = None if value.batch is None else self._batch(value.batch)
            return value
        if call == "recv":
            return self._batch(value)
        obs, rewards, dones, infos = value
        seen = obs[self._group]
        over = self.terminated | self.truncated
        self.over = np.repeat(dones, self._size)
        return self._flat(seen), rewards[self._group].ravel(), over, self._infos(slice(None), dones, infos, seen)

    def send(self, actions: Any, indices: Indices = None) -> None:
        envs = self._envs_of(indices)
        self._kept.check_free("send")
        self.multi.send(self._divided(actions, self.multi.num_envs if envs is None else len(envs)), envs)

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        envs = self._envs_of(indices)
        self._kept.check_free("reset_async")
        self.multi.reset_async(envs, seed=self._by_env(seed, envs), options=self._by_env(options, envs))

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None, indices: Indices = None
    ) -> Batch:
        """Return rows of whole envs: `min_envs` and `max_envs` count rows, and are rounded up to whole envs."""
        most = None if max_envs is None else -(-max_envs // self._size)
        least, envs = -(-min_envs // self._size), self._envs_of(indices)
        return self._kept.take(lambda _: self.multi.recv(least, most, timeout, envs), self._work, "recv")  # type: ignore[no-any-return]

    async def await_rows(self, min_envs: int = 1, timeout: float | None = None, indices: Indices = None) -> None:
        if not self._kept:
            await self.multi.await_rows(-(-min_envs // self._size), timeout, self._envs_of(indices))

    def _batch(self, rows: Any) -> Batch:
        every = self._rows_of(rows.indices)
        self.over[every] = np.repeat(rows.dones, self._size)
        return Batch(
            every,
            self._flat(rows.obs[self._group]),
            rows.rewards[self._group].ravel(),
            rows.terminated[self._group].ravel(),
            rows.truncated[self._group].ravel(),
            self._infos(rows.indices, rows.dones, rows.infos, rows.obs[self._group]),
            self.active[every],
            None if rows.latency is None else rows.latency.repeat(self._size),
        )

    @property
    def active(self) -> NDArray[np.bool_]:
        return self.multi.moved[self._group].ravel()

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return self.multi.terminated[self._group].ravel()

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return self.multi.truncated[self._group].ravel()

    @property
    def rewards64(self) -> NDArray[np.float64]:
        rewards: NDArray[np.float64] = self.multi.rewards64[self._group]
        return rewards.ravel()

    def info_array(self, name: str) -> NDArray[Any]:
        return np.repeat(self.multi.vec.info_array(name), self._size, axis=0)

    def groups(self, count: int) -> list[NDArray[np.int64]]:
        return [self._rows_of(envs) for envs in self.multi.vec.groups(count)]

    def _infos(self, envs: Any, dones: NDArray[np.bool_], infos: Any, obs: Any) -> Infos:
        """Return the infos of the agents' rows."""
        flags = self.multi.flags[envs]
        rows: list[dict[str, Any]] = []
        next_shown = self.autoreset == "same_step"
        for j, (info, done, agent_flags) in enumerate(zip(infos, dones.tolist(), flags.tolist(), strict=True)):
            own = info.get(AGENTS, {})
            shared = {key: value for key, value in info.items() if key not in _OF_ROWS}
            for k, flag in enumerate(agent_flags):
                row = {**shared, **own.get(self.multi.agents[k], {})} if shared or own else {}
                row[TRUNCATED_KEY] = flag & ENDED == TRUNCATED
                if flag & ENDED:
                    last = info[TERMINAL][self._group] if done and TERMINAL in info else _row(obs, j)
                    row[TERMINAL] = map_leaves(np.copy, _row(last, k))
                    if not (done and next_shown and flag & PRESENT):
                        row[ABSENT] = True
                elif not flag & PRESENT:
                    row[REPEAT] = True
                if flag & STARTED:
                    row[START] = True
                rows.append(row)
        return rows

    def _flat(self, batch: Any) -> Any:
        return map_leaves(lambda rows: rows.reshape(-1, *rows.shape[2:]), batch)

    # Whole envs

    def _rows_of(self, envs: NDArray[np.int64]) -> NDArray[np.int64]:
        return (envs[:, None] * self._size + np.arange(self._size)).ravel()

    def _envs_of(self, indices: Indices) -> list[int] | None:
        """Return the envs whose agents are named, None for all; ValueError if some of an env's agents are missing."""
        if indices is None:
            return None
        rows = parse_indices(indices, self.num_envs)
        envs = list(dict.fromkeys(row // self._size for row in rows))
        if list(rows) != self._rows_of(np.asarray(envs, np.int64)).tolist():
            raise ValueError(
                f"a command is for whole envs: name all {self._size} agents of an env, in their order, not {list(rows)}"
            )
        return envs

    def _divided(self, actions: Any, count: int) -> ByGroup:
        leaves = parse_actions(self._actions, actions, count * self._size)
        shaped = [leaf.reshape(count, self._size, *leaf.shape[1:]) for leaf in leaves]
        return {self._group: self._actions.unflatten(shaped)}

    def _by_env(self, values: Any, envs: list[int] | None) -> Any:
        """Return one of `values` for each env, that of its first agent, if they are a list with one for each row."""
        if not isinstance(values, (list, tuple, np.ndarray)):
            return values
        rows = self._size * (self.multi.num_envs if envs is None else len(envs))
        if len(values) != rows:
            raise ValueError(f"{len(values)} values for {rows} rows: give one for each")
        return list(values)[:: self._size]

    # The envs

    def seed(self, seed: Seeds = None) -> list[int | None]:
        """Seed the next reset of each env; an int s gives env i the seed s + i. Return the seeds by row."""
        seeds = self.multi.seed(self._by_env(seed, None))
        return [value for value in seeds for _ in range(self._size)]

    def set_options(self, options: Options = None) -> None:
        self.multi.set_options(self._by_env(options, None))

    def call(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a function once on each env that has one of the rows; return its result for each row."""
        rows = parse_indices(indices, self.num_envs)
        envs = list(dict.fromkeys(row // self._size for row in rows))
        found = dict(zip(envs, self.multi.vec.call(function, envs, *args, **kwargs), strict=True))
        return [found[row // self._size] for row in rows]

    def call_async(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> None:
        raise VecEnvError("call_async of agents: start it on the MultiAgentVecEnv's vec, whose rows are envs")

    def call_wait(self, timeout: float | None = None) -> list[Any]:
        raise VecEnvError("call_wait of agents: no call was started; see call_async")

    def get_images(self, indices: Indices = None) -> list[Any]:
        """Render the envs, one image for each env, not for each agent."""
        return self.multi.get_images(self._envs_of(indices))

    def stats(self) -> dict[str, Any]:
        return self.multi.stats()

    def close(self) -> None:
        self._close_window()
        self.multi.close()

    def __repr__(self) -> str:
        return f"<FlatVecEnv: {self.num_envs} agents' rows of {self.multi!r}>"


def _row(batch: Any, k: int) -> Any:
    return map_leaves(lambda rows: rows[k], batch)
