"""Say what a long wait is for: now and then, and at a Ctrl-C. Give up where envs never come to a first row."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from vecenvs.errors import AlreadySteppingError, StartTimeout, VecEnvError, describe_indices
from vecenvs.pool.subsets import bits_of, slots_in
from vecenvs.pool.unanswered import Unanswered
from vecenvs.pool.workers import LIVENESS, LOG_EVERY, STOPPED, Workers

_LONG = 5.0  # seconds of waiting from which on a Ctrl-C has a line in the log

IN_ON_RESTART = "in on_restart: there get_attr, set_attr, env_method and call of the new envs are possible, and no more"
OTHER_THREAD = "another thread steps this VecEnv: use one by one thread at a time, or make two"

_log = logging.getLogger("vecenvs")


class Patience:
    """Measures the wait of a call, which sets `began` to 0 and then calls `look` after each short wait in vain."""

    def __init__(self, unanswered: Unanswered, workers: Workers) -> None:
        self.began = 0.0
        self.thread = 0  # that waits now
        self._looked = self._logged = 0.0
        self.unanswered = unanswered
        self.workers = workers

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
        if now - self.began >= self.workers.start_timeout:
            self._check_first_rows()

    def say_if_long(self) -> None:
        """Log what was waited for when a Ctrl-C came, if that took long."""
        if self.began and time.monotonic() - self.began >= _LONG:
            self._say("interrupted while waiting")

    def _say(self, what: str) -> None:
        slots = describe_indices(slots_in(self.unanswered.unanswered_slots()))
        _log.warning("%s for envs %s, for %.0f s so far", what, slots, time.monotonic() - self.began)

    def _check_first_rows(self) -> None:
        unanswered = self.unanswered.unanswered_slots()
        for worker in self.unanswered.without_rows:
            transport, shard = self.workers.transports[worker], self.workers.shards[worker]
            if unanswered & bits_of(shard) and not transport.untimed:
                raise StartTimeout(worker, shard, self.workers.start_timeout, transport.where, "reset")


def waits(method: Callable[..., None]) -> Callable[..., None]:
    """Make a method of `Waiting` the wait of a call: by one thread, which `close` may end, and named at a Ctrl-C."""

    @functools.wraps(method)
    def wait(self: Any, *args: Any, **kwargs: Any) -> None:
        patience, thread = self._patience, threading.get_ident()
        if patience.thread not in (0, thread):
            raise VecEnvError(OTHER_THREAD)
        if patience.unanswered.reviving is not None:
            raise AlreadySteppingError(f"a wait for rows {IN_ON_RESTART}")
        patience.thread, patience.began = thread, 0.0
        try:
            method(self, *args, **kwargs)
        except KeyboardInterrupt:
            patience.say_if_long()
            raise
        except Exception:
            patience.workers.check_open(0)  # what `close` has left may be anything
            raise
        finally:
            patience.thread = 0

    return wait
