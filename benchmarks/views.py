"""What the faces cost: the info channel and the views on CartPole, and natively batched envs through from_gymnasium.

    python benchmarks/views.py                             everything, about a minute and a half
    python benchmarks/views.py --only info --rounds 15     one part

*info*: three numeric attributes in `info_attrs` against none. *views*: as_gymnasium, as_sb3 and as_pfrl against the
bare VecEnv in the same autoreset mode, driven alike; in mode "disabled" both sides reset the envs that have ended.
*native*: Gymnasium's NumPy CartPole (1024 in one batch) through from_gymnasium against the same by itself.

Within a group the sides take turns in rounds, each made anew, with action batches drawn beforehand. What is told is the
median over the rounds of a side's rate as a share of the first side's in the same round, with the range.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from vecenvs import DummyVecEnv, SubprocVecEnv, VecEnv
from vecenvs.bench.machine import facts, versions
from vecenvs.bench.measure import run_for, warmup_for
from vecenvs.cpus import usable_cores
from vecenvs.views import as_gymnasium, as_pfrl, as_sb3, from_gymnasium

RESULTS = Path(__file__).parent / "results"
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
    """Step a VecEnv without autoreset, and reset what has ended."""
    dones = vec.step(actions)[2]
    if dones.any():
        vec.reset(dones)


def step_and_reset_pfrl(view: Any, actions: Any) -> None:
    """The same as pfrl's training loop does it."""
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


def cartpoles(num_envs: int) -> list[Callable[[], Any]]:
    return [functools.partial(gym.make, "CartPole-v1", disable_env_checker=True)] * num_envs


def rate(make: Make, step_once: Callable[[Any, Any], Any], num_envs: int, seconds: float) -> float:
    """Transitions of all envs per second."""
    rng = np.random.default_rng(0)
    batches = cycle([rng.integers(0, 2, num_envs) for _ in range(64)])
    env = make()

    def steps(count: int) -> int:
        for _ in range(count):
            step_once(env, next(batches))
        return count * num_envs

    try:
        env.reset()
        run_for(steps, warmup_for(seconds))
        return run_for(steps, seconds).rate
    finally:
        env.close()


def measure(group: Group, num_envs: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Let the sides take turns; give each one's share of the first one's rate."""
    rates: dict[str, list[float]] = {side: [] for side in group}
    for _ in range(rounds):
        for side, (make, step_once) in group.items():
            rates[side].append(rate(make, step_once, num_envs, seconds))
    first = next(iter(rates.values()))
    found = {}
    for side, of_rounds in rates.items():
        shares = [rate / top for rate, top in zip(of_rounds, first, strict=True)]
        found[side] = {"share": statistics.median(shares), "range": [min(shares), max(shares)], "rates": of_rounds}
    return found


def show(name: str, found: dict[str, Any]) -> None:
    for side, reading in found.items():
        low, high = reading["range"]
        print(f"{name:<26} {side:<28} {reading['share']:.3f}  ({low:.3f}-{high:.3f})", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parts = {"info": (info_groups, 64), "views": (view_groups, 64), "native": (native_groups, 1024)}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    parser.add_argument("--seconds", type=float, default=0.25, help="per reading")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--json", type=Path, help="write the record here; benchmarks/results/views.json if all parts run"
    )
    given = parser.parse_args(argv)
    command = f"python benchmarks/views.py --seconds {given.seconds:g} --rounds {given.rounds}"
    record: dict[str, Any] = {"command": command, "machine": facts(usable_cores()), "versions": versions()}
    for part in given.only:
        groups, num_envs = parts[part]
        record[part] = {"num_envs": num_envs, "groups": {}}
        for name, group in groups(num_envs).items():
            found = record[part]["groups"][name] = measure(group, num_envs, given.seconds, given.rounds)
            show(f"{part}: {name}", found)
    path = given.json or (RESULTS / "views.json" if set(given.only) == set(parts) else None)
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
