"""VecMonitor: record the episodes of all envs of a VecEnv, in one file."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.errors import VecEnvError
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.wrappers.monitor import Monitor
from vecenvs.wrappers.results_writer import ResultsWriter, check_keywords
from vecenvs.wrappers.vec_rows import VecRowsWrapper, begins, is_lost


class VecMonitor(VecRowsWrapper):
    """Record each episode of `venv`'s envs, with the rewards as they are at this place among the wrappers.

    The row that ends an episode has `info["episode"] = {"r": return, "l": length, "t": seconds since t_start}`, r and t
    rounded to 6 digits, followed by the `info_keywords`. The same row is written to the file at once; the file's
    episodes are in the order in which they ended.

    Rows that are not transitions do not count. An episode cut short by a reset, an exception of the env's (`on_error`)
    or the death of a worker is left out. Returns are sums of float64 rewards over `step`; over `recv` rewards have been
    rounded to float32.

    If the envs have Monitors already, a UserWarning says that their `info["episode"]` is replaced, as SB3's does.

    Args:
        venv: the VecEnv to wrap.
        filename: as in Monitor.
        info_keywords: keys that the last info of every episode must have; they become columns of the file.
        override_existing: as in Monitor.

    Raises:
        TypeError: `info_keywords` is not a sequence of strings.
        ValueError: a keyword is "r", "l" or "t", or the file to append to has other columns.
        KeyError: at the end of an episode, its last info lacks a keyword.
    """

    def __init__(
        self,
        venv: VecEnv,
        filename: str | os.PathLike[str] | None = None,
        info_keywords: Sequence[str] = (),
        override_existing: bool = True,
    ) -> None:
        info_keywords = check_keywords("info_keywords", info_keywords)
        super().__init__(venv)
        if _monitored(venv):
            warnings.warn(
                "the envs have Monitors already: VecMonitor replaces their info['episode']", UserWarning, stacklevel=2
            )
        self.info_keywords = tuple(info_keywords)
        self.t_start = time.time()
        self.episode_count = 0
        self.episode_returns: NDArray[np.float64] = np.zeros(self.num_envs)  # of the episodes under way
        self.episode_lengths: NDArray[np.int64] = np.zeros(self.num_envs, np.int64)
        self.results_writer: ResultsWriter | None = None
        if filename is not None:
            header = {"t_start": self.t_start, "env_id": venv.spec.id if venv.spec is not None else None}
            self.results_writer = ResultsWriter(filename, header, self.info_keywords, override_existing)
            self.t_start = self.results_writer.t_start

    def _on_rows(self, batch: Batch, exact: NDArray[np.float64], lock_step: bool) -> None:
        counted = batch.indices[batch.active]
        self.episode_returns[counted] += exact[batch.active]
        self.episode_lengths[counted] += 1
        over = batch.dones
        try:
            for j in np.flatnonzero(over):
                info = batch.infos[j]
                if not is_lost(info):
                    info["episode"] = self._end_episode(int(batch.indices[j]), info)
        finally:
            begun = batch.indices[over | begins(batch)]
            self.episode_returns[begun] = 0.0
            self.episode_lengths[begun] = 0

    def _end_episode(self, slot: int, info: dict[str, Any]) -> dict[str, Any]:
        seconds = time.time() - self.t_start
        total, length = float(self.episode_returns[slot]), int(self.episode_lengths[slot])
        episode: dict[str, Any] = {"r": round(total, 6), "l": length, "t": round(seconds, 6)}
        for keyword in self.info_keywords:
            if keyword not in info:
                raise KeyError(f"info_keywords={keyword!r}: the last info of env {slot}'s episode has {sorted(info)}")
            episode[keyword] = info[keyword]
        self.episode_count += 1
        if self.results_writer is not None:
            self.results_writer.write_row(episode)
        return episode

    def close(self) -> None:
        """Close the envs and the file."""
        try:
            super().close()
        finally:
            if self.results_writer is not None:
                self.results_writer.close()


def _monitored(venv: VecEnv) -> bool:
    """Tell whether an env is known to have a Monitor."""
    try:
        return any(venv.env_is_wrapped(Monitor))
    except VecEnvError:  # not every VecEnv can ask its envs
        return False
