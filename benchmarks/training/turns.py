"""The turns of a cell, each in the process of the candidate's library."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any

import psutil

from benchmarks.peers.steppers import Job
from benchmarks.stack.candidates import Candidate
from benchmarks.stack.processes import Processes, ProcessLost
from benchmarks.training.candidates import HALVES, Driven, candidate
from benchmarks.training.grid import ENVS, GAPS, SB3, Cell
from benchmarks.training.phases import OthersCpu, clock, cpu_share
from vecenvs.bench.contest import describe
from vecenvs.cpus import usable_cores

BUSY = 0.05  # the share of the cores that other programs may use before a round
GAP_SHARE = 0.2  # the seconds of each gap, as a share of those of a training


def measure(
    cell: Cell, candidates: Sequence[Candidate], processes: Processes, rounds: Iterator[int], seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield the cell's record after each round: its readings, and `busy`, what other programs used before each round.

    Every other round runs backwards; a candidate that fails takes no further turns.
    """
    readings: list[dict[str, Any]] = []
    failed: set[str] = set()
    busy: list[float] = []
    for number in rounds:
        busy.append(psutil.cpu_percent(interval=0.5) / 100)
        if busy[-1] > BUSY:
            print(f"   other programs use {busy[-1]:.0%} of the cores: the readings will not mean much", flush=True)
        for found in candidates[:: -1 if number % 2 else 1]:
            if found.name in failed:
                continue
            try:
                reading = processes.ask(found, partial(turn_here, found.name, cell, seconds), 120 + 10 * seconds)
            except ProcessLost as lost:
                reading = {"failure": str(lost)}
            readings.append({"candidate": found.name, "round": number, **reading})
            if "failure" in reading:
                failed.add(found.name)
                print(f"   {found.name}: {reading['failure']}", flush=True)
        names = [found.name for found in candidates]
        yield {"cell": asdict(cell), "candidates": names, "seconds": seconds, "busy": busy, "readings": readings}


def turn_here(name: str, cell: Cell, seconds: float) -> dict[str, Any]:
    """Make the candidate's envs, measure, and close them. What the candidate raises is the result of its turn."""
    _warm_up()
    gc.collect()
    env = ENVS[cell.env]
    try:
        begin = clock()
        with closing(candidate(name).make(Job(env.name, env.env_fn(), cell.num_envs, usable_cores()))) as driven:
            startup = clock() - begin
            reading = measure_turn(driven, cell, seconds, halves=name.endswith(HALVES))
            return {"startup": startup, "setting": dict(driven.setting), **reading}
    except ImportError as error:
        return {"failure": " ".join(str(error).split()), "unavailable": True}
    except Exception as error:
        return {"failure": describe(error)}


def measure_turn(driven: Driven, cell: Cell, seconds: float, *, halves: bool) -> dict[str, Any]:
    """Return what a turn in this cell measures."""
    from benchmarks.training import gaps, ppo, sb3_ppo  # torch is for the processes of libraries

    if cell.measurement == GAPS:
        return gaps.measure(driven, cell.num_envs, cell.gaps, GAP_SHARE * seconds)
    rollout = ENVS[cell.env].rollout
    others = OthersCpu()
    before, begin = others.read(), clock()
    if cell.measurement == SB3:
        made, phases = sb3_ppo.train(driven, rollout, seconds)
    else:
        made, phases = ppo.train(ppo.learner_of(driven, cell.num_envs, rollout, halves=halves), seconds)
    share = cpu_share(before, others.read(), clock() - begin)
    return {"transitions": made, "seconds_per_transition": phases.per_transition(made), "others_cpu": share}


@lru_cache
def _warm_up() -> None:
    """Let torch load what inference and updates need, with one thread."""
    import torch

    torch.set_num_threads(1)
    for _ in range(3):
        network = torch.nn.Linear(4, 4)
        network(torch.rand(8, 4)).sum().backward()
        torch.optim.Adam(network.parameters()).step()
