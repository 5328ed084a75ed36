"""Play numbered episodes in the slots of a VecEnv: any slot that is free takes the next one."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from vecenvs.batch.columns import SpaceColumns
from vecenvs.batch.info_batches import map_leaves
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import EnvError, NotSteppingError, VecEnvError
from vecenvs.evaluation.policies import Choose
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.worker.env_errors import has_error
from vecenvs.wrappers import Monitor
from vecenvs.wrappers.vec_rows import RESTARTED, begins

_PATIENCE = 5.0  # seconds for commands that are due when an exception ends the evaluation
_NONE = -1


class EpisodePool:
    """Episodes 0 to `count` - 1, of which number k has the seed `seed` + k.

    A slot that is free takes the next episode by a reset with its seed. In mode "same_step" each slot has one more
    episode in advance, which its autoreset begins. Single envs are stepped by themselves, as soon as their rows come;
    those of mode "same_step" together, since seeds can be held only while no env is busy; batched envs all together.

    Attributes:
        returns: by episode, as are lengths, slots, successes (-1 where the envs do not say) and errors.
        surplus: the steps of slots without an episode.
    """

    def __init__(self, vec: VecEnv, choose: Choose, count: int, seed: int, finished: Callable[[float], None]) -> None:
        self.returns, self.lengths = np.zeros(count), np.zeros(count, np.int64)
        self.slots, self.successes = np.zeros(count, np.int64), np.full(count, _NONE)
        self.errors = np.zeros(count, bool)
        self.surplus = 0
        self._vec, self._choose, self._seed, self._finished = vec, choose, seed, finished
        n = vec.num_envs
        self._left = count
        self._waiting = deque(range(count))
        self._free = deque(range(n))
        self._due: set[int] = set()
        self._number = np.full(n, _NONE)  # the episode that each slot plays
        self._next: list[int | None] = [None] * n  # the one that its autoreset begins
        self._sums, self._steps = np.zeros(n), np.zeros(n, np.int64)
        self._whole = bool(vec.stats().get("batched"))
        self._holds = vec.autoreset == "same_step" and not self._whole
        self._changed = False  # whether other seeds are to be held
        self._layout = SpaceLayout(vec.observation_space)
        self._rows = SpaceColumns(self._layout, n, np.zeros) if self._whole else None
        self._started = np.zeros(n, bool)
        self._monitored = False
        with contextlib.suppress(VecEnvError):  # not every VecEnv can ask its envs
            self._monitored = vec.env_is_wrapped(Monitor, [0])[0]

    def play(self) -> None:
        """Play all episodes. Afterwards no command is due, and no seeds are held."""
        self._vec.seed()
        self._vec.set_options()
        together = self._whole or self._holds
        try:
            self._begin()
            while self._left:
                self._take(self._vec.recv(indices=sorted(self._due)) if together else self._vec.recv())
        except BaseException:
            self._settle()
            raise

    def _begin(self) -> None:
        """Let free slots take the next episodes."""
        if self._holds:
            for slot, number in enumerate(self._next):  # none waits for a slot while another one is free
                if number is not None and len(self._waiting) < len(self._free):
                    self._waiting.append(number)
                    self._next[slot], self._changed = None, True
            if self._changed:
                self._vec.seed([None if number is None else self._seed + number for number in self._next])
                self._changed = False
        slots: list[int] = []
        while self._free and (self._waiting or self._whole):
            slots.append(slot := self._free.popleft())
            self._number[slot] = self._waiting.popleft() if self._waiting else _NONE
        if slots:
            numbers = self._number[slots].tolist()
            self._vec.reset_async(slots, seed=[None if k == _NONE else self._seed + k for k in numbers])
            self._due.update(slots)
        if self._holds:
            for slot in slots:
                self._reserve(slot)

    def _reserve(self, slot: int) -> None:
        self._next[slot] = self._waiting.popleft() if self._waiting else None
        self._changed = True

    def _take(self, batch: Batch) -> None:
        """Record rows, and step on those envs that are in an episode."""
        slots, over = batch.indices, batch.dones
        self._due.difference_update(slots.tolist())
        real = slots[batch.active]
        self._sums[real] += batch.rewards[batch.active]
        self._steps[real] += 1
        self.surplus += int((self._number[real] == _NONE).sum())
        started = begins(batch) | (over & self._holds)
        for j in np.flatnonzero(over).tolist():
            self._end(int(slots[j]), batch.infos[j])
        if not self._left:
            return
        obs, rows = batch.obs, np.flatnonzero(self._number[slots] != _NONE)
        self._begin()
        if self._rows is not None:
            self._rows.assign(self._layout.flatten(obs), slots)
            self._started[slots] = started
            if self._due:
                return
            slots, started = np.arange(len(self._started)), self._started.copy()
            obs = self._rows.copy_all()
        elif len(rows) < len(slots):
            slots, started = slots[rows], started[rows]
            obs = map_leaves(lambda leaf: leaf[rows], obs) if len(rows) else obs
        if len(slots):
            seeds = self._seed + np.maximum(self._number[slots], 0)
            self._vec.send(self._choose(obs, slots, started, seeds), slots)
            self._due.update(slots.tolist())

    def _end(self, slot: int, info: dict[str, Any]) -> None:
        number = int(self._number[slot])
        if number != _NONE and info.get(RESTARTED) is True:
            self._waiting.appendleft(number)  # it is played again
        elif number != _NONE:
            self._record(number, slot, info)
        self._sums[slot] = self._steps[slot] = 0
        following = self._next[slot]
        if following is None:
            self._number[slot] = _NONE
            self._free.append(slot)
        else:
            self._number[slot] = following
            self._reserve(slot)

    def _record(self, number: int, slot: int, info: dict[str, Any]) -> None:
        episode = info.get("episode")
        total, length = float(self._sums[slot]), int(self._steps[slot])
        self.errors[number] = has_error(info)
        if isinstance(episode, dict) and {"r", "l"} <= episode.keys():
            total, length = float(episode["r"]), int(episode["l"])
        elif self._monitored and not has_error(info):
            raise VecEnvError(
                f"an episode of env {slot} ends, but not for its Monitor, as if episodes were lives of a game: make "
                "the envs with wrapper_kwargs={'episode_life': False}, or without the wrapper that ends episodes"
            )
        self.returns[number], self.lengths[number], self.slots[number] = total, length, slot
        found = [bool(info[key]) for key in ("is_success", "success") if key in info]
        if found:
            self.successes[number] = any(found)
        self._left -= 1
        self._finished(total)

    def _settle(self) -> None:
        """Receive what is due when an exception ends the evaluation, and hold no seeds any more."""
        deadline = time.monotonic() + _PATIENCE
        with contextlib.suppress(VecEnvError):  # the VecEnv is closed, or has lost a worker; or an env hangs
            with contextlib.suppress(NotSteppingError):
                while True:
                    with contextlib.suppress(EnvError):
                        self._vec.recv(timeout=max(0.0, deadline - time.monotonic()))
            self._vec.seed()
