"""Which ranks get the workers of an MpiVecEnv, and how many cores each has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from jobs import PROGRAMS, ROOT, launched, run

from vecenvs.backends.mpi.nodes import Peer
from vecenvs.backends.mpi.ranks import WorkerRanks
from vecenvs.cpus import usable_cores


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


@pytest.mark.long
def test_a_vec_env_in_each_worker() -> None:
    """The ranks share this machine: each of the two may use half of its cores."""
    output = run(launched("openmpi", 3, str(PROGRAMS / "vec_env_per_node.py")))
    assert "rows agree" in output
    assert "workers on ranks [1, 2]" in output
    cores = usable_cores()
    assert f"cores of the two {[max(1, cores // 2)] * 2} of {cores}" in output


@pytest.mark.long
def test_the_example_with_a_vec_env_per_node() -> None:
    program = str(ROOT / "examples" / "mpi_nodes.py")
    sizes = ("--num-workers", "2", "--num-envs", "4", "--total-timesteps", "400")
    output = run(launched("openmpi", 3, program, *sizes))
    assert "4 envs by rank 1" in output
    assert "4 envs by rank 2" in output
    assert "episodes" in output
