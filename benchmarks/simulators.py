"""Measure what simulators cost that reset slowly, leak and start by a schedule: `spares`, `Recycle`, `start_limit`.

    python benchmarks/simulators.py                       all three, some four minutes
    python benchmarks/simulators.py --only spares --seconds 5 --rounds 1

*spares*: 16 envs in 16 workers, lock-step, steps of 5 ms, episodes of 225 to 375 steps, resets of 0.5 to 1.25 s (a
quarter of steps of 20 ms and resets of 2 to 5 s). Figures are transitions per second as a share of those with resets
that take no time, which are measured in the same round.

*recycle*: 4 workers whose envs leak 1 MB per episode of 20 steps of 1 ms, with a limit of 300 MB. The rate as a share
of that of a run without leaks and limit, the largest memory of a worker, and how many were replaced.

*starts*: 40 envs in 4 workers at 10 per second: the time of the last start as a share of its time by the schedule.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from shared import RESULTS, about, write

from vecenvs import Recycle, SubprocVecEnv
from vecenvs.testing.envs import SimulatorEnv

SIDES = ("spares", "recycle", "starts")


def rate(make_env: Any, n: int, seconds: float, **arguments: Any) -> tuple[float, int, dict[str, Any]]:
    """Return transitions per second in lock-step, the largest memory of a worker, and what `stats` tells at the end."""
    most = 0
    with SubprocVecEnv([make_env] * n, n, episode_seeds=True, **arguments) as vec:
        vec.reset(seed=0)
        begun, steps = time.monotonic(), 0
        while (took := time.monotonic() - begun) < seconds:
            vec.step([0] * n)
            steps += n
            if steps % (100 * n) == 0:
                most = max([most, *(worker["rss_bytes"] or 0 for worker in vec.stats()["workers"])])
        return steps / took, most, vec.stats()


def spares(seconds: float) -> dict[str, float]:
    """Compare no spares and one per worker with resets that take no time."""
    make = partial(SimulatorEnv, length=(225, 375), step=0.005)
    slow = partial(make, reset=(0.5, 1.25))
    free = rate(make, 16, seconds)[0]
    return {f"spares={k}": rate(slow, 16, seconds, spares=k)[0] / free for k in (0, 1)}


def recycle(seconds: float) -> dict[str, float]:
    """Compare workers that leak and are replaced with such that do not leak."""
    make = partial(SimulatorEnv, length=20, step=0.001)
    plain = rate(make, 4, seconds)[0]
    found, most, stats = rate(partial(make, leak=1), 4, seconds, recycle=Recycle(rss=300e6))
    return {"rate": found / plain, "megabytes": most / 1e6, "recycled": stats["recycled"]}


def starts(_: float) -> dict[str, float]:
    """Compare the last start with the schedule."""
    n, per_second = 40, 10
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        SubprocVecEnv([partial(SimulatorEnv, log=log)] * n, 4, start_limit=(None, per_second)).close()
        begun = sorted(float(line.split()[2]) for line in log.read_text().splitlines() if line.startswith("begin"))
    return {"time": (begun[-1] - begun[0]) * per_second / (n - 1)}


def main() -> None:
    """Measure, print and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SIDES, default=[*SIDES])
    parser.add_argument("--seconds", type=float, default=15.0, help="per reading")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "simulators.json")
    given = parser.parse_args()
    measures = {"spares": spares, "recycle": recycle, "starts": starts}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in given.only}
    for _ in range(given.rounds):
        for name in given.only:
            rounds[name].append(measures[name](given.seconds))
            print(name, {key: round(value, 3) for key, value in rounds[name][-1].items()}, flush=True)
    command = f"python benchmarks/simulators.py --seconds {given.seconds:g} --rounds {given.rounds}"
    write(given.out, {**about(command), "rounds": rounds})


if __name__ == "__main__":
    main()
