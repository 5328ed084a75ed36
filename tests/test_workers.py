"""Start workers of which one dies, or has envs that differ from the others."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

import pytest
from gymnasium.spaces import Discrete

from vecenvs.errors import EnvError, SpaceMismatch, WorkerDied
from vecenvs.pool.start_limit import StartLimit
from vecenvs.pool.tally import Tally
from vecenvs.pool.workers import Workers
from vecenvs.transport import Message, Transport
from vecenvs.transport.protocol import Answer, RemoteFailure, ShardSpec
from vecenvs.worker.load import Load

MADE = ShardSpec(Discrete(2), Discrete(2), None, {}, None, None, 1, "here")


def made(body: Any) -> Message:
    return 0, int(Answer.MADE), body


class Dying(Transport):
    """A worker that is dead as soon as its exit status is read. `words`, its last messages, arrive then."""

    where = " on node 7 [killed for its memory]"

    def __init__(self, *words: Message, exitcode: int | None = -9) -> None:
        self._words = words
        self._inbox: deque[Message] = deque()
        self._exitcode = exitcode
        self.dead = False
        self.stopped = False

    def put(self, number: int, tag: int, body: object = None) -> None:
        if self.dead:
            raise BrokenPipeError

    def get(self, timeout: float | None) -> Message | None:
        return self._inbox[0] if self._inbox else None

    def take(self) -> None:
        self._inbox.popleft()

    def attach(self, batch: Any) -> None:
        raise EOFError

    def exit_status(self) -> tuple[bool, int | None]:
        if not self.dead:
            self.dead = True
            self._inbox.extend(self._words)
        return True, self._exitcode

    def stop(self, grace: float) -> None:
        self.stopped = True


class Launcher:
    """Launches the workers that it was made with."""

    def __init__(self, *workers: Transport) -> None:
        self.workers = workers

    def launch(self, worker: int, shard: range) -> Transport:
        return self.workers[worker]


def start(*workers: Transport) -> Any:
    """Start workers with two envs each."""
    launcher = Launcher(*workers)
    shards = [range(2 * k, 2 * k + 2) for k in range(len(workers))]
    return Workers(shards, launcher.launch, 60.0, StartLimit(None, [2] * len(workers))).start()


def test_one_that_dies_while_it_makes_its_envs() -> None:
    with pytest.raises(WorkerDied) as caught:
        start(Dying())
    error = caught.value
    assert (error.worker, error.indices, error.exitcode, error.signal) == (0, (0, 1), -9, 9)
    assert "worker 0 on node 7 [killed for its memory] with envs 0, 1 died (signal 9, SIGKILL)" in str(error)


def test_what_envs_raised_while_being_made() -> None:
    """Raises the env's error, not the exit of the worker that has sent it."""
    failure = RemoteFailure(1, "env 1 raised ToyError in its env function: no", "Traceback ...", None)
    with pytest.raises(Exception, match="env 1 raised ToyError in its env function: no") as caught:
        start(Dying(made(failure), exitcode=0))
    assert not isinstance(caught.value, WorkerDied)


class Late(Dying):
    """A worker that lives, and has made its envs once the other one's exit status has been read."""

    def __init__(self, other: Dying, *words: Message) -> None:
        super().__init__(*words)
        self._other = other
        self._inbox.extend(words)

    def get(self, timeout: float | None) -> Message | None:
        if not self._other.dead:
            time.sleep(timeout or 0.0)
            return None
        return super().get(timeout)

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None


@pytest.mark.parametrize("exitcode", [0, 1])
def test_one_that_has_left_while_another_is_waited_for(exitcode: int) -> None:
    """With exit code 0 it has sent the reason, which is raised in its turn. Any other death is raised at once."""
    failure = RemoteFailure(2, "env 2 raised ToyError in its env function: no", "Traceback ...", None)
    gone = Dying(made(failure), exitcode=exitcode)
    with pytest.raises((EnvError, WorkerDied)) as caught:
        start(Late(gone, made(MADE)), gone)
    assert isinstance(caught.value, WorkerDied if exitcode else EnvError)


class Ready(Dying):
    """A worker that lives and has made its envs."""

    def __init__(self, *words: Message) -> None:
        super().__init__()
        self._inbox.extend(words)

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None


@pytest.mark.parametrize(("second", "mismatch", "blamed"), [
    (Discrete(3), (3, "action_space", Discrete(2), Discrete(3)), 2),
    (Discrete(2), (3, "action_space", Discrete(3), Discrete(2)), 3),
])  # fmt: skip
def test_envs_that_do_not_fit(second: Any, mismatch: Any, blamed: int) -> None:
    """The error names the env that differs from env 0, even if it is not the first one of its worker."""
    theirs = MADE._replace(action_space=second, mismatch=mismatch)
    with pytest.raises(SpaceMismatch) as caught:
        start(Ready(made(MADE)), Ready(made(theirs)))
    assert caught.value.index == blamed


def test_envs_that_wait_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vecenvs")
    tally = Tally([range(4), range(4, 8)])
    tally.steps = 20
    tally.tell(0, Load(0.0, 1.0, 1, 0.05))  # too few steps
    tally.steps = 30
    tally.tell(0, Load(0.0, 1.2, 1, 0.6))  # they compute
    tally.tell(0, Load(0.0, 0.4, 1, 0.01))  # they are fast
    tally.tell(0, Load(None, None, 1))  # they have a concurrency
    assert not caplog.records
    for seconds in (1.2, 2.4):
        tally.tell(1, Load(0.0, seconds, 1, 0.06))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "the envs of worker 1 wait: their steps take 10 ms on average" in caplog.text
    assert "concurrency='threads'" in caplog.text
