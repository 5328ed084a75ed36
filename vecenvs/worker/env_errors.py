"""`on_error`: what a worker does about envs that raise, so that the program goes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from vecenvs._native.forks import run
from vecenvs.transport.protocol import safe_text
from vecenvs.worker.outcomes import Overtaken, check_time, finish
from vecenvs.worker.rules import Rules

# An env that calls sys.exit(), or whose own event loop has cancelled something, has failed: the program does not end.
ENV_ERRORS = (Exception, SystemExit, asyncio.CancelledError)

ERROR = "env_error"  # with `on_error` the key of infos of episodes that an exception has ended
COMMON = ("observation_space", "action_space", "render_mode")  # what all envs of a VecEnv have alike

_PAUSE, _LONGEST = 0.05, 5.0  # seconds before the second try of a reset, and before any: each is twice the one before

Remake = Callable[[int, Any], Any]  # (env of the shard, what it has to be like) -> an env that takes its place
# (number of errors so far, what has happened, slot of an env that was made anew).
Report = Callable[[int, str, int | None], None]


def has_error(info: Mapping[str, Any]) -> bool:
    """Tell whether the info of an episode's end says that an exception has ended it: by a text."""
    return isinstance(info.get(ERROR), str)


class Unmade:
    """Stands for an env that was closed, until another one has been made."""

    def __init__(self, env: Any) -> None:
        for name in COMMON:
            setattr(self, name, getattr(env, name, None))

    def close(self) -> None:
        """Do nothing: the env is closed."""


class EnvErrors:
    """Counts the exceptions of a worker's envs, and makes envs anew: those of `broken`, before their next reset.

    `max_errors` exceptions of an env in a row, without an episode that it has completed, are told by `report`; the next
    one is raised.
    """

    def __init__(self, rules: Rules, first: int, remake: Remake, report: Report) -> None:
        self.broken: set[int] = set()
        self.who = ""  # raises, if not the env itself
        self._renews = rules.on_error == "renew"
        self._most = rules.max_errors
        self._first = first
        self._remake = remake
        self._report = report
        self._total = 0
        self._in_a_row: dict[int, int] = {}
        self._tries: dict[int, int] = {}  # resets of an env in a row that have failed
        self._spent: dict[int, str] = {}
        self._seeds: dict[int, int] = {}  # the last seed that an env was given
        self._derived: dict[int, tuple[int, int]] = {}  # how many seeds are derived from that, and the last of these

    def happened(self, local: int, doing: str, exc: BaseException) -> str:
        """Count an exception; return it as text. Raise it if there were too many before."""
        check_time()
        slot, count = self._first + local, self._in_a_row.get(local, 0) + 1
        if doing == "reset" or self._renews:
            self.broken.add(local)
        if count > self._most:
            self._in_a_row.pop(local, None)
            self._tries.pop(local, None)
            self._spent[local] = f"{self._most} errors before this one, with no episode completed (max_errors)"
            raise exc
        self._in_a_row[local] = count
        text = f"{type(exc).__name__}: {safe_text(exc)}"
        self._total += 1
        then = "is made anew" if local in self.broken else "begins a new episode"
        who = self.who or f"env {slot}"
        told = f"{who} raised {text} in {doing}, and {then} (error {count} of at most {self._most} in a row)"
        self._report(self._total, told, None)
        return text

    def pause(self, local: int) -> int:
        """Wait before the next try of a reset; return how many have failed."""
        tries, seconds = self.next_try(local)
        time.sleep(seconds)
        return tries

    def next_try(self, local: int) -> tuple[int, float]:
        """Return how many tries of a reset have failed, and for how many seconds to wait before the next one."""
        tries = self._tries[local] = self._tries.get(local, 0) + 1
        return tries, min(_PAUSE * 2.0 ** (tries - 1), _LONGEST)

    def completed(self, local: int) -> None:
        """Note that an env has completed an episode."""
        self._in_a_row.pop(local, None)

    def seeded(self, local: int, seed: int | None) -> None:
        """Note the seed of a reset that begins."""
        if seed is not None and seed not in (self._seeds.get(local), self._derived.get(local, (0, None))[1]):
            self._seeds[local] = seed
            self._derived.pop(local, None)

    def other_seed(self, local: int) -> int | None:
        """Return a new seed for an env, derived from the last one that it was given; None if it was given none."""
        if local not in self._seeds:
            return None
        count = self._derived.get(local, (0, 0))[0] + 1
        seed = int(np.random.SeedSequence([self._seeds[local], count]).generate_state(1)[0])
        self._derived[local] = count, seed
        return seed

    def was_reset(self, local: int) -> None:
        """Note that the reset of an env has succeeded."""
        self._tries.pop(local, None)

    def spent(self, local: int) -> str:
        """Return, once, how many errors there were before the one that was raised; "" if none was."""
        return self._spent.pop(local, "")

    def make_anew(self, envs: list[Any], local: int) -> None:
        """Put a new env in the place of one, which is closed. Overtaken if the time of the job that does so is over."""
        check_time()
        old, envs[local] = envs[local], Unmade(envs[local])
        with contextlib.suppress(*ENV_ERRORS):  # the env is broken: that it cannot be closed is no news
            run(old.close)
        check_time()
        envs[local] = made_in_time(partial(self._remake, local, envs[local]))
        self.broken.discard(local)
        self._report(self._total, "", self._first + local)


def made_in_time(make: Callable[[], Any]) -> Any:
    """Return the env that `make` returns. If the time of the job here is over by then close it, and raise Overtaken."""
    env = make()
    try:
        check_time()
    except Overtaken:
        with contextlib.suppress(*ENV_ERRORS):
            finish(env.close())
        raise
    return env
