"""The turns of a contest as shares of the limit with their spread: rows, a record (JSON) and a table."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vecenvs.bench.contest import LIMIT, Turn
from vecenvs.bench.measurement import Measurement
from vecenvs.bench.memory_use import MemoryUse

if TYPE_CHECKING:
    from rich.table import Table

LOOP = "bare env.step loop"
_UNSTEADY = 1.5  # largest over smallest reading of the limit: beyond it, other programs have been running
_RESETS_MATTER = 0.01  # as a share of a bare loop's time
_WIDE = 1000  # more columns than any table needs


@dataclass(frozen=True)
class Spread:
    """The median and the range of some readings."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of at least one reading."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])


@dataclass(frozen=True)
class Row:
    """One candidate with one number of envs. Without any reading everything but `failure` is None.

    `share` is the rate over the mean of the limit's readings before and after the turn. `rate` is in env steps per
    second, `startup` in seconds.
    """

    candidate: str
    num_envs: int
    share: Spread | None
    rate: Spread | None
    startup: Spread | None
    memory: MemoryUse | None
    failure: str | None
    unavailable: bool = False


def rows(turns: Sequence[Turn]) -> list[Row]:
    """Summarise the turns, by candidate in order of first appearance. The contest may have been interrupted."""
    keys = dict.fromkeys((turn.num_envs, turn.candidate) for turn in turns if turn.candidate != LIMIT)
    found = []
    for num_envs, candidate in keys:
        own = [turn for turn in turns if (turn.num_envs, turn.candidate) == (num_envs, candidate)]
        timings = [turn.timing for turn in own if turn.timing is not None]
        startups = [turn.startup for turn in own if turn.startup is not None]
        shares = [share for share in (share_of(turn, turns) for turn in own) if share is not None]
        found.append(
            Row(
                candidate,
                num_envs,
                Spread.of(shares) if shares else None,
                Spread.of(timing.rate for timing in timings) if timings else None,
                Spread.of(startups) if startups else None,
                next((turn.memory for turn in own if turn.memory is not None), None),
                next((turn.failure for turn in own if turn.failure is not None), None),
                any(turn.unavailable for turn in own),
            )
        )
    return found


def share_of(turn: Turn, turns: Sequence[Turn]) -> float | None:
    """Divide a turn's rate by the mean of the readings of the limit before and after it."""
    at = next(place for place, other in enumerate(turns) if other is turn)
    around = [rate for side in (turns[at::-1], turns[at:]) if (rate := _nearest_limit(side, turn.num_envs))]
    if turn.timing is None or not around:
        return None
    return turn.timing.rate / statistics.fmean(around)


def _nearest_limit(turns: Sequence[Turn], num_envs: int) -> float | None:
    limits = (turn.timing for turn in turns if (turn.candidate, turn.num_envs) == (LIMIT, num_envs))
    return next((timing.rate for timing in limits if timing is not None), None)


def limit_of(turns: Sequence[Turn]) -> Spread:
    """Return the spread of all readings of the limit, in env steps per second."""
    return Spread.of(turn.timing.rate for turn in turns if turn.candidate == LIMIT and turn.timing is not None)


def unsteady(limit: Spread, most: float, consequence: str) -> list[str]:
    """Return a warning if the largest reading of the limit is more than `most` times the smallest."""
    if limit.max <= most * limit.min:
        return []
    return [
        f"The limit itself went from {count(limit.min)} to {count(limit.max)} steps/s meanwhile: something else is "
        f"running here, and {consequence} may be a matter of chance. Measure again on an idle machine."
    ]


def notes(held: Measurement, how: str, loop: str = LOOP) -> list[str]:
    """Describe the limit, of one `loop` per core, how it was measured, and what limits the accuracy of the shares."""
    limit = limit_of(held.turns)
    loops = f"{held.cores} {loop}s, one per core" if held.cores > 1 else f"one {loop}"
    said = [
        f"The limit: {count(limit.median)} steps/s ({count(limit.min)}..{count(limit.max)}) by {loops}; "
        "a share is taken of the readings before and after a turn.",
        how,
    ]
    said += unsteady(limit, _UNSTEADY, "shares")
    steps, share = held.episodes.steps, held.episodes.reset_share
    if steps is not None and share > _RESETS_MATTER and held.shortest < 3 * steps:
        said.append(
            f"Episodes last about {steps:.0f} steps, and resets take {share:.0%} of a bare loop's time. Some envs made "
            f"only {held.shortest:.0f} steps in a turn: shares may be up to {share:.0%} too high. More --seconds help."
        )
    failed = [row for row in rows(held.turns) if row.failure and not row.unavailable]
    return said + [f"{row.candidate} failed with {row.num_envs} envs: {row.failure}" for row in failed]


