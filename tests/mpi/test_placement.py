"""Which ranks get the workers of an MpiVecEnv. No MPI is needed: the ranks are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vecenvs.backends.mpi.nodes import Peer
from vecenvs.backends.mpi.ranks import WorkerRanks


def ranks(nodes: list[int]) -> Any:
    """Return the worker ranks 1, 2, ... on these nodes."""
    peers = {
        rank: Peer(rank, f"host{node}", rank, node, node == 0, frozenset({rank})) for rank, node in enumerate(nodes, 1)
    }
    answering = list(peers.values())
    return SimpleNamespace(peers=peers, _answering=lambda: answering, _launched={})


@pytest.mark.parametrize(
    ("spread", "expected"), [(False, [1, 2, 3, 4, 5, 6, 1]), (True, [1, 4, 6, 2, 5, 6, 3])], ids=["lowest", "spread"]
)
def test_an_order_of_ranks(spread: bool, expected: list[int]) -> None:
    there, own = ranks([0, 0, 0, 4, 4, 6]), []
    for _ in range(7):
        own.append(WorkerRanks.least_busy(there, own, spread=spread))
    assert [peer.rank for peer in own] == expected
