"""Measure the engines beside other libraries; see benchmarks/README.md.

python -m benchmarks.peers                       everything that is not in the file yet, about 45 minutes in all
python -m benchmarks.peers --minutes 15          the same in less time, with fewer rounds
python -m benchmarks.peers --only cost rows-64   some axes or cells
python -m benchmarks.peers --quick               a few cells, one short round, into demo/
python -m benchmarks.peers --page                no measuring: write the page from the file
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers import axis_charts, page
from benchmarks.peers.candidates import CANDIDATES
from benchmarks.peers.figures import best, limits, over_peer, share
from benchmarks.peers.grid import AXES, CELLS
from benchmarks.peers.turns import measure
from benchmarks.shared import spread
from benchmarks.stack import figures, run
from benchmarks.stack.candidates import candidates_of


def summary(record: figures.CellRecord) -> str:
    """Summarise a cell in a line."""
    sides = {"ours": best(record, ours=True), "peers": best(record, ours=False)}
    parts = [f"{side}: {name} {figures.average(record, name, share):.3f}" for side, name in sides.items() if name]
    ratio = over_peer(record)
    return "; ".join([*parts, *([f"ratio {spread(ratio)}"] if ratio else []), f"limit {spread(limits(record))}"])


def write_page(data: Mapping[str, Any], record: Path, path: Path) -> None:
    """Write the page, and the pictures into a folder of the same name beside it."""
    folder, pictures = path.with_suffix(""), {}
    for axis, cells in page.axes_of(figures.complete(data)):
        cores = data["runs"][next(iter(cells.values()))["run"]]["machine"]["cores"]
        axis_charts.draw_axis(axis, cells, folder / f"{axis.name}.svg", cores)
        pictures[axis.name] = f"{folder.name}/{axis.name}.svg"
    link = os.path.relpath(record, path.parent)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(page.page(data, record.name, link, pictures, before), encoding="utf-8")


SUITE = run.Suite(
    "peers",
    __doc__ or "",
    CELLS,
    AXES,
    partial(candidates_of, CANDIDATES),
    measure,
    summary,
    write_page,
    page.promised,
    seconds=0.5,
    rounds=5,
)

if __name__ == "__main__":
    run.main(SUITE)
