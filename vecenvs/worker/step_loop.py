"""The loop over the envs of a shard, which every step runs: the library's cost per env."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenvs.batch.values import shown

StepResult = tuple[Any, Any, Any, Any, dict[str, Any]]
EndEpisode = Callable[[int, Any, Any, Any, dict[str, Any]], tuple[Any, dict[str, Any]]]

_NO = np.bool_(False)  # numpy has only one such object


def step_envs(
    acts: list[Callable[[Any], StepResult]],
    actions: Sequence[Any],
    cells: list[Any],
    where: Any,
    rewards: list[Any],
    infos: list[tuple[int, dict[str, Any]]],
    end_episode: EndEpisode,
    take_odd: Callable[[int, Any], None],
    first: int,
) -> None:
    """Step the envs from position len(rewards) on. If one raises, len(rewards) is its position.

    `acts[k](actions[k])` steps the env at position k, which is env `first + k` of the worker. Its observation is
    written to `cells[k][where]`; if that raises, `take_odd(first + k, obs)` gets it. Its reward is appended to
    `rewards`, a non-empty info as (first + k, info) to `infos`. At the end of an episode,
    `end_episode(first + k, obs, terminated, truncated, info)` returns the observation and the info of the row.

    Only flags that are neither Python's nor numpy's False itself are passed to `is_over`. So a flag that is None or ""
    is an error, and an env with proper flags costs no call.
    """
    no = _NO
    done = len(rewards)
    if done:
        acts, actions, cells = acts[done:], actions[done:], cells[done:]
    # A list's method called by its name is faster than one looked up beforehand.
    for act, action, cell in zip(acts, actions, cells):  # noqa: B905  of equal lengths; strict= costs time here
        obs, reward, terminated, truncated, info = act(action)
        if (
            (terminated is not False and terminated is not no) or (truncated is not False and truncated is not no)
        ) and is_over(terminated, truncated):
            obs, info = end_episode(first + len(rewards), obs, terminated, truncated, info)
        try:
            cell[where] = obs
        except Exception:  # whatever an odd value causes
            take_odd(first + len(rewards), obs)
        if info:
            infos.append((first + len(rewards), info))
        rewards.append(reward)


def is_over(terminated: Any, truncated: Any) -> bool:
    """Tell whether an episode has ended. TypeError for a flag that is neither True nor False, nor 1 nor 0."""
    ended = _flag("terminated", terminated)
    return _flag("truncated", truncated) or ended


def _flag(name: str, value: Any) -> bool:
    if value is True or value is False:
        return value
    try:
        given = np.asarray(value)
        number = given.item() if given.dtype.kind in "biu" else None
    except Exception:  # several values, or an object that numpy cannot convert
        number = None
    if number not in (0, 1):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")
    return bool(number)


def number_of(reward: Any) -> float:
    """Return a reward as a float. Raise an error if it is not a number, nor an array of one."""
    try:
        return float(array("d", [reward])[0])
    except Exception:  # TypeError; for arrays, before numpy 2.4, a DeprecationWarning if warnings are errors
        given = np.asarray(reward)
        if given.dtype.kind not in "biuf":  # text, None
            raise
    return float(given.item())
