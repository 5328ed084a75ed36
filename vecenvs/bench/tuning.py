"""Find the fastest way to step an env on this machine: every candidate briefly, the better ones for longer.

Three rungs of a ladder (successive halving): all candidates once; the better half once, for twice as long; the best
few three times, for three times as long. Only readings of one rung are compared, as shares of the limit, which is read
before and after each of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vecenvs.bench.candidates import Backend, MakesVec, parse
from vecenvs.bench.contest import LIMIT, Turn, contest, warmup_for
from vecenvs.bench.learner import LearningCandidate
from vecenvs.bench.limit import BareLoops
from vecenvs.bench.progress import ProgressDisplay
from vecenvs.bench.report import Spread, rows
from vecenvs.bench.workloads import Workload
from vecenvs.worker.load import WAITING_CPU, WAITING_STEP

TOLERANCE = 0.05  # a simpler candidate wins if it is slower by at most this share
_FINALISTS = 3
_PER_TURN = 0.25  # seconds to start and end an engine, for planning
_LOOK = 1.0  # seconds of steps from which one tells whether an env waits
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds of a reading in the first rung


@dataclass(frozen=True, eq=False)
class Setting:
    """A way to step: a backend and a number of envs, stepped all at once or, with `halves`, half at a time."""

    backend: Backend
    num_envs: int
    halves: bool = False

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.backend.name} in halves" if self.halves else self.backend.name

    @property
    def batch(self) -> int:
        """The number of rows that the program gets at once."""
        return self.num_envs // 2 if self.halves else self.num_envs

    def simplicity(self) -> tuple[Any, ...]:
        """Return the sort key for equally fast candidates: few envs first, then whole batches, then few processes."""
        options = self.backend.options
        processes = 0 if self.backend.backend == "dummy" else int(options.get("num_workers") or 1)
        return self.num_envs, self.halves, processes, bool(options.get("caller_steps"))


def make_vec_env_line(env: str, candidate: Setting, env_kwargs: Mapping[str, Any]) -> str:
    """Return the line of Python to paste. `env` is an expression: a quoted id, or the name of a function."""
    backend = candidate.backend
    given = [f"num_envs={candidate.num_envs}", f"backend={backend.backend!r}".replace("'", '"')]
    given += [f"{key}={value!r}".replace("'", '"') for key, value in backend.options.items()]
    given += [f"env_kwargs={dict(env_kwargs)!r}"] if env_kwargs else []
    return f"env = make_vec_env({env}, {', '.join(given)})"


def settings_to_try(
    num_envs: Iterable[int],
    cores: int,
    *,
    learner: bool,
    more: Sequence[str] = (),
    native: bool = False,
    waits: bool = False,
) -> list[Setting]:
    """Return what is worth a try with these numbers of envs, the smallest number first.

    These are: stepping in process; powers of two of workers up to one per core, and two per core for envs that wait;
    the same with a share for the caller, up to one per core. With a `learner` that computes between steps also one
    worker, and halves. `more` names further backends, with their options. With `native` the id has batched envs: one in
    process, and one per core, of which the caller steps one or none. Envs that wait (`waits`) have threads, in process
    and with one worker per core, and many workers: eight per core, and one per env if that is no more than 64.
    """
    ladder = sorted({2**k for k in range(cores.bit_length()) if 2**k <= cores} | {cores, 2 * cores})
    found = []
    for n in sorted(set(num_envs)):
        texts = ["dummy", *more]
        many = {8 * cores, min(n, 64)} - {*ladder} if waits else set()
        if waits:
            texts.append("dummy:concurrency=threads")
            texts += [f"subproc:w={cores},concurrency=threads"] if 1 < cores <= n else []
        for workers in (w for w in [*ladder, *sorted(many)] if w <= n):
            if workers > 1 or learner:
                texts.append(f"subproc:w={workers}")
            if 1 < workers <= cores:
                texts.append(f"subproc:w={workers},caller")
        found += [Setting(parse(text), n) for text in texts]
        if native:
            ways = ["dummy", f"subproc:w={cores}", f"subproc:w={cores},caller"] if 1 < cores <= n else ["dummy"]
            found += [Setting(_native(parse(text)), n) for text in ways]
        if learner and n > 1:
            found += [Setting(parse(t), n, True) for t in texts if t.startswith("subproc") and "caller" not in t]
    return found


def waits(make_env: Workload) -> bool:
    """Tell whether an env's steps take more than 5 ms and less than a fifth of a core, by at most 100 of its steps."""
    env = make_env()
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        began, cpu = time.perf_counter(), time.process_time()
        for count in range(1, 101):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            seconds = time.perf_counter() - began
            if terminated or truncated:
                env.reset()
            if seconds > _LOOK and count > 1:
                break
        return seconds > WAITING_STEP * count and time.process_time() - cpu < WAITING_CPU * seconds
    finally:
        env.close()


def _native(backend: Backend) -> Backend:
    return replace(backend, name=f"{backend.name} native", options={**backend.options, "vectorization": "native"})


@dataclass(frozen=True)
class Reading:
    """All turns of one candidate in one rung. `share` is of the limit, `startup` in seconds."""

    candidate: Setting
    rung: int
    share: Spread | None
    startup: float | None
    turns: int
    failure: str | None = None


