"""`vecenvs.evaluate`: the same episodes on every engine, in every mode, with any number of envs."""

from __future__ import annotations

import copy
import functools
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from vecenvs.errors import AlreadySteppingError, EnvError
from vecenvs.evaluation import Evaluation, evaluate
from vecenvs.testing.envs import CountingEnv, FailingEnv, SampledEnv, counting_fns
from vecenvs.testing.envs.batches import batched_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT
from vecenvs.testing.suite.episode_seeds import MODES
from vecenvs.testing.suite.interrupts import NappingEnv, interrupted

_POINTS = spaces.Box(-1, 1, (3,), np.float32)


class TaskEnv(SampledEnv):
    """A SampledEnv whose episodes have a last info that says whether they have succeeded, and may end its process.

    Args:
        lives_file: a file to which each process that ends adds a byte, up to three; None for a process that lives.
        end: the probability that a step ends the episode.
    """

    def __init__(self, lives_file: Path | None = None, end: float = 0.2) -> None:
        super().__init__(copy.deepcopy(_POINTS), end=end)  # it samples from it: resets in async mode have threads
        self.lives_file, self.steps = lives_file, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.lives_file is not None and self.steps == 1 and self.lives_file.stat().st_size < 3:
            with self.lives_file.open("a") as file:
                file.write("x")
            os._exit(1)
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "is_success": reward > 0.5}


class Counter:
    """A policy with a state: the number of steps in each env's episode, of which it makes an action."""

    def __init__(self, num_envs: int) -> None:
        self.t = np.zeros(num_envs, int)

    def __call__(self, obs: Any, indices: Any, started: Any) -> Any:
        assert len(indices) == len(started)
        self.t[indices] = np.where(started, 0, self.t[indices] + 1)
        return self.t[indices] % 4


def by_sign(obs: Any) -> Any:
    """Return actions that depend on each row alone."""
    return (obs[:, 0] > 0) * 2 + (obs[:, 1] > 0)


def bare(env: Any, count: int, seed: int, *, by_time: bool = False) -> Evaluation:
    """Play the episodes in a loop over one env."""
    returns, lengths, successes = np.zeros(count), np.zeros(count, np.int64), np.zeros(count, bool)
    for k in range(count):
        obs, over = env.reset(seed=seed + k)[0], False
        while not over:
            action = lengths[k] % 4 if by_time else by_sign(obs[None])[0]
            obs, reward, terminated, truncated, info = env.step(np.int64(action))
            returns[k] += np.float32(reward)
            lengths[k] += 1
            over = terminated or truncated
        successes[k] = info.get("is_success", False)
    return Evaluation(returns, lengths, np.arange(seed, seed + count), lengths, successes, successes, 0)


def check(found: Evaluation, expected: Evaluation) -> None:
    """Compare all but the slots."""
    for name in ("returns", "lengths", "seeds"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)
    assert found.successes is None or found.successes.tolist() == expected.successes.tolist()  # type: ignore[union-attr]
    assert not found.errors.any()


