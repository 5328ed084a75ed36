"""Run functions on the envs of a worker, where they live, and close these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from vecenvs._native.forks import run
from vecenvs.batch.values import copy_containers
from vecenvs.env_calls import counts_as_reset, name_for
from vecenvs.errors import VecEnvError
from vecenvs.transport.pickling import dumps
from vecenvs.transport.protocol import RemoteFailure, safe_text
from vecenvs.worker.coroutines import begin_close
from vecenvs.worker.env_errors import ENV_ERRORS, Unmade
from vecenvs.worker.env_states import take_state
from vecenvs.worker.hosts.host_parts import run_on
from vecenvs.worker.outcomes import Runner, finish
from vecenvs.worker.shard import Shard

CLOSE_WAIT = 5.0  # seconds for what envs are doing to end before they are closed

EnvCall = tuple[Callable[..., Any], list[int], tuple[Any, ...], dict[str, Any]]  # the body of `Command.CALL`


def call_envs(env_shard: Shard, first: int, call: EnvCall, *, remote: bool) -> list[Any]:
    """Run a function on envs, whose slots the call names; return a result or a RemoteFailure for each."""
    results: list[Any] = []
    env_shard.done = results
    for slot, work in zip(call[1], works_of(env_shard, first, call), strict=True):
        results.append(result_of(env_shard, slot - first, slot, call, partial(run, work), remote=remote))
    return results


def works_of(env_shard: Shard, first: int, call: EnvCall) -> list[Callable[[], Any]]:
    """Return what runs the function on each env of a call."""
    function, slots, args, kwargs = call
    some = [slot - first for slot in slots]
    if function is take_state:
        return [partial(env_shard.state_of, local, *args) for local in some]
    targets = zip(slots, env_shard.targets(some), strict=True)
    return [partial(_run, slot, envs, at, function, args, kwargs) for slot, (envs, at) in targets]


def _run(slot: int, envs: Sequence[Any], at: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    env = envs[at]
    if type(env) is Unmade:  # the making of another one has failed, or was cut off
        raise VecEnvError(f"env {slot} was closed, and another one has not been made: reset([{slot}]) it first")
    # Each env gets arguments of its own, as it would in a process of its own.
    return run_on(env, function, copy_containers(args), copy_containers(kwargs))


def result_of(
    env_shard: Shard, local: int, slot: int, call: EnvCall, returned: Callable[[], Any], *, remote: bool
) -> Any:
    """Return what a function has `returned` for an env, or the RemoteFailure that it raises."""
    function, _, args, _ = call
    try:
        if function is take_state:
            return returned()
        succeeded = False
        try:
            result = returned()
            succeeded = True
        finally:
            env_shard.note_call(local, function, args, succeeded=succeeded)
        env_shard.renew(local, begun=counts_as_reset(function, args))
        return result if remote else copy_containers(result)
    except ENV_ERRORS as exc:
        return RemoteFailure.capture(slot, _described(function, args), exc, portable=remote)


def portable_results(call: EnvCall, results: Sequence[Any]) -> list[Any]:
    """Return the results of a call, with a RemoteFailure in place of each that cannot be pickled."""
    function, slots, args, _ = call
    doing = _described(function, args)
    return [_portable_result(slot, doing, result) for slot, result in zip(slots, results, strict=True)]


def _described(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    return f"{name_for(function)}({', '.join(map(repr, args[:1]))})"


def _portable_result(slot: int, doing: str, result: Any) -> Any:
    try:
        dumps(result)
    except Exception as exc:
        problem = VecEnvError(
            f"{doing} of env {slot} gives a {type(result).__name__} that cannot be pickled ({safe_text(exc)})"
        )
        return RemoteFailure.capture(slot, doing, problem, portable=True)
    return result


def close_envs(
    envs: Sequence[Any], first: int, *, remote: bool, runner: Runner | None = None, grace: float = CLOSE_WAIT
) -> list[RemoteFailure]:
    """Close every env, or the one batched env, and return the failures.

    Their `runner`, if they have one, has `grace` seconds for that.
    """
    if runner is not None:
        return close_in(runner, lambda: dict(enumerate(envs)), first, remote=remote, grace=grace)
    failures = []
    for slot, env in enumerate(envs, first):
        try:
            finish(run(env.close))
        except ENV_ERRORS as exc:
            failures.append(RemoteFailure.capture(slot, "close", exc, portable=remote))
    return failures


def close_in(
    runner: Runner, owned: Callable[[], dict[int, Any]], first: int, *, remote: bool, grace: float
) -> list[RemoteFailure]:
    """Close what is `owned` by then, after the last work of each env; return the failures."""
    raised = runner.close({i: partial(_begin_close, owned, i) for i in owned()}, grace)
    return [RemoteFailure.capture(first + i, "close", exc, portable=remote) for i, exc in raised]


def _begin_close(owned: Callable[[], dict[int, Any]], local: int) -> Any:
    env = owned().get(local)  # one beside another, for comparisons, may be gone
    return None if env is None else begin_close(env)
