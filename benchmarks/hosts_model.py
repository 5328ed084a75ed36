"""A model of one caller and N nodes with a leader each, fitted to some of the cells that benchmarks/hosts.py measures.

A lock-step of n envs over N nodes of w workers costs the caller

    fixed + per_node * N + per_worker * N * w + per_env * n + per_byte * n * row_bytes

seconds of CPU. All leaders together, all workers together, and the whole step apart from the envs' sleep are fitted to
the same terms, each on its own. Which cells are fitted and which are predicted is fixed here, before any is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
from scaling_model import non_negative

FIT_NODES, FIT_WORKERS = (2, 4, 8), (1, 4)
QUANTITIES = ("caller_cpu", "leaders_cpu", "workers_cpu", "step")
FLOATS, IMAGE = 16, 84 * 84 * 4  # the bytes of a row


class Cell(NamedTuple):
    """What is measured: `workers` of each node, envs in all, the bytes of a row, leaders or a connection per worker."""

    nodes: int
    workers: int
    envs: int
    row_bytes: int = FLOATS
    leaders: bool = True

    @property
    def fitted(self) -> bool:
        """Whether the model is fitted to it, not tested by it."""
        return self.leaders and self.nodes in FIT_NODES and self.workers in FIT_WORKERS and self.envs != 64


# 192 and 96 envs can be shared out evenly in each of these cells. 64 is the number of envs of the promise.
GRID = [
    *(Cell(nodes, workers, 192) for nodes in (2, 3, 4, 6, 8) for workers in (1, 2, 4, 8)),
    *(Cell(nodes, workers, 768) for nodes in (2, 3, 8) for workers in (1, 2, 4)),
    *(Cell(nodes, workers, 96, IMAGE) for nodes in (2, 3, 8) for workers in (1, 2, 4)),
    *(Cell(nodes, workers, 192, leaders=False) for nodes in (2, 4, 8) for workers in (1, 2, 4, 8)),
    *(Cell(8, workers, 64) for workers in (1, 8)),
    Cell(8, 1, 64, leaders=False),
]
PROMISE = Cell(8, 8, 64), Cell(8, 1, 64, leaders=False), 2.0  # the caller's CPU for the first is at most twice that


@dataclass(frozen=True)
class NodeCosts:
    """The constants of one quantity, in seconds: see the module's docstring."""

    fixed: float
    per_node: float
    per_worker: float
    per_env: float
    per_byte: float

    def of(self, nodes: float, workers: float, envs: float, row_bytes: float) -> float:
        """Return the cost of a step, with so many workers on each node."""
        return float(np.dot(astuple(self), _terms(nodes, workers, envs, row_bytes)))


def _terms(nodes: float, workers: float, envs: float, row_bytes: float) -> list[float]:
    return [1.0, nodes, nodes * workers, envs, envs * row_bytes]


def fit(readings: dict[Cell, float]) -> NodeCosts:
    """Fit the constants to cells; relative errors are minimised and no constant is negative.

    Raises:
        ValueError: there are too few cells.
    """
    cells = list(readings)
    if any(len({cell[k] for cell in cells}) < 2 for k in range(4)):
        raise ValueError("a fit needs two numbers each of nodes, of workers, of envs and of bytes")
    terms = np.array([_terms(*cell[:4]) for cell in cells])
    return NodeCosts(*non_negative(terms, np.array([readings[cell] for cell in cells])))


def fit_all(results: Sequence[dict[str, Any]]) -> dict[str, NodeCosts]:
    """Fit each quantity to the cells that are for it."""
    medians = {cell_of(row): row for row in results}
    fitted = [cell for cell in medians if cell.fitted]
    return {name: fit({cell: medians[cell][name] for cell in fitted}) for name in QUANTITIES}


def errors(results: Sequence[dict[str, Any]], costs: NodeCosts, name: str, *, fitted: bool) -> dict[Cell, float]:
    """Return by how much the model is off, as a share of the measurement, for the cells that it was (not) fitted to."""
    found = {cell_of(row): row[name] for row in results}
    return {
        cell: costs.of(*cell[:4]) / seconds - 1
        for cell, seconds in found.items()
        if cell.leaders and cell.fitted == fitted
    }


def cell_of(row: dict[str, Any]) -> Cell:
    """Return the cell that a result is about."""
    return Cell(**{name: row[name] for name in Cell._fields})


def result(cell: Cell, rounds: Iterable[dict[str, float]]) -> dict[str, Any]:
    """Return the result for a cell: the median over the rounds of each quantity, and the rounds."""
    rounds = list(rounds)
    return {
        **cell._asdict(),
        **{k: float(np.median([each[k] for each in rounds])) for k in rounds[0]},
        "rounds": rounds,
    }
