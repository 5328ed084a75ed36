"""The result of a search as a table with notes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from vecenvs.bench.report import Spread, count, duration, unsteady
from vecenvs.bench.tuning import TOLERANCE, Reading, Search

if TYPE_CHECKING:
    from rich.table import Table

_UNSTEADY = 1.3  # largest over smallest reading of the limit that an idle machine gives
_RUNGS = ("a glance", "longer", "in full")


def table(found: Search, title: str) -> Table:
    """Lay out all candidates: those of the highest rung first, then the fastest. The recommended one is marked."""
    from rich.markup import escape
    from rich.table import Table

    result = Table(title=title, title_justify="left", title_style="bold")
    result.add_column("")
    result.add_column("backend", no_wrap=True)
    for heading in ("envs", "rows at once", "share of the limit", "of the best", "start-up"):
        result.add_column(heading, justify="right", no_wrap=True)
    result.add_column("measured", no_wrap=True)
    best, chosen, ranking = found.best(), found.recommended(), found.ranking()
    for index, reading in enumerate(ranking):
        last = index + 1 == len(ranking) or ranking[index + 1].rung != reading.rung
        candidate = reading.candidate
        result.add_row(
            "=>" if chosen is reading else "",
            escape(candidate.name),
            str(candidate.num_envs),
            str(candidate.batch),
            *_shares(reading, best),
            "" if reading.startup is None else duration(reading.startup),
            _RUNGS[reading.rung],
            end_section=last,
        )
    return result


def notes(found: Search, between: float, learner: bool) -> list[str]:
    """Explain the table, and name what could not be measured. The program computes for `between` seconds per step."""
    said = [
        f"The limit: {count(statistics.median(found.limit))} steps/s by one bare env.step loop per core, all at once.",
        f"=> is the simplest of those within {TOLERANCE:.0%} of the best: few envs, few processes.",
    ]
    said += unsteady(Spread.of(found.limit), _UNSTEADY, "the choice")
    if between:
        half = ", half as long per half; meanwhile only workers run." if learner else " (--gap-us), as for a policy."
        said.append(f"The program computes for {duration(between)} per batch of all envs{half}")
    if any("vectorization" in reading.candidate.backend.options for reading in found.readings):
        said.append("native: one batched env per worker, without Monitor and in its own autoreset mode.")
    if found.left_out:
        sizes = ", ".join(map(str, found.left_out))
        said.append(f"Left out, since one step of them would take too long: {sizes} envs. A longer --budget helps.")
    if found.out_of_time:
        said.append("The time was over before everything was measured: a longer --budget helps.")
    failed = {reading.candidate: reading.failure for reading in found.readings if reading.failure}
    return said + [f"{c.name} failed with {c.num_envs} envs: {failure}" for c, failure in failed.items()]


def _shares(reading: Reading, best: Reading | None) -> tuple[str, str]:
    share = reading.share
    if share is None:
        return "[red]failed[/red]" if reading.failure else "", ""
    spread = f"  ({share.min:.2f}..{share.max:.2f})" if share.max > share.min else ""
    rival = best.share if best is not None and best.rung == reading.rung else None
    return f"[bold]{share.median:.2f}[/bold]{spread}", "" if rival is None else f"{share.median / rival.median:.2f}"
