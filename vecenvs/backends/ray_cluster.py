"""Being a guest on somebody's Ray, or having one of one's own: connect, count, explain, stop only what was started."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from vecenvs.cpus import usable_cores
from vecenvs.errors import BackendUnavailable, describe_indices

# A Ray of our own is for these workers alone: no ping home, and workers at the caller's own priority.
OWN_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
OWN_ARGUMENTS: dict[str, Any] = {"include_dashboard": False, "logging_level": "error"}


# What must hold for every worker: a step is never carried out twice, no worker outlives its VecEnv, methods run on the
# main thread. So these options are not for the user to set.
FIXED = ("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime", "name", "namespace")


class Session:
    """A connection to Ray, as one VecEnv sees it. `node` is the caller's node; `own`: whether Ray was started here.

    The VecEnvs of one process share what was started for them: the last one to `release` stops it. A Ray that was
    running, or connected to, before is left as it is.
    """

    # Of the Ray that this process's VecEnvs use at the moment: the caller's node in it, and what follows.
    _node = ""
    _connected = False  # whether this process's connection is ours to end
    _own = False
    _users = 0

    def __init__(self, num_workers: int | None, init_kwargs: Mapping[str, Any] | None) -> None:
        import ray

        connected = own = False
        if not ray.is_initialized():
            own = connect(num_workers, dict(init_kwargs or {}))
            connected = True
        self.node: str = ray.get_runtime_context().get_node_id()
        if self.node != Session._node:  # not the one that others here have used: that has been shut down since
            Session._node, Session._connected, Session._own, Session._users = self.node, connected, own, 0
        Session._users += 1
        self._held = True
        self.pid = os.getpid()
        self.own = Session._own

    def alive(self) -> bool:
        """Tell whether this is still the Ray it was: else every call would start another one. False in a fork."""
        import ray

        return (
            self.pid == os.getpid()
            and bool(ray.is_initialized())
            and ray.get_runtime_context().get_node_id() == self.node
        )

    def release(self) -> None:
        """Say that this VecEnv needs Ray no longer. Repeatable."""
        if self._held and self.pid == os.getpid():
            self._held = False
            if self.alive():  # else its Ray is gone, and the count is another one's
                Session._users -= 1
                if not Session._users:
                    self.shut_down()

    @classmethod
    def shut_down(cls) -> None:
        """End the connection, and with it a Ray that was started here, if it is ours. Repeatable."""
        import ray

        if cls._connected:
            cls._connected = cls._own = False
            ray.shutdown()


def connect(num_workers: int | None, kwargs: dict[str, Any]) -> bool:
    """Join the cluster that `address` or RAY_ADDRESS names, or that `ray start` has begun here; else start one.

    Tells whether one was started.
    """
    import ray

    quiet = {"logging_level": OWN_ARGUMENTS["logging_level"], **kwargs}
    if "address" in kwargs:
        ray.init(**quiet)
        return bool(kwargs["address"] == "local")
    # Only for the processes that are started now: whoever starts a Ray later decides anew.
    added = {name: value for name, value in OWN_ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        # Not address="auto": that would join the private Ray of any other program that runs here, and die with it.
        ray.init(**{**OWN_ARGUMENTS, "num_cpus": max(usable_cores(), num_workers or 1), **kwargs})
    except ValueError:  # there is a cluster: on that nobody can order CPUs
        ray.init(**quiet)
        return False
    finally:
        for name in added:
            del os.environ[name]
    return True


def default_workers(num_envs: int, num_cpus: float) -> int:
    """As many workers of `num_cpus` each as the cluster has room for in all, at most one per env."""
    import ray

    room = ray.cluster_resources().get("CPU", 1.0) / num_cpus if num_cpus else usable_cores()
    return max(1, min(num_envs, int(room)))


def explain_waiting(shard: range, options: Mapping[str, Any], seconds: float) -> str:
    """Say why Ray may not have placed a worker, and what to do about it."""
    import ray

    needs = _needs(options)
    has, free = ray.cluster_resources(), ray.available_resources()
    short = [name for name, amount in needs.items() if has.get(name, 0.0) < amount]
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = [node for node in nodes if all(node.get(name, 0.0) >= amount for name, amount in needs.items())]
    if short:
        why = f"the whole cluster has {_describe(has, short)}, so it can never be"
    elif not fitting:
        why = f"none of its {len(nodes)} nodes has all of that at once, so it can never be"
    else:
        why = f"of that {_describe(free, needs)} is free now: other actors and tasks hold the rest"
    return (
        f"Ray has found no place for the worker of envs {describe_indices(shard)} within {seconds:g} s. It needs "
        f"{_describe(needs, needs)}; {why}. Give a smaller num_workers, ask for less (num_cpus in actor_options), "
        "free or add nodes, or give a longer ready_timeout where an autoscaler is still adding them"
    )


def _needs(options: Mapping[str, Any]) -> dict[str, float]:
    needs = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus") or 0, **(options.get("resources") or {})}
    return {name: float(amount) for name, amount in needs.items() if amount}


def _describe(amounts: Mapping[str, float], names: Any) -> str:
    return ", ".join(f"{amounts.get(name, 0.0):g} {name}" for name in names) or "nothing in particular"


def shorten(words: str) -> str:
    """The first sentence or so of what Ray says of an actor's end, without the list of its properties."""
    lines = [line.strip() for line in words.splitlines() if line.strip() and not line.startswith("\t")]
    telling = [line for line in lines if "Worker exit type" in line or "node" in line.lower()] or lines
    return textwrap.shorten(telling[0], 200, placeholder=" ...") if telling else ""


def remote_class(cls: type, options: Mapping[str, Any], placement: Any, node: str) -> Callable[..., Any]:
    """Make an actor class with the user's options, and with what must hold for a worker of envs."""
    import ray

    fixed = sorted(name for name in FIXED if name in options)
    if fixed:
        raise ValueError(
            f"actor_options must not have {', '.join(fixed)}: the VecEnv sets these, so that no step is carried out "
            "twice and no worker outlives it. on_failure='restart' replaces workers that die"
        )
    strategy = {} if placement is None else {"scheduling_strategy": _strategy(placement, node)}
    never = {"max_restarts": 0, "max_task_retries": 0}
    made: Callable[..., Any] = ray.remote(cls).options(**{**options, **strategy, **never})
    return made


def _strategy(placement: Any, node: str) -> Any:
    """None for Ray's default; "local" is the caller's node, "spread" Ray's SPREAD; also Ray's own strategies."""
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    if isinstance(placement, PlacementGroup):
        return PlacementGroupSchedulingStrategy(placement)
    if isinstance(placement, str):
        if placement not in ("local", "spread"):
            raise ValueError(f"placement {placement!r} is neither 'local' nor 'spread' nor one of Ray's strategies")
        return "SPREAD" if placement == "spread" else NodeAffinitySchedulingStrategy(node, soft=False)
    return placement


def check_ray() -> None:
    """Raise BackendUnavailable, with the remedy, if Ray is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError as exc:
        raise BackendUnavailable(f"the ray backend needs Ray ({exc}): pip install 'vecenvs[ray]'") from exc
