"""Run functions on the envs of a worker, where they live, and close these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vecenvs._native.forks import run
from vecenvs.batch.values import copy_containers
from vecenvs.env_calls import counts_as_reset, name_for
from vecenvs.errors import VecEnvError
from vecenvs.transport.pickling import dumps
from vecenvs.transport.protocol import RemoteFailure, safe_text
from vecenvs.worker.env_errors import ENV_ERRORS
from vecenvs.worker.env_states import take_state
from vecenvs.worker.hosts.host_parts import run_on
from vecenvs.worker.shard import Shard

EnvCall = tuple[Callable[..., Any], list[int], tuple[Any, ...], dict[str, Any]]  # the body of `Command.CALL`


def call_envs(env_shard: Shard, first: int, call: EnvCall, *, remote: bool) -> list[Any]:
    """Run a function on envs, whose slots the call names; return a result or a RemoteFailure for each."""
    function, slots, args, kwargs = call
    results: list[Any] = []
    env_shard.done = results
    envs = env_shard.targets([slot - first for slot in slots])
    for slot, env in zip(slots, envs, strict=True):
        try:
            # Each env gets arguments of its own, as it would in a process of its own.
            if function is take_state:
                results.append(run(env_shard.state_of, slot - first, *args))
                continue
            env_shard.note_call(slot - first, function)
            result = run(run_on, env, function, copy_containers(args), copy_containers(kwargs))
            results.append(result if remote else copy_containers(result))
            env_shard.renew(slot - first, begun=counts_as_reset(function, args))
        except ENV_ERRORS as exc:
            results.append(RemoteFailure.capture(slot, _described(function, args), exc, portable=remote))
    return results


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


def close_envs(envs: Sequence[Any], first: int, *, remote: bool) -> list[RemoteFailure]:
    """Close every env, or the one batched env, and return the failures."""
    failures = []
    for slot, env in enumerate(envs, first):
        try:
            run(env.close)
        except ENV_ERRORS as exc:
            failures.append(RemoteFailure.capture(slot, "close", exc, portable=remote))
    return failures
