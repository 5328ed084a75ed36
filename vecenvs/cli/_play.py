"""The loop of `python -m vecenvs run`: it steps, counts, and shows the progress."""

from __future__ import annotations

import platform
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from vecenvs import env_calls
from vecenvs.batch.lazy_infos import Infos
from vecenvs.cli import UsageError
from vecenvs.errors import WorkerDied, describe_indices
from vecenvs.vec_env import VecEnv

_RECENT_EPISODES = 100
_RECENT_SECONDS = 3.0
_SHOW_EVERY = 0.25
_LINE_EVERY = 10.0
_LOAD_EVERY = 1.0  # seconds between two readings

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
        self._loads = Loads(vec) if load else None

    def run(self, show: Show | None, *, steps: int | None) -> None:
        """Step until this many steps are done. None stands for no end but KeyboardInterrupt."""
        self._vec.reset()
        self._begun = self._last = time.perf_counter()
        self._marks.append((self._begun, 0))
        if self._loads is not None:
            self._loads.read()  # the next reading is compared with this one
        next_show = 0.0
        while steps is None or self.steps < steps:
            self.count(self._vec.step(self._sample())[3])
            if show is not None and self._last >= next_show:
                show(self._state)
                next_show = self._last + _SHOW_EVERY

    def count(self, infos: Infos) -> None:
        """Count a step of all envs."""
        self.steps += self._vec.num_envs
        for info in infos:
            if "episode" in info:
                self.episodes += 1
                self._returns.append(float(info["episode"]["r"]))
                self._lengths.append(int(info["episode"]["l"]))
        self._last = time.perf_counter()

    def summary(self) -> str:
        """Describe the whole run."""
        seconds = self._last - self._begun
        rate = self.steps / seconds if seconds > 0 else 0.0
        text = f"{self.steps} steps in {seconds:.1f} s ({rate:.0f} steps/s), {self.episodes} episodes"
        if not self._returns:
            return text
        recent = ", ".join(f"{name} {value}" for name, value in self._recent().items())
        return f"{text}; of the last {len(self._returns)}: {recent}"

    def _state(self) -> State:
        state = {"steps": f"{self.steps}", "steps/s": f"{self._rate():.0f}", "episodes": f"{self.episodes}"}
        for name, value in self._recent().items():
            state[name] = f"{value} of the last {len(self._returns)}" if self._returns else value
        if restarts := self._vec.stats().get("restarts", 0):
            state["restarts"] = f"{restarts}"
        loads = {} if self._loads is None else self._loads.read()
        return {**state, **loads, "time": f"{self._last - self._begun:.0f} s"}

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


class Loads:
    """How much of a core each worker's process uses; the time in which it tries a semaphore before it sleeps counts."""

    def __init__(self, vec: VecEnv) -> None:
        self._vec = vec
        self._read = 0.0
        self._used: dict[tuple[str, int], float] = {}  # the processor time of the last reading, by host and process id
        self._loads: State = {}

    def read(self) -> State:
        """Return the load of each worker by the names of its process and envs: "-" before the second reading."""
        now = time.perf_counter()
        if now < self._read + _LOAD_EVERY:
            return self._loads
        try:
            found: list[tuple[str, int, float]] = self._vec.call(env_calls.processor_time, None)
        except WorkerDied as died:
            if died.state != "replaced":
                raise
            return self._loads  # the next reading has the worker that takes its place
        before, passed = self._used, now - self._read
        self._read, self._used, self._loads = now, {(host, pid): used for host, pid, used in found}, {}
        for (host, pid), used in self._used.items():
            slots = [slot for slot, one in enumerate(found) if one[:2] == (host, pid)]
            where = "" if host == platform.node() else f" on {host}"
            load = f"{max(0.0, used - before[host, pid]) / passed:.0%} of a core" if (host, pid) in before else "-"
            self._loads[f"process {pid}{where}, env{'s' * (len(slots) > 1)} {describe_indices(slots)}"] = load
        return self._loads


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