@dataclass
class Search:
    """The readings of a search. `limit` is in env steps per second, of all cores together."""

    readings: list[Reading] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)  # numbers of envs with which one step would take too long
    out_of_time: bool = False
    interrupted: bool = False

    def ranking(self) -> list[Reading]:
        """Return each candidate's reading of its highest rung, ordered by rung and then by share, the highest first."""
        last = {reading.candidate: reading for reading in self.readings}
        return sorted(last.values(), key=lambda r: (-r.rung, -(r.share.median if r.share else -1.0)))

    def best(self) -> Reading | None:
        """Return the fastest reading of the highest rung, or None if every candidate failed."""
        good = [reading for reading in self.ranking() if reading.share is not None]
        return good[0] if good else None

    def recommended(self) -> Reading | None:
        """Return the simplest of the candidates that are about as fast as the best of their rung."""
        best = self.best()
        if best is None or best.share is None:
            return None
        rivals = [reading for reading in self.ranking() if reading.rung == best.rung and reading.share is not None]
        least = (1 - TOLERANCE) * best.share.median
        return min(
            (rival for rival in rivals if rival.share is not None and rival.share.median >= least),
            key=lambda rival: rival.candidate.simplicity(),
        )

    def record(self) -> dict[str, Any]:
        """Convert all of it to plain data."""
        chosen = self.recommended()
        return {
            "limit_steps_per_second": asdict(Spread.of(self.limit)),
            "left_out": self.left_out,
            "out_of_time": self.out_of_time,
            "interrupted": self.interrupted,
            "readings": [asdict(reading) for reading in self.readings],
            "recommended": None if chosen is None else asdict(chosen),
        }


def search(
    settings: Sequence[Setting],
    loops: BareLoops,
    make_vec: MakesVec,
    display: ProgressDisplay,
    *,
    iterations: int = 0,
    budget: float = 45.0,
) -> Search:
    """Measure candidates for `budget` seconds. The caller computes for `iterations` of `spin` between steps.

    The search may take longer: a turn that has begun is finished, and the smallest number of envs has its first turns
    in any case. Ctrl-C after the first of bare loops ends the search with the readings so far.
    """
    deadline = time.monotonic() + budget
    first = loops.run(0.2, 0.05)
    found, alive, rung = Search(limit=[first.rate]), list(settings), 0
    try:
        for rung, (seconds, repeats, keep) in enumerate(plan(settings, budget)):
            alive = _best(found, alive, rung, keep)
            if not alive:
                break
            for size in dict.fromkeys(candidate.num_envs for candidate in alive):
                if rung == 0 and size > min(c.num_envs for c in settings) and size / first.rate > seconds:
                    found.left_out.append(size)
                    continue
                own = [candidate for candidate in alive if candidate.num_envs == size]
                candidates = [LearningCandidate(c.name, c.backend, make_vec, iterations, halves=c.halves) for c in own]
                turns = contest([candidates] * repeats, loops, size, seconds=seconds)
                kept = _until(turns, deadline, found, display, rung)
                found.readings += _readings(own, rung, kept)
                if found.out_of_time:
                    return _of_whole_rungs(found, rung, alive)
    except KeyboardInterrupt:
        found.interrupted = True
        return _of_whole_rungs(found, rung, alive)
    return found


def _of_whole_rungs(found: Search, rung: int, alive: Sequence[Setting]) -> Search:
    """Leave out a rung, other than the first, in which not all candidates have been read."""
    if rung and sum(reading.rung == rung for reading in found.readings) < len(alive):
        found.readings = [reading for reading in found.readings if reading.rung < rung]
    return found


def plan(settings: Sequence[Setting], budget: float) -> list[tuple[float, int, int]]:
    """Return each rung's seconds per reading, its rounds, and its number of candidates."""
    sizes = len({candidate.num_envs for candidate in settings})
    keep = (len(settings), max(_FINALISTS, -(-len(settings) // 2)), _FINALISTS)
    shape = [(1, 1, keep[0], sizes), (2, 1, keep[1], sizes), (3, 3, keep[2], 1)]
    turns = sum(repeats * count for _, repeats, count, _ in shape)
    units = sum(length * (2 * repeats * count + groups) for length, repeats, count, groups in shape)
    unit = (budget - _PER_TURN * turns) / (units * (1 + warmup_for(1.0)))
    unit = min(_LONGEST, max(_SHORTEST, unit))
    return [(length * unit, repeats, count) for length, repeats, count, _ in shape]


def total(settings: Sequence[Setting], budget: float) -> int:
    """Return the largest possible number of readings of a search."""
    sizes = len({candidate.num_envs for candidate in settings})
    return sum(2 * repeats * count + min(sizes, count) for _, repeats, count in plan(settings, budget))


def _best(found: Search, alive: list[Setting], rung: int, keep: int) -> list[Setting]:
    """Return the best `keep` of the last rung that did not fail, in their former order."""
    if rung == 0:
        return alive
    shares = {r.candidate: r.share.median for r in found.readings if r.rung == rung - 1 and r.share is not None}
    ranked = sorted((c for c in alive if c in shares), key=lambda c: -shares[c])[:keep]
    return [candidate for candidate in alive if candidate in ranked]


def _until(turns: Iterator[Turn], deadline: float, found: Search, display: ProgressDisplay, rung: int) -> list[Turn]:
    kept = []
    for turn in turns:
        kept.append(turn)
        if turn.candidate == LIMIT and turn.timing is not None:
            found.limit.append(turn.timing.rate)
        display.advance(f"rung {rung + 1} of 3, {turn.num_envs} envs: {turn.candidate}")
        if time.monotonic() > deadline and (rung or found.readings):
            found.out_of_time = True
            break
    return kept


def _readings(own: Sequence[Setting], rung: int, turns: Sequence[Turn]) -> Iterator[Reading]:
    candidates = {candidate.name: candidate for candidate in own}
    taken = Counter(turn.candidate for turn in turns)
    for row in rows(turns):
        share = row.share if row.failure is None else None
        startup = None if row.startup is None else row.startup.median
        yield Reading(candidates[row.candidate], rung, share, startup, taken[row.candidate], row.failure)
