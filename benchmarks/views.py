"""What the Gymnasium view costs: CartPole through as_gymnasium against the bare VecEnv, and against Gymnasium's own.

    python benchmarks/views.py [--num-envs 64] [--seconds 1.0] [--rounds 5]

The sides take turns within one run and the median of the rounds is told, as a ratio: absolute rates of a machine that
does other things as well say little.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.views import as_gymnasium, from_gymnasium

Step = Callable[[Any], Any]


def rate(step: Step, actions: Any, seconds: float) -> float:
    """Steps of all envs per second."""
    steps, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        for _ in range(20):
            step(actions)
        steps += 20
    return steps / spent


def compare(name: str, sides: dict[str, Any], actions: Any, seconds: float, rounds: int) -> None:
    """Print each side's rate as a share of the first one's."""
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for env in sides.values():
        env.reset(seed=0)
    for _ in range(rounds):
        for side, env in sides.items():
            rates[side].append(rate(env.step, actions, seconds))
    first = statistics.median(next(iter(rates.values())))
    for side, found in rates.items():
        median = statistics.median(found)
        print(f"{name:<18} {side:<34} {median * len(actions):>12,.0f} rows/s  {median / first:.3f}")
    for env in sides.values():
        env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    fns = [functools.partial(gym.make, "CartPole-v1", disable_env_checker=True)] * given.num_envs
    actions = np.arange(given.num_envs) % 2
    engines: dict[str, Callable[[], Any]] = {
        "dummy": lambda: DummyVecEnv(fns, autoreset="next_step"),
        "subproc": lambda: SubprocVecEnv(fns, autoreset="next_step"),
        "subproc + caller": lambda: SubprocVecEnv(fns, autoreset="next_step", caller_steps=True),
    }
    for name, make in engines.items():
        sides = {"VecEnv": make(), "as_gymnasium": as_gymnasium(make())}
        if name == "dummy":
            sides["SyncVectorEnv"] = SyncVectorEnv(fns)
        compare(name, sides, actions, given.seconds, given.rounds)
    native = functools.partial(gym.make_vec, "CartPole-v1", given.num_envs, vectorization_mode="vector_entry_point")
    compare(
        "natively batched",
        {"its own": native(), "from_gymnasium": from_gymnasium(native())},
        actions,
        given.seconds,
        given.rounds,
    )


if __name__ == "__main__":
    main()