class EvaluateConformance(Conformance):
    """Episode k has the seed s + k, whichever env plays it; afterwards the VecEnv takes every command."""

    @pytest.mark.parametrize("mode", MODES)
    def test_evaluate_equals_a_bare_loop(self, make: Make, mode: str) -> None:
        for n in (1, 4, random.randint(2, 9)):
            count, seed = random.randint(1, 25), random.randrange(2**31)
            vec = make([TaskEnv] * n, autoreset=mode)
            vec.seed(5)  # which it takes back
            found = evaluate(vec, by_sign, count, seed)
            check(found, bare(TaskEnv(), count, seed))
            assert found.successes is not None
            assert found.surplus == 0
            assert {*found.slots} <= {*range(n)}
            assert vec.stats()["steps"] == 0
            check(evaluate(vec, Counter(n), count, seed), bare(TaskEnv(), count, seed, by_time=True))
            vec.reset()
            vec.step([0] * n)
            vec.close()

    def test_evaluate_of_nested_observations(self, make: Make) -> None:
        """Rows of some envs are a batch of the same structure."""
        seen: list[int] = []

        def policy(obs: Any) -> Any:
            seen.append(len(obs["vector"]))
            return [0] * seen[-1]

        box = spaces.Dict(vector=_POINTS, parts=spaces.Tuple([_POINTS, spaces.Discrete(3)]))
        vec = make([functools.partial(SampledEnv, box, end=0.3)] * 3)
        found = evaluate(vec, policy, 9, 0)
        assert found.successes is None
        assert sum(seen) == found.lengths.sum()

    @pytest.mark.parametrize("mode", MODES)
    def test_evaluate_steps_and_resets_nothing_more(self, make: Make, mode: str) -> None:
        """An autoreset for which no episode is left is one too many, and so is one whose episode another env takes."""
        vec = make([functools.partial(CountingEnv, tag, 2 + tag) for tag in range(4)], autoreset=mode)
        found = evaluate(vec, lambda obs: [0] * len(obs), 13, 70)
        assert found.lengths.sum() == sum(vec.get_attr("steps"))
        seeds = [seed for each in vec.get_attr("seeds") for seed in each]
        assert sorted(seed for seed in seeds if seed is not None) == [*range(70, 83)]
        if mode in ("disabled", "next_step"):
            assert None not in seeds
        if mode == "same_step":
            assert seeds.count(None) <= 2 * 4

    def test_evaluate_and_an_env_that_raises(self, make: Make) -> None:
        for mode in ("same_step", "disabled"):
            vec = make([CountingEnv, functools.partial(FailingEnv, 1, "step", 3), CountingEnv], autoreset=mode)
            with pytest.raises(EnvError, match="env 1 raised ToyError in step"):
                evaluate(vec, lambda obs: [0] * len(obs), 20)
            vec.reset()
            assert vec.get_attr("seeds")[0][-1] is None
            vec.step([0] * 3)
            with pytest.raises(ZeroDivisionError):
                evaluate(vec, lambda obs: [1 // 0] * len(obs), 20)
            vec.reset()

    def test_evaluate_counts_errors(self, make: Make) -> None:
        fns: list[Any] = [CountingEnv, functools.partial(FailingEnv, 0, "step", 3)]
        for mode in ("same_step", "disabled"):
            vec = make(fns, autoreset=mode, on_error="reset")
            found = evaluate(vec, lambda obs: [0] * len(obs), 8)
            assert found.lengths[~found.errors].tolist() == [5] * 7
            assert found.slots[found.errors].tolist() == [1]
            assert found.lengths[found.errors].tolist() == [3]

    @pytest.mark.parametrize("mode", ["same_step", "disabled"])
    def test_evaluate_and_ctrl_c(self, make: Make, mode: str, tmp_path: Path) -> None:
        """Rows that are due are received, no seeds are held, and the next evaluation is as any other."""
        vec = make([functools.partial(NappingEnv, tag) for tag in range(4)], autoreset=mode)
        vec.set_attr("folder", tmp_path)
        with interrupted(tmp_path):
            evaluate(vec, lambda obs: [0] * len(obs), 50)
        vec.set_attr("folder", None)
        vec.reset()
        assert {each[-1] for each in vec.get_attr("seeds")} == {None}
        vec.step([0] * 4)
        assert evaluate(vec, lambda obs: [0] * len(obs), 9).lengths.tolist() == [5] * 9

    @pytest.mark.parametrize(("kind", "mode"), [("by_masks", "same_step"), ("disabled", "disabled"),
                                                ("next_step", "next_step"), ("same_step", "same_step")])  # fmt: skip
    def test_evaluate_of_batched_envs(self, make: Make, kind: str, mode: str) -> None:
        """They are stepped whole; what they do besides is counted."""
        for sizes in ((3, 0), (2, 2), (1, 3)):
            vec = make(batched_fns([TaskEnv] * 4, sizes, kind), autoreset=mode)
            found = evaluate(vec, by_sign, 10, 40)
            check(found, bare(TaskEnv(), 10, 40))
            assert found.surplus == sum(vec.get_attr("steps")) - found.lengths.sum()
            check(evaluate(vec, Counter(4), 2, 3), bare(TaskEnv(), 2, 3, by_time=True))

    def test_evaluate_says_what_it_does_not_take(self, make: Make) -> None:
        vec = make(counting_fns(2))
        for wrong, error, words in (
            ({"vec": None}, TypeError, "evaluate takes a VecEnv"),
            ({"policy": 3}, TypeError, r"a policy is a function policy\(obs\)"),
            ({"policy": check}, TypeError, "but this function takes found, expected"),
            ({"episodes": 0}, ValueError, "episodes must be at least 1"),
            ({"seed": -1}, ValueError, "seed must be at least 0"),
            ({"deterministic": False}, ValueError, "a function chooses actions as it likes"),
        ):
            with pytest.raises(error, match=words):
                evaluate(**{"vec": vec, "policy": by_sign, **wrong})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="as tasks= of this VecEnv does"):
            evaluate(make(counting_fns(1), tasks=lambda *_: (None, None)), by_sign)
        vec.reset_async()
        with pytest.raises(AlreadySteppingError, match="recv first"):
            evaluate(vec, by_sign)


class EvaluateWorkerConformance(Conformance):
    """An episode that is lost is played again."""

    @PROMPT
    @pytest.mark.parametrize("mode", MODES)
    def test_evaluate_and_workers_that_die(self, make: Make, mode: str, tmp_path: Path) -> None:
        lives = tmp_path / "lives"
        lives.touch()
        fns: list[Any] = [functools.partial(TaskEnv, lives), TaskEnv, TaskEnv, TaskEnv]
        vec = make(fns, autoreset=mode, on_failure="restart")
        found = evaluate(vec, by_sign, 40, 7)
        assert vec.stats()["restarts"]
        check(found, bare(TaskEnv(), 40, 7))
