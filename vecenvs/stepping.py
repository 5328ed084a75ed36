"""The loop over envs that every step runs: the library's price per env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
    """
    done = len(rewards)
    if done:
        acts, actions, cells = acts[done:], actions[done:], cells[done:]
    # A list's method called by its name is quicker than one looked up beforehand.
    for act, action, cell in zip(acts, actions, cells):  # noqa: B905  of equal lengths; strict= costs time here
        obs, reward, terminated, truncated, info = act(action)
        if terminated or truncated:
            obs, info = end_episode(first + len(rewards), obs, terminated, truncated, info)
        try:
            cell[where] = obs
        except Exception:  # whatever an odd value makes of it
            take_odd(first + len(rewards), obs)
        if info:
            infos.append((first + len(rewards), info))
        rewards.append(reward)