def unavailable(held: Measurement) -> dict[str, str]:
    """Return the candidates that need something which is not installed, and by name the remedy."""
    return {turn.candidate: turn.failure or "" for turn in held.turns if turn.unavailable}


def readings(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Convert every reading to plain data, with its rate and its share of the limit."""
    found = []
    for turn in turns:
        reading = {key: value for key, value in asdict(turn).items() if value is not None and value is not False}
        if turn.timing is not None:
            reading["rate"] = turn.timing.rate
            if turn.candidate != LIMIT:
                reading["share"] = share_of(turn, turns)
        found.append(reading)
    return found


def record(header: Mapping[str, Any], held: Measurement) -> dict[str, Any]:
    """Convert everything that was measured to plain data: `header`, the results, and every single reading."""
    return {
        "format": 1,
        **header,
        "settings": {"num_envs": list(held.num_envs), "seconds": held.seconds, "repeats": held.repeats},
        "interrupted": held.interrupted,
        "episodes": asdict(held.episodes),
        "limit_steps_per_second": asdict(limit_of(held.turns)),
        "results": [asdict(row) for row in rows(held.turns)],
        "readings": readings(held.turns),
    }


def to_json(data: Mapping[str, Any]) -> str:
    """Convert a record to text."""
    return json.dumps(data, indent=1, default=str) + "\n"


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write a record to a new file, which then replaces the old one; into a device or pipe itself."""
    if path.exists() and not path.is_file():
        path.write_text(to_json(data), encoding="utf-8")
        return
    path = Path(os.path.realpath(path))
    new = path.with_name(f"{path.name}.new")
    new.write_text(to_json(data), encoding="utf-8")
    new.replace(path)


def show(found: Sequence[Row], title: str, said: Sequence[str]) -> None:
    """Print the table of `found` and the notes under it to stdout."""
    print_table(table(found, title), said)


def print_table(laid_out: Table, said: Sequence[str]) -> None:
    """Print any table, with notes under it, to stdout. Without a terminal no column is cut off."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False)
    # A narrow terminal wraps lines. Without a terminal rich would cut the table off at 80 columns.
    console.width = max(console.width, Measurement.get(console, console.options.update(width=_WIDE), laid_out).maximum)
    with console.capture() as text:  # rich itself would exit with 1 where nobody reads stdout
        console.print(laid_out)
        for note in said:
            console.print(f"- {note}", markup=False, soft_wrap=True)
    sys.stdout.write(text.get())


def table(found: Sequence[Row], title: str) -> Table:
    """Lay the rows out as a table."""
    from rich.markup import escape
    from rich.table import Table

    result = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    result.add_column("backend", no_wrap=True)
    for heading in ("envs", "share of the limit", "steps/s", "start-up", "memory", "per env"):
        result.add_column(heading, justify="right", no_wrap=True)
    for index, row in enumerate(found):
        last = index + 1 == len(found) or found[index + 1].num_envs != row.num_envs
        result.add_row(escape(row.candidate), *_cells(row), end_section=last)
    return result


def _cells(row: Row) -> list[str]:
    if row.share is None or row.rate is None or row.startup is None:
        return [str(row.num_envs), "unavailable" if row.unavailable else "[red]failed[/red]", "", "", "", ""]
    share = f"[bold]{row.share.median:.2f}[/bold]  ({row.share.min:.2f}..{row.share.max:.2f})"
    memory, per_env = "", ""
    if row.memory is not None:
        memory, per_env = nbytes(row.memory.total), nbytes(row.memory.total / row.num_envs)
    return [
        str(row.num_envs),
        share,
        count(row.rate.median),
        duration(row.startup.median),
        memory,
        per_env,
    ]


def count(value: float) -> str:
    """Format a number with three significant digits: 1.23 M, 456 k."""
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= factor:
            return f"{_digits(value / factor)}{unit}"
    return _digits(value)


def duration(seconds: float) -> str:
    """Format a time with a fitting unit."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return f"{_digits(seconds / factor)} {unit}"
    return f"{_digits(seconds / 1e-6)} us"


def nbytes(value: float) -> str:
    """Format an amount of memory in binary units."""
    size = abs(value)
    sign = "-" if value < 0 else ""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{sign}{_digits(size / factor)} {unit}"
    return f"{sign}{size:.0f} B"


def _digits(value: float) -> str:
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f}"
