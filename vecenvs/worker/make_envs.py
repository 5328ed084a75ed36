"""Make the envs of one shard and describe them: the first thing every worker does."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Space

from vecenvs.batch.space_equality import same_layout, same_space
from vecenvs.errors import RepeatedEnvError, VecEnvError
from vecenvs.transport.protocol import RemoteFailure, ShardSpec
from vecenvs.vec_env import way_of_several
from vecenvs.worker.env_shard import ENV_ERRORS
from vecenvs.worker.old_gym import PACKAGE, seed_remedy
from vecenvs.worker.worker import close_envs

SPACES = ("observation_space", "action_space")
MEMBERS = ("reset", "step", "close", *SPACES)  # what an env is used by
NEW_EACH_TIME = "it must return a new gymnasium.Env each time it is called"
COMMON = ("observation_space", "action_space", "render_mode")  # what all envs of a VecEnv have alike


def make_envs(
    env_fns: Sequence[Callable[[], Any]], first: int, *, remote: bool
) -> tuple[list[Any], ShardSpec | RemoteFailure]:
    """Call every function.

    Returns:
        The envs and their description. If a function raises, no envs (those made so far are closed) and its failure.
    """
    envs: list[Any] = []
    seen: set[int] = set()
    slot = first
    try:
        for slot, env_fn in enumerate(env_fns, first):
            env = env_fn()
            _check_env(env, slot)
            bare = id(getattr(env, "unwrapped", env))
            if bare in seen:
                told = f"the env function of env {slot} gave an env that another one had given already: {NEW_EACH_TIME}"
                raise RepeatedEnvError(slot, told)
            seen.add(bare)
            envs.append(env)
        slot = first
        made = _describe(envs, first, remote=remote)
    except BaseException as exc:
        close_envs(envs, first, remote=remote)
        if not isinstance(exc, ENV_ERRORS):
            raise
        return [], RemoteFailure.capture(slot, "its env function", exc, portable=remote, remedy=seed_remedy(exc))
    return envs, made


def _describe(envs: Sequence[Any], first: int, *, remote: bool) -> ShardSpec:
    spaces = envs[0].observation_space, envs[0].action_space
    if not remote:  # the env's own generators are not for callers to sample from
        spaces = copy.deepcopy(spaces)
    return ShardSpec(
        *spaces,
        getattr(envs[0], "spec", None),
        dict(getattr(envs[0], "metadata", None) or {}),
        getattr(envs[0], "render_mode", None),
        _mismatch(envs, first),
    )


def _check_env(env: Any, slot: int) -> None:
    problem = problem_of(env)
    if problem:
        close_refused(env)
        raise VecEnvError(f"the env function of env {slot} gave {problem}")


def close_refused(env: Any) -> None:
    """Close a value that is not an env, if possible: it may have processes, as vector envs do."""
    with contextlib.suppress(Exception):  # the error to report is another one
        env.close()


def problem_of(env: Any) -> str:
    """Return everything in which `env` differs from Gymnasium's interface, with the remedy; "" if nothing does."""
    kind = type(env).__name__
    way = way_of_several(env) or way_of_several(getattr(env, "unwrapped", env))
    if way:
        return f"a {kind}, which steps several envs at once, where a single one is needed: {way}"
    missing = [name for name in MEMBERS if not hasattr(env, name)]
    spaces = [
        f"{name} is a {type(space).__module__}.{type(space).__qualname__}"
        for name, space in ((name, getattr(env, name)) for name in SPACES if name not in missing)
        if not isinstance(space, Space)
    ]
    faults = [f"without {', '.join(map(repr, missing))}"] if missing else []
    if spaces:
        faults.append(f"whose {' and whose '.join(spaces)}, which is no gymnasium.spaces.Space ({PACKAGE})")
    if not faults:
        return ""
    what = f"a {kind}" if isinstance(env, gym.Env) else f"a {kind}, which is no gymnasium.Env,"
    return f"{what} {' and '.join(faults)}: {NEW_EACH_TIME}"


def _mismatch(envs: Sequence[Any], first: int) -> tuple[int, str, Any, Any] | None:
    """Return the first env that differs from the shard's first one, preferably in more than bounds."""
    found = None
    for slot, env in enumerate(envs, first):
        for which in COMMON:
            theirs, ours = getattr(env, which, None), getattr(envs[0], which, None)
            if not same_space(theirs, ours):
                if not (which == "observation_space" and same_layout(theirs, ours)):
                    return slot, which, theirs, ours
                found = found or (slot, which, theirs, ours)
    return found
