"""Measure what the info channel and the views cost on CartPole, and natively batched envs through from_gymnasium.

    python benchmarks/views.py                             everything, about five minutes
    python benchmarks/views.py --only info --turns 100     one part

*info*: three numeric attributes in `info_attrs` beside none. *views*: as_gymnasium, as_sb3 and as_pfrl beside the bare
VecEnv in the same autoreset mode, with the same loop; in mode "disabled" both sides reset the envs that have ended.
pfrl's loop always does, so its view over a VecEnv in mode "same_step" is in the same group.
*native*: Gymnasium's NumPy CartPole (1024 in one batch) through from_gymnasium beside the env itself.
*tensors*: 4096 rows of 48 numbers of a batched env over torch as tensors, without a copy, and normalised.

Within a group each side has a process of its own, and the sides take turns of a few hundredths of a second, so that all
meet the same state of the machine; the others sleep meanwhile. All processes are made anew a few times. A figure is the
median over all turns of a side's rate as a share of the first side's in the same turn, with the quartiles, and then the
median of each set of processes.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from shared import RESULTS, about, write

from vecenvs import Batched, DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize, VecTorch
from vecenvs.bench.child import Child
from vecenvs.bench.contest import run_for, warmup_for
from vecenvs.views import as_gymnasium, as_pfrl, as_sb3, from_gymnasium

INFO_ATTRS = ("_elapsed_steps", "unwrapped.gravity", "unwrapped.length")

Make = Callable[[], Any]
Group = dict[str, tuple[Make, Callable[[Any, Any], Any]]]  # side -> how to make it, how to step it once

ENGINES: dict[str, Callable[..., VecEnv]] = {
    "dummy": DummyVecEnv,
    "subproc": SubprocVecEnv,
    "subproc:caller": functools.partial(SubprocVecEnv, caller_steps=True),
}


def step(env: Any, actions: Any) -> None:
    env.step(actions)


def step_and_reset(vec: VecEnv, actions: Any) -> None:
    """Step a VecEnv without autoreset, and reset the envs that have ended."""
    dones = vec.step(actions)[2]
    if dones.any():
        vec.reset(dones)


def step_and_reset_pfrl(view: Any, actions: Any) -> None:
    """Step and reset as pfrl's training loop does."""
    dones = view.step(actions)[2]
    if any(dones):
        view.reset(np.logical_not(dones))


def info_groups(num_envs: int) -> dict[str, Group]:
    fns = cartpoles(num_envs)
    return {
        engine: {
            "VecEnv": (functools.partial(make, fns), step),
            "with 3 info_attrs": (functools.partial(make, fns, info_attrs=INFO_ATTRS), step),
        }
        for engine, make in ENGINES.items()
    }


def view_groups(num_envs: int) -> dict[str, Group]:
    fns = cartpoles(num_envs)
    groups: dict[str, Group] = {}
    for engine, make in ENGINES.items():
        next_step, same_step, disabled = (
            functools.partial(make, fns, autoreset=mode) for mode in ("next_step", "same_step", "disabled")
        )
        groups[f"{engine}, next_step"] = {
            "VecEnv": (next_step, step),
            "as_gymnasium": (lambda make=next_step: as_gymnasium(make()), step),
        }
        groups[f"{engine}, same_step"] = {
            "VecEnv": (same_step, step),
            "as_gymnasium": (lambda make=same_step: as_gymnasium(make()), step),
            "as_sb3": (lambda make=same_step: as_sb3(make()), step),
        }
        groups[f"{engine}, disabled"] = {
            "VecEnv": (disabled, step_and_reset),
            "as_pfrl": (lambda make=disabled: as_pfrl(make()), step_and_reset_pfrl),
            "as_pfrl, same_step": (lambda make=same_step: as_pfrl(make()), step_and_reset_pfrl),
        }
    return groups


def native_groups(num_envs: int) -> dict[str, Group]:
    make = functools.partial(gym.make_vec, "CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    return {
        "NumPy CartPole": {
            "by itself": (make, step),
            "from_gymnasium": (lambda: from_gymnasium(make()), step),
            "from_gymnasium, copy=False": (lambda: from_gymnasium(make(), copy=False), step),
        }
    }


