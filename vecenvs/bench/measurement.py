"""A whole benchmark: contests with several numbers of envs against the same bare loops, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from vecenvs.bench.contest import LIMIT, Candidate, Turn, contest, warmup_for
from vecenvs.bench.limit import BareLoops, EpisodeStats
from vecenvs.bench.memory_use import MemoryUse, weigh
from vecenvs.bench.native import NativeEnv
from vecenvs.bench.progress import progress
from vecenvs.bench.workloads import BadRequest, Workload


@dataclass
class Measurement:
    """Everything that was measured; after Ctrl-C, or where a bare loop failed, the turns up to then."""

    cores: int
    num_envs: Sequence[int]
    seconds: float
    repeats: int
    turns: list[Turn] = field(default_factory=list)
    episodes: EpisodeStats = field(default_factory=EpisodeStats)
    interrupted: bool = False
    failure: str | None = None

    @property
    def shortest(self) -> float:
        """The fewest steps that any env made in one turn, warm-up included."""
        timed = [turn for turn in self.turns if turn.timing is not None and turn.startup is not None]
        longer = 1 + warmup_for(self.seconds) / self.seconds
        return min((turn.timing.steps * longer / turn.num_envs for turn in timed if turn.timing), default=float("inf"))


def measure(
    candidates: Sequence[Candidate],
    env_fn: Workload,
    *,
    cores: int,
    num_envs: Sequence[int],
    seconds: float,
    repeats: int,
    weigh: Callable[[Candidate, int], MemoryUse | None] = weigh,
    keep: Callable[[Measurement], None] | None = None,
) -> Measurement:
    """Measure all candidates with each number of envs, in `repeats` rounds. Ctrl-C ends the measurement early.

    The batched envs of a `NativeEnv` share each number of envs among the loops. `keep` gets what there is after each
    turn, since what is measured may end the process.

    Raises:
        BadRequest: the env cannot be made, or fails in a bare loop before anything is measured.
    """
    found = Measurement(cores, num_envs, seconds, repeats)
    total = len(num_envs) * (repeats * 2 * len(candidates) + 1)
    with ExitStack() as stack, progress(total) as display:
        loops = stack.enter_context(BareLoops(env_fn, cores))
        try:
            for size in num_envs:
                if isinstance(env_fn, NativeEnv):  # each loop has its share of the envs
                    loops.close()
                    loops = stack.enter_context(BareLoops(env_fn.of(max(1, size // cores)), cores))
                envs = f"{size} env{'s' * (size > 1)}"
                for turn in contest([candidates] * repeats, loops, size, seconds=seconds, weigh=weigh):
                    found.turns.append(turn)
                    if keep is not None and turn.candidate == LIMIT and len(found.turns) > 1:
                        keep(found)
                    over = turn.round == repeats  # this is the limit's last reading
                    text = f"{envs}, round {min(turn.round + 1, repeats)} of {repeats}: {turn.candidate}"
                    display.advance(text, f"measured {envs}, {repeats} rounds" if over else "")
        except KeyboardInterrupt:
            found.interrupted = True
        except BadRequest as error:
            if all(turn.candidate == LIMIT for turn in found.turns):
                raise
            found.failure = str(error)
        found.episodes = loops.episodes()
    return found
