"""Counting the users of a Ray, and saying why an actor waits: what needs no Ray that runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vecenvs.backends.ray import cluster
from vecenvs.backends.ray.actors import Actors
from vecenvs.backends.ray.cluster import Session
from vecenvs.backends.ray.placement import NoPlace, Request


def request(**options: Any) -> Request:
    return Request(options, None, "here", 1.0, "actor_options")


def test_a_ray_is_stopped_with_its_last_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the first one, and not twice; a Ray that was joined is left."""
    running: list[str] = []
    jobs = {"job": 1}
    context = SimpleNamespace(
        get_node_id=lambda: running[-1], get_job_id=lambda: str(jobs["job"]), gcs_address="10.0.0.7:6379"
    )
    for name, value in (
        ("is_initialized", lambda: bool(running)),
        ("get_runtime_context", lambda: context),
        ("shutdown", running.clear),
    ):
        monkeypatch.setattr(f"ray.{name}", value)
    monkeypatch.setattr(cluster, "close_before_hooks", lambda: None)
    for name, value in (("_used", ("", "")), ("_connected", False), ("_own", False), ("_users", 0)):
        monkeypatch.setattr(Session, name, value)
    started = 0

    def connect(*_: Any) -> bool:
        nonlocal started
        started += 1
        running.append(f"node {started}")
        return True

    monkeypatch.setattr(cluster, "connect", connect)
    first, second = Session(2, None), Session(2, None)
    assert started == 1
    first.release()
    first.release()
    assert running
    third = Session(2, None)
    second.release()
    assert running
    third.release()
    assert not running
    fourth = Session(2, None)
    assert (started, fourth.own) == (2, True)
    fourth.release()
    assert not running
    running.append("its user's own")
    fifth = Session(2, None)
    assert not fifth.own
    fifth.release()
    assert running
    running.clear()

    def join(*_: Any) -> bool:
        running.append("the node of a cluster")
        jobs["job"] += 1
        return False

    monkeypatch.setattr(cluster, "connect", join)
    for _ in range(3):
        Session(2, None).release()
        assert not running
    sixth = Session(2, None)
    running.clear()  # by its user
    seventh = Session(2, None)
    sixth.release()
    assert running
    seventh.release()
    assert not running


def test_it_begins_with_as_many_as_asked_for() -> None:
    """Exactly `min_workers` are enough; one less is waited for, and an error once the time is over."""
    actors = Actors(SimpleNamespace(), request(num_cpus=1), "auto", 0, "wait", 2, 1)  # type: ignore[arg-type]
    actors.request.explain = lambda who, *_: who  # type: ignore[method-assign]
    for placed in range(4):
        actors.by_worker = {worker: SimpleNamespace(placed=worker < placed) for worker in range(3)}  # type: ignore[misc]
        assert actors.begins(0.5) == (placed >= 2)
    actors.by_worker[0].placed = actors.by_worker[1].placed = False
    with pytest.raises(NoPlace, match="^1 of the 2 workers"):
        actors.begins(1.5)
    actors.min_workers = None
    assert actors.begins(0.0)


def test_what_it_waits_for_is_said_by_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as it needs is enough: then it waits for something else."""
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "NodeID": "here", "Resources": {"CPU": 4.0}}])
    for free, told in (
        (2.0, "what it needs is free, so it waits for one node that has all of it free"),
        (3.0, "what it needs is free, so it waits for one node that has all of it free"),
        (1.0, "of what it needs 1 CPU is free now, other actors and tasks hold the rest"),
    ):
        monkeypatch.setattr("ray.available_resources", lambda free=free: {"CPU": free})
        assert request(num_cpus=2).why() == told
    assert request(num_cpus=4).why().startswith("of what it needs 1 CPU is free now")
    assert request(num_cpus=5).why() == "the whole cluster has 4 CPU, so it can never be"
