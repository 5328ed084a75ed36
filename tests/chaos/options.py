"""The option of a round: seeds of each episode, tasks, envs that raise and go on, spares, workers that are replaced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from chaos.env import MISSING
from chaos.model import OPTION, RENEWING, SEED, Row
from chaos.plan import Plan, Violation
from vecenvs import Recycle
from vecenvs.vec_env import VecEnv

OPTIONS = ("seeds", "tasks", *RENEWING)
SEEDED = ("seeds", "recycle", "spares")


def task_of(slot: int, number: int, info: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
    """Return the task of an episode, whose option tells which it is."""
    return None if number % 3 else 2**22 + number, {"option": 2**21 + number * 8 + slot}


def arguments_of(plan: Plan) -> dict[str, Any]:
    """Return the VecEnv's arguments for the option of a round."""
    option = plan.option
    if option in SEEDED:
        more = {"recycle": Recycle(episodes=1)} if option == "recycle" else {"spares": plan.spares}
        return {"episode_seeds": True, **more}
    if option == "tasks":
        return {"tasks": task_of}
    return {"on_error": option, "max_errors": 10**6} if option else {}


class Begun:
    """What each slot's episodes began with, as far as their rows have come.

    An episode whose first row is lost may be left out, but none comes twice, none of the future and none of another
    slot. In calm rounds none is left out either.
    """

    def __init__(self, vec: VecEnv, plan: Plan) -> None:
        self.vec, self.option = vec, plan.option
        self.calm = plan.mode != "async" and not (
            plan.interrupts or plan.kill_rate or plan.stop_rate or plan.deadly or plan.faults
        )
        root = vec.stats()["root_seed"] if self.option in SEEDED else 0
        self.seeds = [{root + slot} for slot in range(plan.num_envs)]  # that each slot was given, perhaps
        self.over: list[set[int]] = [set() for _ in range(plan.num_envs)]  # and those of them that others followed
        self.last = [(MISSING, MISSING)] * plan.num_envs  # the seed of the slot, and the episode's number

    def give(self, slots: Iterable[int], seed: int | None) -> None:
        """Record a seed that slots were given, perhaps."""
        for slot in slots if seed is not None else ():
            self.seeds[slot].add(seed + slot)

    def check(self, row: Row) -> None:
        """Check the row that begins an episode."""
        of_reset = row.terminated or row.truncated or not row.info.keys() & {"episode_seed", "task"}
        info = self.vec.reset_infos[row.slot] if of_reset else row.info
        if self.option in SEEDED:
            self._check_seed(row, info["episode_seed"], info["episode_number"])
        elif self.option == "tasks":
            self._check_task(row, *(info["task"]))

    def _check_seed(self, row: Row, seed: int, number: int) -> None:
        slot = row.slot
        own, last = self.last[slot]
        roots = [r for r in self.seeds[slot] - self.over[slot] if _seed_of(r, slot, number) == seed]
        follows = own not in roots or (number == last + 1 if self.calm else number > last)
        if row.obs[SEED] != seed or not roots or not follows or (own not in roots and number and self.calm):
            raise Violation("a wrong seed", f"{row}: episode {number} with {seed}, after {own, last}; roots {roots}")
        if own not in roots and own != MISSING:
            self.over[slot].add(own)
        self.last[slot] = own if own in roots else roots[0], number

    def _check_task(self, row: Row, seed: int | None, options: dict[str, Any]) -> None:
        number, slot = divmod(options["option"] - 2**21, 8)
        last = self.last[row.slot][1]
        follows = number == last + 1 if self.calm else number > last
        given = row.obs[OPTION] == options["option"] and seed in (None, row.obs[SEED])
        if slot != row.slot or not follows or not given or seed != task_of(slot, number, {})[0]:
            raise Violation("a wrong task", f"{row}: {seed} {options}, that of {slot, number}, after {last}")
        self.last[slot] = MISSING, number


def _seed_of(root: int, slot: int, number: int) -> int:
    """Return the seed of an episode, as the contract has it."""
    return int(np.random.SeedSequence(root, spawn_key=(slot, number)).generate_state(1)[0]) if number else root
