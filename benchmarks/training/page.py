"""The first section of docs/benchmarks.md, with the tables that tell most; and what was promised beside a learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.training import tables
from benchmarks.training.figures import CellRecord, Value, average, failures, rate, relative_to, step_time, update_value
from benchmarks.training.grid import GAPS, MEASUREMENTS, OWN, SB3
from vecenvs.bench.report import Spread

OURS = "dummy"
DEFAULT = "default"
THEIRS = "SB3 DummyVecEnv"
LONG = (300, 1000)  # microseconds of inference
FOREIGN = "EnvPool"  # it steps envs of its own

Cells = Mapping[str, CellRecord]

_INTRO = """A program has in the end the wall clock of its training. A bare loop over `step` keeps workers awake;
beside a learner they fall asleep between steps. So this comes first: PPO with a torch policy, and the time inside
`step` beside one. `default` is `make_vec_env` without `backend`, `dummy` our DummyVecEnv.

`python -m benchmarks.training --page` writes this section from
[training.json](../benchmarks/results/training.json). How it measures:
[benchmarks/README.md](../benchmarks/README.md#training)."""


@dataclass(frozen=True)
class Promise:
    """A figure that was promised: a ratio to another contestant's, at least or at most `bound`.

    `best`: the best of ours, else `default`. With a gap it is the time inside `step`, else the rate of a training.
    """

    key: str
    bound: float
    best: bool = False
    gap: int | None = None

    @property
    def base(self) -> str:
        return THEIRS if self.gap is None else OURS

    @property
    def value(self) -> Value:
        return rate if self.gap is None else step_time(self.gap)

    def is_kept(self, ratio: float) -> bool:
        return ratio >= self.bound if self.gap is None else ratio <= self.bound

    def figure(self, record: CellRecord) -> tuple[Spread, str] | None:
        """Return the ratio, and the contestant that has it. None if it was not measured."""
        names = [name for name in record["lineup"] if tables.is_ours(name)] if self.best else [DEFAULT]
        found = [(ratio, name) for name in names if (ratio := relative_to(record, name, self.base, self.value))]
        choose: Callable[..., tuple[Spread, str]] = max if self.gap is None else min
        return choose(found, key=lambda one: one[0].median) if found else None


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


def section(data: Mapping[str, Any], pictures: Mapping[str, str]) -> str:
    """Return the section. `pictures` are paths by measurement."""
    cells: Cells = data["cells"]
    parts = [_INTRO + "\n", *tables.conditions(data, cells)]
    for measurement in (SB3, OWN):
        there = tables.of_measurement(cells, measurement)
        if there:
            parts += [f"### {MEASUREMENTS[measurement]}\n", *tables.rates(there), *_picture(pictures, measurement)]
    there = {key: one for key, one in tables.of_measurement(cells, GAPS).items() if one["cell"]["num_envs"] == 8}
    if there:
        parts += [f"### {MEASUREMENTS[GAPS]}\n", *_steps(there), *_picture(pictures, GAPS)]
    return "\n".join(parts)


def _picture(pictures: Mapping[str, str], measurement: str) -> Iterator[str]:
    if measurement in pictures:
        yield f"![{MEASUREMENTS[measurement]}]({pictures[measurement]})\n"


def promises(cells: Cells) -> Iterator[str]:
    """Yield the lines of a table of the promises beside the measured figures. Users need not see it."""
    yield tables.line(["8 envs", "promised", "measured", "", ""])
    yield tables.line(["---"] * 5)
    for promise in PROMISES:
        record = cells.get(promise.key)
        found = None if record is None else promise.figure(record)
        if record is None or found is None:
            continue
        ratio, name = found
        what = "Stable-Baselines3's PPO" if promise.gap is None else f"`step` after {promise.gap} us"
        told = (
            f"{tables.title_of(record).split(',')[0]}, {what}: {'best' if promise.best else 'default'} / {promise.base}"
        )
        yield _kept(
            told,
            f"{'>=' if promise.gap is None else '<='} {promise.bound:.2f}",
            tables.spread(ratio),
            name,
            promise.is_kept(ratio.median),
        )
    ahead = min(_ahead(cells), default=None)
    if ahead is not None:
        ratio, told = ahead
        yield _kept(
            "the least of all cells: our best / best library", f">= {AHEAD:.2f}", f"{ratio:.2f}", told, ratio >= AHEAD
        )
    burnt = [
        cpu
        for one in tables.of_measurement(cells, GAPS).values()
        if (cpu := average(one, DEFAULT, update_value("cpu"))) is not None
    ]
    if burnt:
        yield _kept(
            "cores used by the default's workers in updates",
            f"< {BURNT:.2f}",
            f"{max(burnt):.2f}",
            "",
            max(burnt) < BURNT,
        )
    yield ""


def _kept(what: str, bound: str, measured: str, told: str, kept: bool) -> str:
    return tables.line([what, bound, measured, "kept" if kept else "**missed**", told])


def _ahead(cells: Cells) -> Iterator[tuple[float, str]]:
    """Yield, of each cell, how far our best is ahead of the best library that steps Python envs."""
    for record in cells.values():
        gaps: Sequence[int | None] = record["cell"]["gaps"] or (None,)
        for gap in gaps:
            value = rate if gap is None else _speed(gap)
            found = {
                name: speed
                for name in record["lineup"]
                if name != FOREIGN
                and name not in failures(record)
                and (speed := average(record, name, value)) is not None
            }
            ours = [speed for name, speed in found.items() if tables.is_ours(name)]
            theirs = [speed for name, speed in found.items() if not tables.is_ours(name)]
            if ours and theirs:
                told = tables.title_of(record) + ("" if gap is None else f", {gap} us")
                yield max(ours) / max(theirs), f"{told} ({record['cell']['measurement']})"


def _speed(gap: int) -> Value:
    def pick(reading: Mapping[str, Any]) -> float | None:
        seconds = step_time(gap)(reading)
        return 1 / seconds if seconds else None

    return pick


def _steps(cells: Cells) -> Iterator[str]:
    """Yield a table of the medians inside `step` after the long gaps."""
    columns = [(record, gap) for record in cells.values() for gap in LONG if gap in record["cell"]["gaps"]]
    yield "Median microseconds inside `step`, after so many microseconds of inference.\n"
    yield tables.line(["", *(f"{tables.title_of(record)}, {gap} us" for record, gap in columns)])
    yield tables.line(["---"] * (1 + len(columns)))
    for name in tables.contestants_of(cells):
        found = [average(record, name, step_time(gap)) for record, gap in columns]
        yield tables.line([name, *("-" if one is None else f"{one:,.0f}" for one in found)])
    yield ""
