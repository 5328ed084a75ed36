"""A process in which the contestants of one library take their turns: `... serve_turns FAMILY SOCKET`."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from contextlib import closing
from typing import Any

from benchmarks.peers.library_processes import leave, serve
from benchmarks.peers.steppers import Job
from benchmarks.training import gaps, ppo, sb3_ppo
from benchmarks.training.contestants import Driven, contestant
from benchmarks.training.grid import ENVS, GAPS, SB3, Cell, Order
from benchmarks.training.phases import OthersCpu, clock, cpu_share
from vecenvs.bench.contest import describe
from vecenvs.cpus import usable_cores

# Imported before the first turn.
LIBRARIES = {"sb3": "stable_baselines3", "pufferlib": "pufferlib.vector", "envpool": "envpool"}


def main() -> None:
    family, path = sys.argv[1:]
    warm_up()
    for name in ("stable_baselines3", LIBRARIES.get(family, "vecenvs")):
        with contextlib.suppress(ImportError):  # the turns report what is missing
            importlib.import_module(name)
    serve(path, take_turn)
    leave()


def warm_up() -> None:
    """Let torch load what inference and updates need, with one thread."""
    import torch

    torch.set_num_threads(1)
    for _ in range(3):
        network = torch.nn.Linear(4, 4)
        network(torch.rand(8, 4)).sum().backward()
        torch.optim.Adam(network.parameters()).step()


def take_turn(order: Order) -> dict[str, Any]:
    """Make the contestant's envs, measure, and close them. What the contestant raises is the result of its turn."""
    gc.collect()
    cell, found = order.cell, contestant(order.contestant)
    env = ENVS[cell.env]
    try:
        begin = clock()
        with closing(found.make(Job(env.name, env.env_fn(), cell.num_envs, usable_cores()))) as driven:
            startup = clock() - begin
            reading = measure(driven, cell, halves=found.halves)
            return {"contestant": found.name, "startup": startup, "setting": dict(driven.setting), **reading}
    except ImportError as error:
        return {"contestant": found.name, "failure": " ".join(str(error).split()), "unavailable": True}
    except Exception as error:
        return {"contestant": found.name, "failure": describe(error)}


def measure(driven: Driven, cell: Cell, *, halves: bool) -> dict[str, Any]:
    """Return what a turn in this cell measures."""
    if cell.measurement == GAPS:
        return gaps.measure(driven, cell.num_envs, cell.gaps, cell.seconds)
    rollout = ENVS[cell.env].rollout
    others = OthersCpu()
    before, begin = others.read(), clock()
    if cell.measurement == SB3:
        made, phases = sb3_ppo.train(driven, rollout, cell.seconds)
    else:
        made, phases = ppo.train(ppo.learner_of(driven, cell.num_envs, rollout, halves=halves), cell.seconds)
    share = cpu_share(before, others.read(), clock() - begin)
    return {"transitions": made, "seconds_per_transition": phases.per_transition(made), "others_cpu": share}


if __name__ == "__main__":
    main()
