"""The page: tables and pictures of the records, written by the run itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.peers.figures import CellRecord, best, failures, over_peer, promised_figure, value
from benchmarks.peers.grid import AXES, PROMISES, Axis, Promise, cell
from benchmarks.peers.lineup import BOUND, CONTESTANTS
from vecenvs.bench.report import Spread

_BEGIN, _END = "<!-- {}: begin -->", "<!-- {}: end -->"
_TRAINING, _BATCHED = "training", "batched"  # written by `benchmarks.training --page` and `batched.py --docs`
_INTRO = """# Beside other libraries

## Beside a learner

{training}

{batched}

## How the rest was measured

`python -m benchmarks.peers` writes this page from [{record}]({link}). How it measures, and how to run it:
[benchmarks/README.md](../benchmarks/README.md).

Figures are shares of the limit, which is the rate of one bare `env.step` loop per core, all at once: the median of the
rounds, and their range in brackets. The best figure of a column is bold. "-" is not measured, because it takes too long
to start or has no such feature.

Two contestants are there for scale and not compared. EnvPool steps envs of its own in C++. Bare loops in lock-step are
the limit's loops, each over its share of the envs, which wait for one another after every step and move no rows. That
is about the most that an engine can reach which calls `env.step` and returns the rows of all envs at once, since cores
are never equally fast for long.
"""


def section_of(text: str, name: str, otherwise: str = "") -> str:
    """Return a section of a page that another program writes, with its marks."""
    begin, end = _BEGIN.format(name), _END.format(name)
    inside = text.partition(begin)[2].partition(end)[0].strip()
    return "\n".join(filter(None, (begin, inside or otherwise, end)))


def with_training(text: str, section: str) -> str:
    """Return a page with another section about training. ValueError if it has no place for one."""
    begin, end = _BEGIN.format(_TRAINING), _END.format(_TRAINING)
    head, mark, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not mark or not found:
        raise ValueError(f"the page has no place for the section: {begin} ... {end}")
    return f"{head}{begin}\n{section.strip()}\n{end}{tail}"


def page(data: Mapping[str, Any], record: str, link: str, charts: Mapping[str, str], before: str = "") -> str:
    """Return the page.

    `record` and `link` name the JSON file; `charts` are the paths of the pictures by axis. `before` is the page as it
    was: its sections about training and batched envs stay.
    """
    kept = {_TRAINING: section_of(before, _TRAINING, "(not measured yet)"), _BATCHED: section_of(before, _BATCHED)}
    cells: Mapping[str, CellRecord] = {key: found for key, found in data["cells"].items() if found["complete"]}
    parts = [_INTRO.format(record=record, link=link, **kept), *_conditions(data, cells)]
    for axis in AXES:
        there = {key: cells[key] for key in axis.keys if key in cells}
        if not there:
            continue
        parts += [f"## {axis.title}\n", axis.text + "\n", table(there)]
        parts += [f"![{axis.title}]({charts[axis.name]})\n"] if axis.name in charts else []
        parts += _failures(there)
    parts += ["## Settings\n", settings(cells)]
    return "\n".join(parts)


def _conditions(data: Mapping[str, Any], cells: Mapping[str, CellRecord]) -> Iterator[str]:
    commands: dict[str, list[str]] = {}
    for number in sorted({record["run"] for record in cells.values()}):
        run = data["runs"][number]
        machine = run["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        where = f"{machine['cores']} cores, {machine['system'].split()[0]}, Python {machine['python']}; {versions}"
        commands.setdefault(where, []).append(f"`{run['command']}`")
    for where, given in commands.items():
        yield f"{', '.join(dict.fromkeys(given))} on {where}.\n"
    rounds = [record["rounds"] for record in cells.values()]
    if rounds:
        lengths = sorted({record["seconds"] for record in cells.values()})
        yield f"Rounds per cell: {_range(rounds)}; seconds per turn: {_range(lengths)}.\n"


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{found[0]:g}" if found[0] == found[-1] else f"{found[0]:g} to {found[-1]:g}"


def promises(cells: Mapping[str, CellRecord]) -> str:
    """Return a table of the promises beside the measured figures. It is printed, not a part of the page."""
    lines = [f"| | promised | measured | | | {BOUND} |", "|---|---|---|---|---|---|"]
    for promise in PROMISES:
        found = promised_figure(promise, cells)
        bound = f">= {promise.bound:.2f}"
        if found is None:
            lines.append(f"| {promise.what} | {bound} | not yet | | | |")
            continue
        spread, name = found
        kept = "kept" if spread.median >= promise.bound else "**missed**"
        scale = _scale(promise, cells)
        lines.append(f"| {promise.what} | {bound} | {_text(spread)} | {kept} | {name} | {scale} |")
    return "\n".join(lines) + "\n"


def _scale(promise: Promise, cells: Mapping[str, CellRecord]) -> str:
    """Return what bare loops in lock-step reach, if the promise is a share of the limit."""
    record = cells.get(promise.key or "") if promise.unit == "limit" and promise.contestant is None else None
    spread = value(record, BOUND) if record is not None else None
    return _text(spread) if spread is not None else ""


def table(cells: Mapping[str, CellRecord]) -> str:
    """Return a table of the contestants with a column for each cell."""
    header = ["", *(cell(key).title for key in cells)]
    lines = [_line(header), _line(["---"] * len(header))]
    tops = {key: _top(record) for key, record in cells.items()}
    for contestant in CONTESTANTS:
        if not any(contestant.name in record["lineup"] for record in cells.values()):
            continue
        entries = [_entry(record, contestant.name, tops[key]) for key, record in cells.items()]
        lines.append(_line([contestant.name, *entries]))
    ratios = [over_peer(record) for record in cells.values()]
    lines.append(_line(["*our best over the best Python peer*", *(_text(ratio) if ratio else "-" for ratio in ratios)]))
    return "\n".join(lines) + "\n"


def _top(record: CellRecord) -> str | None:
    candidates = [name for name in (best(record, ours=True), best(record, ours=False)) if name is not None]
    found = {name: spread.median for name in candidates if (spread := value(record, name)) is not None}
    return max(found, key=found.__getitem__, default=None)


def _entry(record: CellRecord, contestant: str, top: str | None) -> str:
    spread = value(record, contestant)
    if spread is None:
        return "failed" if contestant in failures(record) else "-"
    return _text(spread, bold=contestant == top)


def _text(spread: Spread, bold: bool = False) -> str:
    digits = 2 if spread.median >= 0.095 else 3
    median = f"{spread.median:.{digits}f}"
    return f"{f'**{median}**' if bold else median} ({spread.min:.{digits}f}..{spread.max:.{digits}f})"


def _line(entries: Sequence[str]) -> str:
    return f"| {' | '.join(entries)} |"


def _failures(cells: Mapping[str, CellRecord]) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for key, record in cells.items():
        for contestant, reason in failures(record).items():
            reasons.setdefault((contestant, reason), []).append(cell(key).title)
    lines = [f"* {name} failed ({'; '.join(where)}): {reason}" for (name, reason), where in reasons.items()]
    return ["\n".join(lines) + "\n"] if lines else []


def settings(cells: Mapping[str, CellRecord]) -> str:
    """Return a table of the contestants' settings."""
    there = {name for record in cells.values() for name in record["lineup"]}
    lines = ["| contestant | setting |", "|---|---|"]
    lines += [_line([found.name, found.setting]) for found in CONTESTANTS if found.name in there]
    return "\n".join(lines) + "\n"


def axes_of(data: Mapping[str, Any]) -> list[tuple[Axis, dict[str, CellRecord]]]:
    """Return the axes that have complete cells, with these cells."""
    cells = {key: found for key, found in data["cells"].items() if found["complete"]}
    found = [(axis, {key: cells[key] for key in axis.keys if key in cells}) for axis in AXES]
    return [(axis, there) for axis, there in found if there]
