"""Find out which kind of host a batched env is."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AsyncVectorEnv, VectorEnv

from vecenvs.errors import VecEnvError
from vecenvs.vec_env import VecEnv, batched_env_hint
from vecenvs.worker.hosts.batched_host import MODES, BatchedHost, GymnasiumHost, mode_of, shown_by
from vecenvs.worker.hosts.batched_vec_env import VecEnvHost
from vecenvs.worker.hosts.envpool_host import EnvPoolHost, is_envpool


def make_host(env: Any, num_envs: int, first: int, autoreset: str | None = None) -> BatchedHost:
    """Return the host of a batched env. VecEnvError, with the remedy, if it is none or has another number of envs.

    `first` is the number of its first env, and `autoreset` its mode if it does not say so itself.
    """
    env = shown_by(env) or env
    kind = type(env).__name__
    missing = [name for name in ("reset", "step") if not callable(getattr(env, name, None))]
    if missing:
        raise VecEnvError(f"the function in Batched gave a {kind} without {' and '.join(map(repr, missing))}")
    found = getattr(env, "num_envs", None)
    if found is None:
        raise VecEnvError(
            f"the function in Batched gave a {kind}, which does not tell its `num_envs`: a single env's function is "
            "given as it is, without Batched"
        )
    if int(found) != num_envs:
        raise VecEnvError(f"Batched says {num_envs} envs, but its function gave a {kind} of {int(found)}")
    if isinstance(getattr(env, "unwrapped", None), AsyncVectorEnv):
        raise VecEnvError(
            f"the function in Batched gave a {kind}, which has a process for each env: {batched_env_hint(env)}"
        )
    if hasattr(env, "step_async") and not isinstance(env, (VecEnv, VectorEnv)):
        raise VecEnvError(
            f"the function in Batched gave a {kind}, a VecEnv of Stable-Baselines3 or baselines: "
            f"{batched_env_hint(env)}"
        )
    declared = mode_of(env)
    if autoreset is not None and declared not in (None, autoreset):
        raise VecEnvError(f"Batched says autoreset={autoreset!r}, but its function gave a {kind} of {declared!r}")
    if isinstance(env, VecEnv):
        if hasattr(env.unwrapped, "multi"):
            raise VecEnvError(
                f"the function in Batched gave a {kind} of agents' rows, some of which are no transitions: give the "
                "functions of the envs to make_multi_agent, without Batched, and take flat() of that"
            )
        return VecEnvHost(env, num_envs)
    if is_envpool(env):
        return EnvPoolHost(env, num_envs, first)
    if isinstance(env, VectorEnv) and declared is None and autoreset is None:
        raise VecEnvError(
            f"{kind} does not say what it does at the end of an episode: its metadata have no 'autoreset_mode'. "
            f"Name its mode by Batched(make, {num_envs}, autoreset={' or '.join(map(repr, MODES.values()))})"
        )
    return (GymnasiumHost if isinstance(env, VectorEnv) else BatchedHost)(env, num_envs, autoreset)
