"""What each `SizedEnv` of a VecEnv has to give, and calls whose answers are compared with that byte by byte.

A model of its own: it knows the contract, and the rows that belong to a place; it shares no code with a VecEnv.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vecenvs.errors import EnvError
from vecenvs.testing.compare import difference, rows_at, stack
from vecenvs.testing.envs.sized import Place, reward_at, told_first, told_next
from vecenvs.vec_env import Batch, StepReturn, VecEnv


@dataclass(frozen=True)
class Due:
    """A row to come: its observation's place, and that of the step that led to it (None: a first row)."""

    at: Place
    step: Place | None = None
    terminated: bool = False
    truncated: bool = False
    fails: bool = False  # an EnvError instead

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class Slot:
    """The model of one env. `phase`: new, live, first (next_step), over (disabled, async), failed."""

    place: Place
    mode: str
    phase: str = "new"
    due: Due | None = None
    auto: bool = False  # whether `due` is the first row of an async autoreset
    fate: str = ""
    last: Place | None = None  # of the row that was handed out last
    held: tuple[int | None, Any] = (None, None)  # seed and options that wait for the next reset

    def step(self, rows: Any, action: Any) -> None:
        """Record a step."""
        fate = ""
        if self.phase == "live":
            fate, self.fate = self.fate, ""
        if self.phase in ("new", "over", "failed") or fate == "raise":
            self.phase, self.due = "failed", Due(self.place, fails=True)
        elif self.phase == "first":
            self.begin()
        else:
            step = self.place._replace(t=self.place.t + 1, told=told_next(self.place.told, action))
            self.place = step
            self.due = Due(step, step, *rows.ends(step))
            if self.due.done and self.mode == "same_step":
                due = self.due
                self.begin()
                self.due = replace(due, at=self.place)
            elif self.due.done:
                self.phase = "first" if self.mode == "next_step" else "over"

    def begin(self, seed: int | None = None, options: Any = None) -> None:
        """Record a reset."""
        waiting, self.held = self.held, (None, None)
        seed, options = waiting[0] if seed is None else seed, waiting[1] if options is None else options
        self.place = self.place._replace(episode=self.place.episode + 1, t=0, told=told_first(seed, options))
        self.phase, self.due, self.auto = "live", Due(self.place), False

    def handed_out(self) -> None:
        """Record that the row was returned. In async mode an episode's end is followed by a first row."""
        assert self.due is not None
        ended = self.due.done
        if not self.due.fails:
            self.last = self.due.at
        self.due, self.auto = None, False
        if ended and self.mode == "async":
            self.begin()
            self.auto = True


