"""Measure the wall time of an evaluation per step that counts, beside Stable-Baselines3's evaluate_policy.

    python benchmarks/evaluate.py                    about two minutes
    python benchmarks/evaluate.py --docs             measures nothing: writes the section of docs/benchmarks.md

Eight envs, each in a process of its own, whose step sleeps 2 ms and whose reset sleeps 20 ms. Episodes have a geometric
number of steps, of mean 50, drawn from the episode's seed. The policy costs nothing. Sides take turns in rounds, each
with new envs; the clock runs from the first reset to the result. `evaluate_policy` runs over Stable-Baselines3's own
SubprocVecEnv, and over a SubprocVecEnv of this library behind `as_sb3`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from shared import DOCS, RESULTS, about, load, parser, promises, spread, table, write, write_sections

from vecenvs import Monitor, SubprocVecEnv, as_sb3, evaluate
from vecenvs.bench.report import Spread

NUM_ENVS, STEP, RESET, MEAN = 8, 2e-3, 20e-3, 50
FILE = RESULTS / "evaluate.json"
THEIRS, TARGET = "evaluate_policy, Stable-Baselines3's SubprocVecEnv", 0.55
OURS = "evaluate, disabled"


class UnevenEnv(gym.Env[Any, Any]):
    """Sleep in every step and reset; an episode's length follows from its seed."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        time.sleep(RESET)
        self.left = int(self.np_random.geometric(1 / MEAN))
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP)
        self.left -= 1
        return np.zeros(4, np.float32), 1.0, self.left <= 0, False, {}


class Model:
    """A policy of no cost."""

    def predict(self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True) -> Any:
        """Return an action for each row, and no state."""
        return np.zeros(len(obs), np.int64), None


def ours(autoreset: str, episodes: int) -> tuple[float, int]:
    """Return seconds and steps that count."""
    with SubprocVecEnv([lambda: Monitor(UnevenEnv())] * NUM_ENVS, NUM_ENVS, autoreset=autoreset) as vec:
        start = time.perf_counter()
        lengths = evaluate(vec, Model(), episodes).lengths
        return time.perf_counter() - start, int(lengths.sum())


def theirs(view: bool, episodes: int) -> tuple[float, int]:
    """Return seconds and steps that count of evaluate_policy."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor as SB3Monitor
    from stable_baselines3.common.vec_env import SubprocVecEnv as SB3SubprocVecEnv

    fns = [lambda: (Monitor if view else SB3Monitor)(UnevenEnv())] * NUM_ENVS
    venv: Any = as_sb3(SubprocVecEnv(fns, NUM_ENVS)) if view else SB3SubprocVecEnv(fns, "fork")
    try:
        venv.seed(1000)
        start = time.perf_counter()
        _, lengths = evaluate_policy(Model(), venv, episodes, return_episode_rewards=True)  # type: ignore[arg-type]
        return time.perf_counter() - start, int(np.sum(lengths))
    finally:
        venv.close()


SIDES: dict[str, Callable[[int], tuple[float, int]]] = {
    THEIRS: functools.partial(theirs, False),
    "evaluate_policy, as_sb3": functools.partial(theirs, True),
    "evaluate, same_step": functools.partial(ours, "same_step"),
    OURS: functools.partial(ours, "disabled"),
}


def ratios(record: dict[str, Any], side: str) -> Spread:
    """Return the time per step as a share of Stable-Baselines3's, round by round."""
    return Spread.of([each[side][0] / each[side][1] / (each[THEIRS][0] / each[THEIRS][1]) for each in record["rounds"]])


def section(record: dict[str, Any]) -> str:
    """Return the section of docs/benchmarks.md."""
    rows = [[side, spread(ratios(record, side)), _busy(record, side)] for side in SIDES]
    return f"""## Evaluation

`{record["command"]}` on {record["machine"]["cores"]} cores: {record["episodes"]} episodes,
{len(record["rounds"])} rounds by turns. Wall time per step of an episode that counts, relative to the first line in
the same round; and the share of the time in which an env steps or resets for such an episode. Readings are in
[evaluate.json](../benchmarks/results/evaluate.json).

{table(["8 envs, 2 ms steps, 20 ms resets, uneven episodes", "time per step", "envs are busy"], rows)}"""


def _busy(record: dict[str, Any], side: str) -> str:
    shares = [
        (steps * STEP + record["episodes"] * RESET) / NUM_ENVS / seconds
        for seconds, steps in (each[side] for each in record["rounds"])
    ]
    return spread(Spread.of(shares))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, or write the section."""
    options = parser(__doc__, [], seconds=0, repeats=5)
    options.add_argument("--episodes", type=int, default=100)
    options.add_argument("--docs", action="store_true", help="write the section of docs/benchmarks.md from the file")
    given = options.parse_args(argv)
    if given.docs:
        write_sections(DOCS / "benchmarks.md", {"evaluation": section(load(FILE))})
        return
    command = f"python benchmarks/evaluate.py --episodes {given.episodes} --repeats {given.repeats}"
    record = {**about(command, "stable-baselines3"), "episodes": given.episodes, "rounds": []}
    for turn in range(given.repeats):
        order = [*SIDES] if turn % 2 == 0 else [*SIDES][::-1]
        record["rounds"].append({side: SIDES[side](given.episodes) for side in order})
        write(FILE, record)
    print(section(record))
    print(promises([("evaluate beside evaluate_policy", TARGET, False, (ratios(record, OURS), ""))]))


if __name__ == "__main__":
    main()
