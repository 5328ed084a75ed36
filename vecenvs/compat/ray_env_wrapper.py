"""The name of the package RayEnvWrapper: a vector env on Ray from a function of a seed.

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
    """`number_of_workers` Ray actors with `envs_per_worker` envs each, one after another in the batch.

    Env i is `make_and_seed(i)`: each has a seed of its own. That function may seed as Gymnasium does, by
    `env.reset(seed=seed)`, or as the old gym did, by `env.seed(seed)`, which then holds for the first reset. Envs
    reset themselves when an episode ends (the VecEnv's "same_step"). `kwargs` are RayVecEnv's.
    """

    def __init__(
        self, make_and_seed: Callable[[int], Any], number_of_workers: int, envs_per_worker: int, **kwargs: Any
    ) -> None:
        known = [name for name in arguments_of(WrapperRayVecEnv) if name not in ("env_fns", "num_workers")]
        check_arguments(type(self).__name__, kwargs, known)
        for name, number in (("number_of_workers", number_of_workers), ("envs_per_worker", envs_per_worker)):
            parse_int(name, number, 1)
        if not callable(make_and_seed):
            raise TypeError(f"make_and_seed must be a function of a seed that gives an env, not {make_and_seed!r}")
        env_fns = [functools.partial(_make, make_and_seed, i) for i in range(number_of_workers * envs_per_worker)]
        super().__init__(env_fns, number_of_workers, **kwargs)


class FirstSeed(gym.Wrapper[Any, Any, Any, Any]):
    """Seeds the first reset that is given no seed."""

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
    """Let `env.seed(seed)`, which Gymnasium has dropped, note the seed while envs are made in this process.

    Envs with a `seed` method of their own keep it.
    """
    seeds: list[int] = []

    def seed(_: gym.Env[Any, Any], seed: int | None = None) -> list[int]:
        seeds.extend([] if seed is None else [int(seed)])
        return seeds[-1:]

    if hasattr(gym.Env, "seed"):
        yield seeds
        return
    setattr(gym.Env, "seed", seed)  # noqa: B010  not an attribute that mypy knows
    try:
        yield seeds
    finally:
        delattr(gym.Env, "seed")
