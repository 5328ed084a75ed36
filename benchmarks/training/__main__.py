"""Measure what training costs beside a torch policy; see benchmarks/README.md.

python -m benchmarks.training                     everything that is not in the file yet
python -m benchmarks.training --minutes 24        the same in less time, with fewer rounds
python -m benchmarks.training --key --minutes 8   8 envs: Stable-Baselines3's PPO, and gaps
python -m benchmarks.training --only gaps         some measurements or cells
python -m benchmarks.training --quick             a minute, to see whether it works, into demo/
python -m benchmarks.training --page              no measuring: write the first section of docs/benchmarks.md
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.shared import with_section
from benchmarks.stack import run
from benchmarks.stack.figures import CellRecord, complete, failures
from benchmarks.training import charts, page
from benchmarks.training.candidates import candidates_of
from benchmarks.training.figures import base_of, rate, relative, step_time
from benchmarks.training.grid import AXES, CELLS, GAPS, KEY
from benchmarks.training.turns import measure


def summary(record: CellRecord) -> str:
    """Summarise a cell in a line: ratios to the base, of time inside `step` after the longest gap or of rates."""
    gaps = record["cell"]["gaps"]
    value = step_time(gaps[-1]) if gaps else rate
    names = [name for name in record["candidates"] if name not in failures(record)]
    found = {name: ratio.median for name in names if (ratio := relative(record, name, value)) is not None}
    what = f"step after {gaps[-1]} us" if gaps else "rates"
    return f"{what} / {base_of(record)}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items())


def write_page(data: Mapping[str, Any], record: Path, path: Path) -> None:
    """Write the section about training of a page, and its pictures beside the page's other ones."""
    folder, pictures = path.with_suffix(""), {}
    for axis in AXES:
        there = page.of_measurement(complete(data), axis.name)
        if there:
            picture = folder / f"training-{axis.name}.svg"
            if axis.name == GAPS:
                charts.draw_gaps(there, picture)
            else:
                charts.draw_training(there, picture, axis.title)
            pictures[axis.name] = f"{folder.name}/{picture.name}"
    text = (path if path.exists() else run.PAGE).read_text(encoding="utf-8")
    path.write_text(with_section(text, "training", page.section(data, pictures)), encoding="utf-8")


SUITE = run.Suite(
    "training",
    __doc__ or "",
    CELLS,
    AXES,
    candidates_of,
    measure,
    summary,
    write_page,
    page.promised,
    seconds=1.5,
    rounds=3,
    sets={"key": KEY},
)

if __name__ == "__main__":
    run.main(SUITE)
