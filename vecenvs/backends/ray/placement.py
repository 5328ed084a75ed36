"""What actors request of a cluster, and why one may wait for its place."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from vecenvs.backends.ray.actor import ActorLocation, EnvActor
from vecenvs.backends.ray.cluster import shorten
from vecenvs.errors import BackendUnavailable
from vecenvs.worker.process import HeldSignals

# Options that the user may not set, so that for every worker it holds: a step is never carried out twice, no worker
# outlives its VecEnv, methods run on the main thread.
FIXED = ("max_restarts", "max_task_retries", "max_concurrency", "concurrency_groups", "lifetime", "name", "namespace")

OTHER_NEEDS = ("label_selector", "fallback_strategy", "runtime_env")
SETUP_LOG = "/tmp/ray/session_latest/logs/runtime_env_setup-*.log"
LOOK = 0.2  # seconds between looks at how long it takes


class NoPlace(BackendUnavailable):
    """Ray has no place for an actor, or has found none in time."""


class Request:
    """The options and the placement of actors that a user at `node` wants, told to Ray and, in words, to the user.

    `placement` is None for Ray's default, "local" for that node, "spread" for Ray's SPREAD, a placement group, or one
    of Ray's own strategies. `seconds` are how long an actor may wait for a place (see `Placement`); `options_name` is
    the argument that `options` came by. `check_options` has passed both.
    """

    def __init__(
        self, options: Mapping[str, Any], placement: Any, node: str, seconds: float, options_name: str
    ) -> None:
        self._options = dict(options)
        self._strategy = _strategy(placement, node)
        self.seconds = seconds
        self._options_name = options_name
        self._node = node
        # Those without CPUs of their own have another one: their places are no sign that others will find one.
        self.queue, self._sharing = PlacementQueue(), PlacementQueue()
        self._classes: dict[type, Any] = {}  # Ray has to be told of a class once
        # Whether it needs nothing: there is a place for it on any node, and it never waits for more than its process.
        others = [name for name in OTHER_NEEDS if self._options.get(name)]
        self.needs_nothing = not self._needs() and not others and self._strategy in (None, "SPREAD")

    @property
    def bound_for(self) -> str | None:
        """The node to which it is tied, if any."""
        return getattr(self._strategy, "node_id", None)

    def without_cpus(self, node: str) -> Request:
        """Return the request of an actor on `node` that shares CPUs which others hold.

        Whatever else it needs it must have, and then any node that has it will do.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {**self._options, "num_cpus": 0}
        shared = Request(options, None, self._node, self.seconds, self._options_name)
        if shared.needs_nothing:  # Soft: should this node be lost as well, Ray takes another one.
            shared._strategy = NodeAffinitySchedulingStrategy(node, soft=True)
        shared.queue = self._sharing
        return shared

    def for_leader(self, node: str) -> Request:
        """Return the request of the leader of a node, which needs none of its resources."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {name: value for name, value in self._options.items() if name == "runtime_env"} | {"num_cpus": 0}
        tied = NodeAffinitySchedulingStrategy(node, soft=False)
        return Request(options, tied, self._node, self.seconds, self._options_name)

    def actor_class(self, cls: type) -> Any:
        """Return an actor class with these options and this placement."""
        import ray

        if cls not in self._classes:
            where = {} if self._strategy is None else {"scheduling_strategy": self._strategy}
            self._classes[cls] = ray.remote(cls).options(
                **{**self._options, **where, "max_restarts": 0, "max_task_retries": 0}
            )
        return self._classes[cls]

    def explain(self, who: str, words: str, seconds: float) -> str:
        """Return what `who` needs, why it has no place, and what to do. `words` is what Ray says of it, if anything."""
        when, words = ("", f" (Ray: {words})") if words else (f" within {seconds:g} s", "")
        return (
            f"Ray has found no place for {who}{when}: {self.why()}{words}. It needs "
            f"{_join(self._needs())}. Have fewer of them, ask for less ({self._options_name}, placement), free or add "
            "nodes, or give a longer ready_timeout where nodes are still being added"
        )

    def explain_setup(self, who: str, words: str) -> str:
        """Return that the runtime_env of `who` cannot be set up, by the last line of what Ray says of it."""
        last = [line.strip() for line in words.splitlines() if line.strip()][-1]
        return (
            f"Ray cannot set up the runtime_env of {who} ({last}): correct {self._options_name}['runtime_env']. "
            f"{SETUP_LOG} on its node has more"
        )

    def _needs(self) -> dict[str, float]:
        """Return the amounts that an actor needs, by resource."""
        options = self._options
        amounts = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
        amounts |= options.get("resources") or {}
        if options.get("accelerator_type"):
            amounts[f"accelerator_type:{options['accelerator_type']}"] = 0.001  # as Ray counts it
        return {name: float(amount) for name, amount in amounts.items() if amount}

    def why(self) -> str:
        """Return why an actor may have no place."""
        import ray

        group = getattr(self._strategy, "placement_group", None)
        if group is not None:
            return _why_in_group(group)
        needs, only = self._needs(), self.bound_for
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and only in (None, node["NodeID"])]
        if not nodes:
            return f"no living node is {only}, to which placement ties it"
        where = "the whole cluster" if only is None else f"node {only[:8]}, to which placement ties it,"
        has = {name: sum(node.get(name, 0.0) for node in nodes) for name in needs}
        if any(has[name] < amount for name, amount in needs.items()):
            short = {name: has[name] for name in needs if has[name] < needs[name]}
            return f"{where} has {_join(short)}, so it can never be"
        if not any(all(node.get(name, 0.0) >= amount for name, amount in needs.items()) for node in nodes):
            return f"none of its {len(nodes)} nodes has all of it at once, so it can never be"
        available = ray.available_resources()
        free = {name: available.get(name, 0.0) for name in needs}
        others = [name for name in OTHER_NEEDS if self._options.get(name)]
        if all(free[name] >= amount for name, amount in needs.items()):
            told = (
                " and ".join(f"{name}={self._options[name]}" for name in others) or "one node that has all of it free"
            )
            if "runtime_env" in others:
                told += f" (if that cannot be set up, Ray says so after some attempts, {SETUP_LOG} on the node at once)"
            return f"what it needs is free, so it waits for {told}"
        return f"of what it needs {_join(free)} is free now, other actors and tasks hold the rest"


class PlacementQueue:
    """Actors that have no place yet, and the time at which one of them found a place last."""

    def __init__(self) -> None:
        self._calls: list[Any] = []
        self._moved = 0.0

    def enter(self, call: Any) -> None:
        """Add an actor by a call to it, which is answered when it runs."""
        self._calls.append(call)

    def leave(self, call: Any) -> None:
        """Remove an actor that is given up."""
        if call in self._calls:
            self._calls.remove(call)

    def moved(self) -> float:
        """Return when an actor has found a place last, by the monotonic clock, as far as it was looked at."""
        import ray

        if self._calls:
            placed, self._calls = ray.wait(self._calls, num_returns=len(self._calls), timeout=0, fetch_local=False)
            if placed:
                self._moved = time.monotonic()
        return self._moved


class Placement:
    """The place of one actor, called `who` in errors, which the answer to its `location` tells.

    It may take `seconds`, by default those of the request, in which none of the actors of the request finds a place:
    where Ray starts many processes on few cores, one after the other does, and none has to hurry.
    """

    def __init__(self, request: Request, actor: Any, who: str, seconds: float | None = None) -> None:
        self._request = request
        self._call = actor.location.remote()
        request.queue.enter(self._call)
        self._who = who
        self.seconds = request.seconds if seconds is None else seconds
        self._since = time.monotonic()
        self._location: ActorLocation | None = None

    def location(self, timeout: float | None) -> ActorLocation | None:
        """Return where the actor runs; None if it has no place yet after `timeout` seconds.

        NoPlace if Ray says that there is none, or has found none in the time allowed; BackendUnavailable if it cannot
        set up the runtime_env. An actor that has died meanwhile raises Ray's RayActorError.
        """
        if self.look(timeout) is None and not self._request.needs_nothing and self.waited() > self.seconds:
            raise NoPlace(self._request.explain(self._who, "", self.seconds))
        return self._location

    def look(self, timeout: float | None = 0.0) -> ActorLocation | None:
        """Return what `location` does, without a limit of time."""
        if self._location is not None:
            return self._location
        import ray

        if ray.wait([self._call], timeout=timeout)[0]:
            try:
                self._location = ray.get(self._call)
            except ray.exceptions.RuntimeEnvSetupError as exc:
                raise BackendUnavailable(self._request.explain_setup(self._who, str(exc))) from None
            except ray.exceptions.ActorUnschedulableError as exc:
                words = str(exc).rstrip(". \n")
                raise NoPlace(self._request.explain(self._who, words, self.seconds)) from None
        return self._location

    def give_up(self) -> None:
        """Note that the actor is about to be killed."""
        self._request.queue.leave(self._call)

    @property
    def found(self) -> bool:
        """Whether it had a place when it was looked at last."""
        return self._location is not None

    def waited(self) -> float:
        """Return for how many seconds neither it nor another actor of its request has found a place."""
        now = time.monotonic()
        waited = now - self._since
        return waited if waited <= self.seconds else now - max(self._since, self._request.queue.moved())

    def wait(self) -> ActorLocation:
        """Wait for the place as long as the request allows. BackendUnavailable also if the actor has died."""
        import ray

        try:
            while (location := self.location(LOOK)) is None:
                continue
        except ray.exceptions.RayActorError as exc:
            raise BackendUnavailable(f"{self._who} did not start: {shorten(str(exc))}") from None
        return location


class PendingActor:
    """An actor that has been requested, and its place on the cluster.

    The arguments are those of its class, and those of a `Placement`.
    """

    def __init__(
        self, request: Request, cls: type, arguments: Sequence[Any], who: str, seconds: float | None = None
    ) -> None:
        with HeldSignals():  # what a handler raises within Ray's own code leaves an actor that nothing refers to
            self.actor = request.actor_class(cls).remote(*arguments)
        self.request = request
        self.placement = Placement(request, self.actor, who, seconds)
        self.again = partial(PendingActor, request, cls, arguments, who, seconds)  # makes another one


def _why_in_group(group: Any) -> str:
    from ray.util.placement_group import placement_group_table

    state = placement_group_table(group).get("state", "unknown")
    bundles = "its placement group of " + " + ".join(_join(bundle) for bundle in group.bundle_specs)
    if state != "CREATED":
        return f"{bundles} has no place itself (Ray says {state})"
    return f"{bundles} has no room for it now, other actors and tasks hold that"


def _join(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing in particular"


def check_options(options: Any, placement: Any, options_name: str) -> None:
    """Refuse options and placements that no actor can have, before a Ray is started."""
    from ray.util.placement_group import PlacementGroup

    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"{options_name} must be a mapping of options of Ray's actors, or None, not {options!r}")
    fixed = sorted(name for name in FIXED if name in (options or {}))
    if fixed:
        raise ValueError(
            f"{options_name} must not have {', '.join(fixed)}: these are set here, so that no step is carried out "
            "twice and no worker outlives its owner. Workers that die are replaced by on_failure='restart', "
            "explorers by max_restarts"
        )
    if isinstance(placement, str) and placement not in ("local", "spread"):
        raise ValueError(f"placement {placement!r} is neither 'local' nor 'spread' nor one of Ray's strategies")
    _check_with_ray(options_name, options or {})
    if not isinstance(placement, (str, PlacementGroup)):
        _check_with_ray("placement", {"scheduling_strategy": placement})


def _check_with_ray(name: str, options: Mapping[str, Any]) -> None:
    import ray

    try:
        ray.remote(EnvActor).options(**options)
    except (TypeError, ValueError) as exc:
        raise type(exc)(f"{name}: {exc}") from None


def _strategy(placement: Any, node: str) -> Any:
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    if isinstance(placement, PlacementGroup):
        return PlacementGroupSchedulingStrategy(placement)
    if isinstance(placement, str):
        return "SPREAD" if placement == "spread" else NodeAffinitySchedulingStrategy(node, soft=False)
    return placement
