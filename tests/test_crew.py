"""What a group of workers makes of one that is gone: its last messages first, then how it ended and where it was."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import pytest
from gymnasium.spaces import Discrete

from vecenvs.crew import Crew
from vecenvs.errors import EnvError, WorkerDied
from vecenvs.protocol import Answer, Failure, MadeEnvs
from vecenvs.transport import Message, Transport

ROW: Message = (int(Answer.ROW), None)
MADE = MadeEnvs(Discrete(2), Discrete(2), None, {}, None, None)


class Dying(Transport):
    """Has nothing to say until somebody looks whether it lives: then it is dead, and its last words have arrived."""

    where = " on node 7 [killed for its memory]"

    def __init__(self, *words: Message, exitcode: int | None = -9) -> None:
        self._words = words
        self._inbox: deque[Message] = deque()
        self._exitcode = exitcode
        self.dead = False
        self.stopped = False

    def put(self, tag: int, body: object = None) -> None:
        if self.dead:
            raise BrokenPipeError

    def get(self, timeout: float | None) -> Message | None:
        return self._inbox.popleft() if self._inbox else None

    def attach(self, board: Any) -> None:
        raise EOFError

    def exit_status(self) -> tuple[bool, int | None]:
        if not self.dead:
            self.dead = True
            self._inbox.extend(self._words)
        return True, self._exitcode

    def stop(self, grace: float) -> None:
        self.stopped = True


class Launcher:
    """Gives the workers that it was made with."""

    def __init__(self, *workers: Transport) -> None:
        self.workers = workers

    def launch(self, worker: int, shard: range) -> Transport:
        return self.workers[worker]


def crew_of(*workers: Transport) -> tuple[Crew, Launcher]:
    """Make a crew of workers with two envs each; the launcher is to be kept, as a VecEnv would be."""
    launcher = Launcher(*workers)
    crew = Crew([range(2 * k, 2 * k + 2) for k in range(len(workers))], launcher.launch)
    crew.transports.extend(workers)
    return crew, launcher


def expect_all_of_it(error: WorkerDied) -> None:
    assert (error.worker, error.indices, error.exitcode, error.signal) == (0, (0, 1), -9, 9)
    assert "worker 0 on node 7 [killed for its memory] with envs 0, 1 died (signal 9, SIGKILL)" in str(error)


def test_a_wait_for_one_worker_gives_its_last_words() -> None:
    crew, _ = crew_of(Dying(ROW))
    assert crew.get(0, None) == ROW
    with pytest.raises(WorkerDied) as caught:
        crew.get(0, None)
    expect_all_of_it(caught.value)


def test_whoever_looks_after_workers_gives_their_last_words() -> None:
    crew, _ = crew_of(Dying(ROW, ROW), Dying())
    assert crew.look_after([0, 1]) == [(0, ROW), (0, ROW)]
    with pytest.raises(WorkerDied) as caught:
        crew.look_after([0, 1])
    expect_all_of_it(caught.value)


@pytest.mark.parametrize("several", [False, True])
def test_a_rest_gives_their_last_words(several: bool) -> None:
    crew, _ = crew_of(Dying(ROW), Dying())
    workers = [0, 1] if several else [0]
    assert crew.rest(workers, 0.01) == [(0, ROW)]
    with pytest.raises(WorkerDied) as caught:
        crew.rest(workers, 0.01)
    expect_all_of_it(caught.value)


def test_a_command_for_one_that_is_gone() -> None:
    worker = Dying(ROW)
    crew, _ = crew_of(worker)
    worker.exit_status()
    with pytest.raises(WorkerDied) as caught:
        crew.put(0, 1)
    expect_all_of_it(caught.value)
    assert crew.get(0, time.monotonic()) == ROW, "what it said before is still there"


def test_what_envs_raised_while_being_made() -> None:
    """Is the error, not that the worker has left after it has said so."""
    failure = Failure(1, "env 1 raised ToyError in its env function: no", "Traceback ...", None)
    worker = Dying((int(Answer.MADE), failure), exitcode=0)
    launcher = Launcher(worker)
    crew = Crew([range(2)], launcher.launch)
    with pytest.raises(Exception, match="env 1 raised ToyError in its env function: no") as caught:
        crew.start()
    assert not isinstance(caught.value, WorkerDied)


class Late(Dying):
    """Lives, and has made its envs once somebody has looked after another one."""

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
    """By itself: then it has said why, which is heard in its turn. Else that is told at once."""
    failure = Failure(2, "env 2 raised ToyError in its env function: no", "Traceback ...", None)
    gone = Dying((int(Answer.MADE), failure), exitcode=exitcode)
    launcher = Launcher(Late(gone, (int(Answer.MADE), MADE)), gone)
    crew = Crew([range(2), range(2, 4)], launcher.launch)
    with pytest.raises((EnvError, WorkerDied)) as caught:
        crew.start()
    assert isinstance(caught.value, WorkerDied if exitcode else EnvError)


def test_a_worker_that_dies_before_the_columns_stand() -> None:
    launcher = Launcher(Dying((int(Answer.MADE), MADE)))
    crew = Crew([range(2)], launcher.launch)
    crew.start()
    with pytest.raises(WorkerDied) as caught:
        crew.attach(None, None)  # type: ignore[arg-type]
    expect_all_of_it(caught.value)
    assert caught.value.state == "starting"
    assert "Its envs have not been made" in str(caught.value)


def test_what_envs_raised_while_being_closed() -> None:
    """Also of a worker that is gone by the time that somebody looks."""
    failure = Failure(0, "env 0 raised ToyError in close: no", "Traceback ...", None)
    workers = Dying(ROW, (int(Answer.CLOSED), [failure])), Dying()
    crew, _ = crew_of(*workers)
    assert crew.close(5.0) == [failure]
    assert all(worker.stopped for worker in workers)


class Placed(Dying):
    """Is on some CPU, or in the caller's process."""

    def __init__(self, cpu: int | None, *, inline: bool = False) -> None:
        super().__init__()
        self._cpu = cpu
        self.inline = inline

    def cpu(self) -> int | None:
        return self._cpu


@pytest.mark.parametrize(
    ("workers", "order"),
    [
        ([Placed(3), Placed(1), Placed(2)], [1, 2, 0]),
        ([Placed(1), Placed(2), Placed(3)], [0, 1, 2]),
        ([Placed(1), Placed(2)], [0, 1]),  # none beside the caller
        ([Placed(3), Placed(3), Placed(1)], [0, 1, 2]),  # more workers than cores
        ([Placed(None), Placed(None)], [0, 1]),
        ([Placed(3), Placed(1), Placed(None, inline=True)], [1, 0, 2]),
        ([Placed(3), Placed(None, inline=True)], [0, 1]),
    ],
)
def test_the_worker_on_the_callers_core_is_told_last(
    monkeypatch: pytest.MonkeyPatch, workers: list[Placed], order: list[int]
) -> None:
    monkeypatch.setattr("vecenvs.crew.cpu_of", lambda: 3)
    crew, _ = crew_of(*workers)
    crew.arrange()
    assert list(crew.order) == order
    crew.arrange()
    assert list(crew.order) == order


def test_without_knowing_the_callers_core_the_order_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenvs.crew.cpu_of", lambda: None)
    crew, _ = crew_of(Placed(3), Placed(None))
    crew.arrange()
    assert list(crew.order) == [0, 1]
