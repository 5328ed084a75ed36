"""The server's actor and the explorers' handles as plain objects: queues, memory, places, and the order of the end."""

from __future__ import annotations

import asyncio
import secrets
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from numbered import ACTION, OBS, transitions

from vecenvs.backends.ray.actor import ActorLocation
from vecenvs.replay import Replay, ReplayServer, replay
from vecenvs.replay.explorers import ExplorerHandle, Explorers
from vecenvs.replay.server_actor import ServerActor
from vecenvs.transport.memory import Address, Segment


def actor(min_size: int = 1, **buffer: Any) -> ServerActor:
    """Return a server's actor that is no actor."""
    return ServerActor((OBS, ACTION), 100, buffer, (None, min_size, 1.0), [])


class Slow:
    """A throttle that delays each insert but the first one a little."""

    allowed_from = 0.0

    def delay(self, now: float) -> float:
        return max(self.allowed_from - now, 0.0)

    def add_insert(self, now: float, seconds: float) -> None:
        self.allowed_from = now + 0.01


def test_every_throttled_insert_is_stored_in_its_turn() -> None:
    """Each is looked at again after its delay, the second one too."""
    server = actor()
    server._throttle = Slow()  # type: ignore[assignment]

    async def insert() -> list[tuple[int, list[Any]]]:
        calls = [server.insert(server.buffer.schema.pack(transitions(k, k + 2)), 0) for k in range(0, 8, 2)]
        return await asyncio.wait_for(asyncio.gather(*calls), 5.0)

    assert asyncio.run(insert()) == [(0, [])] * 4
    assert len(server.buffer) == 8
    assert asyncio.run(server.stats())["waiting_inserts"] == 0


def test_a_memory_that_it_cannot_open_is_told() -> None:
    """In words, by which rows come as messages, whether it is not there or another one."""
    server = actor()
    shape = (2, 4, 4)
    missing = asyncio.run(server.open_memory(Address("/proc/1/fd/987654", 4096), b"", shape))
    assert missing.startswith(("FileNotFoundError: ", "PermissionError: "))
    segment = Segment(4096)
    token = secrets.token_bytes(16)
    assert "is not the learner's memory" in asyncio.run(server.open_memory(segment.address, token, shape))
    segment.buffer[:16] = token
    assert "ValueError" in asyncio.run(server.open_memory(segment.address, token, (2, 400, 4)))
    assert not asyncio.run(server.open_memory(segment.address, token, shape))


def test_stats_of_an_explorer_name_its_place_once_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none before."""
    monkeypatch.setattr("vecenvs.replay.explorers.Placement", lambda *_: None)
    explorers = object.__new__(Explorers)
    handle = ExplorerHandle(0, 0, None, None)  # type: ignore[arg-type]
    vars(explorers).update(_lock=threading.Lock(), _handles=[handle])
    (before,) = explorers.stats()
    assert (before["node"], before["pid"]) == (None, None)
    handle.set_location(ActorLocation("far", "10.0.0.7", 7, 1), "here")
    (after,) = explorers.stats()
    assert (after["node"], after["pid"]) == ("far", 7)
    assert handle.process is None, "a process of another machine"


def test_explorers_end_before_what_they_send_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would lose its last fragments, and be replaced meanwhile."""
    ended: list[str] = []

    def end(name: str) -> Any:
        return lambda: ended.append(name)

    def serve(self: Any, *_: Any, **__: Any) -> None:
        self._parts, self.actor, self.closed = [end("server")], None, False
        self._finalizer = SimpleNamespace(cancel=lambda: True)

    explorers = SimpleNamespace(spaces=(OBS, ACTION), stop=end("explorers"), begin=lambda _: None)
    session = SimpleNamespace(own=True, node="here", release=end("Ray"))
    monkeypatch.setattr(replay, "Session", lambda *_: session)
    monkeypatch.setattr(replay, "Request", lambda *_: None)
    for imports_ray in ("check_ray", "check_options"):
        monkeypatch.setattr(replay, imports_ray, lambda *_: None)
    monkeypatch.setattr(replay, "Explorers", lambda *_: explorers)
    monkeypatch.setattr(ReplayServer, "__init__", serve)
    started = Replay(lambda _: None, lambda *_: None, 2, capacity=10)  # type: ignore[arg-type, return-value]
    started.stop()
    started.stop()
    assert ended == ["explorers", "server", "Ray"]
