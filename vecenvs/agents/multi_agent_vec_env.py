"""`MultiAgentVecEnv`: many envs of several agents behind one interface, a view of any VecEnv."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs import env_calls
from vecenvs.agents.agents_env import AgentsEnv
from vecenvs.agents.dicts import AgentDicts, EnvDicts
from vecenvs.agents.flat import FlatVecEnv
from vecenvs.agents.last_rows import LastRows
from vecenvs.agents.roster import FLAGS, STARTED, Roster
from vecenvs.agents.rows import AgentRows, ByGroup, Masks, MultiAgentBatch, batches_made
from vecenvs.arguments import check_choice, check_vec_env, parse_indices
from vecenvs.errors import EnvError, SpaceMismatch, VecEnvError
from vecenvs.vec_env import Batch, Indices, Options, Seeds, VecEnv
from vecenvs.wrappers.kept_rows import KeptRows

Self = TypeVar("Self", bound="MultiAgentVecEnv")


class MultiAgentVecEnv(AgentRows):
    """`num_envs` envs of several agents at once. `make_multi_agent` makes one.

    A slot holds one env; its agents are the second axis of the slot's arrays, group by group:

    * Observations: a dict group -> (num_envs, agents, ...). A row of an agent that has no part in it is zero.
    * Actions: a dict group -> (num_envs, agents, ...), or one array if there is one group. Those of agents that do not
      act are ignored. Where agents act by turns, also one array (num_envs, ...) for the agents that act.
    * Rewards: a dict group -> float32 (num_envs, agents). Where an agent has no row for some steps, what it collects
      in them comes with its next one.
    * `dones`: bool (num_envs,), whether the env's episode has ended: no agent is left, or the env has said so.
    * `infos`: a sequence of dicts as from any VecEnv, with the infos of the agents under "agents", by their names.
    * `present`, `acts`, `started`, `terminated`, `truncated`: dicts group -> bool (num_envs, agents) about the last row
      of each env.

    The row on which an agent ends has its last observation and its own flags; after it the agent is absent. In the
    mode "same_step" the row that ends an env's episode has the rewards and ends of that episode, and the observations,
    `present`, `acts` and `started` of the next one; info["terminal_observation"] has the last observations.

    Seeds, options, autoreset modes, subsets and failures are by env, as in `VecEnv`.

    Args:
        vec: a VecEnv whose envs are each an `AgentsEnv`, not stepped yet.

    Attributes:
        vec: the VecEnv whose rows these are. Its slots' observations are Dicts with further keys.
        num_envs: the number of envs.
        roster: the agents and their spaces.

    Raises:
        TypeError: `vec` is not a VecEnv.
        SpaceMismatch: its envs do not have the same agents.
    """

    def __init__(self, vec: VecEnv) -> None:
        check_vec_env("MultiAgentVecEnv", vec)
        self.vec = vec
        self.num_envs = vec.num_envs
        self.roster = vec.call(_roster, [0])[0]
        names = self.roster.agents
        for slot, agents in enumerate(vec.call(_agents, None)):
            if agents != names:
                raise SpaceMismatch(slot, "possible_agents", agents, names)
        self._kept = KeptRows()
        self._last = LastRows(vec, self.roster)
        self.flags = self._last.flags  # of the last row of each env

    # What it is made of

    @property
    def groups(self) -> dict[str, tuple[Any, ...]]:
        """The agents of each group, in their order on the agents' axis."""
        return self.roster.groups

    @property
    def agents(self) -> list[Any]:
        """All agents, group by group."""
        return self.roster.agents

    @property
    def observation_spaces(self) -> dict[str, spaces.Space[Any]]:
        """The space of one agent's observations, by group, without its action mask."""
        return self.roster.observation_spaces

    @property
    def action_spaces(self) -> dict[str, spaces.Space[Any]]:
        """The space of one agent's actions, by group."""
        return self.roster.action_spaces

    @property
    def autoreset(self) -> str:
        """The autoreset mode."""
        return self.vec.autoreset

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.vec.closed

    # All envs in lock-step

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> ByGroup:
        """Reset envs.

        Args:
            indices: the envs; None for all.
            seed: as in `VecEnv.reset`: seeds belong to envs.
            options: as in `VecEnv.reset`.

        Returns:
            The first observations, by group, (len(indices), agents, ...). `reset_infos` has the infos.

        Raises:
            EnvError: envs raised. The others have been reset.
        """
        slots = np.asarray(parse_indices(indices, self.num_envs), np.int64)
        self._kept.check_free("reset")
        with batches_made(self._batch):
            obs = self.vec.reset(indices, seed=seed, options=options)
        self._last.begin(slots, obs)
        return dict(obs)

    def step(self, actions: Any) -> tuple[ByGroup, ByGroup, NDArray[np.bool_], Any]:
        """Step every env once.

        Args:
            actions: by group, (num_envs, agents, ...); see the class.

        Returns:
            Observations and rewards by group, dones bool (num_envs,) of the envs, and infos.

        Raises:
            TypeError: the actions have another structure or dtype than the spaces'. No env was touched.
            ValueError: their number or shape is wrong. No env was touched.
            EnvError: envs raised; its `batch`, a MultiAgentBatch, has the rows of the others.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a step of every env and return at once; see `step`."""
        given = self._actions(actions, self.num_envs)
        self._kept.check_free("step_async")
        self._last.note_actions(slice(None))  # first: a Ctrl-C may come once they are sent
        self.vec.step_async(given)

    def step_wait(self, timeout: float | None = None) -> tuple[ByGroup, ByGroup, NDArray[np.bool_], Any]:
        """Wait for the rows of the step that `step_async` started; see `step`."""
        return self._kept.take(lambda _: self.vec.step_wait(timeout), self._work, "step")  # type: ignore[no-any-return]

    def _work(self, value: Any, call: str, indices: Indices) -> Any:
        if isinstance(value, EnvError):
            error: Any = value
            error.batch = None if error.batch is None else self._batch(error.batch)
            return error
        if call == "recv":
            return self._batch(value)
        obs, _, dones, infos = value
        rewards = self._last.take(slice(None), obs, dones, infos, self.vec.active)
        return obs, rewards, dones, infos

    # Any subset of the envs

    def send(self, actions: Any, indices: Indices = None) -> None:
        """Start a step of some envs and return at once; see `VecEnv.send`. Actions are (len(indices), agents, ...)."""
        slots = np.asarray(parse_indices(indices, self.num_envs), np.int64)
        given = self._actions(actions, len(slots))
        self._kept.check_free("send")
        self._last.note_actions(slots)
        self.vec.send(given, slots)

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        """Start a reset of some envs and return at once. `recv` returns their rows; see `VecEnv.reset_async`."""
        self._kept.check_free("reset_async")
        self.vec.reset_async(indices, seed=seed, options=options)

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None, indices: Indices = None
    ) -> MultiAgentBatch:
        """Wait for rows of envs and return those that are ready, the first ready first.

        Args:
            min_envs: as in `VecEnv.recv`, which also says what it raises.
            max_envs: as there.
            timeout: as there.
            indices: as there.

        Returns:
            The rows, at most one per env.
        """
        return self._kept.take(lambda _: self.vec.recv(min_envs, max_envs, timeout, indices), self._work, "recv")  # type: ignore[no-any-return]

    async def arecv(
        self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None, indices: Indices = None
    ) -> MultiAgentBatch:
        """Do what `recv` does, in a coroutine: see `VecEnv.arecv`."""
        await self.await_rows(min_envs, timeout, indices)
        return self.recv(min_envs, max_envs, timeout, indices)

    async def await_rows(self, min_envs: int = 1, timeout: float | None = None, indices: Indices = None) -> None:
        """Wait, in a coroutine, until `recv` has rows: see `VecEnv.await_rows`."""
        if not self._kept:
            await self.vec.await_rows(min_envs, timeout, indices)

    # About the last rows

    @property
    def active(self) -> NDArray[np.bool_]:
        """Whether each row of the last step is a transition of its env, bool (num_envs,)."""
        return self.vec.active

    @property
    def moved(self) -> Masks:
        """Whether the last row is a transition of the agent: it had acted, by group, bool (num_envs, agents)."""
        return self.roster.by_group(self._last.moved.copy())

    @property
    def action_mask(self) -> ByGroup | None:
        """Which actions are possible, by group, (num_envs, agents, actions), from observations or infos.

        None if the envs have no masks, or infos have had none yet. Agents without one in their info may do anything.
        """
        return self._last.masks_of(np.arange(self.num_envs))

    @property
    def rewards64(self) -> ByGroup:
        """The last rewards before rounding to float32, by group, float64 (num_envs, agents)."""
        return self.roster.by_group(self._last.rewards64.copy())

    # Other forms

    def flat(self) -> FlatVecEnv:
        """Show the agents as the envs of a VecEnv of num_envs * agents rows: for as_sb3, as_gymnasium and wrappers.

        Returns:
            The VecEnv. Step it or this object, not both.

        Raises:
            ValueError: there are several groups.
        """
        return FlatVecEnv(self)

    def as_dicts(self, by: str = "env") -> EnvDicts | AgentDicts:
        """Show rows as dicts by agent.

        Args:
            by: "env": a list with a dict agent -> value for each env (as RLlib's vector envs); "agent": a dict agent ->
                array (num_envs, ...) (as AgileRL's loops).

        Returns:
            An object with `reset` and `step`. Step it or this object, not both.
        """
        check_choice("by", by, ("env", "agent"))
        return EnvDicts(self) if by == "env" else AgentDicts(self)

    # The envs

    @property
    def reset_infos(self) -> Any:
        """The info of each env's last reset, autoresets included."""
        return self.vec.reset_infos

    def seed(self, seed: Seeds = None) -> list[int | None]:
        """Seed the next reset of each env; see `VecEnv.seed`."""
        return self.vec.seed(seed)

    def set_options(self, options: Options = None) -> None:
        """Set the options of the next reset of each env; see `VecEnv.set_options`."""
        self.vec.set_options(options)

    def get_attr(self, name: str, indices: Indices = None) -> list[Any]:
        """Read an attribute of each env; see `VecEnv.get_attr`."""
        return self.call(env_calls.get_attr, indices, name)

    def set_attr(self, name: str, value: Any, indices: Indices = None) -> None:
        """Write an attribute of each env; see `VecEnv.set_attr`."""
        self.call(env_calls.set_attr, indices, name, value)

    def env_method(self, name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Call a method of each env; see `VecEnv.env_method`."""
        return self.call(env_calls.env_method, indices, name, *args, **kwargs)

    def call(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> list[Any]:
        """Run `function(env, *args, **kwargs)` on each env of several agents, where it lives; see `VecEnv.call`."""
        return self.vec.call(_on_inner, indices, function, *args, **kwargs)

    def get_images(self, indices: Indices = None) -> list[Any]:
        """Render envs; see `VecEnv.get_images`."""
        return self.vec.get_images(indices)

    def render(self, mode: str | None = None) -> NDArray[np.uint8] | None:
        """Render all envs into one picture; see `VecEnv.render`."""
        return self.vec.render(mode)

    def stats(self) -> dict[str, Any]:
        """Describe the VecEnv and count what it has done; see `VecEnv.stats`."""
        return self.vec.stats()

    def close(self) -> None:
        """Close every env and end the workers. May be called again."""
        self.vec.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_envs

    def __repr__(self) -> str:
        groups = ", ".join(f"{len(members)} {name}" for name, members in self.groups.items())
        return f"<MultiAgentVecEnv ({groups}) around {self.vec!r}>"

    # Rows

    def _batch(self, batch: Batch) -> MultiAgentBatch:
        slots, dones = batch.indices, batch.dones
        first = ~batch.active & ((batch.obs[FLAGS] & STARTED) != 0).any(axis=1)
        self._last.forget_lives(slots[first])
        rewards = self._last.take(slots, batch.obs, dones, batch.infos, batch.active)
        masks = self._last.masks_of(slots)
        flags, moved = self.flags[slots], self.roster.by_group(self._last.moved[slots])
        return MultiAgentBatch(
            slots, batch.obs, rewards, dones, batch.infos, batch.active, masks, moved, self.roster, flags, batch.latency
        )

    def _actions(self, actions: Any, count: int) -> Any:
        """Return actions as a dict by group."""
        groups = self.groups
        if isinstance(actions, Mapping):
            if set(actions) != set(groups):
                raise ValueError(f"actions are of {sorted(map(str, actions))}, but the groups are {sorted(groups)}")
            return dict(actions)
        one, *others = self.action_spaces.values()
        if self.roster.by_turns and all(space == one for space in others):
            given = np.asarray(actions)
            if given.shape == (count, *(one.shape or ())):
                return {name: np.repeat(given[:, None], len(members), axis=1) for name, members in groups.items()}
        if len(groups) > 1:
            raise TypeError(f"actions must be a dict by group, of {', '.join(groups)}, not {type(actions).__name__}")
        return {next(iter(groups)): actions}


def _roster(env: Any) -> Roster:
    if not isinstance(env, AgentsEnv):
        raise VecEnvError(
            f"MultiAgentVecEnv shows a VecEnv of envs of several agents, not of {type(env).__name__}: make_multi_agent "
            "makes one"
        )
    return env.roster


def _agents(env: Any) -> list[Any]:
    return _roster(env).agents


def _on_inner(env: AgentsEnv, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(env.env, *args, **kwargs)
