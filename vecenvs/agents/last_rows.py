"""`LastRows`: what is known of the agents from the last row of each env."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.agents.roster import ACTS, ENDED, FLAGS, MASKS, PRESENT, REWARDS, STARTED, TRUNCATED, Roster
from vecenvs.agents.rows import ByGroup, masks_in_infos
from vecenvs.batch.info_batches import map_leaves
from vecenvs.vec_env import VecEnv
from vecenvs.wrappers.vec_rows import REPEAT, TERMINAL, is_lost

_NEXT = PRESENT | ACTS | STARTED


class LastRows:
    """Takes the rows of a VecEnv of `AgentsEnv`s apart.

    Args:
        vec: the VecEnv.
        roster: the agents.

    Attributes:
        flags: the bits of each agent, uint8 (num_envs, all agents).
        moved: whether the row is a transition of the agent, bool (num_envs, all agents).
        rewards64: float64 (num_envs, all agents).
    """

    def __init__(self, vec: VecEnv, roster: Roster) -> None:
        self._vec = vec
        self._roster = roster
        shape = vec.num_envs, len(roster.agents)
        self.flags: NDArray[np.uint8] = np.zeros(shape, np.uint8)
        self.moved: NDArray[np.bool_] = np.zeros(shape, bool)
        self.rewards64: NDArray[np.float64] = np.zeros(shape)
        self._alive: NDArray[np.bool_] = np.zeros(shape, bool)  # agents whose part has begun, and not ended
        self._acted: NDArray[np.bool_] = np.zeros(shape, bool)  # agents that act since their last row
        self._masks: ByGroup = {}
        self._shapes: dict[str, tuple[int, ...]] = {}  # of masks in infos, by group
        self._infos: Any = [{}] * vec.num_envs

    def masks_of(self, slots: NDArray[np.int64]) -> ByGroup | None:
        """Return copies of the masks in the last observations of some envs, else in their infos; None without any."""
        own = {name: rows[slots] for name, rows in self._masks.items()}
        return own or masks_in_infos(self._roster, [self._infos[slot] for slot in slots.tolist()], self._shapes)

    def note_actions(self, slots: Any) -> None:
        """Note that agents of some envs have been given the actions that they wait for."""
        self._acted[slots] |= (self.flags[slots] & ACTS) != 0

    def begin(self, slots: NDArray[np.int64], obs: dict[str, Any]) -> None:
        """Take first observations: their flags say which agents are there."""
        flags = obs.pop(FLAGS)
        self.rewards64[slots] = obs.pop(REWARDS)
        self.flags[slots] = flags
        self._alive[slots] = (flags & STARTED) != 0
        self._acted[slots] = self.moved[slots] = False
        self._keep_masks(slots, obs, [self._vec.reset_infos[slot] for slot in slots.tolist()], ())

    def take(
        self, slots: Any, obs: dict[str, Any], dones: NDArray[np.bool_], infos: Any, active: NDArray[np.bool_]
    ) -> ByGroup:
        """Take the rows of a step from `obs`, which keeps the observations by group. Return the rewards by group."""
        flags, rewards = obs.pop(FLAGS).copy(), obs.pop(REWARDS).copy()  # with copy=False they are the engine's own
        over, all_active = np.flatnonzero(dones).tolist(), active.all()
        if all_active and not over and self._acted[slots].all() and (flags == PRESENT | ACTS).all():
            self.moved[slots], self._acted[slots] = True, False  # nearly always: nobody comes or goes
        else:
            if not all_active:
                # A row that repeats while its env is reset has what the last one had: after an error an older row's.
                repeats = [j for j in np.flatnonzero(~active).tolist() if REPEAT in infos[j]]
                flags[repeats] = 0
                rewards[repeats] = 0.0
                self._acted[slots] &= active[:, None]
            alive = self._alive[slots]
            for j in over:
                self._end_row(j, flags, rewards, obs, infos[j], alive[j])
            ended = (flags & ENDED) != 0
            acted = self._acted[slots]
            moved = acted & (ended | ((flags & PRESENT) != 0) & ~dones[:, None])
            self.moved[slots] = moved
            self._acted[slots] = acted & ~moved & ~dones[:, None]
            # In same_step an episode's end comes with the starts of the next one.
            ended &= ~dones[:, None] | (self._vec.autoreset != "same_step")
            self._alive[slots] = (alive & ~dones[:, None] | ((flags & STARTED) != 0)) & ~ended
        self.flags[slots] = flags
        self.rewards64[slots] = rewards
        self._keep_masks(slots, obs, infos, over if self._vec.autoreset == "same_step" else ())
        return self._roster.by_group(rewards.astype(np.float32))

    def _end_row(
        self, j: int, flags: NDArray[np.uint8], rewards: NDArray[np.float64], obs: ByGroup, info: Any,
        alive: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Put the ends and rewards of the episode that is over into a row, which may show the next one already."""
        last, following = info.get(TERMINAL), self._vec.autoreset == "same_step"
        if isinstance(last, dict):
            last_flags, last_rewards = last.pop(FLAGS), last.pop(REWARDS)
            last.pop(MASKS, None)
        if is_lost(info):  # the row that was lost: what its place holds is the one before
            for name, part in self._roster.slices.items():  # on which agents may have ended
                for rows in [last[name]] if following else [last[name], map_leaves(lambda each: each[j], obs[name])]:
                    map_leaves(partial(_clear, ~alive[part]), rows)
            flags[j] = (flags[j] & _NEXT if following else flags[j] & PRESENT * alive) | TRUNCATED * alive
            rewards[j] = 0.0
        else:
            flags[j] = flags[j] & (_NEXT if following else PRESENT | STARTED) | last_flags & ENDED
            rewards[j] = last_rewards

    def _keep_masks(self, slots: Any, obs: dict[str, Any], infos: Any, begun: Sequence[int]) -> None:
        """Keep the action masks of rows, or the infos that may have them; `begun` rows have those of a reset."""
        masks = obs.pop(MASKS, None)
        if masks is not None:
            if isinstance(slots, slice):
                self._masks = {name: rows.copy() for name, rows in masks.items()}  # perhaps the engine's own
            else:
                for name, rows in masks.items():
                    if name not in self._masks:
                        self._masks[name] = np.zeros((self._vec.num_envs, *rows.shape[1:]), rows.dtype)
                    self._masks[name][slots] = rows
            return
        if isinstance(slots, slice) and not len(begun):
            self._infos = infos
            return
        places = list(range(self._vec.num_envs))[slots] if isinstance(slots, slice) else slots.tolist()
        self._infos = list(self._infos)
        for j, slot in enumerate(places):
            self._infos[slot] = infos[j]
        for j in begun:
            self._infos[places[j]] = self._vec.reset_infos[places[j]]

    def forget_lives(self, slots: NDArray[np.int64]) -> None:
        """Begin anew with the agents of some envs, whose next rows are the first of an episode."""
        self._acted[slots] = self._alive[slots] = False


def _clear(rows: NDArray[np.bool_], leaf: NDArray[Any]) -> None:
    leaf[rows] = 0
