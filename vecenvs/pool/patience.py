"""Say what a long wait is for: now and then, and at a Ctrl-C. Give up where envs never come to a first row."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from vecenvs.errors import StartTimeout, describe_indices
from vecenvs.pool.subsets import bits_of, slots_in
from vecenvs.pool.unanswered import Unanswered
from vecenvs.pool.workers import LIVENESS, LOG_EVERY, STOPPED, Workers

_LONG = 5.0  # seconds of waiting from which on a Ctrl-C has a line in the log

_log = logging.getLogger("vecenvs")


class Patience:
    """Measures the wait of a call, which sets `began` to 0 and then calls `look` after each short wait in vain."""

    def __init__(self, unanswered: Unanswered, workers: Workers) -> None:
        self.began = 0.0
        self._looked = self._logged = 0.0
        self._unanswered = unanswered
        self._workers = workers

    def look(self) -> None:
        """Log a line each LOG_EVERY seconds. Raise StartTimeout for envs whose first reset takes `start_timeout`."""
        now = time.monotonic()
        if not self.began:
            self.began = self._logged = now
        elif now - self._looked > LIVENESS + STOPPED:
            self.began += now - self._looked
        self._looked = now
        if now - self._logged >= LOG_EVERY:
            self._logged = now
            self._say("still waiting")
        if now - self.began >= self._workers.start_timeout:
            self._check_first_rows()

    def say_if_long(self) -> None:
        """Log what was waited for when a Ctrl-C came, if that took long."""
        if self.began and time.monotonic() - self.began >= _LONG:
            self._say("interrupted while waiting")

    def _say(self, what: str) -> None:
        slots = describe_indices(slots_in(self._unanswered.unanswered_slots()))
        _log.warning("%s for envs %s, for %.0f s so far", what, slots, time.monotonic() - self.began)

    def _check_first_rows(self) -> None:
        unanswered = self._unanswered.unanswered_slots()
        for worker in self._unanswered.without_rows:
            transport, shard = self._workers.transports[worker], self._workers.shards[worker]
            if unanswered & bits_of(shard) and not transport.untimed:
                raise StartTimeout(worker, shard, self._workers.start_timeout, transport.where, "reset")


def says_what_for(wait: Callable[..., None]) -> Callable[..., None]:
    """Have a method that waits name the envs that are missing at a Ctrl-C. Its object has a Patience, `_patience`."""

    @functools.wraps(wait)
    def waits(self: Any, *args: Any, **kwargs: Any) -> None:
        self._patience.began = 0.0
        try:
            wait(self, *args, **kwargs)
        except KeyboardInterrupt:
            self._patience.say_if_long()
            raise

    return waits