class TorchBatch:
    """A batched env over torch with some work in each step: a product of matrices."""

    def __init__(self, num_envs: int) -> None:
        import torch

        torch.set_num_threads(1)
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (48,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.num_envs = num_envs
        self._obs, self._mix = torch.zeros(num_envs, 48), torch.rand(48, 48) / 48
        self._never = torch.zeros(num_envs, dtype=torch.bool)

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self._obs = self._obs @ self._mix + actions[:, None]
        return self._obs, self._obs[:, 0], self._never, self._never, {}


def tensor_groups(num_envs: int) -> dict[str, Group]:
    def make() -> VecEnv:
        return DummyVecEnv([Batched(functools.partial(TorchBatch, num_envs), num_envs)], copy=False)

    return {
        "torch": {
            "VecTorch, copy=False": (lambda: VecTorch(make()), step),
            "VecTorch, VecNormalize": (lambda: VecTorch(VecNormalize(make())), step),
        }
    }


def cartpoles(num_envs: int) -> list[Callable[[], Any]]:
    return [functools.partial(gym.make, "CartPole-v1", disable_env_checker=True)] * num_envs


def serve(connection: Connection, make: Make, step_once: Callable[[Any, Any], Any], num_envs: int) -> None:
    """Run one side: step for each number of seconds received, and send the transitions per second."""
    rng = np.random.default_rng(0)
    batches = cycle([rng.integers(0, 2, num_envs) for _ in range(64)])
    env = make()

    def steps(count: int) -> int:
        for _ in range(count):
            step_once(env, next(batches))
        return count * num_envs

    try:
        env.reset()
        connection.send(0.0)
        while True:
            seconds = connection.recv()
            run_for(steps, warmup_for(seconds))
            connection.send(run_for(steps, seconds).rate)
    finally:
        env.close()


def measure(group: Group, num_envs: int, seconds: float, turns: int, repeats: int) -> dict[str, Any]:
    """Measure the sides by turns, in processes made anew `repeats` times; return each rate over the first side's."""
    rates: dict[str, list[list[float]]] = {side: [] for side in group}
    for _ in range(repeats):
        with ExitStack() as stack:
            children: dict[str, Child] = {}
            for side, (make, step_once) in group.items():
                children[side] = child = Child(serve, make, step_once, num_envs)
                stack.callback(child.close)
                child.receive()
                rates[side].append([])
            for _ in range(turns):
                for side, child in children.items():
                    child.send(seconds)
                    rates[side][-1].append(child.receive())
    first = next(iter(rates.values()))
    found = {}
    for side, of_side in rates.items():
        by_repeat = [
            [rate / top for rate, top in zip(own, tops, strict=True)] for own, tops in zip(of_side, first, strict=True)
        ]
        low, share, high = statistics.quantiles([share for shares in by_repeat for share in shares], n=4)
        found[side] = {
            "share": share,
            "quartiles": [low, high],
            "by_repeat": [statistics.median(shares) for shares in by_repeat],
            "rate": statistics.median(rate for rates_ in of_side for rate in rates_),
        }
    return found


def show(name: str, found: dict[str, Any]) -> None:
    for side, reading in found.items():
        low, high = reading["quartiles"]
        each = " ".join(f"{share:.3f}" for share in reading["by_repeat"])
        print(f"{name:<33} {side:<22} {reading['share']:.3f}  ({low:.3f}-{high:.3f})  {each}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parts = {"info": (info_groups, 64), "views": (view_groups, 64), "native": (native_groups, 1024)}
    parts["tensors"] = (tensor_groups, 4096)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    parser.add_argument("--seconds", type=float, default=0.04, help="of a turn")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3, help="how often the processes are made anew")
    parser.add_argument(
        "--json", type=Path, help="write the record here; benchmarks/results/views.json if all parts run"
    )
    given = parser.parse_args(argv)
    options = f"--seconds {given.seconds:g} --turns {given.turns} --repeats {given.repeats}"
    command = f"python benchmarks/views.py {options}"
    record = about(command)
    for part in given.only:
        groups, num_envs = parts[part]
        record[part] = {"num_envs": num_envs, "groups": {}}
        for name, group in groups(num_envs).items():
            found = record[part]["groups"][name] = measure(group, num_envs, given.seconds, given.turns, given.repeats)
            show(f"{part}: {name}", found)
    path = given.json or (RESULTS / "views.json" if set(given.only) == set(parts) else None)
    if path is not None:
        write(path, record)


if __name__ == "__main__":
    main()
