"""The class of the package RayEnvWrapper: a vector env on Ray from a function of a seed.

from vecenvs.compat.ray_env_wrapper import WrapperRayVecEnv
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym

from vecenvs.arguments import arguments_of, check_arguments, parse_int
from vecenvs.backends.ray import RayVecEnv


class WrapperRayVecEnv(RayVecEnv):
    """Envs in Ray actors, in the autoreset mode "same_step".

    Args:
        make_and_seed: a function that makes env i from the seed i. It may seed the env as in Gymnasium, by
            `env.reset(seed=seed)`, or as in the old Gym, by `env.seed(seed)`: then the first reset uses the seed.
        number_of_workers: the number of actors.
        envs_per_worker: the number of envs in each.
        **kwargs: the other arguments of RayVecEnv.

    Raises:
        TypeError: `make_and_seed` is not a function, or a number is not an int.
        ValueError: a number is less than 1.
    """

    def __init__(
        self, make_and_seed: Callable[[int], Any], number_of_workers: int, envs_per_worker: int, **kwargs: Any
    ) -> None:
        known = [name for name in arguments_of(WrapperRayVecEnv) if name not in ("env_fns", "num_workers")]
        check_arguments(type(self).__name__, kwargs, known)
        for name, number in (("number_of_workers", number_of_workers), ("envs_per_worker", envs_per_worker)):
            parse_int(name, number, 1)
        if not callable(make_and_seed):
            raise TypeError(f"make_and_seed must be a function of a seed that returns an env, not {make_and_seed!r}")
        env_fns = [functools.partial(_make, make_and_seed, i) for i in range(number_of_workers * envs_per_worker)]
        super().__init__(env_fns, number_of_workers, **kwargs)


class FirstSeed(gym.Wrapper[Any, Any, Any, Any]):
    """Seed the first reset, unless it is given a seed.

    Args:
        env: the env.
        seed: the seed.
    """

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        super().__init__(env)
        self._first_seed: int | None = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        first, self._first_seed = self._first_seed, None
        return self.env.reset(seed=first if seed is None else seed, options=options)


def _make(make_and_seed: Callable[[int], Any], seed: int) -> Any:
    with old_seeding() as seeds:
        env = make_and_seed(seed)
    return FirstSeed(env, seeds[-1]) if seeds and isinstance(env, gym.Env) else env


@contextlib.contextmanager
def old_seeding() -> Iterator[list[int]]:
    """Let all envs have a method `seed`, which Gymnasium has removed, inside the block.

    Envs with a `seed` method of their own keep it.

    Yields:
        A list, to which the method appends each seed.
    """
    seeds: list[int] = []

    def seed(_: gym.Env[Any, Any], seed: int | None = None) -> list[int]:
        seeds.extend([] if seed is None else [int(seed)])
        return seeds[-1:]

    if hasattr(gym.Env, "seed"):
        yield seeds
        return
    setattr(gym.Env, "seed", seed)  # noqa: B010  mypy does not know this attribute
    try:
        yield seeds
    finally:
        delattr(gym.Env, "seed")
