"""Say what a long wait is for: now and then, and at a Ctrl-C. Give up where envs never come to a first row."""

from __future__ import annotations

import logging
import threading
import time

from vecenvs.errors import AlreadySteppingError, StartTimeout, VecEnvError, describe_indices
from vecenvs.pool.subsets import bits_of, slots_in
from vecenvs.pool.unanswered import Unanswered
from vecenvs.pool.workers import LIVENESS, LOG_EVERY, STOPPED, Workers

_LONG = 5.0  # seconds of waiting from which on a Ctrl-C has a line in the log

IN_ON_RESTART = "in on_restart: there get_attr, set_attr, env_method and call of the new envs are possible, and no more"
OTHER_THREAD = "another thread steps this VecEnv: use one by one thread at a time, or make two"

_log = logging.getLogger("vecenvs")


class Patience:
    """Measures the wait of a call: one after another, of one thread, which `close` in another may end.

    The call begins with `begin`, calls `look` after each short wait in vain and `explain` at an exception, and ends
    with `thread = 0`.
    """

    def __init__(self, unanswered: Unanswered, workers: Workers) -> None:
        self._began = 0.0
        self.thread = 0  # that waits now
        self._looked = self._logged = 0.0
        self._unanswered = unanswered
        self._workers = workers

    def begin(self) -> None:
        """Begin a wait. Raise VecEnvError while another thread waits, or in `on_restart`."""
        thread = threading.get_ident()
        if self.thread not in (0, thread):
            raise VecEnvError(OTHER_THREAD)
        if self._unanswered.reviving is not None:
            raise AlreadySteppingError(f"a wait for rows {IN_ON_RESTART}")
        self.thread, self._began = thread, 0.0

    def look(self) -> None:
        """Log a line each LOG_EVERY seconds. Raise StartTimeout for envs whose first reset takes `start_timeout`."""
        now = time.monotonic()
        if not self._began:
            self._began = self._logged = now
        elif now - self._looked > LIVENESS + STOPPED:
            self._began += now - self._looked
            for worker in self._unanswered.without_rows:
                self._unanswered.without_rows[worker] += now - self._looked
        self._looked = now
        if now - self._logged >= LOG_EVERY:
            self._logged = now
            self._say("still waiting")
        if now - self._began >= self._workers.start_timeout:
            self._check_first_rows(now)

    def explain(self, exc: BaseException) -> None:
        """Log what was waited for when a Ctrl-C came, if that took long. ClosedError if `close` is behind `exc`."""
        if isinstance(exc, Exception):
            self._workers.check_open(0)  # what `close` has left may be anything
        elif self._began and time.monotonic() - self._began >= _LONG:
            self._say("interrupted while waiting")

    def _say(self, what: str) -> None:
        slots = describe_indices(slots_in(self._unanswered.unanswered_slots()))
        _log.warning("%s for envs %s, for %.0f s so far", what, slots, time.monotonic() - self._began)

    def _check_first_rows(self, now: float) -> None:
        unanswered = self._unanswered.unanswered_slots()
        for worker, began in self._unanswered.without_rows.items():
            if now - began < self._workers.start_timeout:
                continue
            transport, shard = self._workers.transports[worker], self._workers.shards[worker]
            if unanswered & bits_of(shard) and not transport.untimed:
                raise StartTimeout(worker, shard, self._workers.start_timeout, transport.where, "reset")
