"""A VecEnv of this library as the batched env of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.arguments import check_vec_env
from vecenvs.batch.info_arrays import columns_of_dicts
from vecenvs.batch.info_batches import Columns, InfoColumn, map_leaves, united
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.errors import EnvError, NotSteppingError
from vecenvs.vec_env import VecEnv
from vecenvs.worker.batched_host import BatchedHost, Step
from vecenvs.worker.host_parts import VecEnvPart


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
        obs, _, dones, infos = self.env.step(actions)
        rows = np.flatnonzero(dones)
        columns = _columns_of(infos, ended=dones)
        if self.autoreset == "same_step" and len(rows):
            columns["final_obs"] = InfoColumn(rows, [infos[row]["terminal_observation"] for row in rows.tolist()])
            inner = _columns_of([infos[row] for row in rows.tolist()], rows, dones)
            columns = {k: c for k, col in columns.items() if (c := col if k == "final_obs" else col.part(~dones))}
            columns["final_info"] = InfoColumn(rows, inner)
            columns = united(columns, _columns_of([self.env.reset_infos[row] for row in rows.tolist()], rows))
        self._torn = False
        return obs, self.env.rewards64, self.env.terminated, self.env.truncated, columns

    def reset(self, mask: NDArray[np.bool_] | None, seeds: Sequence[int | None], options: Any) -> tuple[Any, Columns]:
        slots = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        if self._torn:
            self._finish()
        self._torn = True
        given: Any = [seeds[slot] for slot in slots]
        obs = self.env.reset(slots, seed=given if any(seed is not None for seed in given) else None, options=options)
        self._torn = False
        if mask is not None:
            obs = _spread(obs, mask)
        return obs, _columns_of([self.env.reset_infos[slot] for slot in slots], np.array(slots))

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


def _columns_of(
    infos: Sequence[dict[str, Any]], rows: NDArray[np.int64] | None = None, ended: NDArray[np.bool_] | None = None
) -> Columns:
    """Return the columns of a list of infos, without what a VecEnv adds itself."""
    numbers = range(len(infos)) if rows is None else rows.tolist()
    over = set() if ended is None else {*np.flatnonzero(ended).tolist()}
    return columns_of_dicts([_own(info, row in over) for row, info in zip(numbers, infos, strict=True)], rows)


def _own(info: dict[str, Any], ended: bool) -> dict[str, Any]:
    return {
        name: value
        for name, value in info.items()
        if not (
            name == TRUNCATED_KEY
            or (name == "episode_start" and value is True)
            or (name == "terminal_observation" and ended)
        )
    }


def _spread(obs: Any, mask: NDArray[np.bool_]) -> Any:
    """Return observations of all envs, of which only those of `mask` mean anything."""

    def spread(part: Any) -> Any:
        whole = np.zeros((len(mask), *part.shape[1:]), part.dtype)
        whole[mask] = part
        return whole

    return map_leaves(spread, obs)
