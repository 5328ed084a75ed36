"""What a replacement counts, and when what is open is closed: without a worker."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from vecenvs.errors import WorkerDied
from vecenvs.pool.recovery import Recovery, Replacement
from vecenvs.transport import node_link
from vecenvs.transport.node_link import NodeLink


class Workers:
    """Stands for the `Workers` of two envs in one worker, which is dead or moves."""

    def __init__(self, *, moving: bool) -> None:
        self.shards = [range(2)]
        self.transports: list[Any] = [SimpleNamespace(moving=moving, where="")]
        self.processes: list[Any] = [None]
        self.successors: dict[int, Any] = {}

    def died(self, worker: int) -> WorkerDied:
        return WorkerDied(worker, self.shards[worker], -9, "", "lost")


class Owner:
    """Stands for a pool, which knows a new worker's first commands."""

    def first_commands(self, worker: int, restarts: int) -> list[Any]:
        return []


@pytest.mark.parametrize(("moving", "left"), [(True, 1), (False, 0)])
def test_a_worker_that_moves_uses_no_restart(moving: bool, left: int) -> None:
    """It is replaced like one that is dead, and nothing has gone wrong with it."""
    workers, owner = Workers(moving=moving), Owner()
    recovery = Recovery(workers, None, 1, owner.first_commands)  # type: ignore[arg-type]
    assert recovery.died(0) is None
    assert isinstance(workers.transports[0], Replacement)
    assert (recovery.restarts, recovery.left) == (1, left)


def test_a_removed_worker_has_no_message_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that its node's leader had sent by then is for the others alone."""
    monkeypatch.setattr(node_link, "decode", lambda _, body: body)
    frames = deque([[((1, 2), 5, 0, "for both"), ((1,), 6, 0, "for one")], [((2,), 7, 0, "for the other")]])
    link = object.__new__(NodeLink)
    inbox = deque[Any]()
    vars(link).update(
        _outbox=[], unneeded={1}, _inboxes={2: inbox}, _answers=SimpleNamespace(unpack=lambda data, without: data),
        _connection=SimpleNamespace(
            wait=lambda _: frames[0], first=lambda: frames[0] if frames else None, drop=frames.popleft, closed=False,
            flush=lambda: None, has_unsent=False,
        ),
    )  # fmt: skip
    link.receive(1.0, inbox)
    assert [*inbox] == [(5, 0, "for both"), (7, 0, "for the other")]


@pytest.mark.parametrize(("call", "order"), [("", "hook, env"), ("close_before_hooks()", "env, hook")])
def test_envs_are_closed_before_hooks_that_would_end_them(call: str, order: str) -> None:
    """Hooks of atexit run newest first: those of another library come after ours if that is asked for."""
    code = f"""
import atexit
from vecenvs import DummyVecEnv
from vecenvs.pool.finalizers import close_before_hooks
from vecenvs.testing.envs import CountingEnv
ended = []
class Env(CountingEnv):
    def close(self):
        ended.append("env")
atexit.register(lambda: print(*ended, sep=", "))
vec = DummyVecEnv([Env])
close_before_hooks()
atexit.register(ended.append, "hook")
{call}
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == order, output.stderr
