"""A VecEnv behind the interface of pfrl's vectorised environments (`pfrl.env.VectorEnv`, pfrl 0.4).

pfrl need not be installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenvs._native.twin import unrounded
from vecenvs.arguments import check_choice, check_vec_env
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import ClosedError, EnvError, ResetNeededError
from vecenvs.vec_env import StepReturn, VecEnv

TIME_LIMITS = ("done", "needs_reset")
MODES = ("same_step", "disabled")
_TRUNCATED, _LAST = "TimeLimit.truncated", "terminal_observation"

PfrlStep = tuple[tuple[Any, ...], tuple[float, ...], tuple[bool, ...], tuple[dict[str, Any], ...]]


def as_pfrl(vec: VecEnv, *, time_limit: str = "done") -> PfrlView:
    """View a VecEnv as a vectorised environment of pfrl; closing the view closes `vec`.

    If pfrl is installed, the view is an instance of its `VectorEnv`, which pfrl's evaluation requires.

    Args:
        vec: a VecEnv in autoreset mode "same_step" or "disabled". The observations are the same in both. In "same_step"
            an env is reset within the step that ends its episode, and `reset` returns the stored observation; in
            "disabled" `reset` needs a second round trip to the workers.
        time_limit: how a truncation is reported. With "done", as in Gym, done is terminated or truncated. With
            "needs_reset", as by pfrl's ContinuingTimeLimit, done is False and `info["needs_reset"]` True, so that
            agents bootstrap from the last observation. pfrl's training loops reset the env in both cases.

    Returns:
        An object with pfrl's methods: tuples with one item per env in place of batches.

    Raises:
        TypeError: `vec` is not a VecEnv.
        ValueError: `vec` has another autoreset mode or copy=False, or `time_limit` is unknown.
    """
    register()
    return PfrlView(vec, time_limit=time_limit)


class PfrlView:
    """The VecEnv `vec` behind pfrl's interface: tuples with one item per env in place of batches.

    Each observation is a view into the batch of its step; nothing else refers to that batch. See `as_pfrl`.

    Attributes:
        last_obs: a tuple with the last observation of each env, None before its first reset and after `close`.
    """

    def __init__(self, vec: VecEnv, *, time_limit: str = "done") -> None:
        check_vec_env("as_pfrl", vec)
        if vec.autoreset not in MODES:
            raise ValueError(
                f"pfrl resets its envs between steps, but this VecEnv has autoreset={vec.autoreset!r}: "
                f"make it with autoreset={' or '.join(map(repr, MODES))}"
            )
        if not vec.copy:
            raise ValueError("pfrl keeps the last step's observations: make the VecEnv with copy=True")
        check_choice("time_limit", time_limit, TIME_LIMITS)
        self.vec = vec
        self.num_envs = vec.num_envs
        self.observation_space = vec.observation_space
        self.action_space = vec.action_space
        self.spec = vec.spec
        self.last_obs: tuple[Any, ...] = (None,) * vec.num_envs
        self._layout = SpaceLayout(vec.observation_space)
        self._needs_reset_info = time_limit == "needs_reset"
        self._wrapped = vec.unwrapped is not vec
        self._autoresets = vec.autoreset == "same_step"
        self._ended: set[int] = set()  # slots that pfrl has to reset before the next step
        self._first_obs: dict[int, Any] = {}  # first observations of the ended slots that have been reset already

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self.vec!r}>"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.vec.closed

    @property
    def unwrapped(self) -> PfrlView:
        """The view itself, as in pfrl's base class; the VecEnv is `vec`."""
        return self

    def step(self, actions: Any) -> PfrlStep:
        """Step every env once.

        Args:
            actions: one action per env, as `VecEnv.step` takes them.

        Returns:
            Four tuples with one item per env: observations; rewards as Python floats, exactly as the envs returned
            them; dones as bools; infos. The info of a truncated row has "TimeLimit.truncated": True.

        Raises:
            EnvError: an env raised, or has ended its episode and needs `reset`; then no env is stepped.
            ClosedError: the view has been closed.
        """
        self._check_open("step")
        if self._ended:
            raise self._reset_needed()
        return self._to_pfrl(lambda: self.vec.step(actions))

    def step_wait(self, timeout: float | None = None) -> PfrlStep:
        """Return the result of a `step` that raised StepTimeout.

        Args:
            timeout: seconds to wait, or None for no limit.

        Returns:
            Observations, rewards, dones and infos, as `step`.

        Raises:
            StepTimeout: the rows are not complete in time; a later `step_wait` returns them.
            EnvError: envs raised.
            ClosedError: the view has been closed.
        """
        self._check_open("step_wait")
        return self._to_pfrl(lambda: self.vec.step_wait(timeout))

    def _to_pfrl(self, step: Callable[[], StepReturn]) -> PfrlStep:
        """Return a step's result in pfrl's form."""
        try:
            obs, rounded, dones, infos = step()
        except EnvError as error:
            self._keep_steps(error)
            raise
        rewards = self.vec.rewards64
        if self._wrapped:
            rewards = unrounded(rewards, rounded)
            for info in infos:  # a wrapper may have made them
                info.setdefault(_TRUNCATED, False)
        done = dones.tolist()
        ended = dones.nonzero()[0].tolist()
        truncated = [slot for slot in ended if infos[slot][_TRUNCATED]]
        for info in infos:
            del info[_TRUNCATED]
        rows = self._rows(obs)
        if ended:
            with_last = list(rows)
            for slot in ended:
                info = infos[slot]
                with_last[slot] = self._note_end(slot, rows[slot], info)
                info.pop(_LAST, None)  # missing where a wrapper has ended the episode
                if self._autoresets:
                    info.pop("episode_start", None)
            rows = tuple(with_last)
        for slot in truncated:
            infos[slot][_TRUNCATED] = True
            if self._needs_reset_info:
                infos[slot]["needs_reset"] = True
                done[slot] = False
        self.last_obs = rows
        return rows, tuple(rewards.tolist()), tuple(done), tuple(infos)

    def reset(self, mask: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """Reset envs.

        Args:
            mask: one bool per env, True to *skip* that env, as in pfrl; None resets all envs.

        Returns:
            A tuple of every env's last observation, which is None for a skipped env that was never reset.

        Raises:
            TypeError: `mask` is a single value.
            ValueError: `mask` has another length than num_envs.
            EnvError: envs raised. The others have been reset.
            ClosedError: the view has been closed.
        """
        self._check_open("reset")
        skip = np.zeros(self.num_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if not skip.ndim:
            raise TypeError(f"mask must be a list of bools, one per env, or None, not {mask!r}")
        if skip.shape != (self.num_envs,):
            raise ValueError(f"a mask of length {len(skip)} for {self.num_envs} envs: give one bool per env")
        slots = (~skip).nonzero()[0].tolist()
        begun = [slot for slot in slots if slot in self._first_obs]
        if len(begun) < len(slots):
            self._reset([slot for slot in slots if slot not in self._first_obs])
        if begun:
            self._note_resets(begun, [self._first_obs.pop(slot) for slot in begun])
        return self.last_obs

    def _reset(self, slots: list[int]) -> None:
        try:
            self._note_resets(slots, self._rows(self.vec.reset(slots)))
        except EnvError as error:
            error.tell_reset(_remedy)
            if (batch := error.batch) is not None:
                self._note_resets(batch.indices.tolist(), self._rows(batch.obs))
            raise

    def seed(self, seeds: int | list[int] | None = None) -> list[int | None]:
        """Seed the next reset of each env.

        Args:
            seeds: one seed per env, or as in pfrl one int for all envs; None for random seeds.

        Returns:
            The seeds, one per env.

        Raises:
            TypeError: `seeds` is neither an int nor a list nor None.
            ValueError: there is not one seed per env.
            ClosedError: the view has been closed.
        """
        self._check_open("seed")
        if isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool):
            seeds = [int(seeds)] * self.num_envs
        if seeds is not None and not isinstance(seeds, list):
            raise TypeError(f"seeds must be an int, a list of ints or None, not {seeds!r}")
        given = self.vec.seed(np.random.SeedSequence() if seeds is None else seeds)
        for slot, seed in enumerate(given):
            if seed is not None:
                self._first_obs.pop(slot, None)  # its episode has begun without the seed
        return given

    def render(self, mode: str | None = None) -> Any:
        """Render all envs in the render mode that they were made with.

        Args:
            mode: no effect; pfrl's argument.

        Returns:
            One tiled rgb array, uint8 (H, W, 3), or None if the envs draw by themselves ("human").

        Raises:
            VecEnvError: the envs make no images.
        """
        return self.vec.render()

    def close(self) -> None:
        """Close the envs. Later calls do nothing."""
        self.vec.close()
        self.last_obs = (None,) * self.num_envs  # a closed view, which may be kept, holds no rows
        self._first_obs.clear()

    def _check_open(self, what: str) -> None:
        if self.vec.closed:
            raise ClosedError(what)

    def _keep_steps(self, error: EnvError) -> None:
        """Store the rows of the envs that have completed the step; add to the error how to reset the others."""
        error.tell_reset(_remedy)
        if (batch := error.batch) is None:
            return
        rows = list(self.last_obs)
        for slot, row, done, info in zip(
            batch.indices.tolist(), self._rows(batch.obs), batch.dones, batch.infos, strict=True
        ):
            rows[slot] = self._note_end(slot, row, info) if done else row
        self.last_obs = tuple(rows)

    def _note_end(self, slot: int, row: Any, info: dict[str, Any]) -> Any:
        """Mark a slot's episode as ended; return the episode's last observation."""
        self._ended.add(slot)
        inner = self.vec.unwrapped  # else a wrapper has ended the episode, without a reset of the env
        if self._autoresets and (_LAST in info or inner.terminated[slot] or inner.truncated[slot]):
            self._first_obs[slot] = row
            return info.get(_LAST, self.last_obs[slot])  # batched envs may keep none
        return row

    def _note_resets(self, slots: Sequence[int], first: Sequence[Any]) -> None:
        """Store the first observations of new episodes."""
        rows = list(self.last_obs)
        for slot, row in zip(slots, first, strict=True):
            rows[slot] = row
        self._ended.difference_update(slots)
        self.last_obs = tuple(rows)

    def _reset_needed(self) -> EnvError:
        """Return the error of a step while ended envs have not been reset."""
        errors = []
        for slot in sorted(self._ended):
            cause = ResetNeededError(f"env {slot} has ended its episode", _remedy(slot))
            errors.append(EnvError(slot, str(cause)))
            errors[-1].__cause__ = cause
        errors[0].errors = tuple(errors)
        return errors[0]

    def _rows(self, batch: Any) -> tuple[Any, ...]:
        """Split a batch into one observation per env."""
        if self._layout.is_flat:
            return tuple(batch)
        return tuple(self._layout.unflatten(row) for row in zip(*self._layout.flatten(batch), strict=True))


def _remedy(slot: int) -> str:
    return f"call reset(mask) first, with mask[{slot}] False: envs whose mask is True are skipped"


def register() -> None:
    """Make `isinstance(view, pfrl.env.VectorEnv)` true if pfrl is installed."""
    try:
        env = importlib.import_module("pfrl.env")
    except ImportError:
        return
    env.VectorEnv.register(PfrlView)
