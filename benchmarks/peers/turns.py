"""The turns of a cell, between readings of the limit: each in the process of the candidate's library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from benchmarks.peers.candidates import candidate
from benchmarks.peers.grid import Cell
from benchmarks.peers.steppers import Job
from benchmarks.stack.candidates import Candidate
from benchmarks.stack.processes import Processes, ProcessLost
from vecenvs.bench.contest import Limit, Turn, contest, take_turn, warmup_for
from vecenvs.bench.limit import BareLoops
from vecenvs.bench.report import readings
from vecenvs.bench.workloads import iterations_for
from vecenvs.cpus import usable_cores

LEARNER_READINGS = 3  # of the limit, so that no short disturbance changes the learner's work
SLOW_ROUNDS = 2


def with_job(found: Candidate, job: Job) -> Candidate:
    """Return the candidate as `vecenvs.bench.contest` lets it take turns: its `make` makes the envs of this job."""
    return replace(found, make=lambda _: found.make(job))


def measure(
    cell: Cell, candidates: Sequence[Candidate], processes: Processes, rounds: Iterator[int], seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield the cell's record after each round: its readings, and `think`, the learner's iterations per row."""
    turns: list[Turn] = []
    with BareLoops(cell.env_fn(), usable_cores()) as loops:
        job = job_of(cell, loops, seconds)
        by_round = ([one for one in candidates if not one.slow or number < SLOW_ROUNDS] for number in rounds)
        turn_of = partial(turn_in_process, processes, job)
        for turn in contest(by_round, loops, cell.num_envs, seconds=seconds, take_turn=turn_of):
            begins = bool(turns) and turn.round > turns[-1].round
            turns.append(turn)
            if turn.failure is not None:
                print(f"   {turn.candidate}: {turn.failure}", flush=True)
            if begins:
                yield {
                    "cell": asdict(cell),
                    "candidates": [one.name for one in candidates],
                    "think": job.think,
                    "seconds": seconds,
                    "rounds": turn.round,
                    "readings": readings(turns),
                }


def turn_in_process(processes: Processes, job: Job, found: Any, num_envs: int, seconds: float) -> Turn:
    """Have the candidate's process take a turn. If the process dies or takes too long, the turn is a failure."""
    try:
        turn: Turn = processes.ask(found, partial(turn_here, found.name, job, seconds), 2 * seconds)
    except ProcessLost as lost:
        return Turn(found.name, num_envs, 0, failure=str(lost))
    return turn


def turn_here(name: str, job: Job, seconds: float) -> Turn:
    """Take a turn."""
    return take_turn(with_job(candidate(name), job), job.num_envs, seconds)


def job_of(cell: Cell, limit: Limit, seconds: float) -> Job:
    """Return what is to be stepped. A learner computes per row as long as the limit takes, by its best reading."""
    think = 0
    if cell.learner:
        rate = max(limit.run(seconds, warmup_for(seconds)).rate for _ in range(LEARNER_READINGS))
        think = iterations_for(1 / rate)
    return Job(cell.env, cell.env_fn(), cell.num_envs, usable_cores(), think, cell.attr)
