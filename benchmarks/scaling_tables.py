"""The tables of docs/scaling.md and docs/tuning.md, written from benchmarks/results/scaling.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import shared
from scaling_model import Costs
from shared import table, write_sections

from vecenvs.bench.report import Spread, nbytes

TRANSPORTS = {"shm": "shared memory", "mpi": "messages (MPI)", "ray": "messages (Ray)"}
PER_WORKER = 16
FLOATS, IMAGE = 16, 84 * 84 * 4
LEVELS = (0.8, 0.5)
Table = Callable[[dict[str, Any]], str]


def write_docs(record: dict[str, Any], pages: Mapping[str, Mapping[str, Table]] | None = None) -> None:
    """Write each table of `pages`, by default PAGES, between its marks."""
    for page, tables in (PAGES if pages is None else pages).items():
        write_sections(shared.DOCS / page, {name: made(record) for name, made in tables.items()})


def spread(value: dict[str, float]) -> str:
    """Format a median with its range."""
    return shared.spread(Spread(**value))


def flat(record: dict[str, Any]) -> str:
    """Tabulate the cost per step and env, relative to the smallest number of envs."""
    results = record["flat"]["results"]
    sizes = sorted({row["num_envs"] for row in results})
    cell = {(row["engine"], row["num_envs"]): spread(row["relative_cost"]) for row in results}
    engines = list(dict.fromkeys(row["engine"] for row in results))
    beyond = {row["engine"]: spread(row["beyond_bare"]) for row in results if row["num_envs"] == sizes[-1]}
    rows = [[engine, *(cell[engine, n] for n in sizes[1:]), beyond[engine]] for engine in engines]
    heading = [
        f"cost per step and env, {sizes[0]} envs = 1",
        *(f"{n} envs" for n in sizes[1:]),
        f"{sizes[-1]}, over the bare loop's",
    ]
    return table(heading, rows)


def per_env(record: dict[str, Any]) -> str:
    """Tabulate the start-up time and memory of each further env."""
    results = {(row["engine"], row["num_envs"]): row for row in record["flat"]["results"]}
    sizes = sorted({n for _, n in results})
    few, many = sizes[0], sizes[-1]
    bare = _slope(results, "bare loop", few, many, lambda row: row["startup"]["median"])
    rows = []
    for engine in dict.fromkeys(engine for engine, _ in results):
        if engine == "bare loop":
            continue
        startup = _slope(results, engine, few, many, lambda row: row["startup"]["median"]) / bare
        memory = _slope(results, engine, few, many, lambda row: row["memory"]["total"])
        rows.append([engine, f"{startup:.2f}", nbytes(memory)])
    return table(
        ["each further env", "start-up, making and resetting it bare = 1", "memory, the env's own included"], rows
    )


def constants(record: dict[str, Any]) -> str:
    """Tabulate the constants of each transport, in steps of CartPole."""
    there = [name for name in TRANSPORTS if "costs" in record.get(name, {})]
    unit = {name: _cartpole(record, name) for name in there}
    what = {
        "the caller, per step": lambda c: c.fixed,
        "the caller, per worker": lambda c: c.per_worker,
        "the caller, per env": lambda c: c.per_env,
        "the caller, per env with a row of 84x84x4 bytes": lambda c: c.per_env + c.per_byte * IMAGE,
        "a worker, per env": lambda c: c.worker_env,
        "a worker, per env with a row of 84x84x4 bytes": lambda c: c.worker_env + c.worker_byte * IMAGE,
        "hand-over and back": lambda c: c.latency,
    }
    costs = {name: Costs(**record[name]["costs"]) for name in there}
    rows = [[text, *(f"{of(costs[name]) / unit[name]:.3g}" for name in there)] for text, of in what.items()]
    rows.append(
        ["the model's worst error for the caller", *(f"{record[name]['worst_error_of_caller']:.0%}" for name in there)]
    )
    return table(["in steps of one CartPole", *(TRANSPORTS[name] for name in there)], rows)


def limits(record: dict[str, Any]) -> str:
    """Tabulate how many workers one caller can keep busy."""
    there = [name for name in TRANSPORTS if "costs" in record.get(name, {})]
    costs = {name: Costs(**record[name]["costs"]) for name in there}
    rows = []
    for factor in (1, 10, 100, 1000):
        for row_bytes, text in ((FLOATS, "4 floats"), (IMAGE, "84x84x4 bytes")):
            cells = []
            for name in there:
                env = factor * _cartpole(record, name)
                cells += [_workers(costs[name].workers_at(level, env, PER_WORKER, row_bytes)) for level in LEVELS]
            rows.append([f"{factor} CartPole{'s' * (factor > 1)}", text, *cells])
    heading = [f"{TRANSPORTS[name]}, {level:.0%}" for name in there for level in LEVELS]
    return table(["an env's step costs", "its row", *heading], rows)


def checks(record: dict[str, Any]) -> str:
    """Tabulate the model's shares beside the measured ones."""
    rows = []
    for name, text in TRANSPORTS.items():
        for found in record.get(name, {}).get("checks", []):
            envs = f"{found['env']}, {found['num_envs']} envs, {found['workers']} worker{'s' * (found['workers'] > 1)}"
            rows.append([text, envs, f"{found['predicted_share']:.2f}", spread(found["share"])])
    return table(["", "", "the model's share of the workers' cores", "measured"], rows)


def callers(record: dict[str, Any]) -> str:
    """Tabulate one caller beside one per core."""
    results = record["callers"]["results"]
    envs = list(dict.fromkeys((row["env"], row["num_envs"]) for row in results))
    cell = {(row["env"], row["candidate"]): spread(row["share"]) for row in results}
    candidates = list(dict.fromkeys(row["candidate"] for row in results))
    rows = [[_what(env), str(n), *(cell[env, name] for name in candidates)] for env, n in envs]
    return table(["env", "envs in all", *candidates], rows)


def _what(env: str) -> str:
    return "one that costs nothing" if env == "spin:0us" else env


def _cartpole(record: dict[str, Any], transport: str) -> float:
    """Return the seconds of a bare step of CartPole, measured in the same run."""
    return next(float(c["env_seconds"]) for c in record[transport]["checks"] if c["env"].startswith("CartPole"))


def _slope(results: dict[tuple[str, int], Any], engine: str, few: int, many: int, of: Any) -> float:
    return float((of(results[engine, many]) - of(results[engine, few])) / (many - few))


def _workers(count: float) -> str:
    if count < 1:
        return "-"
    return (
        f"{count:.0f}"
        if count < 100
        else f"{count:.1g}".replace("e+0", "e")
        if count >= 1e5
        else f"{round(count, -1):.0f}"
    )


def auto(record: dict[str, Any]) -> str:
    """Tabulate workers beside stepping in process, with few envs."""
    results = record["auto"]["results"]
    cell = {(row["env"], row["num_envs"], row["engine"]): row["beside_dummy"] for row in results}
    engines = [name for name in dict.fromkeys(row["engine"] for row in results) if name != "dummy"]
    envs = list(dict.fromkeys((row["env"], row["num_envs"]) for row in results))
    rows = [[_what(env), str(n), *(spread(cell[env, n, engine]) for engine in engines)] for env, n in envs]
    return table(["env", "envs", *engines], rows)


PAGES = {
    "scaling.md": {
        "flat": flat,
        "per-env": per_env,
        "constants": constants,
        "checks": checks,
        "limits": limits,
        "callers": callers,
    },
    "tuning.md": {"auto": auto},
}
