"""The section "Batched envs" of docs/benchmarks.md, written from benchmarks/results/batched.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scaling_tables import spread
from shared import table

_INTRO = """## Batched envs

`python benchmarks/batched.py --docs` writes this section from [batched.json](../benchmarks/results/batched.json). Each
figure is the median of the rounds, with their range in brackets. All rows count, on both sides. What these envs are:
[batched.md](batched.md)."""
_NATIVE = """### NumPy CartPole

Shares of one native loop per core, all at once, which share the envs. "bare" is one loop over all envs."""
_MEMORY = """What a VecEnv adds to the calling process, shared columns included, in rows (observation, reward, two
flags) per env. With few envs most of it does not depend on their number:"""
_ENVPOOL = """### EnvPool

Two workers with an EnvPool of one thread each, as a share of EnvPool itself with two threads. "two hosts" are network
namespaces of one machine, with a worker on each; both hosts share its cores."""
_TITLES = {"envpool": "{}", "mpi": "{}, two hosts", "ray": "{}, two hosts"}

Record = Mapping[str, Any]


def section(record: Record) -> str:
    """Return the section, with what has readings; an empty one if nothing has."""
    parts = [*native(record), *envpool(record)]
    return "\n\n".join([_INTRO, *parts, *_conditions(record)]) if parts else ""


def native(record: Record) -> Iterator[str]:
    """Yield the part about NumPy CartPole."""
    cells = {size: cell for size, cell in record.get("native", {}).items() if cell["shares"]}
    if not cells:
        return
    sizes = sorted(cells, key=int)
    names = dict.fromkeys(name for size in sizes for name in cells[size]["shares"])
    limits = {size: {name: share["limit"] for name, share in cells[size]["shares"].items()} for size in sizes}
    shares = [[name, *(_entry(limits[size], name) for size in sizes)] for name in names]
    yield _NATIVE
    yield table(["", *(f"{size} envs" for size in sizes)], shares)
    engines = dict.fromkeys(name for size in sizes for name in cells[size]["rows_per_env"])
    memory = [[name, *(_rows(cells[size]["rows_per_env"], name) for size in sizes)] for name in engines]
    yield _MEMORY
    yield table(["", *(f"{size} envs" for size in sizes)], memory)


def envpool(record: Record) -> Iterator[str]:
    """Yield the part about EnvPool: a row for each env and number, and a column for each engine with readings."""
    found: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for measurement, title in _TITLES.items():
        for cell in record.get(measurement, {}).values():
            shares = {title.format(name): share for name, share in cell["shares"].items()}
            if shares:
                found.setdefault((cell["env"], cell["num_envs"]), {}).update(shares)
    if not found:
        return
    engines = dict.fromkeys(name for shares in found.values() for name in shares)
    yield _ENVPOOL
    yield table(
        ["", *engines],
        [
            [f"{env}, {num_envs} envs", *(_entry(shares, name) for name in engines)]
            for (env, num_envs), shares in found.items()
        ],
    )


def _entry(shares: Mapping[str, dict[str, float]], name: str) -> str:
    return spread(shares[name]) if name in shares else "-"


def _rows(rows_per_env: Mapping[str, float], name: str) -> str:
    return f"{rows_per_env[name]:.1f}" if name in rows_per_env else "-"


def _conditions(record: Record) -> Iterator[str]:
    """Yield a line for each machine and set of versions, with the commands that ran there."""
    commands: dict[str, list[str]] = {}
    for measurement in ("native", *_TITLES):
        for cell in record.get(measurement, {}).values():
            machine = cell["machine"]
            known = ", ".join(f"{name} {version}" for name, version in cell["versions"].items())
            where = f"{machine['cores']} cores, Python {machine['python']}; {known}"
            commands.setdefault(where, []).append(f"`{cell['command']}`")
    for where, given in commands.items():
        yield f"{', '.join(dict.fromkeys(given))} on {where}."


PAGES = {"benchmarks.md": {"batched": section}}
