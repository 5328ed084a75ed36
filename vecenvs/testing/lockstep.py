"""A VecEnv and a plain loop over the same envs, side by side, every row compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from vecenvs.testing.compare import assert_same, stack
from vecenvs.testing.oracle import EnvFn, PlainLoop, Row
from vecenvs.vec_env import StepReturn, VecEnv


class Lockstep:
    """Run a VecEnv (`vec`) and a PlainLoop (`plain`) with the same seeds and actions; AssertionError where they differ.

    Actions are drawn from the action space (its generator seeded with 0) and passed in turn as a list and as a batch.

    Args:
        make: makes the VecEnv: called as `make(env_fns, autoreset=autoreset, **kwargs)`.
        env_fns: one env function per env.
        autoreset: "same_step", "next_step" or "disabled".
        **kwargs: further arguments of `make`.

    Attributes:
        vec: the VecEnv. Close it after the test.
        plain: the plain loop.
        steps: the number of steps so far.
    """

    def __init__(
        self, make: Callable[..., VecEnv], env_fns: Sequence[EnvFn], *, autoreset: str = "same_step", **kwargs: Any
    ) -> None:
        self.vec = make(env_fns, autoreset=autoreset, **kwargs)
        self.plain = PlainLoop(env_fns, autoreset)
        self.steps = 0
        self._actions = copy.deepcopy(self.plain.envs[0].action_space)
        self._actions.seed(0)

    def reset(self, indices: Iterable[int] | None = None, **kwargs: Any) -> Any:
        """Reset both; compare first observations and reset infos.

        Args:
            indices: the envs to reset; None for all.
            **kwargs: `seed` and `options`, as in `VecEnv.reset`.

        Returns:
            The VecEnv's observations, a batch of one row for each of `indices`.

        Raises:
            AssertionError: they differ.
        """
        chosen = None if indices is None else list(indices)
        obs = self.vec.reset(chosen, **kwargs)
        self.check_obs(obs, self.plain.reset(chosen, **kwargs))
        assert_same(list(self.vec.reset_infos), self.plain.reset_infos, "reset_infos")
        return obs

    def step(self) -> StepReturn:
        """Step both with random actions, and compare everything.

        Returns:
            Observations, rewards, dones and infos, as `VecEnv.step` returns them.

        Raises:
            AssertionError: they differ.
        """
        actions = self.sample_actions()
        as_list = self.steps % 2 == 0
        result = self.vec.step(actions if as_list else stack(self._actions, actions))
        self.check(result, self.plain.step(actions))
        self.steps += 1
        return result

    def run(self, steps: int) -> None:
        """Call `step` several times.

        Args:
            steps: how often.

        Raises:
            AssertionError: they differ.
        """
        for _ in range(steps):
            self.step()

    def sample_actions(self) -> list[Any]:
        """Return a list with one random action per env."""
        return [self._actions.sample() for _ in self.plain.envs]

    def check_obs(self, obs: Any, expected: Sequence[Any], where: str = "obs") -> None:
        """Compare a batch of observations with single ones.

        Args:
            obs: the batch.
            expected: the observations, one for each row of the batch.
            where: their name in the error.

        Raises:
            AssertionError: they differ.
        """
        assert_same(obs, stack(self.plain.envs[0].observation_space, expected), where)

    def check(self, result: StepReturn, rows: Sequence[Row]) -> None:
        """Compare the results of `step` and the attributes of the VecEnv with the plain loop's rows.

        Args:
            result: what `VecEnv.step` has returned.
            rows: what `PlainLoop.step` has returned.

        Raises:
            AssertionError: they differ.
        """
        obs, rewards, dones, infos = result
        where = f"step {self.steps} "
        self.check_obs(obs, [row.obs for row in rows], where + "obs")
        assert_same(rewards, np.array([row.reward for row in rows], np.float32), where + "rewards")
        assert_same(dones, np.array([row.terminated or row.truncated for row in rows]), where + "dones")
        assert_same(list(infos), [row.info for row in rows], where + "infos")
        assert_same(self.vec.terminated, np.array([row.terminated for row in rows]), where + "terminated")
        assert_same(self.vec.truncated, np.array([row.truncated for row in rows]), where + "truncated")
        assert_same(list(self.vec.reset_infos), self.plain.reset_infos, where + "reset_infos")
