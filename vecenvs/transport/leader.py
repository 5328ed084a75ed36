"""The leader of a node: it passes messages on between a caller on another machine and the workers of its own.

It has the columns of its node's workers in shared memory and a pair of rings for each, as a caller has on its own node.
Frames from the caller go to the workers at once. Answers are gathered: those to one step of all envs travel together.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from vecenvs.transport.channel import Channel
from vecenvs.transport.encoding import slots_in
from vecenvs.transport.frames import Entry, Frames, Run
from vecenvs.transport.node_link import ABOUT_MEMBERS, LeaderSpec
from vecenvs.transport.pickling import dumps, loads
from vecenvs.transport.protocol import OF_SHARD, OF_SOME, Answer, Command
from vecenvs.transport.shared import FULL_PAUSE, Names, Rings, RingsSpec, SharedBatchColumns
from vecenvs.transport.spinning import NEVER

# Seconds that an answer waits for those of other workers: to a step of all envs, to a step of some.
_ALL, _SOME = 5e-3, 2e-4
# Seconds between looks for answers of workers that do not wake the leader: while they step, and otherwise.
_STEPPING, _IDLE = 2e-4, 5e-3
_STEP, _STEP_SOME = int(Command.STEP), int(Command.STEP_SOME)


class Leader:
    """The columns and the rings of the node's workers. `LeaderSpec` is the caller's."""

    def __init__(self, spec: LeaderSpec) -> None:
        self._batch = SharedBatchColumns(
            spec.observation_space, spec.action_space, spec.n, spec.info_attrs, spec.wake, finals=False
        )
        self._shards: dict[int, range] = {}
        self._commands = Frames.of_commands(self._batch, self._shards)
        self._answers = Frames.of_answers(self._batch, self._shards)
        self._members: dict[int, _Member] = {}
        self._first_members = spec.members
        self._opened: set[int] = set()
        self._about_members: dict[str, Callable[..., None]] = {
            "open": self._on_open, "opened": self._on_opened, "remove": self._on_remove,
        }  # fmt: skip
        self._replies: deque[Entry] = deque()  # of the leader itself

    def serve(self, channel: Channel) -> None:
        """Serve until the caller hangs up, which is an EOFError or a ConnectionError."""
        threading.Thread(target=self._gather, args=(channel,), name="vecenvs-gather", daemon=True).start()
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        while True:
            # Not `any` of a generator: each is to send what it can.
            waiting = [member for member in list(self._members.values()) if not member.rings.down.flush()]
            if poll.poll(1e3 * FULL_PAUSE if waiting else None):
                for run in self._commands.unpack(memoryview(channel.recv_bytes())):
                    self._pass_on(run)

    def close(self) -> None:
        """Remove the names by which workers find the memory. Repeatable."""
        self._batch.forget()
        for member in self._members.values():
            member.rings.forget()

    # Commands. Any of them may come twice: see `NodeLink.flush`.

    def _pass_on(self, run: Run) -> None:
        members, number, tag, data = run
        if members[0] == ABOUT_MEMBERS:
            what, *rest = loads(data)
            self._about_members[what](*rest)
            return
        for member in members:
            if member in self._members:  # else it has been removed
                self._members[member].put(number, tag, data)

    def _on_open(self, number: int, shard: range, names: Names, spin: float) -> None:
        """Make the rings of a worker; the reply has what it needs to open them, or why there are none."""
        if number in self._members:
            return
        self._shards[number] = shard
        names = names._replace(wake=self._batch.wake.name)
        try:
            rings = Rings(self._batch, shard, names, (NEVER, spin), always=True)
        except OSError as exc:
            answer: RingsSpec | str = f"{type(exc).__name__}: {exc}"
        else:
            self._members[number] = _Member(number, rings, len(shard))
            answer = rings.spec
        self._replies.append((number, 0, int(Answer.REPLY), dumps(answer)))
        self._batch.wake.release()

    def _on_opened(self, number: int) -> None:
        """Forget the names of a worker's rings: it has opened them, or cannot."""
        if number in self._members:
            self._members[number].rings.forget()
        self._opened.add(number)
        if len(self._opened) == self._first_members:
            self._batch.forget(memory=False)

    def _on_remove(self, number: int) -> None:
        """Forget a worker that has ended, or that the caller reaches in another way."""
        member = self._members.pop(number, None)
        if member is not None:
            member.rings.forget()

    # Answers

    def _gather(self, channel: Channel) -> None:
        wake = self._batch.wake
        held: list[Entry] = []
        since, seconds = 0.0, self._rest()
        while True:
            wake.wait(seconds)
            while wake.acquire(False):
                continue
            before, urgent = len(held), bool(self._replies)
            while self._replies:
                held.append(self._replies.popleft())
            for member in list(self._members.values()):
                urgent = member.collect(held) or urgent
            seconds = self._rest()
            if held:
                now = time.monotonic()
                since = since if before else now
                left = 0.0 if urgent else since + self._most_wait() - now
                if left > 0:
                    seconds = left if seconds is None else min(left, seconds)
                    continue
                held.sort(key=itemgetter(0))  # those of one worker stay in order; adjacent rows are one block
                try:
                    channel.send_bytes(self._answers.pack(held))
                except BrokenPipeError:  # `serve` sees it, too
                    return
                held.clear()

    def _rest(self) -> float | None:
        """Return how long to wait for the semaphore; None where every worker releases it."""
        silent = [member for member in list(self._members.values()) if not member.rings.wakes]
        if not silent:
            return None
        return _STEPPING if any(member.due for member in silent) else _IDLE

    def _most_wait(self) -> float:
        """Return how long rows may be held back: not at all if no worker is stepping."""
        return min((member.patience for member in list(self._members.values()) if member.due), default=0.0)


class _Member:
    """A worker of the node. Commands are put by one thread, answers collected by another."""

    def __init__(self, number: int, rings: Rings, size: int) -> None:
        self.rings = rings
        self.due: dict[int, int] = {}  # by the number of a step: how many rows are missing
        self.patience = 0.0  # how long the rows of the last step may wait for those of other workers
        self._number = number
        self._size = size
        self._last = -(2**62)  # the number of the last command

    def put(self, number: int, tag: int, data: bytes | memoryview) -> None:
        """Send a command, unless it has come before; `rings.down.flush` sends it if there is no room in the ring."""
        if number <= self._last:
            return
        self._last = number
        if tag == _STEP:
            self.due[number], self.patience = self._size, _ALL
        elif tag & 0xFF == _STEP_SOME:
            self.due[number], self.patience = len(slots_in(tag, data)), _SOME
        if data or not self.rings.down.enter(number, tag):
            self.rings.down.put(number, tag, data)

    def collect(self, found: list[Entry]) -> bool:
        """Append all answers that have come. Return whether one is not about rows: it does not wait for others."""
        urgent = False
        up = self.rings.up
        while (message := up.get(0)) is not None:
            number, tag, data = message
            found.append((self._number, number, tag, data or b""))
            up.take()
            if tag & 0xFF in OF_SHARD:
                self.due.pop(number, None)
            elif tag & 0xFF in OF_SOME:
                left = self.due.pop(number, 0) - len(slots_in(tag, data))
                if left > 0:
                    self.due[number] = left
            else:
                urgent = True
        return urgent
