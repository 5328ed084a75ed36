"""Making the envs of one shard and telling what they are: the first thing every worker does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.spaces import Space

from vecenvs.alike import alike
from vecenvs.errors import VecEnvError
from vecenvs.host import ENV_ERRORS
from vecenvs.old_gym import PACKAGE, seed_remedy
from vecenvs.protocol import Failure, MadeEnvs
from vecenvs.worker import close_envs

NEW_EACH_TIME = "it must return a new gymnasium.Env each time it is called"
COMMON = ("observation_space", "action_space", "render_mode")  # what all envs of a VecEnv have alike


def make_envs(
    env_fns: Sequence[Callable[[], Any]], first: int, *, remote: bool
) -> tuple[list[Any], MadeEnvs | Failure]:
    """Call every function. If one raises, the envs made so far are closed and the answer is its Failure."""
    envs: list[Any] = []
    slot = first
    try:
        for slot, env_fn in enumerate(env_fns, first):
            env = env_fn()
            _check_env(env, slot)
            if any(env is other for other in envs):
                raise VecEnvError(
                    f"the env function of env {slot} gave an env that another one had given already: {NEW_EACH_TIME}"
                )
            envs.append(env)
        slot = first
        made = _describe(envs, first, remote=remote)
    except BaseException as exc:
        close_envs(envs, first, remote=remote)
        if not isinstance(exc, ENV_ERRORS):
            raise
        return [], Failure.capture(slot, "its env function", exc, portable=remote, remedy=seed_remedy(exc))
    return envs, made


def _describe(envs: Sequence[Any], first: int, *, remote: bool) -> MadeEnvs:
    spaces = envs[0].observation_space, envs[0].action_space
    if not remote:  # the env's own generators are not for callers to sample from
        spaces = copy.deepcopy(spaces)
    return MadeEnvs(
        *spaces,
        getattr(envs[0], "spec", None),
        dict(getattr(envs[0], "metadata", None) or {}),
        getattr(envs[0], "render_mode", None),
        _mismatch(envs, first),
    )


def _check_env(env: Any, slot: int) -> None:
    for name in ("reset", "step", "close", "observation_space", "action_space"):
        if not hasattr(env, name):
            raise VecEnvError(
                f"the env function of env {slot} gave a {type(env).__name__} without {name!r}: {NEW_EACH_TIME}"
            )
    for name in ("observation_space", "action_space"):
        space = getattr(env, name)
        if not isinstance(space, Space):
            cls = f"{type(space).__module__}.{type(space).__qualname__}"
            raise VecEnvError(f"env {slot} has as its {name} a {cls}, which is no gymnasium.spaces.Space: {PACKAGE}")


def _mismatch(envs: Sequence[Any], first: int) -> tuple[int, str, Any, Any] | None:
    for slot, env in enumerate(envs, first):
        for which in COMMON:
            theirs, ours = getattr(env, which, None), getattr(envs[0], which, None)
            if not alike(theirs, ours):
                return slot, which, theirs, ours
    return None
