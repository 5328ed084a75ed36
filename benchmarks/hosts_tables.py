"""The tables of docs/scaling.md about nodes with a leader each, written from benchmarks/results/hosts.json."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hosts_model import FLOATS, IMAGE, PROMISE, QUANTITIES, NodeCosts, cell_of, errors, fit_all
from shared import table

from vecenvs.bench.report import nbytes

NAMES = {"caller_cpu": "the caller", "leaders_cpu": "all leaders", "workers_cpu": "all workers", "step": "whole step"}
TERMS = {
    "fixed": "per step",
    "per_node": "per node",
    "per_worker": "per worker",
    "per_env": "per env",
    "per_byte": "per row of 84x84x4 bytes",
}
ROWS = {FLOATS: "4 floats", IMAGE: "84x84x4 bytes"}
# The plan: a million envs on nodes of 64 workers with 16 envs each, whose workers are to work for 80% of the time.
ENVS, WORKERS, SHARD, SHARE = 10**6, 64, 16, 0.8
CALLER_LINK = 1.25e9  # bytes per second of a caller's network: 10 Gbit/s


def growth(record: dict[str, Any]) -> str:
    """Tabulate the costs against nodes and workers, a leader on each node beside a connection for each worker."""
    of = {cell_of(row): row for row in record["results"]}
    unit = record["cartpole"]
    rows = []
    for cell in (cell for cell in of if cell.envs == 192 and cell.leaders):
        line = [str(cell.nodes), str(cell.workers), *(f"{of[cell][name] / unit:.0f}" for name in QUANTITIES)]
        line.append(nbytes(of[cell]["bytes"]))
        other = of.get(cell._replace(leaders=False))
        line += ["", ""] if other is None else [f"{other['caller_cpu'] / unit:.0f}", f"{other['step'] / unit:.0f}"]
        rows.append(line)
    heading = ["nodes", "workers of each", *NAMES.values(), "bytes", "connections: the caller", "whole step"]
    load = record["machine"]["load_before"]
    return f"{table(heading, rows)}\n\nThe load of the machine when the measurement began: {load}."


def constants(record: dict[str, Any]) -> str:
    """Tabulate the constants of each quantity, and how far off the model is."""
    costs, unit = fit_all(record["results"]), record["cartpole"]
    rows = []
    for term, text in TERMS.items():
        factor = IMAGE if term == "per_byte" else 1
        rows.append([text, *(f"{factor * getattr(costs[name], term) / unit:.3g}" for name in QUANTITIES)])
    for text, fitted in (("worst error, cells of the fit", True), ("worst error, predicted cells", False)):
        worst = [max(map(abs, errors(record["results"], costs[n], n, fitted=fitted).values())) for n in QUANTITIES]
        rows.append([text, *(f"{each:.0%}" for each in worst)])
    return table(["in steps of one CartPole", *NAMES.values()], rows)


def predictions(record: dict[str, Any]) -> str:
    """Tabulate the caller's cost, fitted or predicted, beside the measured one."""
    costs, unit = fit_all(record["results"])["caller_cpu"], record["cartpole"]
    rows = []
    for row in record["results"]:
        cell = cell_of(row)
        if not cell.leaders:
            continue
        model, measured = costs.of(*cell[:4]) / unit, row["caller_cpu"] / unit
        what = "fit" if cell.fitted else "prediction"
        where = [f"{cell.nodes} x {cell.workers}", str(cell.envs), ROWS[cell.row_bytes]]
        rows.append([*where, what, f"{model:.0f}", f"{measured:.0f}", f"{model / measured - 1:+.0%}"])
    return table(["nodes x workers", "envs", "rows", "", "model", "measured", "error"], rows)


def plan(record: dict[str, Any]) -> str:
    """Tabulate what a million envs need, by the model."""
    costs, unit = fit_all(record["results"]), record["cartpole"]
    rows = []
    for factor in (10, 100, 1000):
        for row_bytes, text in ROWS.items():
            needs = Needs(costs["caller_cpu"], costs["leaders_cpu"], factor * unit, row_bytes)
            one, node = needs.nodes_of_a_caller, needs.caller_of_node
            line = [f"{factor} CartPoles", text, f"{node / unit:.0f}", f"{costs['caller_cpu'].per_node / node:.0%}"]
            line.append(f"{needs.leader / needs.shard:.0%}")
            line += ["-", "-", "-"] if one < 1 else [str(one), str(needs.callers), nbytes(needs.bytes_of(one))]
            rows.append([*line, needs.first])
    heading = [
        "an env's step costs",
        "its row",
        "a node costs its caller",
        "the message's part",
        "leader, of the envs' time",
    ]
    heading += ["nodes that one caller serves", "callers for 10^6 envs", "bytes per step and caller", "what ends first"]
    return table(heading, rows)


def promise(record: dict[str, Any]) -> str:
    """Tabulate the caller's cost for few envs on many hosts, beside that with one worker on each."""
    of = {cell_of(row): row["caller_cpu"] for row in record["results"]}
    alone = of[PROMISE[1]]
    rows = []
    for cell in (cell for cell in of if cell.envs == PROMISE[1].envs):
        how = "a leader on each node" if cell.leaders else "a connection for each worker"
        rows.append([str(cell.nodes), str(cell.workers), how, f"{of[cell] / alone:.2f}"])
    return table(["nodes", "workers of each", "reached by", "the caller's CPU"], rows)


class Needs:
    """What nodes of WORKERS workers with SHARD envs each ask of a caller that is to keep them busy for SHARE of a step.

    The workers step for `shard` seconds. Then the caller works and they wait: for the rest of the step at most.
    """

    def __init__(self, caller: NodeCosts, leaders: NodeCosts, env: float, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.shard = SHARD * env
        self.node_envs = WORKERS * SHARD
        self.nodes = math.ceil(ENVS / self.node_envs)
        self._rest = self.shard * (1 / SHARE - 1)
        self.caller_of_node = caller.of(1, WORKERS, self.node_envs, row_bytes) - caller.fixed
        # A leader begins with the workers and ends after them: its work counts as the caller's does.
        self.leader = leaders.of(1, WORKERS, self.node_envs, row_bytes)
        self._left = self._rest - caller.fixed - self.leader
        self.by_cpu = self._left / self.caller_of_node
        self.by_link = CALLER_LINK * self.shard / SHARE / self.bytes_of(1)

    def bytes_of(self, nodes: int) -> float:
        """Return the bytes of the rows of a step, and of their actions, rewards and flags."""
        return float(nodes * self.node_envs * (self.row_bytes + 17))

    @property
    def nodes_of_a_caller(self) -> int:
        """How many nodes one caller can serve; 0 if not even one."""
        return max(0, min(self.nodes, int(min(self.by_cpu, self.by_link))))

    @property
    def callers(self) -> int:
        """How many callers ENVS envs need."""
        return math.ceil(self.nodes / self.nodes_of_a_caller)

    @property
    def first(self) -> str:
        """What the next node would be too much for."""
        if self._left < self.caller_of_node:
            return "a leader" if self.leader > self._rest / 2 else "the caller's CPU"
        return "the caller's network" if self.by_link < self.by_cpu else "the caller's CPU"


PAGES: dict[str, dict[str, Callable[[dict[str, Any]], str]]] = {
    "scaling.md": {
        "hosts": growth,
        "hosts-promise": promise,
        "hosts-constants": constants,
        "hosts-predictions": predictions,
        "hosts-plan": plan,
    }
}
