"""A whole benchmark: contests of several sizes against the same bare loops, with a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from vecenvs.bench.limit import BareLoops, Episodes
from vecenvs.bench.measure import Contestant, Turn, contest, warmup_for
from vecenvs.bench.workloads import Workload

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass
class Session:
    """What was measured. Broken off by Ctrl-C, it holds the turns up to then."""

    cores: int
    num_envs: Sequence[int]
    seconds: float
    repeats: int
    turns: list[Turn] = field(default_factory=list)
    episodes: Episodes = field(default_factory=Episodes)
    interrupted: bool = False

    @property
    def shortest(self) -> float:
        """The fewest steps that any env made in one turn, warming up included."""
        timed = [turn for turn in self.turns if turn.timing is not None and turn.startup is not None]
        longer = 1 + warmup_for(self.seconds) / self.seconds
        return min((turn.timing.steps * longer / turn.num_envs for turn in timed if turn.timing), default=float("inf"))


def hold(
    contestants: Sequence[Contestant],
    env_fn: Workload,
    *,
    cores: int,
    num_envs: Sequence[int],
    seconds: float,
    repeats: int,
) -> Session:
    """Measure everybody with every number of envs. BadRequest if the env cannot be made or stepped at all."""
    session = Session(cores, num_envs, seconds, repeats)
    total = len(num_envs) * (repeats * (len(contestants) + 1) + 1)
    with BareLoops(env_fn, cores) as loops, _progress(total) as progress:
        try:
            for size in num_envs:
                for turn in contest(contestants, loops, size, seconds=seconds, repeats=repeats):
                    session.turns.append(turn)
                    progress.advance(turn, repeats)
        except KeyboardInterrupt:
            session.interrupted = True
        session.episodes = loops.episodes()
    return session


class _Shows(Protocol):
    def advance(self, turn: Turn, repeats: int) -> None: ...


@contextmanager
def _progress(total: int) -> Iterator[_Shows]:
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No thread of its own: it would take CPU from what is measured, and processes are forked meanwhile.
    progress = Progress(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # forked workers would inherit the redirection
        redirect_stderr=False,
    )
    with progress:
        yield _Bar(progress, total)


class _Bar:
    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("starting the bare loops", total=total)
        progress.refresh()

    def advance(self, turn: Turn, repeats: int) -> None:
        envs = f"{turn.num_envs} envs, round {min(turn.round + 1, repeats)} of {repeats}"
        self._progress.update(self._task, advance=1, description=f"{envs}: {turn.contestant}", refresh=True)


class _Lines:
    def advance(self, turn: Turn, repeats: int) -> None:
        if turn.round == repeats:  # the limit's last reading
            sys.stderr.write(f"measured {turn.num_envs} env{'s' * (turn.num_envs > 1)}, {repeats} rounds\n")
