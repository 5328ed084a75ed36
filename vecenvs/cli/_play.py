"""The loop of `python -m vecenvs run`: it steps, counts, and shows the progress."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from vecenvs.batch.lazy_infos import Infos
from vecenvs.cli import UsageError
from vecenvs.errors import describe_indices
from vecenvs.vec_env import VecEnv

_RECENT_EPISODES = 100
_RECENT_SECONDS = 3.0
_SHOW_EVERY = 0.25
_LINE_EVERY = 10.0

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

State = dict[str, str]  # what is shown, by its name
Show = Callable[[Callable[[], State]], None]


class Play:
    """Step `vec` by random actions; count the steps, episodes and returns."""

    def __init__(self, vec: VecEnv, seed: int | None, *, load: bool = False) -> None:
        self.steps = self.episodes = 0
        self._vec, self._sample = vec, sampler(vec, seed)
        self._returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._lengths: deque[int] = deque(maxlen=_RECENT_EPISODES)
        self._begun = self._last = time.perf_counter()
        self._marks: deque[tuple[float, int]] = deque()
        self._load = load

    def run(self, show: Show | None, *, steps: int | None) -> None:
        """Step until this many steps are done. None stands for no end but KeyboardInterrupt."""
        self._vec.reset()
        self._begun = self._last = time.perf_counter()
        self._marks.append((self._begun, 0))
        next_show = 0.0
        while steps is None or self.steps < steps:
            _, _, dones, infos = self._vec.step(self._sample())
            self.count(infos, dones)
            if show is not None and self._last >= next_show:
                show(self._state)
                next_show = self._last + _SHOW_EVERY

    def count(self, infos: Infos, dones: NDArray[np.bool_]) -> None:
        """Count a step of all envs."""
        self.steps += self._vec.num_envs
        for slot in dones.nonzero()[0].tolist():
            episode = infos[slot].get("episode")
            if isinstance(episode, dict) and {"r", "l"} <= episode.keys():  # a Monitor's
                self.episodes += 1
                self._returns.append(float(episode["r"]))
                self._lengths.append(int(episode["l"]))
        self._last = time.perf_counter()

    def summary(self) -> str:
        """Describe the whole run."""
        seconds = self._last - self._begun
        rate = self.steps / seconds if seconds > 0 else 0.0
        parts = [f"{self.steps} steps in {seconds:.1f} s ({rate:.0f} steps/s), {self.episodes} episodes"]
        if self._returns:
            recent = ", ".join(f"{name} {value}" for name, value in self._recent().items())
            parts.append(f"of the last {len(self._returns)}: {recent}")
        stats = self._vec.stats()
        parts.append(f"workers: {_load(stats)}")
        return "; ".join([*parts, *(f"{name}: {value}" for name, value in self._troubles(stats).items())])

    def _state(self) -> State:
        state = {"steps": f"{self.steps}", "steps/s": f"{self._rate():.0f}", "episodes": f"{self.episodes}"}
        for name, value in self._recent().items():
            state[name] = f"{value} of the last {len(self._returns)}" if self._returns else value
        stats = self._vec.stats()
        state["workers"] = _load(stats)
        workers = workers_in(stats) if self._load else {}
        return {**state, **self._troubles(stats), **workers, "time": f"{self._last - self._begun:.0f} s"}

    def _troubles(self, stats: dict[str, Any]) -> State:
        """Return what there should be none of."""
        found = {"workers replaced": stats["restarts"], "errors of envs": stats["errors"]}
        lost = self.steps - stats["transitions"]
        return {name: f"{count}" for name, count in {**found, "steps without a transition": lost}.items() if count}

    def _recent(self) -> State:
        """Describe the returns and lengths of the last episodes: mean and range."""
        return {
            name: f"{sum(values) / len(values):.4g} ({min(values):.4g} to {max(values):.4g})" if values else "-"
            for name, values in (("return", self._returns), ("length", self._lengths))
        }

    def _rate(self) -> float:
        """Return the steps per second over the last few seconds."""
        self._marks.append((self._last, self.steps))
        while len(self._marks) > 2 and self._last - self._marks[0][0] > _RECENT_SECONDS:
            self._marks.popleft()
        (then, before), (now, steps) = self._marks[0], self._marks[-1]
        return (steps - before) / (now - then) if now > then else 0.0


def sampler(vec: VecEnv, seed: int | None) -> Callable[[], Any]:
    """Return a function that samples the action space. The same seed gives the same actions on every backend."""
    space, n = vec.action_space, vec.num_envs
    if isinstance(space, _ARRAYS):
        batched = batch_space(space, n)
        batched.seed(seed)
        return batched.sample
    space.seed(seed)
    return lambda: [space.sample() for _ in range(n)]


def workers_in(stats: dict[str, Any]) -> State:
    """Describe the load of each worker: the share of its time in which it steps, and its memory."""
    return {
        f"worker {k}, env{'s' * (len(worker['slots']) > 1)} {describe_indices(worker['slots'])}": _load(worker)
        + ("" if worker["pid"] is None else f", process {worker['pid']} on {worker['host']}")
        for k, worker in enumerate(stats["workers"])
    }


def _load(stats: dict[str, Any]) -> str:
    stepping, waiting, memory = (stats[name] for name in ("seconds_stepping", "seconds_waiting", "rss_bytes"))
    if memory is None:
        return "-"  # workers tell it once a second
    share = "" if stepping is None else f"{stepping / max(stepping + waiting, 1e-9):.0%} of the time stepping, "
    return f"{share}{memory / 2**20:.0f} MiB"


@contextmanager
def shown(title: str) -> Iterator[Show]:
    """Show a state on stderr: a table on a terminal, elsewhere a line now and then. stdout has the summary alone."""
    try:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        raise UsageError("the live progress needs rich: pip install rich, or give --quiet") from None

    def table(state: State) -> Group:
        grid = Table.grid(padding=(0, 2))
        for name, value in state.items():
            grid.add_row(name, value)
        return Group(Text(title, overflow="ellipsis", no_wrap=True), grid)

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    with Live(table({}), console=console, auto_refresh=False, transient=True) as live:
        yield lambda state: live.update(table(state()), refresh=True)


def _lines() -> Show:
    next_line = time.perf_counter() + _LINE_EVERY

    def show(state: Callable[[], State]) -> None:
        nonlocal next_line
        if time.perf_counter() >= next_line:
            next_line += _LINE_EVERY
            sys.stderr.write(", ".join(f"{name} {value}" for name, value in state().items()) + "\n")
            sys.stderr.flush()

    return show
