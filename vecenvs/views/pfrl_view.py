"""A VecEnv in pfrl's contract for vectorised environments (`pfrl.env.VectorEnv`, pfrl 0.4). Needs no pfrl."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from vecenvs.arguments import check_vec_env
from vecenvs.errors import ClosedError, EnvError
from vecenvs.layout import SpaceLayout
from vecenvs.vec_env import VecEnv

TIME_LIMITS = ("done", "needs_reset")

PfrlStep = tuple[tuple[Any, ...], tuple[float, ...], tuple[bool, ...], tuple[dict[str, Any], ...]]


def as_pfrl(vec: VecEnv, *, time_limit: str = "done") -> PfrlView:
    """View `vec`, which must be in "disabled" mode, as a vectorised environment of pfrl.

    `time_limit` says how a truncation is told: "done" as Gym did, done being terminated or truncated;
    "needs_reset" as pfrl's own ContinuingTimeLimit, done False and `info["needs_reset"]` True, so that an agent goes on
    bootstrapping from the last observation. pfrl's training loops reset the env in either case.

    If pfrl is installed, the view is an instance of its `VectorEnv`, which its evaluation asks for. Closing the view
    closes `vec`. ValueError for another autoreset mode.
    """
    register()
    return PfrlView(vec, time_limit=time_limit)


class PfrlView:
    """What pfrl sees of `vec`: one item per env in tuples, in place of batches.

    A row of the observations is a view into the batch of its step, which nobody else has.
    """

    def __init__(self, vec: VecEnv, *, time_limit: str = "done") -> None:
        check_vec_env("as_pfrl", vec)
        if vec.autoreset != "disabled":
            raise ValueError(
                f"pfrl resets its envs itself, but this VecEnv has autoreset={vec.autoreset!r}: "
                "make it with autoreset='disabled'"
            )
        if time_limit not in TIME_LIMITS:
            raise ValueError(f"time_limit {time_limit!r} is none of {', '.join(TIME_LIMITS)}")
        self.vec = vec
        self.num_envs = vec.num_envs
        self.observation_space = vec.observation_space
        self.action_space = vec.action_space
        self.spec = vec.spec
        self.last_obs: tuple[Any, ...] = (None,) * vec.num_envs
        self._layout = SpaceLayout(vec.observation_space)
        self._continuing = time_limit == "needs_reset"
        self._wrapped = vec.unwrapped is not vec

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
        try:
            result = self.vec.step(actions)
        except EnvError as error:
            self._keep(error)
            raise
        return self._told(*result)

    def step_wait(self, timeout: float | None = None) -> PfrlStep:
        """Finish a `step` that raised StepTimeout, as it would have; StepTimeout again after `timeout` seconds."""
        self._check_open("step_wait")
        try:
            result = self.vec.step_wait(timeout)
        except EnvError as error:
            self._keep(error)
            raise
        return self._told(*result)

    def _told(self, obs: Any, rounded: Any, dones: Any, infos: list[dict[str, Any]]) -> PfrlStep:
        """Give a step's result in pfrl's form."""
        rewards = self.vec.rewards64
        if self._wrapped:
            # A wrapper that changes rewards may know of float32 alone: then its rewards are the ones that count.
            rewards = np.where(rewards.astype(np.float32) == rounded, rewards, rounded)
            for info in infos:  # they may be its own
                info.setdefault("TimeLimit.truncated", False)
        done = dones.tolist()
        ended = dones.nonzero()[0].tolist()
        truncated = [slot for slot in ended if infos[slot]["TimeLimit.truncated"]]
        for info in infos:
            del info["TimeLimit.truncated"]
        for slot in ended:
            infos[slot].pop("terminal_observation", None)  # it is the row's own; a wrapper's ends need not have it
        for slot in truncated:
            infos[slot]["TimeLimit.truncated"] = True
            if self._continuing:
                infos[slot]["needs_reset"] = True
                done[slot] = False
        self.last_obs = self._rows(obs)
        return self.last_obs, tuple(rewards.tolist()), tuple(done), tuple(infos)

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
        if slots:
            try:
                first = self.vec.reset(slots)
            except EnvError as error:
                self._keep(error)
                raise
            self._note(slots, first)
        return self.last_obs

    def seed(self, seeds: int | list[int] | None = None) -> list[int | None]:
        """Seed the next reset of each env; give the seeds.

        A list gives one each, an int the same to all of them, as in pfrl; None takes fresh ones from the system.
        """
        self._check_open("seed")
        if seeds is None:
            return self.vec.seed(np.random.SeedSequence())
        if isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool):
            return self.vec.seed([int(seeds)] * self.num_envs)
        if not isinstance(seeds, list):
            raise TypeError(f"seeds must be an int, a list of ints or None, not {seeds!r}")
        return self.vec.seed(seeds)

    def render(self, mode: str | None = None) -> Any:
        """Render all envs by the render mode they were made with; `mode` is not used."""
        return self.vec.render()

    def close(self) -> None:
        """Close the envs. Repeatable."""
        self.vec.close()

    def _check_open(self, what: str) -> None:
        if self.vec.closed:
            raise ClosedError(what)

    def _keep(self, error: EnvError) -> None:
        """Note the rows of the envs that did complete the call; say how the others are reset."""
        error.tell_reset(_how_to_reset)
        if error.batch is not None:
            self._note(error.batch.indices.tolist(), error.batch.obs)

    def _note(self, slots: Sequence[int], batch: Any) -> None:
        """Take these rows for the envs' last observations."""
        rows = list(self.last_obs)
        for slot, row in zip(slots, self._rows(batch), strict=True):
            rows[slot] = row
        self.last_obs = tuple(rows)

    def _rows(self, batch: Any) -> tuple[Any, ...]:
        """Take a batch apart: one observation per env."""
        if self._layout.is_flat:
            return tuple(batch)
        return tuple(self._layout.unflatten(row) for row in zip(*self._layout.flatten(batch), strict=True))


def _how_to_reset(i: int) -> str:
    return f"call reset(mask) first, with mask[{i}] False: it skips where it is true"


def register() -> None:
    """Make `isinstance(view, pfrl.env.VectorEnv)` true, where there is pfrl."""
    try:
        env = importlib.import_module("pfrl.env")
    except ImportError:
        return
    env.VectorEnv.register(PfrlView)
