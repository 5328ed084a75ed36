"""Run tests again and again, beside busy processes if wanted, and count which of them fail: `make repeat`.

    python tests/scripts/repeat.py --runs 20 --beside 2 -- -n 4 --dist loadgroup -m "not long"

What follows `--` goes to pytest. Each run adds a line to `tally.txt` in the folder `--to`, and what a run has printed
that failed is kept beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Ends with the process that has started it, in whatever way that ends.
BUSY = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100_000))"
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
CLOSING = re.compile(r"^(?:=+ )?(.*\b(?:passed|failed|errors?|ran)\b.* in [\d.]+s\b.*?)(?: =+)?$", re.MULTILINE)


class Run(NamedTuple):
    """One run of the tests: its closing line, the tests that failed, how long it took and how much of the cores."""

    passed: bool
    closing: str
    failed: list[str]
    seconds: float
    cpu: float

    def __str__(self) -> str:
        words = "passed" if self.passed else "FAILED"
        names = "".join(f"; {name}" for name in self.failed)
        return f"{words} in {self.seconds:.0f} s ({self.cpu:.0f} s of CPU): {self.closing}{names}"


def run(arguments: list[str], log: Path) -> Run:
    """Run pytest once, printing to `log`, which is kept if anything fails."""
    begun, cpu = time.monotonic(), children_cpu()
    with log.open("w") as file:
        code = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            check=False,
        ).returncode
    printed = log.read_text(errors="replace")
    closing = CLOSING.findall(printed) or [f"exit code {code}, without a closing line"]
    failed = list(dict.fromkeys(FAILED.findall(printed)))
    result = Run(code == 0, closing[-1], failed, time.monotonic() - begun, children_cpu() - cpu)
    if result.passed:
        log.unlink()
    return result


def children_cpu() -> float:
    """Return the seconds that ended processes have computed; busy ones have not ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes computing."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tally(runs: list[Run]) -> str:
    """Say how many runs have passed, and how often each test has failed."""
    failed = Counter(name for run in runs for name in run.failed)
    lines = [f"{sum(run.passed for run in runs)} of {len(runs)} runs passed"]
    return "\n".join([*lines, *(f"{times:4} x {name}" for name, times in failed.most_common())])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--beside", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--to", type=Path, default=Path("repeat"), help="a folder for the tally and for failed runs")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    args = parser.parse_args()
    args.to.mkdir(exist_ok=True, parents=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to end with a tally
    begun = time.strftime("%Y-%m-%d %H:%M:%S")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    runs: list[Run] = []

    def say(words: str) -> None:
        print(words, flush=True)
        with (args.to / "tally.txt").open("a") as file:
            file.write(words + "\n")

    say(f"# {begun} {commit.stdout.strip()}, beside {args.beside} busy: pytest {' '.join(args.arguments)}")
    try:
        with busy(args.beside):
            for number in range(1, args.runs + 1):
                log = args.to / f"{begun.replace(' ', '-').replace(':', '')}-{os.getpid()}-{number}.txt"
                runs.append(run(args.arguments, log))
                say(f"{number}/{args.runs} {runs[-1]}")
    except KeyboardInterrupt:
        pass
    say(tally(runs))
    return not all(run.passed for run in runs)


if __name__ == "__main__":
    sys.exit(main())
