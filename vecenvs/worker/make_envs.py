"""Make the envs of one shard and describe them: the first thing every worker does."""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Space

from vecenvs import identity
from vecenvs._native.forks import run
from vecenvs.batch.space_equality import same_layout, same_space
from vecenvs.batched import Batched
from vecenvs.cpus import sharing
from vecenvs.env_calls import SlotFn
from vecenvs.errors import RepeatedEnvError, SpaceMismatch, VecEnvError
from vecenvs.identity import ThisWorker
from vecenvs.transport.protocol import RemoteFailure, ShardSpec
from vecenvs.vec_env import batched_env_hint
from vecenvs.worker.calls import close_envs
from vecenvs.worker.coroutines import put_awaited
from vecenvs.worker.env_errors import COMMON, ENV_ERRORS
from vecenvs.worker.hosts.batched_host import BatchedHost
from vecenvs.worker.hosts.make_host import make_host
from vecenvs.worker.old_gym import PACKAGE, seed_remedy
from vecenvs.worker.outcomes import Runner, finish
from vecenvs.worker.process import HeldSignals
from vecenvs.worker.rules import Rules
from vecenvs.worker.waiting_worker import make_runner

SPACES = ("observation_space", "action_space")
MEMBERS = ("reset", "step", "close", *SPACES)  # what an env is used by
# Members by which envs of other interfaces are known, and what to do with these.
_OTHERS = {
    "action_spec": "envs of dm_env and dm_control need shimmy's DmControlCompatibilityV0 around them",
    "possible_agents": "vecenvs.make_multi_agent makes a VecEnv of envs of several agents (PettingZoo, RLlib)",
}
_JAX = (
    "envs of JAX whose state callers keep (Brax, gymnax, Jumanji) need a class that keeps it and has reset and step "
    "over arrays of all envs; vecenvs.Batched(make, num_envs) marks its function, see docs/batched.md"
)
NEW_EACH_TIME = "it must return a new gymnasium.Env each time it is called"


def make_envs(
    env_fns: Iterable[Callable[[], Any]],
    first: int,
    rules: Rules,
    cores: int | None = None,
    seen: set[int] | None = None,
    *,
    remote: bool,
    kept: list[Any] | None = None,
) -> tuple[list[Any], ShardSpec | RemoteFailure, Runner | None]:
    """Call every function: those of single envs, or one `Batched`, which makes a `BatchedHost`.

    `cores` are how many this worker may use, for functions that ask (`cpus.worker_cores`). `seen` has the ids of the
    envs that other workers of this process have made, and gets those of these. `kept` gets the functions. With
    `concurrency` each is called where its env will run.

    Returns:
        The envs, their description and what runs them, with `concurrency`. If a function raises, no envs (those made so
        far are closed) and its failure.
    """
    envs: list[Any] = []
    seen = set() if seen is None else seen
    slot, runner, told = first, None, identity.current()
    try:
        with HeldSignals():  # it has threads
            runner = make_runner(first, rules)
        with sharing(cores):
            for env_fn in env_fns:
                if kept is not None:
                    kept.append(env_fn)
                make = partial(identity.acted, told, slot, _share, env_fn, cores)
                if rules.pace is not None:
                    rules.pace.wait()
                env = run(make) if runner is None else runner.call(slot - first, make)
                if not isinstance(env_fn, Batched):
                    _check_env(env, slot)
                bare = id(getattr(env, "unwrapped", env))
                if bare in seen:
                    why = f"the env function of env {slot} gave an env that another one had given already"
                    raise RepeatedEnvError(slot, f"{why}: {NEW_EACH_TIME}")
                seen.add(bare)
                envs.append(_host_of(env, env_fn, slot, rules) if isinstance(env_fn, Batched) else env)
                if rules.concurrency == "asyncio":
                    put_awaited(env, slot)
                slot += 1
        slot = first
        made = _describe(envs, first, remote=remote)
    except BaseException as exc:
        close_envs(envs, first, remote=remote, runner=runner)
        if not isinstance(exc, ENV_ERRORS):
            raise
        failure = RemoteFailure.capture(slot, "its env function", exc, portable=remote, remedy=seed_remedy(exc))
        return [], failure, None
    return envs, made, runner


