"""Monitor: record the return, length and time of every episode of one env, in `info["episode"]` and in a file.

Names, arguments, rounding and file format are those of Stable-Baselines3's and baselines' Monitor, so that each reads
the others' files; results.py reads all of them.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.core import ActType, ObsType

from vecenvs.batch.values import shown
from vecenvs.env_calls import SlotLayer
from vecenvs.wrappers.results import EXT
from vecenvs.wrappers.results_writer import ResultsWriter, check_keywords


class Monitor(gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs, SlotLayer):
    """Record each episode of `env`, with the rewards of `env` itself: wrappers around the Monitor do not change them.

    The step that ends an episode has `info["episode"] = {"r": return, "l": length, "t": seconds since t_start}`,
    r and t rounded to 6 digits, followed by the values of `reset_keywords` and `info_keywords`. The same row is written
    to the file at once.

    Args:
        env: the env to wrap.
        filename: None for no file; a directory, or a path that ends in "/", for `monitor.csv` in it; or a path, to
            which `.monitor.csv` is added unless it ends so. Missing directories are made.
        allow_early_resets: if False, a reset before the episode's end is a RuntimeError.
        reset_keywords: names of values that every reset must be given, as keyword arguments or in `options`. The
            autoresets of a VecEnv without `tasks` pass no options, so these need `autoreset="disabled"` there.
        info_keywords: keys that the last info of every episode must have.
        override_existing: if False, append to a file that exists; `t` counts on from that file's `t_start`.

    Attributes:
        t_start: the time, in seconds since the epoch, from which `t` counts.
        needs_reset: whether the next call must be `reset`.

    Raises:
        TypeError: keywords are not a sequence of strings, or `filename` is not a path.
        ValueError: a keyword is "r", "l" or "t", or the file to append to has other columns.
    """

    EXT = EXT
    only_looks_at_rows = True  # so that envs of coroutines can be inside: see `worker.coroutines`

    def __init__(
        self,
        env: gym.Env[ObsType, ActType],
        filename: str | os.PathLike[str] | None = None,
        allow_early_resets: bool = True,
        reset_keywords: Sequence[str] = (),
        info_keywords: Sequence[str] = (),
        override_existing: bool = True,
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(
            self,
            filename=filename,
            allow_early_resets=allow_early_resets,
            reset_keywords=reset_keywords,
            info_keywords=info_keywords,
            override_existing=override_existing,
        )
        super().__init__(env)
        self.reset_keywords = check_keywords("reset_keywords", reset_keywords)
        self.info_keywords = check_keywords("info_keywords", info_keywords)
        self.allow_early_resets = allow_early_resets
        self.needs_reset = True
        self.t_start = time.time()
        self.episode_returns: list[float] = []
        self.episode_lengths: list[int] = []
        self.episode_times: list[float] = []
        self.current_reset_info: dict[str, Any] = {}
        # An append per step costs less than a running sum and a counter. It also converts, and takes 8 bytes.
        self._rewards = array("d")
        self._steps_before = 0
        self.results_writer: ResultsWriter | None = None
        if filename is not None:
            header = {"t_start": self.t_start, "env_id": env.spec.id if env.spec is not None else None}
            fields = self.reset_keywords + self.info_keywords
            self.results_writer = ResultsWriter(filename, header, fields, override_existing)
            self.t_start = self.results_writer.t_start

    def reset(self, **kwargs: Any) -> tuple[ObsType, dict[str, Any]]:
        """Reset the env.

        Args:
            **kwargs: arguments of the env's `reset`, with all of `reset_keywords`, here or in `options`.

        Returns:
            The first observation and the info.

        Raises:
            ValueError: one of `reset_keywords` is missing.
            RuntimeError: the episode has not ended, and `allow_early_resets` is False.
        """
        if not (self.allow_early_resets or self.needs_reset):
            raise RuntimeError(
                f"reset after {len(self._rewards)} steps of an episode that has not ended: step it to its end, "
                "or make the Monitor with allow_early_resets=True"
            )
        for keyword in self.reset_keywords:
            self.current_reset_info[keyword] = _reset_value(keyword, kwargs)
        self.needs_reset = True  # and stays so if the env's own reset raises
        self._forget_episode()
        first = self.env.reset(**kwargs)
        self.needs_reset = False
        return first

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the env.

        Args:
            action: the action.

        Returns:
            What the env returned; on the last step of an episode the info also has "episode".

        Raises:
            RuntimeError: the episode has ended, or has not begun.
            TypeError: the reward is not a number.
            KeyError: the last info of an episode lacks one of `info_keywords`.
        """
        if self.needs_reset:
            raise RuntimeError("step on an env whose episode has ended, or has not begun: reset it first")
        return self._record(self.env.step(action))

    def close(self) -> None:
        """Close the env and the file."""
        try:
            return super().close()  # of an env of coroutines there is something to await
        finally:
            if self.results_writer is not None:
                self.results_writer.close()

    @property
    def total_steps(self) -> int:
        """The number of steps so far, with those of the unfinished episode and of episodes that were reset early."""
        return self._steps_before + len(self._rewards)

    def get_total_steps(self) -> int:
        """Return the number of steps so far: `total_steps`."""
        return self.total_steps

    def get_episode_rewards(self) -> list[float]:
        """Return the returns of all finished episodes, not rounded."""
        return list(self.episode_returns)

    def get_episode_lengths(self) -> list[int]:
        """Return the numbers of steps of all finished episodes."""
        return list(self.episode_lengths)

    def get_episode_times(self) -> list[float]:
        """Return the seconds from `t_start` to the end of each finished episode, not rounded."""
        return list(self.episode_times)

    def exchange(self, other: Any) -> None:
        """Change the file and the counts of finished episodes with another Monitor, whose env takes this one's place.

        Args:
            other: the Monitor.
        """
        names = ("results_writer", "t_start", "episode_returns", "episode_lengths", "episode_times", "_steps_before")
        ours, theirs = vars(self), vars(other)
        for name in names:
            ours[name], theirs[name] = theirs[name], ours[name]

    def _record(self, row: Any) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Record a step; return its row."""
        try:
            self._rewards.append(row[1])
        except TypeError:  # a number in an array of one item, which VecEnvs take, too
            try:
                self._rewards.append(np.asarray(row[1]).item())
            except (TypeError, ValueError):
                raise TypeError(f"the reward must be a number, not {shown(row[1])}") from None
        if row[2] or row[3]:
            obs, reward, terminated, truncated, info = row
            # In a new dict: an env that reuses its own would repeat the episode in later infos.
            return obs, reward, terminated, truncated, {**info, "episode": self._end_episode(info)}
        return row  # type: ignore[no-any-return]

    def _end_episode(self, info: Mapping[str, Any]) -> dict[str, Any]:
        self.needs_reset = True
        # sum() as in Stable-Baselines3, so that both give the same bits on every Python (3.12 changed its rounding).
        total, length, seconds = float(sum(self._rewards)), len(self._rewards), time.time() - self.t_start
        self._forget_episode()
        episode = {"r": round(total, 6), "l": length, "t": round(seconds, 6), **self.current_reset_info}
        for keyword in self.info_keywords:
            if keyword not in info:
                raise KeyError(f"info_keywords={keyword!r}: the last info of the episode has only {sorted(info)}")
            episode[keyword] = info[keyword]
        self.episode_returns.append(total)
        self.episode_lengths.append(length)
        self.episode_times.append(seconds)
        if self.results_writer is not None:
            self.results_writer.write_row(episode)
        return episode

    def _forget_episode(self) -> None:
        self._steps_before += len(self._rewards)
        del self._rewards[:]


def _reset_value(keyword: str, kwargs: Mapping[str, Any]) -> Any:
    value = kwargs.get(keyword)
    if value is None:
        value = (kwargs.get("options") or {}).get(keyword)
    if value is None:
        raise ValueError(f"reset_keywords={keyword!r}: reset must be given {keyword}, as an argument or in options")
    return value
