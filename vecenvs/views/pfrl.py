"""A VecEnv in pfrl's contract for vectorised environments (`pfrl.env.VectorEnv`, pfrl 0.4). Needs no pfrl."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenvs.arguments import check_choice, check_vec_env
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import ClosedError, EnvError, ResetNeededError
from vecenvs.vec_env import VecEnv

TIME_LIMITS = ("done", "needs_reset")
MODES = ("same_step", "disabled")
_TRUNCATED, _LAST = "TimeLimit.truncated", "terminal_observation"

PfrlStep = tuple[tuple[Any, ...], tuple[float, ...], tuple[bool, ...], tuple[dict[str, Any], ...]]


def as_pfrl(vec: VecEnv, *, time_limit: str = "done") -> PfrlView:
    """View `vec`, in autoreset mode "same_step" or "disabled", as a vectorised environment of pfrl.

    Under "same_step" an env that has ended is reset within the step already, and pfrl's reset of it hands out what is
    there; under "disabled" that goes to the env, which takes a second round to the workers. Rows are the same.

    `time_limit` says how a truncation is told: "done" as Gym did, done being terminated or truncated;
    "needs_reset" as pfrl's own ContinuingTimeLimit, done False and `info["needs_reset"]` True, so that an agent goes on
    bootstrapping from the last observation. pfrl's training loops reset the env in either case.

    If pfrl is installed, the view is an instance of its `VectorEnv`, which its evaluation asks for. Closing the view
    closes `vec`. ValueError for the other autoreset modes.
    """
    register()
    return PfrlView(vec, time_limit=time_limit)


class PfrlView:
    """What pfrl sees of `vec`: one item per env in tuples, in place of batches.

    A row of the observations is a view into the batch of its step, which nobody else has.
    """

    def __init__(self, vec: VecEnv, *, time_limit: str = "done") -> None:
        check_vec_env("as_pfrl", vec)
        if vec.autoreset not in MODES:
            raise ValueError(
                f"pfrl resets its envs between steps, but this VecEnv has autoreset={vec.autoreset!r}: "
                f"make it with autoreset={' or '.join(map(repr, MODES))}"
            )
        check_choice("time_limit", time_limit, TIME_LIMITS)
        self.vec = vec
        self.num_envs = vec.num_envs
        self.observation_space = vec.observation_space
        self.action_space = vec.action_space
        self.spec = vec.spec
        self.last_obs: tuple[Any, ...] = (None,) * vec.num_envs
        self._layout = SpaceLayout(vec.observation_space)
        self._continuing = time_limit == "needs_reset"
        self._wrapped = vec.unwrapped is not vec
        self._resets = vec.autoreset == "same_step"  # by itself, within the step
        self._ended: set[int] = set()  # slots to be reset before the next step
        self._first: dict[int, Any] = {}  # of these, the first observations of new episodes that have begun

    @property
    def closed(self) -> bool:
        return self.vec.closed

    @property
    def unwrapped(self) -> PfrlView:
        """The view itself, as pfrl's base class has it; the VecEnv is `vec`."""
        return self

    def step(self, actions: Any) -> PfrlStep:
        """Step every env once: obs, rewards, dones, infos, a tuple each.

        Rewards are Python floats, exactly as the envs gave them. Infos are the envs' own; a truncated row has
        "TimeLimit.truncated": True, or "needs_reset" as `as_pfrl` says. An env that has ended must be reset first.
        """
        self._check_open("step")
        if self._ended:
            raise self._reset_needed()
        try:
            result = self.vec.step(actions)
        except EnvError as error:
            self._keep_steps(error)
            raise
        return self._told(*result)

    def step_wait(self, timeout: float | None = None) -> PfrlStep:
        """Finish a `step` that raised StepTimeout, as it would have; StepTimeout again after `timeout` seconds."""
        self._check_open("step_wait")
        try:
            result = self.vec.step_wait(timeout)
        except EnvError as error:
            self._keep_steps(error)
            raise
        return self._told(*result)

    def _told(self, obs: Any, rounded: Any, dones: Any, infos: list[dict[str, Any]]) -> PfrlStep:
        """Give a step's result in pfrl's form."""
        rewards = self.vec.rewards64
        if self._wrapped:
            # A wrapper that changes rewards may know of float32 alone: then its rewards are the ones that count.
            rewards = np.where(rewards.astype(np.float32) == rounded, rewards, rounded)
            for info in infos:  # they may be its own
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
                info.pop(_LAST, None)  # it is the row's own; a wrapper's ends need not have it
                if self._resets:
                    info.pop("episode_start", None)
            rows = tuple(with_last)
        for slot in truncated:
            infos[slot][_TRUNCATED] = True
            if self._continuing:
                infos[slot]["needs_reset"] = True
                done[slot] = False
        self.last_obs = rows
        return rows, tuple(rewards.tolist()), tuple(done), tuple(infos)

    def reset(self, mask: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """Reset the envs whose `mask` is false (it tells which to *skip*), or all; give every env's observation.

        For the others that is their last one again; None if they have had none.
        """
        self._check_open("reset")
        skip = np.zeros(self.num_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if not skip.ndim:
            raise TypeError(f"mask must be a list of bools, one per env, or None, not {mask!r}")
        if skip.shape != (self.num_envs,):
            raise ValueError(f"a mask of length {len(skip)} for {self.num_envs} envs: give one bool per env")
        slots = (~skip).nonzero()[0].tolist()
        begun = [slot for slot in slots if slot in self._first]
        if len(begun) < len(slots):
            self._reset([slot for slot in slots if slot not in self._first])
        if begun:
            self._note_resets(begun, [self._first.pop(slot) for slot in begun])
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
        """Seed the next reset of each env; give the seeds.

        A list gives one each, an int the same to all of them, as in pfrl; None takes fresh ones from the system.
        """
        self._check_open("seed")
        if isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool):
            seeds = [int(seeds)] * self.num_envs
        if seeds is not None and not isinstance(seeds, list):
            raise TypeError(f"seeds must be an int, a list of ints or None, not {seeds!r}")
        given = self.vec.seed(np.random.SeedSequence() if seeds is None else seeds)
        for slot, seed in enumerate(given):
            if seed is not None:
                self._first.pop(slot, None)  # of an episode that has begun without it
        return given

    def render(self, mode: str | None = None) -> Any:
        """Render all envs by the render mode they were made with; `mode` is not used."""
        return self.vec.render()

    def close(self) -> None:
        """Close the envs. Repeatable."""
        self.vec.close()

    def _check_open(self, what: str) -> None:
        if self.vec.closed:
            raise ClosedError(what)

    def _keep_steps(self, error: EnvError) -> None:
        """Note the rows of the envs that did complete the step; say how the others are reset."""
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
        """Note that an episode has ended; give its last observation, of its row and the info of that."""
        self._ended.add(slot)
        if self._resets and _LAST in info:  # else a wrapper says that it has ended, and the env knows nothing of it
            self._first[slot] = row
            return info[_LAST]
        return row

    def _note_resets(self, slots: Sequence[int], first: Sequence[Any]) -> None:
        """Note that new episodes have begun, with these observations."""
        rows = list(self.last_obs)
        for slot, row in zip(slots, first, strict=True):
            rows[slot] = row
        self._ended.difference_update(slots)
        self.last_obs = tuple(rows)

    def _reset_needed(self) -> EnvError:
        """Say that envs have ended, before any is stepped."""
        errors = []
        for slot in sorted(self._ended):
            cause = ResetNeededError(f"env {slot} has ended its episode", _remedy(slot))
            errors.append(EnvError(slot, str(cause)))
            errors[-1].__cause__ = cause
        errors[0].errors = tuple(errors)
        return errors[0]

    def _rows(self, batch: Any) -> tuple[Any, ...]:
        """Take a batch apart: one observation per env."""
        if self._layout.is_flat:
            return tuple(batch)
        return tuple(self._layout.unflatten(row) for row in zip(*self._layout.flatten(batch), strict=True))


def _remedy(slot: int) -> str:
    return f"call reset(mask) first, with mask[{slot}] False: it skips where it is true"


def register() -> None:
    """Make `isinstance(view, pfrl.env.VectorEnv)` true, where there is pfrl."""
    try:
        env = importlib.import_module("pfrl.env")
    except ImportError:
        return
    env.VectorEnv.register(PfrlView)
