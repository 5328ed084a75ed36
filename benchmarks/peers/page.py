"""The page: tables and pictures of the records, written by the run itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.peers.candidates import CANDIDATES
from benchmarks.peers.figures import best, limits, over_peer, promised_figure, value
from benchmarks.peers.grid import AXES, PROMISES, cell
from benchmarks.shared import promises, section_of, spread, table
from benchmarks.stack.figures import CellRecord, Cells, complete, failures
from benchmarks.stack.grid import Axis
from benchmarks.stack.page import names_of, reasons, runs_of
from vecenvs.bench.report import Spread

_NAMES = [found.name for found in CANDIDATES]
# Written by `docs.headline`, `.training --page`, and `--docs` of batched.py, evaluate.py, waiting.py, .agents, gpu.py.
_SECTIONS = ("headline", "training", "batched", "evaluation", "waiting", "agents", "gpu")
_INTRO = """# Beside other libraries

{headline}

## Beside a learner

{training}

{batched}

{evaluation}

{waiting}

{agents}

{gpu}

## How the rest was measured

`python -m benchmarks.peers` writes this page from [{record}]({link}). How it measures, and how to run it:
[benchmarks/README.md](../benchmarks/README.md).

Figures are shares of the limit, which is the rate of one bare `env.step` loop per core, all at once: the median of the
rounds, and their range in brackets. The best figure of a column is bold. "-" is not measured, because it takes too long
to start or has no such feature.

Two candidates are there for scale and not compared. EnvPool steps envs of its own in C++. Bare loops in lock-step are
the limit's loops, each over its share of the envs, which wait for one another after every step and move no rows. That
is about the most that an engine can reach which calls `env.step` and returns the rows of all envs at once, since cores
are never equally fast for long.
"""


def page(data: Mapping[str, Any], record: str, link: str, charts: Mapping[str, str], before: str = "") -> str:
    """Return the page.

    `record` and `link` name the JSON file; `charts` are the paths of the pictures by axis. `before` is the page as it
    was: the sections that other programs write stay.
    """
    kept = {name: section_of(before, name, "(not measured yet)" * (name == "training")) for name in _SECTIONS}
    cells = complete(data)
    parts = [_INTRO.format(record=record, link=link, **kept), *_conditions(data, cells)]
    for axis, there in axes_of(cells):
        parts += [f"## {axis.title}\n", axis.text + "\n", _table(there) + "\n"]
        parts += [f"![{axis.title}]({charts[axis.name]})\n"] if axis.name in charts else []
        parts += filter(None, [reasons(there, lambda key, _: cell(key).title)])
    parts += ["## Settings\n", table(["candidate", "setting"], _settings(cells)), ""]
    return "\n".join(parts)


def _conditions(data: Mapping[str, Any], cells: Cells) -> Iterator[str]:
    commands: dict[str, list[str]] = {}
    for run, versions, _ in runs_of(data, cells):
        machine = run["machine"]
        where = f"{machine['cores']} cores, {machine['system'].split()[0]}, Python {machine['python']}; {versions}"
        commands.setdefault(where, []).append(f"`{run['command']}`")
    for where, given in commands.items():
        yield f"{', '.join(dict.fromkeys(given))} on {where}.\n"
    rounds = [record["rounds"] for record in cells.values()]
    if rounds:
        lengths = sorted({record["seconds"] for record in cells.values()})
        unrest = [limits(record) for record in cells.values()]
        yield (
            f"Rounds per cell: {_range(rounds)}; seconds per turn: {_range(lengths)}. Readings of the limit in a cell "
            f"are {min(one.min for one in unrest):.2f} to {max(one.max for one in unrest):.2f} times their median.\n"
        )


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{found[0]:g}" if found[0] == found[-1] else f"{found[0]:g} to {found[-1]:g}"


def promised(cells: Cells) -> str:
    """Return a table of the promises beside the measured figures."""
    return promises((one.what, one.bound, True, promised_figure(one, cells)) for one in PROMISES)


def _table(cells: Cells) -> str:
    tops = {key: _top(record) for key, record in cells.items()}
    rows = [
        [name, *(_entry(record, name, tops[key]) for key, record in cells.items())] for name in names_of(cells, _NAMES)
    ]
    ratios = [over_peer(record) for record in cells.values()]
    rows.append(["*our best over the best Python peer*", *(_text(ratio) if ratio else "-" for ratio in ratios)])
    return table(["", *(cell(key).title for key in cells)], rows)


def _top(record: CellRecord) -> str | None:
    candidates = [name for name in (best(record, ours=True), best(record, ours=False)) if name is not None]
    found = {name: spread.median for name in candidates if (spread := value(record, name)) is not None}
    return max(found, key=found.__getitem__, default=None)


def _entry(record: CellRecord, candidate: str, top: str | None) -> str:
    spread = value(record, candidate)
    if spread is None:
        return "failed" if candidate in failures(record) else "-"
    return _text(spread, bold=candidate == top)


def _text(found: Spread, bold: bool = False) -> str:
    return spread(found, 2 if found.median >= 0.095 else 3, bold=bold)


def _settings(cells: Cells) -> Iterator[tuple[str, str]]:
    there = {name for record in cells.values() for name in record["candidates"]}
    yield from ((found.name, found.setting) for found in CANDIDATES if found.name in there)


def axes_of(cells: Cells) -> Iterator[tuple[Axis, Cells]]:
    """Yield the axes that have cells, with these cells."""
    for axis in AXES:
        if there := {key: cells[key] for key in axis.keys if key in cells}:
            yield axis, there
