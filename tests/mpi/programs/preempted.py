"""Step until a signal comes, then save a checkpoint by the help of the workers: preempted.py FOLDER."""

import signal
import sys
import time
from pathlib import Path

from vecenvs.backends.mpi import MpiVecEnv
from vecenvs.testing.envs import CountingEnv

told: list[int] = []

if __name__ == "__main__":
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda number, _: told.append(number))
    vec = MpiVecEnv([CountingEnv] * 4)
    vec.reset()
    (Path(sys.argv[1]) / "ready").write_text("1")
    while signal.SIGTERM not in told:
        while not told:
            vec.step([0] * 4)
        if signal.SIGTERM in told:
            time.sleep(1.0)  # longer than mpirun would wait
        print("checkpoint for", told, "of envs", len(vec.get_attr("tag")), flush=True)
        if signal.SIGTERM not in told:
            told.clear()
            (Path(sys.argv[1]) / "saved").write_text("1")
    sys.exit(7)
