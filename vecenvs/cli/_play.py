"""The loop of `python -m vecenvs run`: it steps, counts, and shows the progress."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from vecenvs.batch.lazy_infos import Infos
from vecenvs.cli import UsageError
from vecenvs.cli._load import Loads, percent
from vecenvs.cli._policies import Policy
from vecenvs.errors import VecEnvError
from vecenvs.vec_env import VecEnv

_RECENT_EPISODES = 100
_RECENT_SECONDS = 3.0
_SHOW_EVERY = 0.25
_LINE_EVERY = 10.0


class Tally:
    """Count the steps, episodes and returns so far."""

    def __init__(self, num_envs: int) -> None:
        self.steps = self.episodes = 0
        self.returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self.lengths: deque[int] = deque(maxlen=_RECENT_EPISODES)
        self._num_envs = num_envs
        self._begun = self._last = time.perf_counter()
        self._marks: deque[tuple[float, int]] = deque()

    def begin(self) -> None:
        """Start the clock."""
        self._begun = self._last = time.perf_counter()
        self._marks = deque([(self._begun, 0)])

    def add(self, infos: Infos) -> float:
        """Count a step of all envs; return the time, as `time.perf_counter` has it."""
        self.steps += self._num_envs
        for info in infos:
            if "episode" in info:
                self.episodes += 1
                self.returns.append(float(info["episode"]["r"]))
                self.lengths.append(int(info["episode"]["l"]))
        self._last = time.perf_counter()
        return self._last

    def rate(self) -> float:
        """Return the steps per second over the last few seconds."""
        self._marks.append((self._last, self.steps))
        while len(self._marks) > 2 and self._last - self._marks[0][0] > _RECENT_SECONDS:
            self._marks.popleft()
        (then, before), (now, steps) = self._marks[0], self._marks[-1]
        return (steps - before) / (now - then) if now > then else 0.0

    @property
    def seconds(self) -> float:
        return self._last - self._begun

    def recent(self) -> dict[str, str]:
        """Describe the returns and lengths of the last episodes."""
        return {
            name: f"{sum(values) / len(values):.4g} ({min(values):.4g} to {max(values):.4g})" if values else "-"
            for name, values in (("return", self.returns), ("length", self.lengths))
        }

    def summary(self) -> str:
        """Describe the whole run."""
        rate = self.steps / self.seconds if self.seconds > 0 else 0.0
        text = f"{self.steps} steps in {self.seconds:.1f} s ({rate:.0f} steps/s), {self.episodes} episodes"
        if not self.returns:
            return text
        recent = ", ".join(f"{name} {value}" for name, value in self.recent().items())
        return f"{text}; of the last {len(self.returns)}: {recent}"


class Play:
    """Step `vec` by `policy`, with live progress if `live`."""

    def __init__(
        self,
        vec: VecEnv,
        policy: Policy,
        tally: Tally,
        *,
        live: bool,
        load: bool = False,
        title: str,
    ) -> None:
        self._vec, self._policy, self._tally = vec, policy, tally
        self._live, self._title, self._next_line = live, title, _LINE_EVERY
        self._loads = Loads(vec) if load else None
        if live:
            try:
                import_module("rich")
            except ImportError as error:
                raise ImportError("the live progress needs rich: pip install rich, or give --quiet") from error

    def run(self, *, steps: int | None, episodes: int | None) -> None:
        """Step until this many steps or episodes are done. None stands for no end but KeyboardInterrupt."""
        tally = self._tally
        obs = self._vec.reset()
        tally.begin()
        if self._loads is not None:
            self._loads.lines()  # the next reading is compared with this one
        next_show = 0.0
        with self._shown() as show:
            while (steps is None or tally.steps < steps) and (episodes is None or tally.episodes < episodes):
                self._begin_step(obs)
                obs, _, _, infos = self._vec.step_wait()
                now = tally.add(infos)
                if now >= next_show:
                    show()
                    next_show = now + _SHOW_EVERY

    def _begin_step(self, obs: Any) -> None:
        try:
            self._vec.step_async(self._policy(obs))
        except VecEnvError:
            raise
        except Exception as error:  # from the policy, or because it returned no actions of this env
            raise UsageError(f"policy: {type(error).__name__}: {' '.join(str(error).split())}") from error

    def _state(self) -> dict[str, str]:
        """Describe the run so far, by name."""
        tally = self._tally
        state = {"steps": f"{tally.steps}", "steps/s": f"{tally.rate():.0f}", "episodes": f"{tally.episodes}"}
        for name, value in tally.recent().items():
            state[name] = f"{value} of the last {len(tally.returns)}" if tally.returns else value
        if restarts := self._vec.stats().get("restarts", 0):
            state["restarts"] = f"{restarts}"
        if self._loads is not None:
            state |= {name: percent(load) for name, load in self._loads.lines()}
        return {**state, "time": f"{tally.seconds:.0f} s"}

    def _show_line(self) -> None:
        """Write a line now and then, where there is no terminal."""
        if self._tally.seconds >= self._next_line:
            self._next_line = self._tally.seconds + _LINE_EVERY
            sys.stderr.write(", ".join(f"{name} {value}" for name, value in self._state().items()) + "\n")
            sys.stderr.flush()

    @contextmanager
    def _shown(self) -> Iterator[Any]:
        if not self._live:
            yield lambda: None
            return
        from rich.console import Console, Group
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text

        def table() -> Group:
            grid = Table.grid(padding=(0, 2))
            for name, value in self._state().items():
                grid.add_row(name, value)
            return Group(Text(self._title, overflow="ellipsis", no_wrap=True), grid)

        console = Console(stderr=True)  # stdout has the summary alone
        if not console.is_terminal:
            yield self._show_line
            return
        with Live(table(), console=console, auto_refresh=False, transient=True) as live:
            yield lambda: live.update(table(), refresh=True)
