"""Envs that wait: many that hang, and rows of any size."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from test_waiting_limits import KINDS, HangingAsyncEnv, HangingEnv, engine  # noqa: F401

import vecenvs
from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same

pytestmark = pytest.mark.timeout(60)


def two_that_hang(kind: str, folder: Path) -> list[Any]:
    """Return functions of four envs, of which envs 1 and 2 hang once, in their first step."""
    make = HangingEnv if kind == "threads" else HangingAsyncEnv
    return [functools.partial(make, tag, folder / f"{tag}", "step", 1 if tag in (1, 2) else 99) for tag in range(4)]


@KINDS
def test_a_worker_of_which_too_many_envs_hang_is_replaced(kind: str, tmp_path: Path) -> None:
    fns = two_that_hang(kind, tmp_path)
    with vecenvs.SubprocVecEnv(fns, 1, concurrency=kind, step_timeout=0.4, on_failure="restart") as vec:
        vec.reset()
        vec.step([0] * 4)
        assert vec.stats()["restarts"] == 1
        obs = vec.step([0] * 4)[0]
        assert obs[:, 0].tolist() == [0, 1, 2, 3]
        assert vec.step([0] * 4)[0][:, 2].tolist() == (obs[:, 2] + 1).tolist()


@KINDS
def test_too_many_envs_that_hang_are_not_made_anew(kind: str, tmp_path: Path) -> None:
    fns = two_that_hang(kind, tmp_path)
    with vecenvs.DummyVecEnv(fns, concurrency=kind, step_timeout=0.4) as vec:
        vec.reset()
        with pytest.raises(EnvError):
            vec.step([0] * 4)
        with pytest.raises(
            EnvError, match=r"env 1 hangs, and 2 calls of its worker's 4 envs do: .* on_failure='restart'"
        ):
            vec.reset([1])
        (tmp_path / "1").touch()
        while True:
            try:
                assert vec.reset([1]).tolist() == [[1, 1, 0]]
            except EnvError:
                time.sleep(0.01)
            else:
                break
        assert vec.reset([2]).tolist() == [[2, 1, 0]]
        assert vec.step([0] * 4)[0][:, 2].tolist() == [2, 1, 1, 2]
        (tmp_path / "2").touch()


class LongEnv(gymnasium.Env[Any, Any]):
    """An env with rows of about 1 MB, of spaces that have no arrays, which tell its last action."""

    def __init__(self, tag: int) -> None:
        self.observation_space = spaces.Dict(
            {"text": spaces.Text(2_000_000), "some": spaces.Sequence(spaces.Box(0, 1, (2,)))}
        )
        self.action_space = spaces.Text(2_000_000)
        self.draw = random.Random(tag)

    def row(self, given: str) -> dict[str, Any]:
        text = f"{len(given)} {given[:5]} " + self.draw.choice("abc") * self.draw.randint(900_000, 1_100_000)
        return {"text": text, "some": tuple(np.full(2, k / 9, np.float32) for k in range(self.draw.randint(0, 9)))}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.row(""), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.draw.random() / 50)
        return self.row(action), 1.0, False, False, {"note": action[:3]}


class LongAsyncEnv(LongEnv):
    """The same as coroutines."""

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        return LongEnv.reset(self, **kwargs)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(self.draw.random() / 50)
        return self.row(action), 1.0, False, False, {"note": action[:3]}

    async def close(self) -> None:  # type: ignore[override]
        super().close()


@KINDS
def test_rows_of_a_megabyte(engine: Any, kind: str) -> None:  # noqa: F811
    """They are those of the same envs alone."""
    alone = [LongEnv(tag) for tag in range(4)]
    make = LongEnv if kind == "threads" else LongAsyncEnv
    with engine([functools.partial(make, tag) for tag in range(4)], concurrency=kind) as vec:
        for env, obs in zip(alone, vec.reset(seed=0)["text"], strict=True):
            assert env.reset()[0]["text"] == obs
        rng = random.Random(1)
        for _ in range(3):
            actions = [rng.choice("xyz") * rng.randint(1, 1_000_000) for _ in range(4)]
            vec.send(actions)
            came = 0
            while came < 4:
                batch = vec.recv()
                came += len(batch)
                for j, slot in enumerate(batch.indices.tolist()):
                    expected, _, _, _, info = alone[slot].step(actions[slot])
                    assert batch.obs["text"][j] == expected["text"]
                    assert_same([*batch.obs["some"][j]], [*expected["some"]])
                    assert batch.infos[j]["note"] == info["note"]