def _share(env_fn: Callable[[], Any], cores: int | None) -> Any:
    with sharing(cores):
        env = env_fn()
    bare = getattr(env, "unwrapped", env)
    space = inspect.getattr_static(type(bare), "action_space", None)
    if isinstance(space, Space) and bare.action_space is space:  # all of its class have it, and each has its own seed
        bare.action_space = copy.deepcopy(space)
    return env


def make_again(
    env_fns: Sequence[Callable[[], Any]], first: int, rules: Rules, cores: int | None, told: ThisWorker | None,
    local: int, like: Any,
) -> Any:  # fmt: skip
    """Make env `local` of a worker once more; `like` has what it must have, too. SpaceMismatch if it has not.

    `told` is the worker, where it is not the whole process.

    Numbers beyond its envs are those of spares.
    """
    spare = local >= len(env_fns)
    env_fn: Any = env_fns[local % len(env_fns)]
    slot = first + local % len(env_fns)
    if spare and isinstance(env_fn, SlotFn):
        env_fn = env_fn.of_spare()
    if rules.pace is not None:
        rules.pace.wait()
    env = run(identity.acted, told or identity.current(), None if spare else slot, _share, env_fn, cores)
    if isinstance(env_fn, Batched):
        env = _host_of(env, env_fn, slot, rules)
    else:
        _check_env(env, slot)
    if rules.concurrency == "asyncio":
        put_awaited(env, slot)
    for which in COMMON:
        theirs, ours = getattr(env, which, None), getattr(like, which)
        if not same_space(theirs, ours):
            close_refused(env)
            raise SpaceMismatch(slot, which, theirs, ours, False)
    return env


def _host_of(env: Any, env_fn: Batched, slot: int, rules: Rules) -> BatchedHost:
    """Return the host of a batched env. VecEnvError if it cannot be used as one, or in this mode."""
    try:
        host = make_host(env, env_fn.num_envs, slot, env_fn.autoreset)
        possible = {host.autoreset} | ({"same_step"} if host.autoreset == "disabled" and host.takes_masks else set())
        if rules.autoreset not in possible:
            wanted = " or ".join(f"autoreset={mode!r}" for mode in sorted(possible))
            raise VecEnvError(
                f"{type(env).__name__} cannot be stepped with autoreset={rules.autoreset!r}, since what it does at the "
                f"end of an episode is {host.autoreset!r}: pass {wanted}, or make it in another mode"
            )
        if rules.own_resets and host.autoreset != "disabled":
            names = " and ".join(rules.own_resets)
            raise VecEnvError(
                f"{type(env).__name__} begins its next episodes itself (what it does at their ends is "
                f"{host.autoreset!r}), and {names} says how each of them begins: make it in the mode 'disabled' "
                f"(gymnasium.vector.AutoresetMode.DISABLED), or leave {names} out"
            )
    except VecEnvError as exc:
        close_refused(env)
        raise VecEnvError(f"env {slot}: {exc}") from None
    return host


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
        os.getpid(),
        socket.gethostname(),
    )


def _check_env(env: Any, slot: int) -> None:
    problem = describe_interface_problem(env)
    if problem:
        close_refused(env)
        raise VecEnvError(f"the env function of env {slot} gave {problem}")


def close_refused(env: Any) -> None:
    """Close a value that is not an env, if possible: it may have processes, as vector envs do."""
    with contextlib.suppress(Exception):  # the error to report is another one
        finish(env.close())


def describe_interface_problem(env: Any) -> str:
    """Return everything in which `env` differs from Gymnasium's interface, with the remedy; "" if nothing does."""
    kind = type(env).__name__
    way = batched_env_hint(env) or batched_env_hint(getattr(env, "unwrapped", env))
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
    others = [_JAX] if _takes_key(env) else [remedy for member, remedy in _OTHERS.items() if hasattr(env, member)]
    return f"{what} {' and '.join(faults)}: {'; '.join([*others, NEW_EACH_TIME])}"


def _takes_key(env: Any) -> bool:
    """Tell whether `reset` takes a key of JAX's random numbers."""
    reset = getattr(env, "reset", None)
    try:
        return callable(reset) and not {"key", "rng"}.isdisjoint(inspect.signature(reset).parameters)
    except ValueError:  # of a function in C
        return False


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
