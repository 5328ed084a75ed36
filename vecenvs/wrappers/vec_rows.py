"""`VecRowsWrapper`: the base of wrappers that read or change rows, whichever call returns them."""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs._native.twin import unrounded
from vecenvs.arguments import parse_indices
from vecenvs.batch.lazy_infos import LazyInfos
from vecenvs.errors import EnvError, VecEnvError
from vecenvs.state.env_state import EnvState
from vecenvs.vec_env import Batch, Indices, Options, Seeds, StepReturn, VecEnv
from vecenvs.worker.env_errors import has_error
from vecenvs.wrappers.base import VecEnvWrapper
from vecenvs.wrappers.kept_rows import KeptRows

# The keys of an info that say what its row is.
START, REPEAT, RESTARTED, TERMINAL = "episode_start", "resetting", "worker_restarted", "terminal_observation"
ABSENT = "absent"  # a row on which an agent's part ends, and which does not show its next one


class StepRows(Batch):
    """The rows of a step of all envs. `dones` are those that the step returned: a wrapper may have changed them."""

    dones: Any = None


class VecBatchWrapper(VecEnvWrapper):
    """Call `_on_batch` with all rows that `venv` returns, each once: the only place where a wrapper meets rows.

    Rows are those of `step`, of `recv`, of a `reset` of all or some envs, and those in the `batch` of an EnvError.

    The handler of a signal (Ctrl-C) may raise at any bytecode, but is called after `_on_batch`; only if the same signal
    comes once more, within it. Rows that had come are what the next `step_wait` or `recv` returns.
    """

    def __init__(
        self,
        venv: VecEnv,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
    ) -> None:
        super().__init__(venv, observation_space, action_space)
        self._kept = KeptRows()

    @abc.abstractmethod
    def _on_batch(self, batch: Batch, call: str, *, lock_step: bool) -> None:
        """Read rows, or change them in `batch`.

        Args:
            batch: the rows; those of a reset have reward 0, `active` False and the info "episode_start".
            call: which call returns them, "reset", "step" or "recv".
            lock_step: whether these are the rows of all envs, except for envs that raised.
        """

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        slots = self._own(indices)
        self._kept.check_reset(slots, self.num_envs)
        return self._rows_of(lambda _: self.venv.reset(slots, seed=seed, options=options), "reset", slots).obs

    def set_state(self, states: EnvState | Sequence[EnvState], indices: Indices = None) -> Any:
        self._kept.check_free("set_state")
        slots = self._own(indices)
        return self._rows_of(lambda _: self.venv.set_state(states, slots), "reset", slots).obs

    def _own(self, indices: Indices) -> Indices:
        """Return a copy of indices, which the caller may write into before an interrupted call is done."""
        return indices if indices is None else parse_indices(indices, self.num_envs)

    def step_async(self, actions: Any) -> None:
        self._kept.check_free("step_async")
        super().step_async(actions)

    def send(self, actions: Any, indices: Indices = None) -> None:
        self._kept.check_free("send")
        super().send(actions, indices)

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        self._kept.check_free("reset_async")
        super().reset_async(indices, seed=seed, options=options)

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        batch = self._rows_of(lambda _: self.venv.step_wait(timeout), "step")
        return batch.obs, batch.rewards, batch.dones, batch.infos

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None, indices: Indices = None
    ) -> Batch:
        def take(_: None) -> Batch:
            return self.venv.recv(min_envs, max_envs, timeout, indices)

        return self._rows_of(take, "recv")

    async def await_rows(self, min_envs: int = 1, timeout: float | None = None, indices: Indices = None) -> None:
        if not self._kept:
            await super().await_rows(min_envs, timeout, indices)

    def _rows_of(self, get: Callable[[None], Any], call: str, indices: Indices = None) -> Batch:
        return self._kept.take(get, self._work, call, indices)  # type: ignore[no-any-return]

    def _work(self, value: Any, call: str, indices: Indices) -> Any:
        failed = isinstance(value, EnvError)
        batch = value.batch if failed else self._as_batch(value, call, indices)
        if batch is not None:
            self._on_batch(batch, call, lock_step=call != "recv" and indices is None)
        return value if failed else batch

    def _as_batch(self, value: Any, call: str, indices: Indices) -> Batch:
        if call == "recv":
            return value  # type: ignore[no-any-return]
        if call == "reset":
            return _first_rows(self.venv, value, indices)
        venv, (obs, rewards, dones, infos) = self.venv, value
        slots = np.arange(venv.num_envs, dtype=np.int64)
        rows = StepRows(slots, obs, rewards, venv.terminated, venv.truncated, infos, venv.active)
        rows.dones = dones
        return rows

    def close(self) -> None:
        super().close()
        self._kept.forget()


