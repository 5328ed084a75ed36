"""The server's actor and the explorers' handles as plain objects: queues, memory, places, and the order of the end."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from numbered import ACTION, OBS, transitions

from vecenvs.backends.ray.actor import ActorLocation
from vecenvs.replay import ExplorerDied, Replay, ReplayServer, SampleTimeout, replay
from vecenvs.replay.explorers import ExplorerHandle, Explorers
from vecenvs.replay.prefetcher import Prefetcher
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


class Local:
    """A server's actor behind the interface of Ray's handles: each call is answered at once."""

    def __init__(self, served: ServerActor) -> None:
        self.served = served

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: [asyncio.run(getattr(self.served, name)(*args))])


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let calls of Local be answered in their order, and return the list of them: at most a hundred."""
    answers: list[Any] = []

    def wait(calls: list[Any], timeout: float | None) -> tuple[list[Any], list[Any]]:
        answers.append(calls[0])
        assert len(answers) < 100
        return calls[:1], calls[1:]

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(wait=wait, get=lambda call, timeout: call[0]))
    return answers


def test_batches_after_a_restore_that_was_interrupted(answers: list[Any], tmp_path: Path) -> None:
    """Those of the server's restore, though the caller does not know its number."""
    server = actor()
    server.buffer.add(transitions(0, 10))
    server.buffer.save(tmp_path / "buffer.npz")
    server.buffer.clear()
    server.buffer.add(transitions(10, 20))
    prefetcher = Prefetcher(Local(server), server.buffer.schema, server.buffer.drawn_words, 4, 1)
    assert prefetcher.take(0.4, None, lambda: None)["reward"].min() >= 10
    asyncio.run(server.restore(str(tmp_path / "buffer.npz")))
    *_, batch = [prefetcher.take(0.4, None, lambda: None) for _ in range(4)]
    assert batch["reward"].max() < 10
    assert len(answers) == 5


def test_a_wait_for_newer_batches_ends(answers: list[Any]) -> None:
    """By a timeout, or by what `check` raises, although older ones come all the time."""
    server = actor()
    server.buffer.add(transitions(0, 10))
    prefetcher = Prefetcher(Local(server), server.buffer.schema, server.buffer.drawn_words, 4, 1)
    prefetcher.restart(7)
    with pytest.raises(SampleTimeout):
        prefetcher.take(0.4, 0.0, lambda: None)
    checks = iter([None])
    with pytest.raises(StopIteration):
        prefetcher.take(0.4, None, lambda: next(checks))
    assert answers


def test_a_ctrl_c_during_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after the end of all explorers: they would explore on in a Ray that stays."""
    killed: list[Any] = []

    def wait(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(wait=wait, kill=killed.append))
    monkeypatch.setattr("vecenvs.replay.explorers.link.end_actor", lambda *_: None)
    explorers = object.__new__(Explorers)
    actors = [SimpleNamespace(close=SimpleNamespace(remote=lambda: None)) for _ in range(2)]
    handles = [SimpleNamespace(actor=actor, location="here", process=None) for actor in actors]
    session = SimpleNamespace(pid=os.getpid(), alive=lambda: True)
    thread = threading.Thread()
    vars(explorers).update(_stopping=threading.Event(), _thread=thread, _handles=handles, _session=session)
    server = object.__new__(ReplayServer)
    ended: list[str] = []
    finalizer = SimpleNamespace(cancel=lambda: signal.raise_signal(signal.SIGINT) or True)
    vars(server).update(closed=False, _finalizer=finalizer, _parts=[explorers.stop, lambda: ended.append("server")])
    with pytest.raises(KeyboardInterrupt):
        explorers.stop()
    assert killed == actors
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert ended == ["server"]


def test_an_explorer_that_dies_at_the_start() -> None:
    """No replacement has been made, and `max_restarts` is no remedy."""
    text = str(ExplorerDied(1, "while starting: killed", None))
    assert "(while starting: killed) and is not replaced: explorers are replaced once all have started" in text
    assert "max_restarts" not in text
