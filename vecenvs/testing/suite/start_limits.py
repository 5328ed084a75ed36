"""`start_limit`: envs are made by a schedule, by so many workers at once."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from vecenvs.errors import EnvError
from vecenvs.testing.envs import DyingEnv, FailingEnv, SimulatorEnv
from vecenvs.testing.suite.base import Conformance, Make

FAST = 20.0  # envs per second


def starts(log: Path) -> list[tuple[str, int, float]]:
    """Return what envs have told of their making, in order."""
    lines = [line.split() for line in log.read_text().splitlines()]
    return sorted(((what, int(pid), float(when)) for what, pid, when in lines), key=lambda each: each[2])


def most_at_once(log: Path) -> int:
    """Return how many processes were making envs at the same time."""
    making: set[int] = set()
    most = 0
    for what, pid, _ in starts(log):
        making = making | {pid} if what == "begin" else making - {pid}
        most = max(most, len(making))
    return most


class StartLimitConformance(Conformance):
    """Envs that need a licence, or a cache, to start."""

    def test_none_is_made_before_its_time(self, make: Make, tmp_path: Path) -> None:
        """Of n + 1 envs the last is made not before n intervals have passed."""
        log = tmp_path / "log"
        vec = make([functools.partial(SimulatorEnv, log=log)] * 6, start_limit=(None, FAST))
        begun = [when for what, _, when in starts(log) if what == "begin"]
        assert begun[-1] - begun[0] >= 0.99 * 5 / FAST - 0.1  # the first worker may itself take time to begin
        assert vec.reset(seed=0).shape == (6, 3)

    def test_so_many_at_once(self, make: Make, tmp_path: Path) -> None:
        log = tmp_path / "log"
        make([functools.partial(SimulatorEnv, start=0.05, log=log)] * 4, start_limit=(1, None))
        assert most_at_once(log) == 1
        assert len(starts(log)) == 8

    def test_with_a_limit_an_env_that_cannot_be_made(self, make: Make) -> None:
        fns = [functools.partial(FailingEnv, tag, "init", 1 if tag == 0 else 2) for tag in range(4)]
        with pytest.raises(EnvError, match="env 0 failed in init"):
            make(fns, start_limit=(1, 1000))

    @pytest.mark.parametrize("wrong", [3, (1,), "ab", (0, 1), (1, 0), (-1, None), (1.5, None), (1, float("nan"))])
    def test_wrong_start_limits(self, make: Make, wrong: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="start_limit"):
            make([SimulatorEnv] * 2, start_limit=wrong)


def make_or_die(folder: Path, tag: int) -> Any:
    """Make an env that dies at its third step, unless it was made before."""
    made = folder / f"made-{tag}"
    again = made.exists()
    made.touch()
    return SimulatorEnv(log=folder / "log", start=0.05) if again or tag % 2 else DyingLike()


class DyingLike(DyingEnv):
    """A DyingEnv with the spaces of a SimulatorEnv."""

    def __init__(self) -> None:
        super().__init__(at=3)
        like: Any = SimulatorEnv()
        self.observation_space, self.action_space = like.observation_space, like.action_space

    def _observe(self) -> Any:
        return super()._observe().astype("float32")


class StartLimitWorkerConformance(Conformance):
    """Workers that take the places of others keep to the limit, too."""

    def test_replacements_keep_to_the_limit(self, make: Make, tmp_path: Path) -> None:
        vec = make(
            [functools.partial(make_or_die, tmp_path, tag) for tag in range(4)],
            start_limit=(1, None), on_failure="restart",
        )  # fmt: skip
        vec.reset(seed=0)
        for _ in range(5):
            vec.step([0] * 4)
        assert vec.stats()["restarts"] >= 2
        assert most_at_once(tmp_path / "log") == 1
