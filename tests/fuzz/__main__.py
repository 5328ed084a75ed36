"""Play random programs on each engine; print each difference with its seed and a small program. Exit code 1 if any."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from fuzz.programs import ENGINES, draw, play, smaller

ROOT = Path(__file__).parents[2]
USUAL = ("dummy", "fork", "caller")
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument(
        "--engine", nargs="*", default=list(USUAL), choices=list(ENGINES), help="by default %(default)s"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for all engines together")
    parser.add_argument("--first", type=int, help="the seed of the first program; the others follow")
    parser.add_argument("--seed", type=int, help="play this program alone")
    parser.add_argument("--most", type=int, default=3, help="end an engine after so many differences")
    parser.add_argument("--launched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    first = options.first if options.first is not None else random.SystemRandom().randrange(10**6) * 1000
    failed = False
    for engine in options.engine:
        share = options.seconds / len(options.engine)
        if engine.startswith("mpi") and not options.launched:
            line = [sys.executable, "-m", "vecenvs.mpi", "-n", "3", "-m", "fuzz", "--engine", engine, "--launched"]
            line += ["--seconds", str(share), "--first", str(first), "--most", str(options.most)]
            line += [] if options.seed is None else ["--seed", str(options.seed)]
            failed |= subprocess.run(line, cwd=ROOT, check=False).returncode != 0
        else:
            failed |= _run(engine, first, share, options)
    return int(failed)


def _run(engine: str, first: int, seconds: float, options: argparse.Namespace) -> bool:
    if engine.startswith("ray"):
        import ray

        os.environ.update(RAY)
        if not ray.is_initialized():
            ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20,
                     logging_level="error", log_to_driver=False)  # fmt: skip
    end, seed, programs, rows, found = time.monotonic() + seconds, first, 0, 0, 0
    while found < options.most and (programs == 0 or (options.seed is None and time.monotonic() < end)):
        this = seed if options.seed is None else options.seed
        program = draw(this, engine)
        checked, text = play(program)
        programs, rows, seed = programs + 1, rows + checked, seed + 1
        if text is not None:
            found += 1
            print(f"--engine {engine} --seed {this}: {text}\nA smaller program:", flush=True)  # before it may hang
            small = smaller(program)
            print(f"{small}\n{play(small)[1] or 'it does not fail each time'}", flush=True)
    print(f"{engine}: {programs} programs, {rows} rows, {found} differences (seeds from {first})", flush=True)
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
