"""Tables, and a page whose sections different programs write, each between marks of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.stack.figures import CellRecord, Cells, failures
from vecenvs.bench.report import Spread

_BEGIN, _END = "<!-- {}: begin -->", "<!-- {}: end -->"


def section_of(text: str, name: str, otherwise: str = "") -> str:
    """Return a section of a page that another program writes, with its marks."""
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


def write_section(path: Path, name: str, section: str) -> None:
    """Replace a section of the page at `path`."""
    path.write_text(with_section(path.read_text(encoding="utf-8"), name, section), encoding="utf-8")


def line(entries: Sequence[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(entries)} |"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    return "\n".join([line(header), line(["---"] * len(header)), *map(line, rows)]) + "\n"


def spread(found: Spread, digits: int = 2, *, bold: bool = False) -> str:
    """Format a median with its range in brackets."""
    median = f"{found.median:.{digits}f}"
    return f"{f'**{median}**' if bold else median} ({found.min:.{digits}f}..{found.max:.{digits}f})"


def names_of(cells: Cells, order: Iterable[str]) -> list[str]:
    """Return the contestants of all cells, in this order, others last."""
    names = dict.fromkeys(name for record in cells.values() for name in record["lineup"])
    known = [name for name in order if name in names]
    return [*known, *(name for name in names if name not in known)]


def reasons(cells: Cells, title: Any) -> str:
    """Return a list of what failed where, and why. `title` is a function of a cell's key and record."""
    found: dict[tuple[str, str], list[str]] = {}
    for key, record in cells.items():
        for contestant, reason in failures(record).items():
            found.setdefault((contestant, reason), []).append(title(key, record))
    lines = [f"* {name} failed ({'; '.join(where)}): {reason}" for (name, reason), where in found.items()]
    return "\n".join(lines) + "\n" if lines else ""


def runs_of(data: Mapping[str, Any], cells: Cells) -> list[tuple[Mapping[str, Any], str, list[CellRecord]]]:
    """Return the runs that measured these cells, their versions as text, and the cells of each."""
    numbers = sorted({record["run"] for record in cells.values()})
    found = []
    for number in numbers:
        run = data["runs"][number]
        versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        found.append((run, versions, [record for record in cells.values() if record["run"] == number]))
    return found


def promises(rows: Iterable[tuple[str, float, bool, tuple[Spread, str] | None]]) -> str:
    """Return a table of promised figures beside the measured ones. It is printed, not a part of the page.

    A row says what is promised, the bound, whether that is the least (or else the most), and the figure with its place.
    """

    def kept(what: str, bound: float, least: bool, found: tuple[Spread, str] | None) -> list[str]:
        promised = f"{'>=' if least else '<='} {bound:.2f}"
        if found is None:
            return [what, promised, "not yet", "", ""]
        is_kept = found[0].median >= bound if least else found[0].median <= bound
        return [what, promised, spread(found[0]), "kept" if is_kept else "**missed**", found[1]]

    return table(["", "promised", "measured", "", ""], [kept(*row) for row in rows])
