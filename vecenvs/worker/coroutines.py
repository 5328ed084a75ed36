"""Envs whose reset, step and close are coroutines: how these are awaited, also beneath wrappers that await nothing."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium import wrappers

from vecenvs._native.twin import StepResult, is_over, own_info, unpack_row
from vecenvs.batch.batch_columns import FIRST
from vecenvs.batch.values import copy_containers, shown
from vecenvs.errors import RepeatedEnvError, SpaceMismatch, StateError, VecEnvError
from vecenvs.state.env_state import EnvState
from vecenvs.worker.autoreset import Acts, Autoreset
from vecenvs.worker.env_errors import ENV_ERRORS, Unmade
from vecenvs.worker.outcomes import check_time

# Wrappers which only look at, or change, what goes to the env and comes from it, and so can be given what was awaited.
_PASSIVE = (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker)
_BASES = (gym.ObservationWrapper, gym.ActionWrapper, gym.RewardWrapper)
PASSIVE = "only_looks_at_rows"  # an attribute of classes of other wrappers of that kind


class TaskAutoreset(Autoreset):
    """What an Autoreset does, where what envs return has to be awaited."""

    async def row(self, local: int, acts: Acts, given: Any) -> StepResult:  # type: ignore[override]
        row = acts[local](given)
        if inspect.isawaitable(row):
            row = await row
            check_time()
        obs, reward, terminated, truncated, info = unpack_row(row)
        if (terminated is not False or truncated is not False) and is_over(terminated, truncated):
            self.note_end(local, reward, terminated, truncated)
            obs, info = self.end_episode(local, obs, terminated, truncated, own_info(info))
            if inspect.isawaitable(obs):  # of the next episode
                obs = await obs
        return obs, reward, terminated, truncated, info

    async def end_again(self, local: int) -> StepResult:  # type: ignore[override]
        *row, flags = self.ended[local]
        obs = await self.reset(local)
        self._flags.set(local, flags)
        return obs, *row

    async def begin_wanted(self, local: int, wanted: Callable[[], bool]) -> Any:
        return self.begun(local, await self.reset(local), wanted)

    async def _first_row(self, local: int, given: dict[str, Any] | None) -> StepResult:  # type: ignore[override]
        obs = await self.reset(local, given)
        self._flags.set(local, FIRST)
        return obs, 0.0, False, False, copy_containers(self.reset_infos.get(local, {}))

    async def reset(self, local: int, given: dict[str, Any] | None = None) -> Any:
        if local in self.due and given is None:
            return self.take_due(local)
        errors = self.errors
        if errors is None:
            return await self._reset(local, given)
        while True:
            try:
                if local in errors.broken:
                    old, self._envs[local] = self._envs[local], Unmade(self._envs[local])
                    await close_env(old)
                    errors.make_anew(self._envs, local)
                    self._seed_new_env(local, given or {}, errors)
                return await self._reset(local, given)
            except (SpaceMismatch, RepeatedEnvError, StateError):
                raise
            except ENV_ERRORS as exc:
                errors.happened(local, "reset", exc)
            tries, seconds = errors.next_try(local)
            await asyncio.sleep(seconds)
            check_time()
            if tries > 1:
                given = self._change_seed(local, given, errors)

    async def _reset(self, local: int, given: dict[str, Any] | None = None) -> Any:
        if given is not None and isinstance(state := given.get("options"), EnvState):
            return self.states.write(local, state)
        arguments, stream = self._arguments(local, given)
        first = await reset_env(self._envs[local], copy_containers(arguments))
        return self._begin_episode(local, first, arguments, stream)

    async def _guarded_step(self, local: int, action: Any) -> StepResult:  # type: ignore[override]
        assert self.errors is not None
        try:
            return await self._own_step(local, action)
        except ENV_ERRORS as exc:
            return self._cut_short(local, self.errors.happened(local, "step", exc))

    async def _own_step(self, local: int, action: Any) -> StepResult:
        if self._reader is not None:
            self._reader.notice(local)
        row: StepResult = await step_env(self._envs[local], action)
        return row

    def step_of(self, local: int) -> Callable[[Any], Any]:
        return partial(TaskAutoreset._own_step if self.errors is None else TaskAutoreset._guarded_step, self._me, local)


class Awaited(gym.Wrapper[Any, Any, Any, Any]):
    """Stands between an env of coroutines and the wrappers around it, which get from it what was awaited."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.outcome: Any = None

    def step(self, action: Any) -> Any:
        return self._take()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._take()

    def close(self) -> None:
        self.outcome = self.env.close()  # type: ignore[func-returns-value]  # a coroutine

    def _take(self) -> Any:
        outcome, self.outcome = self.outcome, None
        return outcome