class Ledger:
    """Calls on a VecEnv of SizedEnvs, each answer compared.

    Args:
        vec: the VecEnv, new.
        rows: the rows of its envs, a `Rows` or a class like it.
        action: returns the action for a number.

    Attributes:
        slots: the models of the envs.
        checked: how many rows were compared.
        failed: how many envs have raised, as they should have.
    """

    def __init__(self, vec: VecEnv, rows: Any, action: Callable[[int], Any]) -> None:
        self.vec, self.rows, self.action = vec, rows, action
        self.slots = [Slot(Place(tag, 1, 0, 0, 0), vec.autoreset) for tag in range(vec.num_envs)]
        self.checked = self.failed = self.numbers = 0

    def actions(self, count: int) -> list[Any]:
        """Return new actions."""
        self.numbers += count
        return [self.action(number) for number in range(self.numbers - count, self.numbers)]

    # What may be sent

    def pending(self) -> list[int]:
        """Return the envs whose rows are to come."""
        return [i for i, slot in enumerate(self.slots) if slot.due is not None]

    def free(self, *, autoresets: bool = False) -> list[int]:
        """Return the envs without a command; with `autoresets` those, too, that an async autoreset resets."""
        return [i for i, slot in enumerate(self.slots) if slot.due is None or (autoresets and slot.auto)]

    # Calls

    def reset(self, indices: Sequence[int] | None = None, *, seed: int | None = None, options: Any = None) -> None:
        """Reset, and check observations and reset infos."""
        chosen = list(range(len(self.slots))) if indices is None else list(indices)
        obs = self.vec.reset(indices, seed=seed, options=options)
        self.given_reset(chosen, seed, options)
        for j, i in enumerate(chosen):
            self.check_reset(i, obs, j)

    def check_reset(self, i: int, obs: Any, j: int) -> None:
        """Check a row of `reset`."""
        self.check_obs(i, obs, j)
        place = self.slots[i].place
        want = {**self.rows.info(place), "episode_start": True}
        self._same(self.vec.reset_infos[i], want, f"env {i}: reset_infos at {place}")
        self.slots[i].handed_out()
        self.checked += 1

    def reset_async(self, indices: Sequence[int], *, seed: int | None = None, options: Any = None) -> None:
        """Begin resets."""
        self.vec.reset_async(indices, seed=seed, options=options)
        self.given_reset(indices, seed, options)

    def given_reset(self, indices: Iterable[int], seed: int | None, options: Any) -> None:
        """Record that a reset was sent."""
        for i in indices:
            self.slots[i].begin(None if seed is None else seed + i, options)

    def send(self, indices: Sequence[int]) -> None:
        """Begin steps of some envs."""
        actions = self.actions(len(indices))
        self.vec.send(actions, indices)
        self.given_steps(indices, actions)

    def given_steps(self, indices: Iterable[int], actions: Sequence[Any]) -> None:
        """Record that steps were sent."""
        for i, action in zip(indices, actions, strict=True):
            self.slots[i].step(self.rows, action)

    def step(self, *, batched: bool = False) -> None:
        """Step all envs and check their rows, or those beside an EnvError."""
        self.given_lock_step(self.begin_step(batched=batched))
        self.finish_step()

    def begin_step(self, *, batched: bool = False) -> list[Any]:
        """Call `step_async`; return the actions."""
        actions = self.actions(len(self.slots))
        self.vec.step_async(stack(self.vec.action_space, actions) if batched else actions)
        return actions

    def given_lock_step(self, actions: Sequence[Any]) -> None:
        """Record that a step of all envs was sent; those that reset meanwhile do not see it."""
        stepping = [i for i, slot in enumerate(self.slots) if not slot.auto]
        self.given_steps(stepping, [actions[i] for i in stepping])

    def finish_step(self, timeout: float | None = None) -> None:
        """Call `step_wait` and check its rows."""
        try:
            result = self.vec.step_wait(timeout)
        except EnvError as error:
            self.check_errors(error)
            return
        self.check_step(result)

    def check_step(self, result: StepReturn) -> None:
        """Check what `step_wait` returned."""
        vec = self.vec
        obs, rewards, dones, infos = result
        self._same(dones, vec.terminated | vec.truncated, "dones")
        for i, slot in enumerate(self.slots):
            if "resetting" in infos[i]:
                if not slot.auto or slot.last is None or vec.active[i] or rewards[i] or dones[i]:
                    raise AssertionError(f"env {i}: a row that says it is being reset, of {slot}")
                self.check_obs(i, obs, i, slot.last)
                continue
            if vec.active[i] != (slot.due is not None and slot.due.step is not None):
                raise AssertionError(f"env {i}: active is {vec.active[i]}, of {slot}")
            self.check(i, obs, i, rewards[i], vec.terminated[i], vec.truncated[i], infos[i])

    def check_errors(self, error: EnvError) -> None:
        """Check the errors of a call, and the rows beside them."""
        for one in error.errors:
            self.check_failed(one)
        if error.batch is None:
            raise AssertionError(f"no rows beside {error!r:.200}")
        self.check_batch(error.batch)

    def check_failed(self, error: EnvError) -> None:
        """Check one error."""
        slot = self.slots[error.index]
        if slot.due is None or not slot.due.fails:
            raise AssertionError(f"env {error.index} failed ({error!s:.500}), of {slot}")
        slot.handed_out()
        self.failed += 1

    def recv(self, *args: Any, **kwargs: Any) -> int:
        """Receive rows and check them; return how many."""
        try:
            batch = self.vec.recv(*args, **kwargs)
        except EnvError as error:
            if kwargs.get("indices") is not None:
                self.check_errors(error)
            else:
                self.check_failed(error)
            return 1
        asked = kwargs.get("indices")
        if asked is not None and batch.indices.tolist() != list(asked):
            raise AssertionError(f"rows of {batch.indices} where {asked} were asked for")
        self.check_batch(batch)
        return len(batch)

    def drain(self) -> None:
        """Receive all rows that are to come."""
        while self.pending():
            self.recv()

    # Checks

    def check_batch(self, batch: Batch) -> None:
        """Check the rows of a batch."""
        if len(set(batch.indices.tolist())) != len(batch):
            raise AssertionError(f"an env twice: {batch.indices}")
        for j, i in enumerate(batch.indices.tolist()):
            self.check(i, batch.obs, j, batch.rewards[j], batch.terminated[j], batch.truncated[j], batch.infos[j])

    def check(self, i: int, obs: Any, j: int, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """Check a row, number j of a batch, of env i."""
        slot = self.slots[i]
        due = slot.due
        if due is None or due.fails:
            raise AssertionError(f"env {i}: a row where none was due: {slot}")
        self.check_obs(i, obs, j, due.at)
        want = reward_at(due.step) if due.step is not None else 0.0
        self._same(reward, np.float32(want), f"env {i}: reward at {due}")
        self._same((bool(terminated), bool(truncated)), (due.terminated, due.truncated), f"env {i}: flags at {due}")
        self._same(info, self._info(due), f"env {i}: info at {due}")
        slot.handed_out()
        self.checked += 1

    def _info(self, due: Due) -> dict[str, Any]:
        found = {**self.rows.info(due.at if due.step is None else due.step)}
        found["TimeLimit.truncated"] = due.truncated and not due.terminated
        if due.done:
            found["terminal_observation"] = self._observation(due.step)
        if due.step is None or due.step != due.at:
            found["episode_start"] = True
        return found

    def _observation(self, place: Any) -> Any:
        return self.rows.observation(place)

    def check_obs(self, i: int, obs: Any, j: int, place: Place | None = None) -> None:
        """Check the observation in row j, of env i: that of `place`, by default of where it is."""
        place = self.slots[i].place if place is None else place
        want = stack(self.vec.observation_space, [self._observation(place)])
        self._same(rows_at(obs, slice(j, j + 1)), want, f"env {i}: observation at {place}")

    def _same(self, got: Any, want: Any, where: str) -> None:
        text = difference(got, want, where)
        if text is not None:
            raise AssertionError(text[:2000])
