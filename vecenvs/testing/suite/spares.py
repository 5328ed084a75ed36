"""`spares`: envs that were reset in advance take the places of those whose episodes have ended."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.errors import VecEnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv, SimulatorEnv, counting_fns
from vecenvs.testing.envs.batches import batched_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.episode_seeds import check_steps, sampled
from vecenvs.vec_env import VecEnv

N = 4
WAITING = ["same_step", "next_step", "disabled"]


class PlacedEnv(CountingEnv):
    """Tell in the info of a reset whether it has run in the thread of a spare."""

    def reset(self, **given: Any) -> Any:
        obs, info = super().reset(**given)
        return obs, {**info, "spare": threading.current_thread().name.startswith("vecenvs-env")}


def play(vec: VecEnv, seed: int, steps: int, change: Callable[[VecEnv, int], Any] = lambda *_: None) -> list[Any]:
    """Return all that a VecEnv returns in some steps, before each of which `change` may change something."""
    found: list[Any] = [vec.reset(seed=seed)]
    for t in range(steps):
        change(vec, t)
        obs, rewards, dones, infos = vec.step([(t + slot) % 4 for slot in range(vec.num_envs)])
        found += [obs, rewards, dones, [dict(info) for info in infos]]
        if vec.autoreset == "disabled" and dones.any():
            found.append(vec.reset(np.flatnonzero(dones)))
    return found


def change_at_random(seed: int, vec: VecEnv, t: int) -> None:
    """Set an attribute of some envs, or options or seeds for next resets; the same for each seed and t."""
    rng = random.Random(seed + t)
    slot = rng.randrange(vec.num_envs)
    what = rng.randrange(12)
    if what == 0:
        vec.set_attr("difficulty", rng.randrange(1, 50) * 10.0, [slot])
    elif what == 1:
        vec.set_options([{"difficulty": 1000.0} if other == slot else None for other in range(vec.num_envs)])
    elif what == 2:
        vec.seed([rng.randrange(1000) if other == slot else None for other in range(vec.num_envs)])
    elif what == 3:
        vec.reset([slot])


class SparesConformance(Conformance):
    """Steps wait for no reset, and all rows are those of envs that reset themselves."""

    @pytest.mark.parametrize("mode", WAITING)
    def test_rows_with_spares(self, make: Make, mode: str) -> None:
        spares = random.randint(1, 5)
        check_steps(make([sampled] * N, autoreset=mode, episode_seeds=True, spares=spares), 40)

    @pytest.mark.parametrize("mode", WAITING)
    def test_what_belongs_to_a_slot(self, make: Make, mode: str) -> None:
        """Attributes that are set, seeds and options change no other slot, and none is lost."""
        seed, spares = random.randrange(2**31), random.randint(1, 4)
        common: dict[str, Any] = {"autoreset": mode, "episode_seeds": True, "info_attrs": ["difficulty"]}
        fns = [functools.partial(SimulatorEnv, length=(1, 5))] * N
        change = functools.partial(change_at_random, seed)
        with DummyVecEnv(fns, **common) as plain:
            expected = play(plain, seed, 80, change)
        found = play(make(fns, spares=spares, **common), seed, 80, change)
        for t, (one, other) in enumerate(zip(found, expected, strict=True)):
            if isinstance(one, list):
                for info, same in zip(one, other, strict=True):
                    assert info.keys() == same.keys(), f"seed {seed}, part {t}"
                    for key in info:
                        assert_same(np.asarray(info[key]), np.asarray(same[key]), f"seed {seed}, part {t}: {key}")
            else:
                assert_same(one, other, f"seed {seed}, part {t}")

    @pytest.mark.parametrize("mode", ["same_step", "next_step"])
    def test_resets_are_those_of_spares(self, make: Make, mode: str) -> None:
        vec = make([functools.partial(PlacedEnv, length=3)] * N, autoreset=mode, episode_seeds=True, spares=N)
        vec.reset()
        for _ in range(4):
            begun = np.zeros(N, bool)
            while not begun.all():
                infos = vec.step([0] * N)[3]
                begun |= [bool(info.get("episode_start")) for info in infos]
            assert all(info["spare"] for info in vec.reset_infos)

    @pytest.mark.parametrize("policy", ["reset", "renew"])
    def test_spares_of_envs_that_raise(self, make: Make, policy: str) -> None:
        seed = random.randrange(2**31)
        common: dict[str, Any] = {"episode_seeds": True, "on_error": policy, "max_errors": 1000}
        fns = [functools.partial(SimulatorEnv, length=(2, 5), raises=0.3, raises_in_reset=0.1)] * N
        with DummyVecEnv(fns, **common) as plain:
            expected = play(plain, seed, 20)
        found = play(make(fns, spares=2, **common), seed, 20)
        for t, (one, other) in enumerate(zip(found, expected, strict=True)):
            if not isinstance(one, list):
                assert_same(one, other, f"seed {seed}, part {t}")

    def test_spares_are_closed(self, make: Make, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        vec = make([functools.partial(CountingEnv, length=2, closed_file=closed)] * N, episode_seeds=True, spares=2)
        vec.reset()
        for _ in range(9):
            vec.step([0] * N)
        workers = vec.stats()["num_workers"]
        vec.close()
        assert N < len(closed.read_text().split()) <= N + 2 * workers

    @pytest.mark.parametrize(
        ("given", "match"),
        [
            ({"episode_seeds": False}, "spares need episode_seeds=True"),
            ({"autoreset": "async"}, "leave them out, or autoreset='async'"),
            ({"concurrency": "asyncio"}, "leave one of them out"),
            ({"spares": -1}, "spares must be at least 0"),
            ({"spares": 1.5}, "spares must be an int"),
        ],
    )
    def test_wrong_spares(self, make: Make, given: dict[str, Any], match: str) -> None:
        with pytest.raises((TypeError, ValueError), match=match):
            make([CountingEnv] * N, **{"episode_seeds": True, "spares": 1, **given})

    def test_envs_that_have_no_spares(self, make: Make) -> None:
        with pytest.raises(ValueError, match="give the same function for all envs of a worker.*or leave spares out"):
            make(counting_fns(8), episode_seeds=True, spares=1)
        with pytest.raises(ValueError, match="a Batched has none: leave spares out"):
            make(batched_fns(counting_fns(2), (2,), "by_masks"), episode_seeds=True, spares=1)
        make([lambda: CountingEnv(3) for _ in range(N)], episode_seeds=True, spares=1)  # one lambda, each a new object
        vec = make([CountingEnv] * N, episode_seeds=True, spares=1)
        if type(vec) is DummyVecEnv:
            with pytest.raises(VecEnvError, match="leave spares out"):
                _ = vec.envs
