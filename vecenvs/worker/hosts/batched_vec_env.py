"""A VecEnv of this library as the batched env of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs._native.twin import unrounded
from vecenvs.arguments import check_vec_env
from vecenvs.batch.info_arrays import columns_of_dicts
from vecenvs.batch.info_batches import Columns, merge_disjoint
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.batch.lazy_infos import check_wrapped
from vecenvs.errors import EnvError, NotSteppingError
from vecenvs.vec_env import VecEnv
from vecenvs.worker.final_infos import columns_of_list
from vecenvs.worker.hosts.batched_host import BatchedHost, Step, spread_rows
from vecenvs.worker.hosts.host_parts import VecEnvPart


class VecEnvHost(BatchedHost):
    """A VecEnv of this library, inside a worker: on an MPI node, say, with a process for each of its cores."""

    def __init__(self, env: VecEnv, num_envs: int) -> None:
        check_vec_env("Batched", env)
        super().__init__(env, num_envs)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.autoreset = str(env.stats()["autoreset"])
        self.takes_masks = True
        self.env: VecEnv = env
        self._torn = False  # whether the last call ended by an exception, so that something may be unanswered

    def step(self, actions: Any) -> Step:
        self._torn = True
        obs, rewards, dones, infos = self.env.step(actions)
        terminated, truncated = self.env.terminated, self.env.truncated
        check_wrapped(dones, terminated | truncated, infos)
        same_step = self.autoreset == "same_step"
        columns = columns_of_list([_own(info) for info in infos], dones, same_step=same_step)
        if same_step:
            columns = merge_disjoint(columns, self._reset_infos(np.flatnonzero(dones)))
        self._torn = False
        return obs, unrounded(self.env.rewards64, rewards), terminated, truncated, columns

    def reset(self, mask: NDArray[np.bool_] | None, seeds: Sequence[int | None], options: Any) -> tuple[Any, Columns]:
        slots = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        if self._torn:
            self._finish()
        self._torn = True
        given: Any = [seeds[slot] for slot in slots]
        obs = self.env.reset(slots, seed=given if any(seed is not None for seed in given) else None, options=options)
        self._torn, self.begun = False, True
        if mask is not None:
            obs = spread_rows(obs, mask)
        return obs, self._reset_infos(np.array(slots))

    def _reset_infos(self, rows: NDArray[np.int64]) -> Columns:
        return columns_of_dicts([_own(self.env.reset_infos[row]) for row in rows.tolist()], rows)

    def _finish(self) -> None:
        """Fetch and forget what a time-out or a Ctrl-C has left unanswered: a reset is refused before that."""
        for fetch in (self.env.step_wait, self.env.recv):
            with suppress(NotSteppingError):
                while True:
                    with suppress(EnvError):
                        fetch()

    def parts(self, indices: Sequence[int]) -> Sequence[Any]:
        return [VecEnvPart(self.env, index) for index in indices]

    def read_all(self, name: str) -> Any:
        return self.env.get_attr(name)

    def envs_here(self) -> list[Any]:
        return self.env.envs


def _own(info: dict[str, Any]) -> dict[str, Any]:
    """Return an info without what a VecEnv adds itself."""
    return {
        name: value
        for name, value in info.items()
        if not (name == TRUNCATED_KEY or (name == "episode_start" and value is True))
    }
