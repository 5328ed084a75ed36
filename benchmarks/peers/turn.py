"""One turn: what is asked for, what it gave, and how it is taken. Orders and answers travel between processes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers.steppers import Job, NotOffered
from vecenvs.bench.measure import Stepper, Timing, describe, run_for, warmup_for


@dataclass(frozen=True)
class Order:
    """Take a turn of `seconds`."""

    contestant: str
    job: Job
    seconds: float


@dataclass(frozen=True)
class Answer:
    """What it gave, or in one line why it gave nothing; `startup` in seconds."""

    timing: Timing | None = None
    startup: float | None = None
    failure: str | None = None
    unavailable: bool = False


def take_turn(build: Callable[[Job], Stepper], job: Job, seconds: float) -> Answer:
    """Make the envs, step them for a while, then for `seconds`, and close them. Whatever goes wrong is an answer."""
    gc.collect()
    try:
        begun = time.perf_counter()
        stepper = build(job)
        try:
            startup = time.perf_counter() - begun
            run_for(stepper.step, warmup_for(seconds))
            timing = run_for(stepper.step, seconds)
        finally:
            stepper.close()
    except (ImportError, NotOffered) as error:
        return Answer(failure=" ".join(str(error).split()), unavailable=True)
    except Exception as error:  # a library's failure is a result
        return Answer(failure=describe(error))
    return Answer(timing, startup)
