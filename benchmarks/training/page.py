"""The first section of docs/benchmarks.md, with the tables that tell most; and what was promised beside a learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.shared import promises, spread, table
from benchmarks.stack.candidates import OURS
from benchmarks.stack.figures import CellRecord, Cells, Value, average, complete, failures, relative_to
from benchmarks.stack.page import names_of, runs_of
from benchmarks.training.candidates import CANDIDATES, candidate
from benchmarks.training.figures import base_of, idle_cpu, rate, relative, step_time
from benchmarks.training.grid import ENVS, GAPS, MEASUREMENTS, OWN, SB3
from vecenvs.bench.report import Spread

DUMMY = "dummy"
DEFAULT = "default"
THEIRS = "SB3 DummyVecEnv"
LONG = (300, 1000)  # microseconds of inference

_NAMES = [found.name for found in CANDIDATES]
_INTRO = """A program has in the end the wall clock of its training. A bare loop over `step` keeps workers awake;
beside a learner they fall asleep between steps. So this comes first: PPO with a torch policy, and the time inside
`step` beside one. `default` is `make_vec_env` without `backend`, `dummy` our DummyVecEnv.

`python -m benchmarks.training --page` writes this section from
[training.json](../benchmarks/results/training.json). How it measures:
[benchmarks/README.md](../benchmarks/README.md#training)."""


def title_of(record: CellRecord) -> str:
    cell = record["cell"]
    return f"{ENVS[cell['env']].title}, {cell['num_envs']} envs"


def candidates_of(cells: Cells) -> list[str]:
    """Return the names of all candidates, in their order."""
    return names_of(cells, _NAMES)


def of_measurement(cells: Cells, measurement: str) -> Cells:
    return {key: found for key, found in cells.items() if found["cell"]["measurement"] == measurement}


def section(data: Mapping[str, Any], pictures: Mapping[str, str]) -> str:
    """Return the section. `pictures` are paths by measurement."""
    cells = complete(data)
    parts = [_INTRO + "\n", *_conditions(data, cells)]
    for measurement in (SB3, OWN, GAPS):
        there = of_measurement(cells, measurement)
        if measurement == GAPS:
            there = {key: one for key, one in there.items() if one["cell"]["num_envs"] == 8}
        if there:
            parts += [f"### {MEASUREMENTS[measurement]}\n", *(_steps(there) if measurement == GAPS else _rates(there))]
            if measurement in pictures:
                parts.append(f"![{MEASUREMENTS[measurement]}]({pictures[measurement]})\n")
    return "\n".join(parts)


def _conditions(data: Mapping[str, Any], cells: Cells) -> Iterator[str]:
    for run, versions, there in runs_of(data, cells):
        machine = run["machine"]
        rounds = sorted({len(record["busy"]) for record in there})
        busy = max(share for record in there for share in record["busy"])
        yield (
            f"`{run['command']}` on {machine['cores']} cores, Python {machine['python']}; {versions}. Rounds per cell: "
            f"{rounds[0]} to {rounds[-1]}; other programs used up to {busy:.0%} of the cores before a round.\n"
        )


def _rates(cells: Cells) -> Iterator[str]:
    """Yield a table of the rates of trainings."""
    base = base_of(next(iter(cells.values())))
    yield f"Transitions per second, relative to {base} in the same round: the median, the range in brackets.\n"
    rows = []
    for name in candidates_of(cells):
        ratios = [relative(record, name, rate) for record in cells.values()]
        rows.append([name, *("-" if ratio is None else spread(ratio) for ratio in ratios)])
    yield table(["", *map(title_of, cells.values())], rows) + "\n"


def _steps(cells: Cells) -> Iterator[str]:
    """Yield a table of the medians inside `step` after the long gaps."""
    columns = [(record, gap) for record in cells.values() for gap in LONG if gap in record["cell"]["gaps"]]
    yield "Median microseconds inside `step`, after so many microseconds of inference.\n"
    rows = []
    for name in candidates_of(cells):
        found = [average(record, name, step_time(gap)) for record, gap in columns]
        rows.append([name, *("-" if one is None else f"{one:,.0f}" for one in found)])
    yield table(["", *(f"{title_of(record)}, {gap} us" for record, gap in columns)], rows) + "\n"


@dataclass(frozen=True)
class Promise:
    """A figure that was promised: a ratio to another candidate's, at least or at most `bound`.

    `best`: the best of ours, else `default`. With a gap it is the time inside `step`, else the rate of a training.
    """

    key: str
    bound: float
    best: bool = False
    gap: int | None = None

    @property
    def base(self) -> str:
        return THEIRS if self.gap is None else DUMMY

    def figure(self, record: CellRecord) -> tuple[Spread, str] | None:
        """Return the ratio, and the candidate that has it. None if it was not measured."""
        names = [name for name in record["candidates"] if is_ours(name)] if self.best else [DEFAULT]
        value: Value = rate if self.gap is None else step_time(self.gap)
        found = [(ratio, name) for name in names if (ratio := relative_to(record, name, self.base, value))]
        choose: Callable[..., tuple[Spread, str]] = max if self.gap is None else min
        return choose(found, key=lambda one: one[0].median) if found else None

    def what(self, record: CellRecord) -> str:
        what = "Stable-Baselines3's PPO" if self.gap is None else f"`step` after {self.gap} us"
        return f"{title_of(record)}, {what}: {'best' if self.best else 'default'} / {self.base}"


def _step(env: str, default: float, best: float | None = None) -> list[Promise]:
    key = f"{GAPS}-{env}-8"
    promised = [Promise(key, default, gap=gap) for gap in LONG]
    return promised + [Promise(key, best, best=True, gap=gap) for gap in LONG if best is not None]


PROMISES = [
    Promise(f"{SB3}-cartpole-8", 1.0),
    Promise(f"{SB3}-cartpole-8", 1.1, best=True),
    Promise(f"{SB3}-halfcheetah-8", 1.1),
    Promise(f"{SB3}-halfcheetah-8", 1.2, best=True),
    Promise(f"{SB3}-pong-8", 1.3),
    *_step("cartpole", 1.0, 0.7),
    *_step("halfcheetah", 0.75, 0.6),
    *_step("pong", 0.65),
]
AHEAD, BURNT = 1.0, 0.05  # of every library that steps Python envs; cores per VecEnv during updates


def promised(cells: Cells) -> str:
    """Return a table of the promises beside the measured figures."""
    rows = [
        (one.what(cells[one.key]), one.bound, one.gap is None, one.figure(cells[one.key]))
        for one in PROMISES
        if one.key in cells
    ]
    ahead = min(_ahead(cells), key=lambda one: one[0].median, default=None)
    rows.append(("the least of all cells: our best / best library", AHEAD, True, ahead))
    gaps = of_measurement(cells, GAPS).values()
    burnt = [cpu for one in gaps if (cpu := average(one, DEFAULT, idle_cpu)) is not None]
    most = (Spread.of([max(burnt)]), "") if burnt else None
    rows.append(("cores used by the default's workers in updates", BURNT, False, most))
    return promises(rows)


def is_ours(name: str) -> bool:
    """Return whether a candidate is a setting of ours."""
    return candidate(name).library == OURS


def _ahead(cells: Cells) -> Iterator[tuple[Spread, str]]:
    """Yield, of each cell, how far our best is ahead of the best library that steps Python envs."""
    for record in cells.values():
        gaps: Sequence[int | None] = record["cell"]["gaps"] or (None,)
        for gap in gaps:
            found: dict[bool, list[float]] = {True: [], False: []}
            for name in record["candidates"]:
                value = average(record, name, rate if gap is None else step_time(gap))
                if value and candidate(name).python and name not in failures(record):
                    found[is_ours(name)].append(value if gap is None else 1 / value)
            if found[True] and found[False]:
                told = title_of(record) + ("" if gap is None else f", {gap} us")
                ratio = max(found[True]) / max(found[False])
                yield Spread.of([ratio]), f"{told} ({record['cell']['measurement']})"
