"""Run a recorded episode again, in this process, and tell where it differs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from vecenvs import env_calls
from vecenvs.batch.batch_columns import TERMINATED, TRUNCATED
from vecenvs.batch.columns import SpaceColumns
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import VecEnvError
from vecenvs.state.env_state import text_of
from vecenvs.state.episode_file import Record, checksums, compares, decoded
from vecenvs.worker.autoreset import seed_action_spaces

_REPEATED = {each.__name__: each for each in (env_calls.set_attr, env_calls.set_wrapper_attr)}


class Rerun(NamedTuple):
    """How an episode went the second time: up to which step it was the same; where it differed, or what it raised."""

    steps: int
    differs: str = ""
    exception: Exception | None = None
    doing: str = ""


def check(record: Record, env: Any) -> None:
    """Raise VecEnvError if this env's episodes cannot be this one."""
    if record.inexact:
        raise VecEnvError(f"this episode cannot be run again: {record.inexact}")
    for name in ("action_space", "observation_space"):
        found, was = text_of(getattr(env, name)), getattr(record, name)
        if was and found != was:  # envs whose spaces may differ have none
            raise VecEnvError(f"this episode is of an env with the {name} {was}, and this one has {found}")


def run_again(record: Record, env: Any, tell: Callable[[Rerun], object] = id) -> Rerun:
    """Run an episode again: its calls, its reset, its steps, and the reset that was to follow a failed step.

    Args:
        record: the episode.
        env: an env of the same function, which is closed at the end.
        tell: called with what is returned before that.

    Returns:
        How it went.

    Raises:
        VecEnvError: it is of an env of another kind, or the record has values that are none.
    """
    loop = asyncio.new_event_loop()  # for coroutines
    try:
        check(record, env)
        found = _Player(record, env, loop).play()
        tell(found)
    finally:
        with contextlib.closing(loop):
            if inspect.isawaitable(closing := env.close()):
                loop.run_until_complete(closing)
    return found


class _Player:
    def __init__(self, record: Record, env: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._record, self._env, self._loop = record, env, loop
        self._observations = SpaceLayout(env.observation_space)
        self._actions = SpaceColumns(SpaceLayout(env.action_space), 1, np.zeros)
        leaves = self._actions.layout.leaves
        if [leaf.is_object for leaf in leaves] != [each is None for each in record.actions]:
            raise VecEnvError("the record's actions are none of this space")
        self._count = max([len(record.objects), *(len(each) for each in record.actions if each is not None)])
        self._compares = compares(self._observations) and bool(len(record.checksums))
        self._calls = list(record.calls)

    def play(self) -> Rerun:
        record, doing, step = self._record, "reset", 0
        try:
            self._call(-1)
            options = None if record.options is None else decoded(record.options)
            obs = self._reset(record.seed, options)
            if len(record.checksums) and (wrong := self._differs(0, obs)):
                return Rerun(0, wrong, doing=doing)
            terminated = truncated = False
            for step in range(self._count):
                self._call(step)
                doing = "step"
                obs, reward, terminated, truncated, _ = self._awaited(self._env.step(self._action(step)))
                if step < len(record.rewards) and (wrong := self._compared(step, obs, reward, terminated, truncated)):
                    return Rerun(step, wrong, doing=doing)
            failed_at = self._count > len(record.rewards)
            if failed_at and (terminated or truncated) and record.next_reset:
                doing = "reset"
                following = record.next_reset.get("options")
                self._reset(record.next_reset.get("seed"), None if following is None else decoded(following))
        except VecEnvError:
            raise
        except Exception as exc:
            return Rerun(step, exception=exc, doing=doing)
        return Rerun(self._count)

    def _awaited(self, value: Any) -> Any:
        return self._loop.run_until_complete(value) if inspect.isawaitable(value) else value

    def _reset(self, seed: Any, options: Any) -> Any:
        arguments = {"seed": seed} if options is None else {"seed": seed, "options": options}
        if seed is not None:
            seed_action_spaces(self._env, seed)
        return self._awaited(self._env.reset(**arguments))[0]

    def _call(self, step: int) -> None:
        """Repeat the calls that were made before this step."""
        while self._calls and self._calls[0][0] <= step:
            _, _, given = self._calls.pop(0)
            if given is None:
                continue
            name, *args = decoded(given)
            _REPEATED[name](self._env, *args)

    def _action(self, step: int) -> Any:
        objects = iter(() if not self._record.objects else self._record.objects[step])
        for array, rows in zip(self._actions.arrays, self._record.actions, strict=True):
            array[0] = decoded(next(objects)) if rows is None else rows[step]
        return self._actions.row(0)

    def _compared(self, step: int, obs: Any, reward: Any, terminated: Any, truncated: Any) -> str:
        was, flags = self._record.rewards[step], int(self._record.flags[step])
        if np.float64(reward).tobytes() != was.tobytes():
            return f"its reward was {was!r}, and is {float(reward)!r}"
        for name, flag, now in (("terminated", TERMINATED, terminated), ("truncated", TRUNCATED, truncated)):
            if bool(flags & flag) != bool(now):
                return f"{name} was {bool(flags & flag)}, and is {bool(now)}"
        return self._differs(step + 1, obs)

    def _differs(self, row: int, obs: Any) -> str:
        if not self._compares:
            return ""
        parts = [np.asarray(part)[None] for part in self._observations.flatten(self._observations.copied(obs))]
        same = checksums(parts, 1)[0] == self._record.checksums[row]
        return "" if same else "its observation has another checksum"
