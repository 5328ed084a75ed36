"""The leaders of the nodes that one VecEnv uses: one message per node and step each way, whatever launches them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.errors import VecEnvError
from vecenvs.transport.memory import new_name
from vecenvs.transport.node_link import LeaderSpec, NodeLink, NoLeader
from vecenvs.transport.remote import RemoteTransport
from vecenvs.transport.tcp import TcpConnection

LEAST = 2  # workers of a node by messages that get a leader; one alone connects to the caller itself

_log = logging.getLogger("vecenvs")


class Leaders:
    """Starts a leader where a node has at least LEAST workers that the caller reaches by messages.

    A node that has had a leader gets another one when that has ended.

    Args:
        nodes: returns the node of each worker that is reached by messages.
        start: launches the process of a leader on a node, without waiting for it. OSError if the node is gone.
    """

    def __init__(self, nodes: Callable[[], Iterable[Hashable]], start: Callable[[Any], RemoteTransport]) -> None:
        self._nodes = nodes
        self._start = start
        self._starting: dict[Hashable, RemoteTransport] = {}
        self._links: dict[Hashable, NodeLink] = {}
        self._refused: dict[Hashable, str] = {}  # by node: why it has no leader

    def link(self, node: Hashable, batch: BatchColumns) -> NodeLink | None:
        """Return the link to the leader of a node; None if there are too few workers for one.

        Raises:
            NoLeader: the leader does not start, cannot share memory or cannot connect. The node's workers connect to
                the caller themselves.
        """
        found = self._links.get(node)
        if found is not None and not found.closed:
            return found
        if node in self._refused:
            raise NoLeader(self._refused[node])
        counts = Counter(self._nodes())
        if found is None:
            if counts[node] < LEAST:
                return None
            self._start_others(other for other, count in counts.items() if count >= LEAST and other != node)
        leader = self._starting.pop(node, None) or self._start(node)
        try:
            connection = leader.connect(
                lambda invitation: LeaderSpec(
                    invitation,
                    batch.observation_space,
                    batch.action_space,
                    batch.n,
                    batch.info_attrs,
                    new_name(),
                    counts[node],
                )
            )
        except (VecEnvError, OSError) as exc:
            leader.stop(0.0)
            self._refused[node] = why = f"no leader{leader.where} ({leader.problem or exc})"
            _log.warning("%s: each worker of that node connects to this process by itself", why)
            raise NoLeader(why) from exc
        except BaseException:
            leader.stop(0.0)
            raise
        self._links[node] = link = NodeLink(TcpConnection(connection), batch, lambda: leader.stop(1.0))
        return link

    def _start_others(self, nodes: Iterable[Hashable]) -> None:
        """Launch the leaders of all nodes at the same time."""
        for node in nodes:
            if node not in self._links and node not in self._starting and node not in self._refused:
                with suppress(OSError):  # tried again when it is needed
                    self._starting[node] = self._start(node)
