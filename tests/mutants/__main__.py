"""Put small faults into a copy of the package, one by one, and tell which of them the short tier's tests find."""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
from collections import Counter
from collections.abc import Sequence

from mutants.faults import FAULTS
from mutants.trial import FOUND, MISFIT, ROOT, Copy, Outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Exit code 1 if less than 90 % were found, or an entry of the list does not fit the code."""
    options = _parser().parse_args(argv)
    chosen = [
        number
        for number, fault in enumerate(FAULTS, 1)
        if (not options.room or fault.room.removesuffix(".py") in options.room)
        and (not options.number or number in options.number)
    ]
    if options.check:
        problems = {number: FAULTS[number - 1].problem(ROOT) for number in chosen}
        for number in filter(problems.__getitem__, problems):
            print(f"{number:4} {FAULTS[number - 1].file}: {problems[number]}")
        return int(any(problems.values()))
    os.nice(options.nice)
    outcomes = _try_all(chosen, options)
    _show_rooms(outcomes)
    found = sum(outcome.verdict == FOUND for outcome in outcomes.values())
    misfits = sum(outcome.verdict == MISFIT for outcome in outcomes.values())
    return int(misfits > 0 or found < 0.9 * len(outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--room", nargs="*", help="faults in these packages of vecenvs/ alone, as in `pool worker`")
    parser.add_argument("--number", nargs="*", type=int, help="these faults alone, by their place in the list")
    parser.add_argument("--at-once", type=int, default=2, help="how many at once, each in a copy of its own")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which tests count as hanging: found")
    parser.add_argument("--nice", type=int, default=10, help="how much other processes go first")
    parser.add_argument("--check", action="store_true", help="only tell which entries do not fit the code")
    return parser


def _try_all(chosen: Sequence[int], options: argparse.Namespace) -> dict[int, Outcome]:
    """Try these faults, and print a line for each."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in chosen:
        waiting.put(number)
    outcomes: dict[int, Outcome] = {}
    printing = threading.Lock()

    def work(place: int) -> None:
        copy = Copy(ROOT / "build" / "mutants" / str(place), options.limit)
        while True:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            fault = FAULTS[number - 1]
            outcomes[number] = outcome = copy.try_fault(fault)
            with printing:
                print(
                    f"{number:4} {fault.file:36} {outcome.verdict:9} {outcome.seconds:5.0f} s  {outcome.detail}",
                    flush=True,
                )

    threads = [threading.Thread(target=work, args=(place,)) for place in range(options.at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _show_rooms(outcomes: dict[int, Outcome]) -> None:
    """Print how many of each room's faults were found."""
    total: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for number, outcome in outcomes.items():
        for room in (FAULTS[number - 1].room.removesuffix(".py"), "all"):
            total[room] += 1
            found[room] += outcome.verdict == FOUND
    print("\nroom          found   of")
    for room in [*sorted(total.keys() - {"all"}), "all"] if outcomes else []:
        print(f"{room:12} {found[room]:6} {total[room]:4}")


if __name__ == "__main__":
    sys.exit(main())
