"""The loop over envs that every step runs: the library's price per env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenvs.batch.values import shown

StepResult = tuple[Any, Any, Any, Any, dict[str, Any]]
EndEpisode = Callable[[int, Any, Any, Any, dict[str, Any]], tuple[Any, dict[str, Any]]]


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
    """Step the envs from number len(rewards) on. If one raises, len(rewards) is its number.

    `acts[k](actions[k])` steps env k, which everybody else knows as `first + k`. Its observation is put into
    `cells[k][where]`, or if that raises given to `take_odd(first + k, obs)`; its reward is appended, and its info, if
    it is not empty, as (first + k, info). Where an episode has ended, the row's observation and info are what
    `end_episode(first + k, obs, terminated, truncated, info)` gives.

    Flags that are not False itself, of Python or numpy, are looked at by `is_over`: so None or "" is an error, and an
    env whose flags are what they should be pays no call for it.
    """
    no = _NO
    done = len(rewards)
    if done:
        acts, actions, cells = acts[done:], actions[done:], cells[done:]
    # A list's method called by its name is quicker than one looked up beforehand.
    for act, action, cell in zip(acts, actions, cells):  # noqa: B905  of equal lengths; strict= costs time here
        obs, reward, terminated, truncated, info = act(action)
        if (
            (terminated is not False and terminated is not no) or (truncated is not False and truncated is not no)
        ) and is_over(terminated, truncated):
            obs, info = end_episode(first + len(rewards), obs, terminated, truncated, info)
        try:
            cell[where] = obs
        except Exception:  # whatever an odd value makes of it
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
    except Exception:  # no single value, or what will be no array
        number = None
    if number not in (0, 1):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")
    return bool(number)


_NO = np.bool_(False)  # there is only one
