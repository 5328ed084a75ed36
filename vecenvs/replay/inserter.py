"""The way of fragments to the server, from any process that Ray knows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from vecenvs.backends.ray.cluster import Connection
from vecenvs.replay.link import LOOK, check_connection, get
from vecenvs.replay.schema import Rows, Schema

UNDER_WAY = 2  # fragments: one that is being stored, one that is on its way meanwhile


class Inserter:
    """Sends transitions to a server, a call per fragment, and waits when two are unanswered.

    It pickles, so that actors and tasks can have one; `explorer` is what transitions get that do not say. `version` is
    that of the newest weights the server has told of.
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
        """Send columns, structured as a batch is; first wait until fewer than two fragments are unanswered.

        ValueError and TypeError as `Schema.pack`. What the server refused is raised here or by `flush`.
        """
        self.add_rows(self.pack(transitions))

    def pack(self, transitions: Mapping[str, Any]) -> Rows:
        """Pack columns as `Schema.pack`, with this `explorer` where they do not say."""
        if "explorer" not in transitions:
            transitions = {**transitions, "explorer": np.full(np.shape(transitions.get("reward", ())), self.explorer)}
        return self.schema.pack(transitions)

    def add_rows(self, rows: Rows) -> None:
        """As `add`, for packed rows."""
        while not self.has_room(LOOK):
            pass
        self.send(rows)

    def send(self, rows: Rows) -> None:
        """Send packed rows at once; `has_room` must have said so."""
        check_connection(self._connection)
        if len(rows):
            self._calls.append(self._server.insert.remote(rows, self.version))

    def has_room(self, timeout: float) -> bool:
        """Tell whether another fragment may be sent, waiting for that up to `timeout` seconds."""
        import ray

        check_connection(self._connection)
        while self._calls:
            full = len(self._calls) >= UNDER_WAY
            if not ray.wait([self._calls[0]], timeout=timeout if full else 0, fetch_local=False)[0]:
                return not full
            self._hear()
        return True

    def flush(self) -> None:
        """Wait until everything sent is stored."""
        while self._calls:
            check_connection(self._connection)
            self._hear()

    def take_weights(self) -> Any:
        """Give a reference to weights that are new since the last time, or None."""
        weights, self._weights = self._weights, None
        return weights

    def _hear(self) -> None:
        version, weights = get(self._calls.popleft())
        if weights and version > self.version:
            self.version, self._weights = version, weights[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Inserter, (self._server, self.schema, self.explorer)
