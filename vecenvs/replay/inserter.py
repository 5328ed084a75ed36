"""Sending of fragments to the server, from any process of the same Ray."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from vecenvs.backends.ray.cluster import Connection
from vecenvs.replay.link import CHECK_INTERVAL, check_connection, server_result
from vecenvs.replay.schema import Rows, Schema

MOST_CALLS = 2  # unanswered: one fragment is stored while the next one travels


class Inserter:
    """Sends transitions to a server, with one call per fragment, and waits while two calls are unanswered.

    An inserter can be pickled, for use in actors and tasks. `explorer` is the default of that field in transitions.
    `version` is the version of the newest weights that the server has announced.
    """

    def __init__(self, server: Any, schema: Schema, explorer: int = -1) -> None:
        self.schema = schema
        self.explorer = explorer
        self.version = 0
        self._server = server
        self._connection = Connection()
        self._calls: deque[Any] = deque()
        self._weights: Any = None

    def add(self, transitions: Mapping[str, Any]) -> None:
        """Send transitions; first wait until fewer than two calls are unanswered.

        Args:
            transitions: a dict of columns, structured as a batch. `explorer` and `episode` are optional.

        Raises:
            ValueError: a field is missing, unknown, or has another shape.
            TypeError: a field's dtype would lose values.
            ServerDied: the server has died. Errors of earlier fragments are raised here or by `flush`.
        """
        rows = self.pack(transitions)
        while not self.has_room(CHECK_INTERVAL):
            pass
        self.send(rows)

    def pack(self, transitions: Mapping[str, Any]) -> Rows:
        """Pack columns by `Schema.pack`; `explorer` is this inserter's unless given."""
        if "explorer" not in transitions:
            transitions = {**transitions, "explorer": np.full(np.shape(transitions.get("reward", ())), self.explorer)}
        return self.schema.pack(transitions)

    def send(self, rows: Rows) -> None:
        """Send packed rows without waiting; `has_room` must have returned True."""
        check_connection(self._connection)
        if len(rows):
            self._calls.append(self._server.insert.remote(rows, self.version))

    def has_room(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return whether another fragment may be sent."""
        import ray

        check_connection(self._connection)
        while self._calls:
            full = len(self._calls) >= MOST_CALLS
            if not ray.wait([self._calls[0]], timeout=timeout if full else 0, fetch_local=False)[0]:
                return not full
            self._take_answer()
        return True

    def flush(self) -> None:
        """Wait until all fragments are stored."""
        while self._calls:
            check_connection(self._connection)
            self._take_answer()

    def take_weights(self) -> Any:
        """Return a reference to weights announced since the last call, or None."""
        weights, self._weights = self._weights, None
        return weights

    def _take_answer(self) -> None:
        version, weights = server_result(self._calls.popleft())
        if weights and version > self.version:
            self.version, self._weights = version, weights[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Inserter, (self._server, self.schema, self.explorer)
