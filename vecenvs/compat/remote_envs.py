"""`RemoteEnvs`: the common base of RemoteVectorEnv and RemoteBaseEnv."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from vecenvs.arguments import arguments_of, check_arguments, parse_int, parse_timeout
from vecenvs.backends import backend_class
from vecenvs.batch.layout import SpaceLayout
from vecenvs.compat.multi_agent import AGENT, AgentRows, MultiAgentAdapter, agent_row, lone_row
from vecenvs.compat.old_env import adapted
from vecenvs.compat.sub_environment import SubEnvironment
from vecenvs.errors import (
    AlreadySteppingError,
    ClosedError,
    EnvError,
    NotSteppingError,
    StepTimeout,
    VecEnvError,
    describe_indices,
)
from vecenvs.vec_env import Batch, NotHere, Seeds
from vecenvs.wrappers.kept_rows import KeptRows

T = TypeVar("T")

ASYNC_RESET_RETURN = "async_reset_return"
"""The return value of `try_reset`, RLlib's own word: the first observation will come by `poll`."""

_ONE_PROCESS_EACH = ("subproc", "ray")
_SETTLED = ("env_fns", "autoreset")  # arguments of a backend that callers cannot choose here


class RemoteEnvs:
    """RLlib's interface, except for `poll`, whose result differs between its two classes.

    The constructor starts a reset of all envs; `poll` returns their first rows.

    Args:
        make_env: a function that makes env i, in its worker, from the index i: a Gymnasium env, one of the old
            interface with Gymnasium's spaces (see OldEnvAdapter), or, with `multiagent`, a PettingZoo ParallelEnv or an
            env of dicts as RLlib's (see MultiAgentAdapter).
        num_envs: the number of envs.
        multiagent: whether the envs have several agents. Otherwise the agent id is "agent0".
        remote_env_batch_wait_ms: milliseconds in which `poll` waits for more rows than one.
        backend: "subproc", "dummy", "mpi" or "ray".
        seed: the seeds of the first resets, as in `VecEnv.reset`.
        **backend_kwargs: arguments of the backend's class. As in RLlib, "subproc" and "ray" have one process per env,
            unless `num_workers` is given: envs of one worker wait for each other's steps and resets.

    Raises:
        TypeError: an argument has a wrong type, or the backend has no argument of this name.
        ValueError: a number is out of its range, or there is no such backend.
        EnvError: an env could not be made.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_envs: int,
        multiagent: bool,
        remote_env_batch_wait_ms: float,
        *,
        backend: str = "subproc",
        seed: Seeds = None,
        **backend_kwargs: Any,
    ) -> None:
        if not callable(make_env):
            raise TypeError(f"make_env must be a function of an env's index, not {make_env!r}")
        num_envs = parse_int("num_envs", num_envs, 1)
        wait = parse_timeout(remote_env_batch_wait_ms, "remote_env_batch_wait_ms")
        if wait is None or math.isinf(wait):
            raise ValueError(
                "remote_env_batch_wait_ms must be a finite number: with 0, poll returns when there is a first row"
            )
        if "autoreset" in backend_kwargs:
            raise TypeError("autoreset cannot be chosen here: an env whose episode has ended waits for try_reset")
        engine = backend_class(backend)
        known = [name for name in (*arguments_of(RemoteEnvs), *arguments_of(engine)) if name not in _SETTLED]
        check_arguments(f"{type(self).__name__} with backend {backend!r}", backend_kwargs, known)
        self.num_envs = num_envs
        self.multiagent = bool(multiagent)
        self.poll_timeout = wait / 1000
        if backend in _ONE_PROCESS_EACH:
            backend_kwargs.setdefault("num_workers", num_envs)
        env_fns = [functools.partial(_make, make_env, i, self.multiagent) for i in range(num_envs)]
        self._vec = engine(env_fns, autoreset="disabled", **backend_kwargs)
        self._error: VecEnvError | None = None
        self._agents: set[Any] = set()
        self._kept = KeptRows()
        self._polled: dict[int, AgentRows] = {}  # which `poll` has not returned yet
        try:
            self.observation_space, self.action_space = self._spaces()
            self._layout = SpaceLayout(self._vec.observation_space)
            self._vec.reset_async(seed=seed)
        except BaseException:
            self._vec.close()
            raise

    def send_actions(self, action_dict: Mapping[int, Mapping[Any, Any]]) -> None:
        """Start a step of some envs.

        Args:
            action_dict: a dict env id -> agent id -> action.

        Raises:
            AlreadySteppingError: an env has not been polled since its last command. No env was touched.
            TypeError: `action_dict` is not such a dict.
            IndexError: there is no such env.
            ValueError: an env with one agent got actions for others.
        """
        if not isinstance(action_dict, Mapping):
            raise TypeError(f"send_actions takes a dict env id -> agent id -> action, not {action_dict!r}")
        slots = [self._env_id(env_id) for env_id in action_dict]
        actions = [self._actions(env_id, by_agent) for env_id, by_agent in action_dict.items()]
        if slots:
            with self._in_own_words("send_actions", slots):
                self._vec.send(actions, slots)

    def try_reset(
        self, env_id: int | None = None, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> str:
        """Start a reset. `poll` returns the first row.

        Args:
            env_id: the env; None for all.
            seed: an int gives env i the seed `seed` + i.
            options: the options of the reset.

        Returns:
            ASYNC_RESET_RETURN.

        Raises:
            AlreadySteppingError: an env has not been polled since its last command. No env was touched.
            IndexError: there is no such env.
        """
        slots = list(range(self.num_envs)) if env_id is None else [self._env_id(env_id)]
        with self._in_own_words("try_reset", slots):
            self._vec.reset_async(slots, seed=seed, options=options)
        return ASYNC_RESET_RETURN

    # The insides of RLlib's class.
    actors = NotHere(
        "get_sub_environments() gives a handle of each env, whose get_attr, set_attr and env_method reach it"
    )
    pending = NotHere(
        "an env is pending from send_actions or try_reset until a poll has returned its row; poll() waits for them"
    )

    def get_sub_environments(self, as_dict: bool = False) -> list[SubEnvironment] | dict[int, SubEnvironment]:
        """Return handles of the envs.

        Args:
            as_dict: whether to return a dict by env id.

        Returns:
            A list of one handle per env, or the dict.
        """
        handles = [SubEnvironment(self._vec, i, "inner." if self.multiagent else "") for i in range(self.num_envs)]
        return dict(enumerate(handles)) if as_dict else handles

    def get_agent_ids(self) -> set[Any]:
        """Return the ids of the agents in the rows so far; for single-agent envs "agent0"."""
        return set(self._agents) if self.multiagent else {AGENT}

    def stop(self) -> None:
        """Close every env and end the workers. May be called again; other methods raise ClosedError then."""
        self._vec.close()

    def _poll(self, tell: Callable[[dict[int, AgentRows]], T]) -> T:
        """Return what `tell` makes of the rows that are ready, by env id: see `RemoteVectorEnv.poll`."""
        if self._vec.closed:
            raise ClosedError("poll")
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        deadline = time.monotonic() + self.poll_timeout
        try:
            if not self._polled:  # else they are those of an interrupted poll
                self._recv(None)
        except NotSteppingError:
            raise NotSteppingError("poll while no env has a command: send_actions or try_reset first") from None
        try:
            while True:
                self._recv(max(0.0, deadline - time.monotonic()))
        except (StepTimeout, NotSteppingError):  # no more in time, or all have come
            pass
        except VecEnvError as error:  # raised by the next poll, after these rows
            self._error = error
        try:
            told = tell(self._polled)
        except Exception:  # the infos of an env are none, say: no later poll could tell them
            self._polled = {}
            raise
        self._polled = {}  # last: a signal's handler may raise in any call
        return told

    def _recv(self, timeout: float | None) -> None:
        self._kept.take(lambda _: self._vec.recv(timeout=timeout), self._note, "recv")

    def _note(self, batch: Batch | EnvError, *_: Any) -> EnvError | bool:
        """Note the rows as polled. Return what is to be raised, or True."""
        if isinstance(batch, EnvError):
            batch.tell_reset(lambda env_id: f"try_reset({env_id}) first")
            return batch
        rewards = self._vec.rewards64
        for k, index in enumerate(batch.indices.tolist()):
            rows = self._multi(batch, k) if self.multiagent else self._single(batch, k, float(rewards[index]))
            self._polled[index] = rows
            self._agents.update(rows.obs)
        return True

    def _single(self, batch: Batch, k: int, reward: float) -> AgentRows:
        obs = self._layout.unflatten([part[k] for part in self._layout.flatten(batch.obs)])
        flags = bool(batch.terminated[k]), bool(batch.truncated[k])
        return AgentRows({AGENT: obs}, lone_row(reward, *flags, batch.infos[k], first=not batch.active[k]))

    def _multi(self, batch: Batch, k: int) -> AgentRows:
        obs = dict(batch.obs[k])
        return AgentRows(obs, agent_row(obs, batch.infos[k]))

    def _spaces(self) -> tuple[Any, Any]:
        if not self.multiagent:
            return self._vec.observation_space, self._vec.action_space
        found: tuple[Any, Any] = self._vec.env_method("spaces_by_agent", indices=[0])[0]
        return found

    def _env_id(self, env_id: Any) -> int:
        index = parse_int("an env id", env_id)
        if not 0 <= index < self.num_envs:
            raise IndexError(f"no env {index}: there are envs 0 to {self.num_envs - 1}")
        return index

    @contextlib.contextmanager
    def _in_own_words(self, what: str, slots: list[int]) -> Iterator[None]:
        """Raise the error of a second command for an env in the words of this interface."""
        try:
            if self._kept or self._polled:
                raise AlreadySteppingError("an interrupted poll has not returned its rows")
            yield
        except AlreadySteppingError as error:
            envs = describe_indices(slots)
            raise AlreadySteppingError(f"{what} of envs {envs}: poll their last rows first ({error})") from None

    def _actions(self, env_id: int, by_agent: Any) -> Any:
        if not isinstance(by_agent, Mapping):
            raise TypeError(f"the actions of env {env_id} must be a dict agent id -> action, not {by_agent!r}")
        if self.multiagent:
            return dict(by_agent)
        if list(by_agent) != [AGENT]:
            raise ValueError(f"env {env_id} has one agent, {AGENT!r}; actions were given for {list(by_agent)}")
        return by_agent[AGENT]


def _make(make_env: Callable[[int], Any], index: int, multiagent: bool) -> Any:
    env = make_env(index)
    return MultiAgentAdapter(env) if multiagent else adapted(env)
