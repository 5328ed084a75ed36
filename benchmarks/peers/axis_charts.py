"""A picture for each axis: a panel for each cell, with a bar for the fastest setting of each library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.candidates import CANDIDATES
from benchmarks.peers.figures import value
from benchmarks.peers.grid import cell
from benchmarks.stack import svg
from benchmarks.stack.candidates import Candidate
from benchmarks.stack.figures import CellRecord
from benchmarks.stack.grid import Axis
from vecenvs.bench.report import Spread


def draw_axis(axis: Axis, cells: Mapping[str, CellRecord], path: Path, cores: int) -> None:
    """Write an SVG."""
    relative = {record["cell"]["relative"] for record in cells.values()}
    one = {False: f"1 is the limit, one bare env.step loop per core ({cores}), all at once", True: "1 is the best peer"}
    meaning = ", or, over best peer, ".join(one[each] for each in sorted(relative))
    panels = [
        svg.Panel(
            cell(key).title + (", over best peer" * record["cell"]["relative"]),
            [svg.bar_of(one, figure.median, f"{figure.median:.2f}") for figure, one in fastest(record).values()],
        )
        for key, record in cells.items()
    ]
    svg.draw(path, axis.title, panels, f"More is better: each library at its fastest setting; {meaning}.")


def fastest(record: CellRecord) -> dict[str, tuple[Spread, Candidate]]:
    """Return the fastest setting of each library by the library, the fastest library first."""
    found: dict[str, tuple[Spread, Candidate]] = {}
    for one in CANDIDATES:
        figure = value(record, one.name)
        if figure is not None and (one.library not in found or figure.median > found[one.library][0].median):
            found[one.library] = figure, one
    return dict(sorted(found.items(), key=lambda entry: -entry[1][0].median))
