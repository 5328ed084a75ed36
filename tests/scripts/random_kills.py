"""Kill a run with SIGKILL at random steps, again and again: `random_kills.py ENGINE KILLS`.

Each time `saved_run.py` goes on from its last save, with this engine or another number of workers or ranks. At the end
its rows, and its monitor files, are those of a run that nobody has killed. Prints a seed first, which a third argument
repeats.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).parent / "saved_run.py"
EVERY = 20  # at most so many steps until a kill
OTHERS = {"mpi": ("mpi", "mpi-2", "dummy"), "ray": ("ray", "ray-1", "dummy")}  # what goes on after a kill


def started(folder: Path, engine: str, steps: int, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    backend, _, number = engine.partition("-")
    ranks = ["-m", "vecenvs.mpi", "-n", number or "3"] if backend == "mpi" else []
    name = backend if ranks else engine
    command = [sys.executable, *ranks, str(SCRIPT), str(folder), name, str(steps)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True)


def whole(folder: Path, engine: str, steps: int) -> str:
    """Return the checksum of a run from its last save on, or from its beginning."""
    with started(folder, engine, steps) as process:
        return process.communicate()[0].split()[-1]


def kill_and_go_on(engine: str, kills: int, rng: random.Random, folder: Path) -> int:
    """Return the number of steps, once both runs have ended in the same way; AssertionError if they have not."""
    steps = EVERY * kills * (5 if engine == "mpi" else 1)  # where it goes on beyond the line that was read
    for _ in range(kills):
        each = rng.choice(OTHERS.get(engine, (engine, engine, "dummy")))
        with started(folder / "killed", each, steps, subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for _ in range(rng.randrange(1, EVERY)):
                process.stdout.readline()
                if not each.startswith("mpi"):
                    process.stdin.write("\n")
                    process.stdin.flush()
            time.sleep(rng.choice([0.0, 0.0005, 0.002, 0.01]))
            os.kill(int((folder / "killed" / "pid").read_text()), signal.SIGKILL)  # of rank 0, under MPI
            process.stdout.read()  # until it is closed by its last process
    found, expected = whole(folder / "killed", engine, steps), whole(folder / "whole", "dummy", steps)
    assert found == expected, f"{engine}: {found} after kills, {expected} without"
    return steps


if __name__ == "__main__":
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(2**31)
    sys.stdout.write(f"seed {seed}\n")
    with tempfile.TemporaryDirectory() as place:
        done = kill_and_go_on(sys.argv[1], int(sys.argv[2]), random.Random(seed), Path(place))
    sys.stdout.write(f"{sys.argv[1]}: {sys.argv[2]} kills in {done} steps, and the same rows\n")
