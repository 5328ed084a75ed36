"""Where the time of a step goes, by subtraction: nothing in the engines is instrumented.

Beside the backends, `DummyVecEnv` and a bare loop over as many envs step stand-ins that give what the env gave, as a
whole or in part, at no cost. A part's time is the difference that leaving it out makes. Everything is in core time per
step of one env, so that the parts of a backend add up to what all cores spend on it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vecenvs.bench.contestants import Backend, MakesVec, VecContestant, from_env_fn
from vecenvs.bench.lock_step import LockStepContestant
from vecenvs.bench.loops import LoopContestant
from vecenvs.bench.measure import LIMIT, Contestant, Turn
from vecenvs.bench.replays import record
from vecenvs.bench.report import Spread, share_of
from vecenvs.bench.workloads import Workload

if TYPE_CHECKING:
    from rich.table import Table

IN_PROCESS = "dummy"
WAITING = "waiting"
UNEVEN = "uneven"
LOCK_STEP = "~lock-step"
ALONE = "alone"  # the one part that an engine over several cores does not have

# The parts in the order in which a step goes through them, as signed readings of the probes below.
_PARTS: dict[str, dict[str, int]] = {
    "env": {LIMIT: 1},
    ALONE: {"~loop of one": 1, LIMIT: -1},
    "turns": {"~loop": 1, "~loop of one": -1},
    "calls": {"~dummy blank": 1, "~loop blank": -1},
    "rows": {"~dummy rows in place": 1, "~dummy blank": -1},
    "copies": {"~dummy rows": 1, "~dummy rows in place": -1},
    "infos": {"~dummy rows, infos": 1, "~dummy rows": -1},
    "ends": {"~dummy all": 1, "~dummy rows, infos": -1, "~loop all": -1, "~loop blank": 1},
    "rest": {IN_PROCESS: 1, "~loop": -1, "~dummy all": -1, "~loop all": 1},
}
MEANING = {
    "env": "env.step, and env.reset where an episode ends",
    ALONE: "one core alone, rather than all at once",
    "turns": "many envs by turns, rather than one (caches)",
    "calls": "actions in, the loop over envs, rewards and flags",
    "rows": "observations into their columns",
    "copies": "copies of the columns for the caller",
    "infos": "infos",
    "ends": "episode ends: terminal observations, autoreset",
    "rest": "what stand-ins do not show",
    UNEVEN: "cores that wait for the slowest: bare loops in lock-step",
    WAITING: "wake-up, waiting, cores without work",
}


def probes(env_fn: Workload, make_vec: MakesVec, chosen: Collection[str], cores: int) -> list[Contestant]:
    """Give the contestants that a breakdown needs besides the backends of the names `chosen`."""
    replay = record(env_fn)
    found: list[Contestant] = [LoopContestant("~loop of one", env_fn, 1), LoopContestant("~loop", env_fn)]
    found.append(LockStepContestant(LOCK_STEP, env_fn, cores))
    if IN_PROCESS not in chosen:
        found.append(VecContestant(Backend(IN_PROCESS, "dummy"), make_vec))
    found += [LoopContestant("~loop blank", replay.only()), LoopContestant("~loop all", replay)]
    for name, stand_in, options in (
        ("blank", replay.only(), {"copy": False}),
        ("rows in place", replay.only(rows=True), {"copy": False}),
        ("rows", replay.only(rows=True), {}),
        ("rows, infos", replay.only(rows=True, infos=True), {}),
        ("all", replay, {}),
    ):
        found.append(VecContestant(Backend(f"~dummy {name}", "dummy", options), from_env_fn(stand_in)))
    return found


@dataclass(frozen=True)
class Part:
    """One part of a backend's step. `share` is of the core time, `seconds` the core time per step of one env."""

    contestant: str
    num_envs: int
    part: str
    share: Spread
    seconds: Spread


def parts(turns: Sequence[Turn], names: Sequence[str], cores: int) -> list[Part]:
    """Take the readings of each round apart, and sum up over the rounds. Rounds that lack a reading are left out."""
    found: list[Part] = []
    for num_envs in dict.fromkeys(turn.num_envs for turn in turns):
        own = [turn for turn in turns if turn.num_envs == num_envs]
        rounds = [_core_seconds(own, number, cores) for number in sorted({turn.round for turn in own})]
        for name in names:
            complete = [taken for taken in rounds if name in taken and _needed() <= taken.keys()]
            by_part: dict[str, list[tuple[float, float]]] = {}
            for taken in complete:
                whole = cores * taken[name]
                for part, seconds in _take_apart(taken, whole, name, cores).items():
                    by_part.setdefault(part, []).append((seconds / whole, seconds))
            for part, both in by_part.items():
                shares, seconds_of = zip(*both, strict=True)
                found.append(Part(name, num_envs, part, Spread.of(shares), Spread.of(seconds_of)))
    return found


def _needed() -> set[str]:
    return {LOCK_STEP, *(probe for terms in _PARTS.values() for probe in terms)}


def _core_seconds(turns: Sequence[Turn], number: int, cores: int) -> dict[str, float]:
    """Give what each took per env step in that round: seconds of the clock, of the limit those of a core."""
    found: dict[str, float] = {}
    for turn in turns:
        share = share_of(turn, turns) if turn.contestant != LIMIT else None
        if turn.round == number and turn.timing is not None and share is not None:
            found[turn.contestant] = 1 / turn.timing.rate
            found[LIMIT] = cores * share / turn.timing.rate
    return found


def _take_apart(taken: dict[str, float], whole: float, name: str, cores: int) -> dict[str, float]:
    found = {part: sum(sign * taken[probe] for probe, sign in terms.items()) for part, terms in _PARTS.items()}
    if name == IN_PROCESS:
        found[UNEVEN] = 0.0
    else:
        found[ALONE] = 0.0
        found[UNEVEN] = cores * taken[LOCK_STEP] - found["env"] - found["turns"]
    return {**found, WAITING: whole - sum(found.values())}


def table(found: Sequence[Part], num_envs: int) -> Table:
    """Lay out the parts, one column per backend: median share of the core time, and its range over the rounds."""
    from rich.markup import escape
    from rich.table import Table

    own = [part for part in found if part.num_envs == num_envs]
    names = list(dict.fromkeys(part.contestant for part in own))
    cells = {(part.contestant, part.part): part for part in own}
    result = Table(
        title=f"Where the core time of {num_envs} env{'s' * (num_envs > 1)} goes",
        title_justify="left",
        title_style="bold",
    )
    result.add_column("per env and step", no_wrap=True)
    for name in names:
        result.add_column(escape(name), justify="right", no_wrap=True)
    for key, meaning in MEANING.items():
        result.add_row(meaning, *(_percent(cells[name, key].share) for name in names))
    return result


def plain(found: Sequence[Part]) -> list[dict[str, Any]]:
    """Put parts into plain data."""
    return [asdict(part) for part in found]


def _percent(share: Spread) -> str:
    return f"[bold]{100 * share.median:.1f} %[/bold]  ({100 * share.min:.1f}..{100 * share.max:.1f})"
