"""Monitor: the return, length and time of every episode of one env, in `info["episode"]` and in a file.

Names, arguments, rounding and file format are those of Stable-Baselines3's and baselines' Monitor, so that each
reads the other's files (results.py reads all of them).
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, SupportsFloat, TextIO

import gymnasium as gym
import numpy as np
from gymnasium.core import ActType, ObsType

from vecenvs.arguments import check_path, parse_path
from vecenvs.worker.step_loop import shown
from vecenvs.wrappers.results import EXT, read_monitor_file

_FIELDS = ("r", "l", "t")


class Monitor(gym.Wrapper[ObsType, ActType, ObsType, ActType], gym.utils.RecordConstructorArgs):
    """Record each episode of `env`, as it is at this place among the wrappers: rewards changed above are not seen.

    The step that ends an episode has `info["episode"] = {"r": return, "l": length, "t": seconds since t_start}`,
    r and t rounded to 6 digits, followed by each of `reset_keywords` and `info_keywords`. The same row goes to the
    file, at once.

    `filename`: None for no file, a directory or a path that ends in "/" (the file is then `monitor.csv` in it), or a
    path, to which `.monitor.csv` is added unless it ends so; missing directories are made.
    `override_existing=False` appends to a file that is there: `t` then counts on from that file's own `t_start`.

    `allow_early_resets=False` makes a reset before the episode's end a RuntimeError. `reset_keywords` are names
    that every reset must be given, as keyword arguments or in `options` (ValueError); `info_keywords` names that the
    last info of every episode must have (KeyError). A VecEnv's autoreset passes no options, so `reset_keywords`
    need `autoreset="disabled"` there.
    """

    EXT = EXT

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
        # One append per step is cheaper than a running sum and a counter; the array converts, at 8 bytes a step.
        self._rewards = array("d")
        self._steps_before = 0
        self.results_writer: ResultsWriter | None = None
        if filename is not None:
            header = {"t_start": self.t_start, "env_id": env.spec.id if env.spec is not None else None}
            fields = self.reset_keywords + self.info_keywords
            self.results_writer = ResultsWriter(filename, header, fields, override_existing)
            self.t_start = self.results_writer.t_start

    def reset(self, **kwargs: Any) -> tuple[ObsType, dict[str, Any]]:
        if not (self.allow_early_resets or self.needs_reset):
            raise RuntimeError(
                f"reset after {len(self._rewards)} steps of an episode that has not ended: step it to its end, "
                "or make the Monitor with allow_early_resets=True"
            )
        for keyword in self.reset_keywords:
            self.current_reset_info[keyword] = _reset_value(keyword, kwargs)
        self.needs_reset = True  # still so if the env's own reset raises
        self._forget_episode()
        first = self.env.reset(**kwargs)
        self.needs_reset = False
        return first

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        if self.needs_reset:
            raise RuntimeError("step on an env whose episode has ended, or has not begun: reset it first")
        row = self.env.step(action)
        try:
            self._rewards.append(row[1])  # type: ignore[arg-type]  # any SupportsFloat: append converts it
        except TypeError:  # a number in an array of one, as VecEnvs take it
            try:
                self._rewards.append(np.asarray(row[1]).item())
            except (TypeError, ValueError):
                raise TypeError(f"the reward must be a number, not {shown(row[1])}") from None
        if row[2] or row[3]:
            obs, reward, terminated, truncated, info = row
            # The env's own dict is left as it is: an env that reuses it would repeat the episode in later infos.
            return obs, reward, terminated, truncated, {**info, "episode": self._end_episode(info)}
        return row

    def close(self) -> None:
        """Close the env and the file."""
        try:
            super().close()
        finally:
            if self.results_writer is not None:
                self.results_writer.close()

    @property
    def total_steps(self) -> int:
        """The steps taken so far, those of the unfinished episode and of episodes reset early included."""
        return self._steps_before + len(self._rewards)

    def get_total_steps(self) -> int:
        return self.total_steps

    def get_episode_rewards(self) -> list[float]:
        """Give the return of every finished episode, unrounded."""
        return list(self.episode_returns)

    def get_episode_lengths(self) -> list[int]:
        """Give the number of steps of every finished episode."""
        return list(self.episode_lengths)

    def get_episode_times(self) -> list[float]:
        """Give the seconds from `t_start` to the end of every finished episode, unrounded."""
        return list(self.episode_times)

    def _end_episode(self, info: Mapping[str, Any]) -> dict[str, Any]:
        self.needs_reset = True
        # sum() as Stable-Baselines3 does it: equal to the last bit on every Python (3.12 changed its rounding).
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


class ResultsWriter:
    """Write a monitor file: the header and the column names when made, then one row per call, flushed at once.

    `t_start` is the time from which the file's `t` counts: the header's, or in a file that is appended to
    (`override_existing=False`) the one already in it. Appending to other columns than `extra_keys` is a ValueError.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        header: Mapping[str, Any],
        extra_keys: Sequence[str] = (),
        override_existing: bool = True,
    ) -> None:
        self.path = monitor_path(filename)
        self.t_start = float(header["t_start"])
        fields = (*_FIELDS, *extra_keys)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        if override_existing:
            with open(self.path, "w"):
                pass
        # To append, always: what others append, too, is not written over.
        self._file = open(self.path, "a", encoding="utf-8", newline="")  # noqa: SIM115 - until close()
        self._rows = csv.DictWriter(self._file, fieldnames=fields)
        try:
            with _locked(self._file):
                if os.path.getsize(self.path):
                    self._continue(fields)
                else:
                    self._file.write(f"#{json.dumps(dict(header))}\n")
                    self._rows.writeheader()
                self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def write_row(self, episode: Mapping[str, Any]) -> None:
        """Write one episode's row to the disk."""
        with _locked(self._file):
            self._rows.writerow(episode)
            self._file.flush()

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        self._file.close()

    def _continue(self, fields: tuple[str, ...]) -> None:
        """Take over the `t_start` of the file that is there; remove a last row that was cut short."""
        found = read_monitor_file(self.path)
        if found.names != fields:
            raise ValueError(
                f"cannot append to {self.path!r}: it has the columns {', '.join(found.names)}, this Monitor writes "
                f"{', '.join(fields)}. Give another filename, the same keywords, or override_existing=True"
            )
        self.t_start = float(found.header["t_start"])
        self._file.truncate(found.whole)
        with open(self.path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                self._file.write("\n")


@contextmanager
def _locked(file: TextIO) -> Iterator[None]:
    """Let others who append to the same file wait meanwhile: they would find half a row, and cut it off."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # a file system without locks: one writer per file has no need of them
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def monitor_path(filename: str | os.PathLike[str]) -> str:
    """Give the absolute path of the monitor file that `filename` (a directory, a prefix or a file) means."""
    path = parse_path("filename", filename)
    if check_path("filename", filename).endswith(os.sep) or os.path.isdir(path):
        return os.path.join(path, EXT)
    return path if path.endswith(EXT) else f"{path}.{EXT}"


def check_keywords(name: str, keywords: Any) -> tuple[str, ...]:
    """Refuse what is no sequence of strings, and what the columns of a monitor file are called."""
    found = None if isinstance(keywords, str) or not isinstance(keywords, Iterable) else tuple(keywords)
    if found is None or not all(isinstance(keyword, str) for keyword in found):
        raise TypeError(f"{name} should be a sequence of strings, like ('is_success',), not {keywords!r}")
    taken = [keyword for keyword in found if keyword in _FIELDS]
    if taken:
        raise ValueError(f"{name} has {taken[0]!r}, which every monitor file has already")
    return found


def _reset_value(keyword: str, kwargs: Mapping[str, Any]) -> Any:
    value = kwargs.get(keyword)
    if value is None:
        value = (kwargs.get("options") or {}).get(keyword)
    if value is None:
        raise ValueError(f"reset_keywords={keyword!r}: reset must be given {keyword}, as an argument or in options")
    return value
