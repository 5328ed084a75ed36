"""The leaders of the nodes that one VecEnv uses: one message per node and step each way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from vecenvs.backends.mpi.hosting import LeaderRequest
from vecenvs.backends.mpi.nodes import Peer
from vecenvs.backends.mpi.ranks import LaunchedWorker, WorkerRanks
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport.memory import new_name
from vecenvs.transport.node_link import LeaderSpec, NodeLink
from vecenvs.transport.remote import ASKED_FOR, RemoteTransport
from vecenvs.transport.tcp import TcpConnection

LEAST = 2  # workers of a node by messages that get a leader; one alone connects to the caller itself


class Leaders:
    """Launches a leader where a node has at least LEAST workers that the caller reaches by messages.

    `used` has the rank of each worker, and `everywhere` tells whether messages also go to those of rank 0's node.
    `reach` makes what connects a process that a rank has launched.
    """

    def __init__(
        self,
        ranks: WorkerRanks,
        used: Mapping[int, Peer],
        reach: Callable[[LaunchedWorker], RemoteTransport],
        *,
        everywhere: bool,
    ) -> None:
        self._ranks = ranks
        self._used = used
        self._reach = reach
        self._everywhere = everywhere
        self._links: dict[int, NodeLink] = {}

    def link(self, peer: Peer, batch: BatchColumns) -> NodeLink | None:
        """Return the link to the leader of this rank's node; None if there are too few workers for one."""
        found = self._links.get(peer.node)
        if found is not None and not found.closed:
            return found
        there = [each for each in self._used.values() if each.node == peer.node and self._by_messages(each)]
        if len(there) < LEAST:
            return None
        leader = self._reach(self._ranks.launch(peer, LeaderRequest(list(sys.path))))
        leader.why = ASKED_FOR if self._everywhere else leader.why_not_shared()  # for an error
        try:
            connection = leader.connect(
                lambda invitation: LeaderSpec(
                    invitation,
                    batch.observation_space,
                    batch.action_space,
                    batch.n,
                    batch.info_attrs,
                    new_name(),
                    len(there),
                )
            )
        except BaseException:
            leader.stop(0.0)
            raise
        self._links[peer.node] = link = NodeLink(TcpConnection(connection), batch, lambda: leader.stop(1.0))
        return link

    def _by_messages(self, peer: Peer) -> bool:
        return self._everywhere or not peer.shares
