"""What the programs of this folder share: records of readings, tables, promises, and sections of pages."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vecenvs.bench import report
from vecenvs.bench.machine import facts, versions
from vecenvs.bench.report import Spread
from vecenvs.cpus import usable_cores

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "benchmarks/results", ROOT / "docs"
# Ray's daemons read this when they start. Ray runs its workers at low priority by default.
RAY_ENVIRONMENT = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_BEGIN, _END = "<!-- {}: begin -->", "<!-- {}: end -->"


def parser(usage: str | None, only: Collection[str], *, seconds: float, repeats: int) -> argparse.ArgumentParser:
    """Return a parser of what most programs take: which measurements, the seconds of a reading, the rounds."""
    found = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--only", nargs="+", choices=only, default=[*only], help="these measurements")
    found.add_argument("--seconds", type=float, default=seconds, help="per reading")
    found.add_argument("--repeats", type=int, default=repeats, help="rounds")
    return found


def about(command: str, *libraries: str) -> dict[str, Any]:
    """Return the head of a record: the command, the machine, and the versions, also of these libraries."""
    return {"command": command, "machine": facts(usable_cores()), "versions": versions(*libraries)}


def load(path: Path) -> dict[str, Any]:
    """Return the record in a file; an empty one without a file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report.write(path, record)


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [heading, ["---"] * len(heading), *rows])


def spread(found: Spread, digits: int = 2, *, bold: bool = False) -> str:
    """Format a median with its range in brackets."""
    median = f"{found.median:.{digits}f}"
    return f"{f'**{median}**' if bold else median} ({found.min:.{digits}f}..{found.max:.{digits}f})"


def promises(rows: Iterable[tuple[str, float, bool, tuple[Spread, str] | None]]) -> str:
    """Return a table of promised figures beside the measured ones. It is printed, not a part of a page.

    A row says what is promised, the bound, whether that is the least (or else the most), and the figure with its place.
    """

    def kept(what: str, bound: float, least: bool, found: tuple[Spread, str] | None) -> list[str]:
        promised = f"{'>=' if least else '<='} {bound:.2f}"
        if found is None:
            return [what, promised, "not yet", "", ""]
        is_kept = found[0].median >= bound if least else found[0].median <= bound
        return [what, promised, spread(found[0]), "kept" if is_kept else "**missed**", found[1]]

    return table(["", "promised", "measured", "", ""], [kept(*row) for row in rows])


@dataclass(frozen=True)
class Promise:
    """A promised figure of a measurement: a number, or a median with its range. It is picked from the record."""

    what: str
    measurement: str
    figure: Callable[[Mapping[str, Any]], Any]
    bound: float
    least: bool = True

    def row(self, records: Mapping[str, Any]) -> tuple[str, float, bool, tuple[Spread, str] | None]:
        """Return a row of `promises`."""
        try:
            found = self.figure(records[self.measurement])
        except KeyError:
            return self.what, self.bound, self.least, None
        spread_of = Spread(**found) if isinstance(found, Mapping) else Spread.of([found])
        return self.what, self.bound, self.least, (spread_of, "")


def section_of(text: str, name: str, otherwise: str = "") -> str:
    """Return a section of a page, with its marks."""
    begin, end = _BEGIN.format(name), _END.format(name)
    inside = text.partition(begin)[2].partition(end)[0].strip()
    return "\n".join(filter(None, (begin, inside or otherwise, end)))


def with_section(text: str, name: str, section: str) -> str:
    """Return a page with another section. ValueError if it has no place for one."""
    begin, end = _BEGIN.format(name), _END.format(name)
    head, mark, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not mark or not found:
        raise ValueError(f"the page has no place for the section: {begin} ... {end}")
    return f"{head}{begin}\n{section.strip()}\n{end}{tail}"


def write_sections(path: Path, sections: Mapping[str, str]) -> None:
    """Replace these sections of a page."""
    text = path.read_text(encoding="utf-8")
    try:
        for name, section in sections.items():
            text = with_section(text, name, section)
    except ValueError as error:
        raise SystemExit(f"{path}: {error}") from None
    path.write_text(text, encoding="utf-8")