class VecRowsWrapper(VecBatchWrapper):
    """Call `_on_rows` with all rows that `venv` returns, each once. Subclasses define that method.

    Rows are those of `step`, of `recv`, of a `reset` of all or some envs, and those in the `batch` of an EnvError. The
    arguments are those of `vecenvs.VecEnvWrapper`.
    """

    _takes_arrays = True

    @abc.abstractmethod
    def _on_rows(self, batch: Batch, exact: NDArray[np.float64], lock_step: bool) -> None:
        """Read rows, or change `batch.obs`, `batch.rewards` and `batch.infos`.

        The rows of a reset have reward 0, `active` False and the info "episode_start".

        Args:
            batch: the rows.
            exact: their rewards, float64 (k,): in a step before rounding to float32, otherwise as in `batch`.
            lock_step: whether these are the rows of all envs, except for envs that raised.
        """

    def _on_batch(self, batch: Batch, call: str, *, lock_step: bool) -> None:
        exact = batch.rewards.astype(np.float64)
        if call == "step":
            exact = unrounded(self.venv.rewards64[batch.indices], batch.rewards)
        self._on_rows(batch, exact, lock_step)


def dict_space(subspaces: Mapping[str, spaces.Space[Any]]) -> spaces.Dict:
    """Return a Dict space with its keys in the order of `subspaces`, which is the order of a batch's entries."""
    return spaces.Dict(OrderedDict(subspaces))  # Gymnasium sorts the keys of any other mapping


def flagged(batch: Batch, key: str) -> NDArray[np.bool_]:
    """Return whether the info of each row has True under `key`, bool (k,). An env's own value may be a number."""
    if isinstance(batch.infos, LazyInfos):
        return batch.infos.flagged(key)
    return np.array([info.get(key) is True for info in batch.infos], dtype=bool)


def begins(batch: Batch) -> NDArray[np.bool_]:
    """Return which rows only begin an episode: no transition, and none that repeats; bool (k,)."""
    return ~(batch.active | repeats(batch))


def repeats(batch: Batch) -> NDArray[np.bool_]:
    """Return which rows repeat an observation while their envs are being reset, bool (k,)."""
    if batch.active.all():
        return ~batch.active
    return ~batch.active & flagged(batch, REPEAT) & ~flagged(batch, START)


def lost(batch: Batch) -> NDArray[np.bool_]:
    """Return which rows end an episode without a step (`is_lost`), bool (k,)."""
    found = np.zeros(len(batch), bool)
    for j in np.flatnonzero(batch.dones).tolist():
        found[j] = is_lost(batch.infos[j])
    return found


def is_lost(info: dict[str, Any]) -> bool:
    """Tell of a row that ends an episode whether the env has raised, or its worker was replaced."""
    return info.get(RESTARTED) is True or has_error(info)


def shows_next(batch: Batch, autoreset: str) -> NDArray[np.bool_]:
    """Return which rows end an episode and hold the first observation of the next one, bool (k,)."""
    over = batch.dones & (autoreset == "same_step")
    return over & ~flagged(batch, ABSENT) if over.any() else over


def last_rows(batch: Batch) -> NDArray[np.int64]:
    """Return which rows end an episode and have its last observation in their infos.

    An env's own info may have the key on any row. An episode that a wrapper ended may lack it, and so do those of
    batched envs which keep no last observations.
    """
    return np.array([j for j in np.flatnonzero(batch.dones).tolist() if TERMINAL in batch.infos[j]], np.int64)


def last_infos(batch: Batch) -> list[dict[str, Any]]:
    """Return the infos of `last_rows`."""
    return [batch.infos[j] for j in last_rows(batch).tolist()]


def check_last(infos: Iterable[dict[str, Any]], space: spaces.Space[Any]) -> None:
    """Raise VecEnvError for terminal observations whose shape is not that of `space`, the space of the rows.

    A wrapper written for baselines, which has no such observations, may have left them as the envs returned them.
    """
    if not isinstance(space, spaces.Box):
        return
    for info in infos:
        shape = np.shape(info[TERMINAL])
        if shape != space.shape:
            raise VecEnvError(
                f"info['terminal_observation'] has shape {shape}, but observations have {space.shape}: a wrapper below "
                "changes observations, and must change these, too: see VecRowsWrapper"
            )


def _first_rows(venv: VecEnv, obs: Any, indices: Indices) -> Batch:
    slots = parse_indices(indices, venv.num_envs)
    k = len(slots)
    none = np.zeros(k, dtype=bool)
    # Among the agents of envs some may be absent: no episode of theirs has begun.
    begun = venv.reset_infos
    infos: list[dict[str, Any]] = [{START if START in begun[slot] else REPEAT: True} for slot in slots]
    return Batch(np.array(slots, dtype=np.int64), obs, np.zeros(k, np.float32), none, none.copy(), infos, none.copy())
