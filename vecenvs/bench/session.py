"""A whole benchmark: contests of several sizes against the same bare loops, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vecenvs.bench.limit import BareLoops, Episodes
from vecenvs.bench.measure import Contestant, Turn, contest, warmup_for
from vecenvs.bench.progress import Shows, progress
from vecenvs.bench.weigh import Footprint, weigh
from vecenvs.bench.workloads import Workload


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
    weigh: Callable[[Contestant, int], Footprint | None] = weigh,
) -> Session:
    """Measure everybody with every number of envs. BadRequest if the env cannot be made or stepped at all."""
    session = Session(cores, num_envs, seconds, repeats)
    total = len(num_envs) * (repeats * (len(contestants) + 1) + 1)
    with BareLoops(env_fn, cores) as loops, progress(total) as shows:
        try:
            for size in num_envs:
                for turn in contest(contestants, loops, size, seconds=seconds, repeats=repeats, weigh=weigh):
                    session.turns.append(turn)
                    _tell(shows, turn, repeats)
        except KeyboardInterrupt:
            session.interrupted = True
        session.episodes = loops.episodes()
    return session


def _tell(shows: Shows, turn: Turn, repeats: int) -> None:
    envs = f"{turn.num_envs} env{'s' * (turn.num_envs > 1)}"
    over = turn.round == repeats  # the limit's last reading
    shows.advance(
        f"{envs}, round {min(turn.round + 1, repeats)} of {repeats}: {turn.contestant}",
        f"measured {envs}, {repeats} rounds" if over else "",
    )
