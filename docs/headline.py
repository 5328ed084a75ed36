"""The first sentence and the first chart of README, the site and docs/benchmarks.md, from the files of results.

python -m docs.headline     after a measurement by benchmarks.peers or benchmarks.training

The envs are the same three kinds in both halves. vecenvs takes part as `make_vec_env` sets it up without `backend`,
the other libraries with their fastest setting for each env.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.peers import figures as peers
from benchmarks.peers.axis_charts import fastest
from benchmarks.peers.grid import cell
from benchmarks.shared import DOCS, RESULTS, ROOT, load, write_sections
from benchmarks.stack import svg
from benchmarks.stack.figures import CellRecord, Cells, complete, relative_to
from benchmarks.training import charts
from benchmarks.training.candidates import candidate
from benchmarks.training.figures import base_of, rate, relative
from benchmarks.training.page import DEFAULT, title_of

STEPPED = ("cartpole-64", "halfcheetah-8", "pong-84-8")
TRAINED = ("cleanrl-cartpole-8", "cleanrl-halfcheetah-8", "cleanrl-pong-8")
STEPPED_AS = "subproc:caller"  # what `make_vec_env` chooses for these envs without `backend`
SHOWN = {
    "gymnasium": "Gymnasium",
    "stable-baselines3": "SB3",
    "pufferlib": "PufferLib",
    "envpool": "EnvPool (C++ envs)",
}
CHART = DOCS / "benchmarks" / "headline.svg"
_SENTENCE = """On {cores} cores, what `make_vec_env` chooses by itself steps bare envs {step} times as fast as the
fastest setting of Gymnasium, Stable-Baselines3 and PufferLib. It trains PPO {fast} times as fast as the fastest of
them, and {slow} times as fast as the worker processes of Gymnasium and Stable-Baselines3."""


def main() -> None:
    """Write the chart, and the sentence into the pages."""
    for page, section in sections(CHART).items():
        write_sections(page, {"headline": section})


def sections(chart: Path) -> dict[Path, str]:
    """Draw the chart into a file; return the section of each page."""
    data = load(RESULTS / "training.json")
    stepped, trained = complete(load(RESULTS / "peers.json")), complete(data)
    cores, base = data["runs"][0]["machine"]["cores"], base_of(trained[TRAINED[0]])
    headings = {STEPPED[0]: "Stepping: 1 is one bare loop per core", TRAINED[0]: f"Training: 1 is {base}"}
    panels = [
        *(svg.Panel(cell(key).title, list(_stepping(stepped[key])), headings.get(key, "")) for key in STEPPED),
        *(svg.Panel(title_of(trained[key]), list(_training(trained[key])), headings.get(key, "")) for key in TRAINED),
    ]
    note = f"Rates on {cores} cores: more is better. vecenvs by its defaults, others at their fastest setting."
    svg.draw(chart, "Stepping bare envs, and PPO with a torch policy", panels, note)
    sentence = _SENTENCE.format(cores=cores, **{name: _range(found) for name, found in ratios(stepped, trained)})
    figures = "[All figures](benchmarks.md)."
    picture = "![Rates of stepping and of training beside other libraries](benchmarks/headline.svg)"
    return {
        ROOT / "README.md": f"{sentence} {figures}\n\n{picture}".replace("](", "](docs/"),
        DOCS / "index.md": f"{sentence} {figures}\n\n{picture}",
        DOCS / "benchmarks.md": f"{sentence}\n\n{picture}",
    }


def ratios(stepped: Cells, trained: Cells) -> Iterator[tuple[str, list[float]]]:
    """Yield the ratios in the sentence: stepping, training over the fastest, and over processes."""
    yield "step", [_over_fastest_stepping(stepped[key]) for key in STEPPED]
    rates = [dict(charts.fastest(trained[key], _rate_of(trained[key]))) for key in TRAINED]
    best = [next(name for name in found if _is_peer(name)) for found in rates]  # the fastest is first
    yield "fast", [_over(trained[key], name) for key, name in zip(TRAINED, best, strict=True)]
    processes = ("Gymnasium AsyncVectorEnv", "SB3 SubprocVecEnv")
    yield "slow", [_over(trained[key], name) for key in TRAINED for name in processes]


def _over_fastest_stepping(record: CellRecord) -> float:
    names = {library: one.name for library, (_, one) in fastest(record).items() if library in SHOWN and one.python}
    found = relative_to(record, STEPPED_AS, next(iter(names.values())), peers.share)
    return found.median if found else float("nan")


def _over(record: CellRecord, name: str) -> float:
    found = relative_to(record, DEFAULT, name, rate)
    return found.median if found else float("nan")


def _is_peer(name: str) -> bool:
    return candidate(name).python and candidate(name).library in SHOWN


def _rate_of(record: CellRecord) -> Callable[[str], float | None]:
    def figure(name: str) -> float | None:
        found = relative(record, name, rate)
        return None if found is None else found.median

    return figure


def _stepping(record: CellRecord) -> Iterator[svg.Bar]:
    ours = peers.value(record, STEPPED_AS)
    found = {"vecenvs": (ours.median, svg.OURS)} if ours else {}
    for library, (figure, one) in fastest(record).items():
        if library in SHOWN:
            found[SHOWN[library]] = figure.median, svg.THEIRS if one.python else svg.SCALE
    yield from _bars(found)


def _training(record: CellRecord) -> Iterator[svg.Bar]:
    figure = _rate_of(record)
    found = {"vecenvs": (figure(DEFAULT) or 0.0, svg.OURS)}
    for name, one in charts.fastest(record, figure):
        library = candidate(name).library
        if library in SHOWN:
            found[SHOWN[library]] = one, svg.THEIRS if candidate(name).python else svg.SCALE
    yield from _bars(found)


def _bars(found: dict[str, tuple[float, str]]) -> Iterator[svg.Bar]:
    for name, (figure, kind) in sorted(found.items(), key=lambda entry: -entry[1][0]):
        yield svg.Bar(name, [(kind, figure)], f"{figure:.2f}")


def _range(found: Iterable[float]) -> str:
    low, *_, high = sorted(f"{one:.1f}" for one in found)
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
