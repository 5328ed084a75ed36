"""The readings as markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.training.contestants import CONTESTANTS, OURS, contestant
from benchmarks.training.figures import (
    PHASES,
    CellRecord,
    average,
    base_of,
    failures,
    others_cpu,
    phase,
    rate,
    relative,
    rollout_rate,
    settings_of,
    step_time,
    update_value,
)
from benchmarks.training.grid import ENVS, GAPS, MEASUREMENTS, UPDATE
from vecenvs.bench.report import Spread

Cells = Mapping[str, CellRecord]
_SHOWN = {found.name: found.setting for found in CONTESTANTS}


def page(data: Mapping[str, Any]) -> str:
    """Return all tables."""
    cells: Cells = data["cells"]
    parts = [*conditions(data, cells)]
    for measurement, title in MEASUREMENTS.items():
        there = of_measurement(cells, measurement)
        if not there:
            continue
        parts.append(f"## {title}\n")
        parts += list(_gaps(there) if measurement == GAPS else _trainings(there))
        parts += [f"* {line}" for line in _failures(there)] + [""]
    return "\n".join(parts)


def of_measurement(cells: Cells, measurement: str) -> Cells:
    return {key: found for key, found in cells.items() if found["cell"]["measurement"] == measurement}


def is_ours(name: str) -> bool:
    """Return whether a contestant is a setting of ours."""
    return contestant(name).library == OURS


def title_of(record: CellRecord) -> str:
    cell = record["cell"]
    return f"{ENVS[cell['env']].title}, {cell['num_envs']} envs"


def contestants_of(cells: Cells) -> list[str]:
    """Return the names of all contestants, in the order of the lineup."""
    names = [name for record in cells.values() for name in record["lineup"]]
    order = [*_SHOWN, *names]
    return sorted(dict.fromkeys(names), key=order.index)


def conditions(data: Mapping[str, Any], cells: Cells) -> Iterator[str]:
    for number in sorted({record["run"] for record in cells.values()}):
        run = data["runs"][number]
        machine, versions = run["machine"], run["versions"]
        told = ", ".join(f"{name} {version}" for name, version in versions.items())
        there = [record for record in cells.values() if record["run"] == number]
        rounds = sorted({len(record["busy"]) for record in there})
        busy = max(share for record in there for share in record["busy"])
        yield (
            f"`{run['command']}` on {machine['cores']} cores, Python {machine['python']}; {told}. Rounds per cell: "
            f"{rounds[0]} to {rounds[-1]}; other programs used up to {busy:.0%} of the cores before a round.\n"
        )


def _gaps(cells: Cells) -> Iterator[str]:
    base = base_of(next(iter(cells.values())))
    yield (
        "Microseconds inside `step` after so many microseconds of inference: the median, the quartiles in brackets, "
        f"the ratio to {base}. During updates of {1e3 * UPDATE:.0f} ms without steps: the cores that other processes "
        "and threads use, the minibatches that the caller gets done (as a ratio), and the first step after it.\n"
    )
    for record in cells.values():
        gaps = record["cell"]["gaps"]
        yield f"### {title_of(record)}\n"
        yield line(["", *(f"{gap} us" for gap in gaps), "cores in updates", "minibatches", "step after an update"])
        yield line(["---"] * (4 + len(gaps)))
        for name in record["lineup"]:
            if name in failures(record):
                continue
            entries = [_step(record, name, gap) for gap in gaps]
            first = _pair(record, name, update_value("first_step"))
            cores = _number(average(record, name, update_value("cpu")))
            done = relative(record, name, update_value("minibatches"))
            yield line([name, *entries, cores, _number(done and done.median), first])
        yield ""


def _step(record: CellRecord, name: str, gap: int) -> str:
    found = [average(record, name, step_time(gap, which)) for which in ("median", "low", "high")]
    if None in found:
        return "-"
    middle, low, high = found
    ratio = relative(record, name, step_time(gap))
    return f"{middle:,.0f} ({low:,.0f}..{high:,.0f})" + (f", {ratio.median:.2f}" if ratio else "")


def _pair(record: CellRecord, name: str, value: Any) -> str:
    found, ratio = average(record, name, value), relative(record, name, value)
    return "-" if found is None else f"{found:,.0f}" + (f", {ratio.median:.2f}" if ratio else "")


def rates(cells: Cells) -> Iterator[str]:
    """Yield a table of the rates of trainings."""
    base = base_of(next(iter(cells.values())))
    yield f"Transitions per second, relative to {base} in the same round: the median, the range in brackets.\n"
    yield line(["", *map(title_of, cells.values())])
    yield line(["---"] * (1 + len(cells)))
    for name in contestants_of(cells):
        ratios = [relative(record, name, rate) for record in cells.values()]
        yield line([name, *("-" if ratio is None else spread(ratio) for ratio in ratios)])
    yield ""


def _trainings(cells: Cells) -> Iterator[str]:
    yield from rates(cells)
    yield (
        "Microseconds per transition; the rate without the updates, relative to the same base; the cores that other "
        "processes and threads use.\n"
    )
    yield line(["", "", *PHASES, "rate without updates", "cores"])
    yield line(["---"] * (4 + len(PHASES)))
    for record in cells.values():
        for name in record["lineup"]:
            times = [average(record, name, phase(one)) for one in PHASES]
            if times[0] is not None:
                collected = relative(record, name, rollout_rate)
                numbers = [_number(collected and collected.median), _number(average(record, name, others_cpu))]
                yield line([title_of(record), name, *(f"{time:,.1f}" for time in times if time is not None), *numbers])
    yield ""


def _failures(cells: Cells) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for record in cells.values():
        for name, reason in failures(record).items():
            reasons.setdefault((name, reason), []).append(title_of(record))
    yield from (f"{name} failed ({'; '.join(where)}): {reason}" for (name, reason), where in reasons.items())
    chosen = {
        f"{name}: {text}"
        for record in cells.values()
        for name in ("default", "auto")
        if (text := settings_of(record, name))
    }
    yield from sorted(chosen)


def spread(found: Spread) -> str:
    return f"{found.median:.2f} ({found.min:.2f}..{found.max:.2f})"


def _number(found: float | None) -> str:
    return "-" if found is None else f"{found:.2f}"


def line(entries: Sequence[str]) -> str:
    return f"| {' | '.join(entries)} |"
