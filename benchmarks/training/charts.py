"""Pictures of the readings: bars of the phases of a training, and of the time inside `step` beside a learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.stack import svg
from benchmarks.stack.figures import CellRecord, Cells, average
from benchmarks.training.candidates import candidate
from benchmarks.training.figures import PHASES, base_of, phase, rate, relative, step_time
from benchmarks.training.page import LONG, candidates_of, title_of


def draw_gaps(cells: Cells, path: Path) -> None:
    """Write a picture with a panel for each cell and long gap: the median time inside `step`."""
    panels = [
        svg.Panel(f"{title_of(record)}, {gap} us between steps", list(_times(record, gap)))
        for record in cells.values()
        for gap in LONG
        if gap in record["cell"]["gaps"]
    ]
    note = "Microseconds inside step beside a torch policy; less is better. Each library at its fastest setting."
    svg.draw(path, "The time inside step", panels, note, ratios=False)


def draw_training(cells: Cells, path: Path, title: str) -> None:
    """Write a picture with a panel for each cell: the phases of a transition, one after the other."""
    panels = [svg.Panel(title_of(record), list(_phases(record))) for record in cells.values()]
    note = "Time per transition, less is better; each library at its fastest setting. "
    told = f"{note}The number is the rate relative to {base_of(next(iter(cells.values())))}."
    svg.draw(path, title, panels, told, {one: one for one in PHASES}, ratios=False)


def fastest(record: CellRecord, figure: Callable[[str], float | None]) -> list[tuple[str, float]]:
    """Return the setting of each library with the highest figure, the highest first."""
    found: dict[str, tuple[str, float]] = {}
    for name in candidates_of({"": record}):
        one, library = figure(name), candidate(name).library
        if one is not None and (library not in found or one > found[library][1]):
            found[library] = name, one
    return sorted(found.values(), key=lambda entry: -entry[1])


def _times(record: CellRecord, gap: int) -> Iterator[svg.Bar]:
    def shortness(name: str) -> float | None:
        time = average(record, name, step_time(gap))
        return None if time is None else 1 / time

    for name, short in fastest(record, shortness):
        yield svg.bar_of(candidate(name), 1 / short, f"{1 / short:,.0f}")


def _phases(record: CellRecord) -> Iterator[svg.Bar]:
    def ratio(name: str) -> float | None:
        found = relative(record, name, rate)
        return None if found is None else found.median

    for name, one in fastest(record, ratio):
        parts = [(each, average(record, name, phase(each)) or 0.0) for each in PHASES]
        yield svg.bar_of(candidate(name), one, f"{one:.2f}", parts)
