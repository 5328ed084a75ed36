"""A plain model of send, recv and reset_async over `ScheduledEnv`s, and a player that holds a VecEnv to it.

The model has one pending answer per slot. The player carries out operations, receives the answers of the VecEnv, and
checks that every command is answered exactly once, as the model predicts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vecenvs.errors import AlreadySteppingError, EnvError, NotSteppingError, StepTimeout
from vecenvs.testing.envs.scheduled import FAIL
from vecenvs.vec_env import Batch, VecEnv


@dataclass
class Due:
    """A pending answer: a row, or an EnvError if `obs` is None."""

    obs: list[int] | None = None
    reward: float = 0.0
    done: bool = False
    terminal: list[int] | None = None
    start: bool = False


@dataclass
class Slot:
    """The model of one env. `phase`: new, live, over, first (of an episode, next_step mode), failed."""

    tag: int
    mode: str
    episode: int = 0
    t: int = 0
    bonus: int = 0
    phase: str = "new"
    due: Due | None = None
    autoresetting: bool = False

    def step(self, action: int) -> None:
        """Predict the answer to a step."""
        if self.phase in ("new", "over", "failed") or (self.phase == "live" and action == FAIL):
            self.phase, self.due = "failed", Due()
        elif self.phase == "first":
            self.begin()
        else:
            self.t += 1
            self.due = Due([self.tag, self.episode, self.t], self.t + action + self.bonus)
            if self.t >= 2 + self.tag % 3:
                self._end(self.due)

    def _end(self, due: Due) -> None:
        due.done, due.terminal = True, due.obs
        if self.mode == "same_step":
            self.episode, self.t = self.episode + 1, 0
            due.obs, due.start = [self.tag, self.episode, 0], True
        else:
            self.phase = {"next_step": "first", "disabled": "over", "async": "over"}[self.mode]

    def begin(self) -> None:
        """Predict the first row of a new episode."""
        self.episode, self.t, self.phase = self.episode + 1, 0, "live"
        self.due = Due([self.tag, self.episode, 0], start=True)

    def handed_out(self) -> None:
        """Remove the answer. In async mode the end of an episode adds the first row of the next."""
        ended = self.due is not None and self.due.done
        self.due, self.autoresetting = None, False
        if ended and self.mode == "async":
            self.begin()
            self.autoresetting = True


@dataclass
class Player:
    """Carries operations out on a VecEnv and its model alike. `answers` counts the rows and errors received."""

    vec: VecEnv
    slots: list[Slot] = field(default_factory=list)
    answers: int = 0

    def __post_init__(self) -> None:
        self.slots = [Slot(i, self.vec.autoreset) for i in range(self.vec.num_envs)]

    def play(self, kind: str, mask: int, number: int) -> None:
        """Carry out an operation. Every mask and number is valid for each.

        Args:
            kind: its name.
            mask: its envs: env i if bit i is set.
            number: a number that chooses its actions, values or limits.
        """
        chosen = [i for i in range(len(self.slots)) if mask >> i & 1]
        if kind != "step" and number % 2:  # in another order
            chosen = chosen[number % 3 :: -1] + chosen[number % 3 + 1 :]
        getattr(self, f"_{kind}")(chosen, number)

    def drain(self) -> None:
        """Receive all pending rows, and check that no others come."""
        while any(slot.due for slot in self.slots if not slot.autoresetting):
            self._recv([], 0)
        while any(slot.due for slot in self.slots):
            self._receive(1, None, None)
        self._recv([], 0)

    def _busy(self, chosen: list[int], *, autoresets: bool) -> bool:
        return any(self.slots[i].due and (autoresets or not self.slots[i].autoresetting) for i in chosen)

    def _send(self, chosen: list[int], number: int) -> None:
        actions = np.array([(number + 3 * i) % (FAIL + 1) for i in chosen], np.int64)
        if self._busy(chosen, autoresets=True):
            self._refused(lambda: self.vec.send(actions, chosen))
            return
        self.vec.send(actions, chosen)
        for i, action in zip(chosen, actions, strict=True):
            self.slots[i].step(int(action))

    def _reset_async(self, chosen: list[int], _: int) -> None:
        if self._busy(chosen, autoresets=False):
            self._refused(lambda: self.vec.reset_async(chosen))
            return
        self.vec.reset_async(chosen)
        for i in chosen:
            self.slots[i].autoresetting = False
            self.slots[i].begin()

    def _recv(self, chosen: list[int], number: int) -> None:
        due = sum(slot.due is not None for slot in self.slots)
        if not due:
            self._refused(self.vec.recv, NotSteppingError)
            return
        self._refused(lambda: self.vec.recv(due + 1), ValueError)
        least = 1 + number % due
        most = least + len(chosen) if chosen else None
        self._receive(least, most, None)

    def _recv_group(self, chosen: list[int], number: int) -> None:
        chosen = [i for i in chosen if self.slots[i].due]
        others = [i for i, slot in enumerate(self.slots) if not slot.due]
        if others:
            self._refused(lambda: self.vec.recv(indices=[*chosen, others[0]]), NotSteppingError)
        if not chosen:
            return
        failing = {i for i in chosen if (due := self.slots[i].due) and due.obs is None}
        try:
            batch = self.vec.recv(indices=chosen)
        except EnvError as error:
            if {e.index for e in error.errors} != failing or error.batch is None:
                raise AssertionError(f"recv failed for {error.errors}, not for {failing}") from error
            for index in failing:
                self._check_failed(index)
            batch = error.batch
            chosen = [i for i in chosen if i not in failing]
        if batch.indices.tolist() != chosen:
            raise AssertionError(f"rows of {batch.indices} where {chosen} were asked for")
        self._check_batch(batch)

    def _recv_timeout(self, _: list[int], number: int) -> None:
        due = sum(slot.due is not None for slot in self.slots)
        if due:
            self._receive(due, None, 1e-3 * (number % 2))

    def _receive(self, least: int, most: int | None, timeout: float | None) -> None:
        try:
            batch = self.vec.recv(least, most, timeout)
        except EnvError as error:
            self._check_failed(error.index)
            return
        except StepTimeout:
            if timeout is None:
                raise
            return
        if most is not None and len(batch) > most:
            raise AssertionError(f"{len(batch)} rows where {most} were the most")
        self._check_batch(batch)

    def _step(self, chosen: list[int], number: int) -> None:
        actions = np.array([(number + i) % FAIL + (i in chosen[:1]) * 0 for i in range(len(self.slots))], np.int64)
        if self._busy(list(range(len(self.slots))), autoresets=False):
            self._refused(lambda: self.vec.step(actions))
            return
        stepped = [slot for slot in self.slots if not slot.autoresetting]
        for slot in stepped:
            slot.step(int(actions[slot.tag]))
        failing = {slot.tag for slot in stepped if slot.due and slot.due.obs is None}
        try:
            obs, rewards, dones, infos = self.vec.step(actions)
        except EnvError as error:
            if {e.index for e in error.errors} != failing or error.batch is None:
                raise AssertionError(f"step failed for {error.errors}, not for {failing}") from error
            for index in failing:
                self._check_failed(index)
            self._check_batch(error.batch)
            return
        if failing:
            raise AssertionError(f"step succeeded although {failing} fail")
        rows = [i for i, info in enumerate(infos) if "resetting" not in info]
        late = [i for i, info in enumerate(infos) if "resetting" in info]
        if any(not self.slots[i].autoresetting for i in late):
            raise AssertionError(f"envs {late} are not all being reset")
        none = np.zeros(len(rows), bool)
        self._check_batch(
            Batch(np.array(rows), obs[rows], rewards[rows], dones[rows], none, [infos[i] for i in rows], none)
        )

    def _get_attr(self, chosen: list[int], _: int) -> None:
        if self._busy(chosen, autoresets=False):
            self._refused(lambda: self.vec.get_attr("t", chosen))
            return
        got = self.vec.get_attr("t", chosen)
        want = [self.slots[i].t for i in chosen]
        if got != want:
            raise AssertionError(f"t of {chosen} is {got}, should be {want}")

    def _set_attr(self, chosen: list[int], number: int) -> None:
        if self._busy(chosen, autoresets=False):
            self._refused(lambda: self.vec.set_attr("bonus", number, chosen))
            return
        self.vec.set_attr("bonus", number, chosen)
        for i in chosen:
            self.slots[i].bonus = number

    def _refused(self, command: Any, error: type[Exception] = AlreadySteppingError) -> None:
        try:
            command()
        except error:
            return
        raise AssertionError(f"no {error.__name__}")

    def _check_failed(self, index: int) -> None:
        slot = self.slots[index]
        if slot.due is None or slot.due.obs is not None:
            raise AssertionError(f"env {index} failed, should have given {slot.due}")
        slot.handed_out()
        self.answers += 1

    def _check_batch(self, batch: Batch) -> None:
        for j, index in enumerate(batch.indices):
            slot, info = self.slots[int(index)], batch.infos[j]
            terminal = info.get("terminal_observation")
            got = Due(
                batch.obs[j].tolist(),
                float(batch.rewards[j]),
                bool(batch.dones[j]),
                None if terminal is None else terminal.tolist(),
                info.get("episode_start", False),
            )
            if got != slot.due:
                raise AssertionError(f"env {index} gave {got}, should have given {slot.due}")
            slot.handed_out()
            self.answers += 1
