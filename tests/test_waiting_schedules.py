"""Random schedules of envs that wait, raise and hang, of both kinds, beside a model of what each env does alone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenvs
from vecenvs.errors import EnvError, StepTimeout

pytestmark = pytest.mark.timeout(90)

LENGTH = 3  # steps per episode
GOES_ON, RAISES, HANGS, HANGS_ANYWAY = range(4)  # actions; the last one in spite of cancellations
LIMIT = 0.5  # seconds of a step
RESET = -1  # stands for an action


class ObedientEnv(gymnasium.Env[Any, Any]):
    """An env that does what its action says. Observation: [tag, episode, t]."""

    def __init__(self, tag: int) -> None:
        self.observation_space = spaces.Box(-1, 1_000_000, (3,), np.int64)
        self.action_space = spaces.Discrete(4)
        self.tag = tag
        self.episode = self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.tag, self.episode, 0]), {}

    def step(self, action: Any) -> Any:
        time.sleep(1.5 * LIMIT if action == HANGS else random.random() / 250)
        return self.go_on(action)

    def go_on(self, action: Any) -> Any:
        if action == RAISES:
            raise ValueError("as it was told")
        self.t += 1
        return np.array([self.tag, self.episode, self.t]), float(self.t), self.t >= LENGTH, False, {}


class ObedientAsyncEnv(ObedientEnv):
    """The same as coroutines."""

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(random.random() / 250)
        return ObedientEnv.reset(self, **kwargs)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(3600 if action == HANGS else random.random() / 250)
        end = time.monotonic() + LIMIT + 1.5  # of which the last half second comes after its time to end is over
        while action == HANGS_ANYWAY and time.monotonic() < end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        return self.go_on(action)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


class Model:
    """What one env does. `needs` is "" or what comes next: a "reset" by the caller, or a "row" of the next episode."""

    def __init__(self, tag: int, mode: str) -> None:
        self.tag, self.mode = tag, mode
        self.episode, self.t, self.needs, self.given = 1, 0, "", 0
        self.anew = False  # whether another env takes its place at the next reset

    def begin(self) -> list[int]:
        """Begin an episode; return its first row."""
        self.episode, self.t, self.needs, self.anew = 1 if self.anew else self.episode + 1, 0, "", False
        return [self.tag, self.episode, 0]

    def take(self, obs: list[int], done: bool, info: dict[str, Any]) -> bool:
        """Compare a row. Return whether another one follows without a command."""
        if self.given == RESET or self.needs:
            assert (obs, done) == (self.begin(), False)
            return False
        assert self.given == GOES_ON
        self.t += 1
        assert done == (self.t == LENGTH)
        last = [self.tag, self.episode, self.t]
        if not done:
            assert obs == last
            return False
        assert info["terminal_observation"].tolist() == last
        self.needs = {"same_step": "", "disabled": "reset"}.get(self.mode, "row")
        assert obs == (self.begin() if self.mode == "same_step" else last)
        return self.mode == "async"

    def fail(self, error: EnvError, kind: str) -> None:
        """Compare an error."""
        if self.given == RESET:
            assert self.anew
            assert "no more are made anew" in str(error)
        elif isinstance(error.__cause__, StepTimeout):
            assert self.given in (HANGS, HANGS_ANYWAY)
            self.anew |= kind == "threads" or self.given == HANGS_ANYWAY
        else:
            assert self.given == RAISES
        self.needs = "reset"


def send(vec: Any, rng: random.Random, models: list[Model], free: set[int], kind: str) -> None:
    """Reset or step some of the envs that are free."""
    some = rng.sample(sorted(free), rng.randint(1, len(free)))
    resets = [slot for slot in some if models[slot].needs == "reset"]
    steps = [slot for slot in some if models[slot].needs != "reset"]
    hangs = [HANGS, HANGS_ANYWAY][: 1 + (kind == "asyncio")]
    for slot in some:
        action = rng.choices([GOES_ON, RAISES, rng.choice(hangs)], [94, 4, 2])[0]
        models[slot].given = RESET if slot in resets else action if models[slot].needs != "row" else GOES_ON
    if resets:
        vec.reset_async(resets)
    if steps:
        vec.send([models[slot].given for slot in steps], steps)
    free -= {*some}


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))])
def test_random_schedules(seed: int) -> None:
    rng = random.Random(seed)
    n, kind = rng.randint(1, 9), ["asyncio", "threads"][seed % 2]
    mode = rng.choice(["same_step", "next_step", "async", "disabled"])
    make = ObedientEnv if kind == "threads" else ObedientAsyncEnv
    engine: Any = functools.partial(vecenvs.SubprocVecEnv, num_workers=rng.randint(1, min(3, n)))
    limits = {"step_timeout": LIMIT, "reset_timeout": 30.0, "work_limit": rng.choice([None, (3, None), (None, 2000)])}
    fns = [functools.partial(make, tag) for tag in range(n)]
    with (engine if seed % 4 > 1 else vecenvs.DummyVecEnv)(fns, concurrency=kind, autoreset=mode, **limits) as vec:
        vec.reset()
        models, free = [Model(tag, mode) for tag in range(n)], {*range(n)}
        for turn in range(10_000):
            if free and turn < 150 and rng.random() < 0.7:
                send(vec, rng, models, free, kind)
            if len(free) == n:
                if turn >= 150:
                    return
                continue
            due = n - len(free)
            try:
                batch = vec.recv(rng.randint(1, due) if rng.random() < 0.3 else 1, timeout=rng.choice([0, 0.2, None]))
            except StepTimeout:
                continue
            except EnvError as error:
                models[error.index].fail(error, kind)
                free.add(error.index)
                continue
            rows = zip(batch.indices.tolist(), batch.obs.tolist(), batch.dones.tolist(), batch.infos, strict=True)
            free |= {slot for slot, *row in rows if not models[slot].take(*row)}
