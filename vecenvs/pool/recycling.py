"""`Recycle`: workers that have become old are replaced at the end of an episode, by others that have started meanwhile.

A successor is launched beside its worker. When it has made its env, the worker is told to retire: it answers the step
that ends its episode by RETIRED, with the last row, and closes its env. The successor, put in its place as those of
dead workers are (`recovery.Replacement`), gets the same command again, for which it returns that row: what follows the
end of an episode is its own work, in every mode.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import Any

from vecenvs.arguments import parse_int, parse_number
from vecenvs.errors import VecEnvError, describe_indices
from vecenvs.pool.commands import Commands
from vecenvs.pool.recovery import Replacement
from vecenvs.pool.tally import Tally
from vecenvs.pool.workers import StartClock, Workers, envs_of
from vecenvs.transport import Transport
from vecenvs.transport.protocol import Command
from vecenvs.worker.process import HeldSignals

_LOOK = 0.02  # seconds between looks at workers
_PAUSES = 1.0, 60.0  # seconds until the next try after a start that has failed, each twice the one before; the longest
_SHARE = 8  # of so many workers one at a time has a successor that starts

_log = logging.getLogger("vecenvs")


@dataclass(frozen=True)
class Recycle:
    """When a worker, which has one env, is to make way for a new one: for simulators that leak or wear out.

    When the first of these ages is reached, a successor is started beside the worker, and takes its place at the end of
    the episode in which it is ready, in all engines with worker processes. No row is lost, and none tells of it. With
    `episode_seeds`, which it needs, all rows are those of a run without it.

    Attributes:
        episodes: the number of episodes that a worker has ended.
        rss: the memory of its process in RAM, in bytes, as `stats()` tells it.
        minutes: the time since it took its place.

    Raises:
        TypeError: an age is not a number.
        ValueError: an age is not more than 0, or none is given.
    """

    episodes: int | None = None
    rss: float | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        ages = vars(self)
        if all(age is None for age in ages.values()):
            raise ValueError("Recycle() has no age: give episodes=, rss= (bytes) or minutes=")
        for name, age in ages.items():
            if age is None:
                continue
            value = parse_int(f"episodes={age!r}: the age", age) if name == "episodes" else parse_number(name, age)
            if not value > 0:
                raise ValueError(f"Recycle({name}={age!r}) would replace workers without end: give more than 0")

    def is_reached(self, episodes: int, rss: int | None, seconds: float) -> bool:
        """Tell whether a worker of so many episodes, bytes and seconds is old."""
        return (
            episodes >= (math.inf if self.episodes is None else self.episodes)
            or (rss or 0) >= (math.inf if self.rss is None else self.rss)
            or seconds >= (math.inf if self.minutes is None else 60.0 * self.minutes)
        )


def check_recycle(recycle: Any, *, seeded: bool, has_workers: bool, concurrency: str | None) -> None:
    """Refuse what is no Recycle, or cannot be together with it."""
    if recycle is None:
        return
    if not isinstance(recycle, Recycle):
        raise TypeError(f"recycle must be a vecenvs.Recycle(episodes=, rss=, minutes=) or None, not {recycle!r}")
    if not has_workers:
        raise ValueError(
            "recycle replaces worker processes, and all envs live in the calling one: leave recycle out, or use "
            "backend='subproc' (SubprocVecEnv)"
        )
    if not seeded:
        raise ValueError("recycle needs episode_seeds=True: else a new env goes on with other random numbers")
    if concurrency is not None:
        raise ValueError(f"recycle is for workers of one env each: leave concurrency={concurrency!r} out, or recycle")


class Recycling:
    """Starts successors of old workers, and frees what is left of those that have retired."""

    def __init__(self, ages: Recycle, workers: Workers, commands: Commands, tally: Tally) -> None:
        self._ages = ages
        self._workers, self._commands, self._tally = workers, commands, tally
        shards = workers.shards
        self._known: list[Transport | None] = [None] * len(shards)  # whose ages these are
        self._since = [(0.0, 0)] * len(shards)  # by worker: since when it has its place, and how many episodes before
        self._clocks: dict[int, StartClock] = {}  # of successors that are starting
        self._told: set[int] = set()  # workers that were told to retire
        self._tries = [0] * len(shards)
        self._not_before = [0.0] * len(shards)
        self._next_look = 0.0
        here = [slot for transport, shard in zip(workers.transports, shards, strict=True)
                if transport.in_process for slot in shard]  # fmt: skip
        if here:
            _log.warning(
                "recycle has no effect on envs %s, which the calling process steps: leave caller_steps out",
                describe_indices(here),
            )

    def look(self) -> None:
        """Look at all workers, now and then."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK
        workers = self._workers
        for retired in [*workers.retired]:
            if retired.transport.exit_status()[0] or now >= retired.end:
                retired.transport.stop(0.0)
                workers.retired.remove(retired)
        for worker, transport in enumerate(workers.transports):
            if transport.in_process or isinstance(transport, Replacement):
                continue
            if self._known[worker] is not transport:
                self._told.discard(worker)
                self._known[worker], self._since[worker] = transport, (now, self._tally.episodes(worker))
            elif worker in workers.successors:
                self._look_at(worker, workers.successors[worker], now)
            elif worker in self._told or self._is_old(worker, now):
                self._begin(worker, now)

    def _is_old(self, worker: int, now: float) -> bool:
        since, before = self._since[worker]
        episodes = self._tally.episodes(worker) - before
        return self._ages.is_reached(episodes, self._tally.resident(worker), now - since)

    def _begin(self, worker: int, now: float) -> None:
        """Start the successor of a worker, unless it has to wait for its turn."""
        workers = self._workers
        turn = len(workers.successors) < max(1, len(workers.shards) // _SHARE) and workers.limit.seconds() == 0
        if not turn or now < self._not_before[worker]:
            return
        try:
            with HeldSignals():  # a successor has a clock
                successor = workers.successors[worker] = workers.launch(worker, beside=True)
                self._clocks[worker] = StartClock(workers, worker, successor)
        except (VecEnvError, OSError) as exc:
            self._put_off(worker, exc, now)

    def _look_at(self, worker: int, successor: Transport, now: float) -> None:
        """Tell a worker to retire once its successor has made its env."""
        try:
            with HeldSignals():  # a message that a handler's exception has cut off does not come again
                message = successor.get(0)
                gone = successor.exit_status()[0]
                message = message or successor.get(0)
            made = None if message is None else envs_of(message[2])
            if gone:
                raise self._workers.died(worker, successor, "starting")
            if made is None:
                self._clocks[worker].check()
                return
            self._workers.check_spaces(worker, made)
        except (VecEnvError, OSError, EOFError) as exc:
            self._workers.successors.pop(worker).stop(0.0)
            self._workers.limit.ended(worker)
            self._put_off(worker, exc, now)
            return
        if worker not in self._told:
            self._tries[worker] = 0
            self._told.add(worker)
            self._commands.tell(worker, Command.RETIRE, None)

    def _put_off(self, worker: int, why: Exception, now: float) -> None:
        first, longest = _PAUSES
        pause = min(first * 2.0 ** self._tries[worker], longest)
        self._tries[worker] += 1
        self._not_before[worker] = now + pause
        slots = describe_indices(self._workers.shards[worker])
        _log.warning(
            "worker %d with envs %s is old and goes on, as its successor could not be started (%s): the next try is in "
            "%g s", worker, slots, why, pause,
        )  # fmt: skip