def put_awaited(env: Any, slot: int) -> None:
    """Put an `Awaited` beneath the wrappers of an env. VecEnvError for those that cannot be given what was awaited."""
    outer, inner = None, env
    while isinstance(inner, gym.Wrapper) and not _is_async(inner):
        if not (isinstance(inner, _PASSIVE) or _transforms(inner) or getattr(type(inner), PASSIVE, False)):
            if not _is_async(env.unwrapped):
                return  # what it returns will tell
            raise VecEnvError(
                f"env {slot}: the wrapper {type(inner).__name__} calls {type(env.unwrapped).__name__}, whose methods "
                "are coroutines, and does not await them: give it async methods, or do that in the env or in the caller"
            )
        outer, inner = inner, inner.env
    if outer is not None and _is_async(inner):
        outer.env = Awaited(inner)


def _transforms(layer: Any) -> bool:
    """Tell whether a wrapper changes observations, actions or rewards one by one."""
    kind = type(layer)
    return any(
        isinstance(layer, base) and kind.step is base.step and kind.reset in (base.reset, gym.Wrapper.reset)
        for base in _BASES
    )


def _is_async(layer: Any) -> bool:
    return inspect.iscoroutinefunction(getattr(layer, "step", None))


async def step_env(env: Any, action: Any) -> Any:
    """Step an env of coroutines; its wrappers get what that returns."""
    inner, given = _find(env, action)
    if inner is None:
        return await _checked(env, "step", env.step(action))
    inner.outcome = await _checked(inner.env, "step", inner.env.step(given))
    return env.step(action)


async def reset_env(env: Any, arguments: Mapping[str, Any]) -> Any:
    """Reset an env of coroutines."""
    inner, _ = _find(env, None)
    if inner is None:
        return await _checked(env, "reset", env.reset(**arguments))
    both = {"seed": None, "options": None, **arguments}  # as wrappers pass them on
    inner.outcome = await _checked(inner.env, "reset", inner.env.reset(**both))
    return env.reset(**arguments)


def begin_close(env: Any) -> Any:
    """Close an env and return what is to be awaited then, if there is something; its wrappers may keep that back."""
    inner, _ = _find(env, None)
    closing = env.close()
    return closing if inner is None else inner.outcome


async def close_env(env: Any) -> None:
    """Close an env of coroutines, whatever that raises."""
    with contextlib.suppress(*ENV_ERRORS):  # the env is broken: that it cannot be closed is no news
        if inspect.isawaitable(closing := begin_close(env)):
            await closing


def _find(layer: Any, action: Any) -> tuple[Awaited | None, Any]:
    """Return the Awaited beneath the wrappers, and the action that these would pass on to it."""
    while isinstance(layer, gym.Wrapper):
        if type(layer) is Awaited:
            return layer, action
        if action is not None and isinstance(layer, gym.ActionWrapper):
            action = layer.action(action)
        layer = layer.env
    return None, action


async def _checked(env: Any, what: str, result: Any) -> Any:
    if not inspect.isawaitable(result):
        raise VecEnvError(
            f"{what} of {type(env).__name__} has returned {shown(result)}, which cannot be awaited: "
            "concurrency='threads' is for envs of plain functions"
        )
    return await result
