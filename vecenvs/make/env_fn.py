"""The function by which a worker makes one env of make_vec_env. It can be pickled if its parts can."""

from __future__ import annotations

import importlib
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import flatten_space
from gymnasium.wrappers import FlattenObservation

from vecenvs.env_calls import SlotFn
from vecenvs.make.env_types import find_spec
from vecenvs.make.preprocessing import Preprocessing, Source, preprocessing
from vecenvs.state.episode_file import Described
from vecenvs.worker.make_envs import close_refused, describe_interface_problem
from vecenvs.wrappers.monitor import Monitor
from vecenvs.wrappers.results import LoadMonitorResultsError, read_header
from vecenvs.wrappers.reward import clip_action, scale_reward

Env = gym.Env[Any, Any]
Wrap = Callable[[Env], Env]


@dataclass(frozen=True)
class Recipe:
    """The settings that all envs of one make_vec_env call share. `home` and `begun` are its process and its time."""

    preprocessing: Preprocessing
    env_kwargs: Mapping[str, Any]
    module: str = ""
    flatten: bool = True
    wrappers: tuple[Wrap, ...] = ()
    reward_scale: float = 1.0
    monitor_dir: str | None = None
    monitor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    mpi_rank: int = 0
    initializer: Callable[..., Any] | None = None
    home: tuple[str, int] = field(default_factory=lambda: this_process())
    begun: float = field(default_factory=time.time)


@dataclass(frozen=True)
class EnvFn(Described, SlotFn):
    """Make one env of the recipe. `subrank` is its start_index + i. A `spare` has no file."""

    recipe: Recipe
    source: Source
    subrank: int
    spare: bool = False

    def alike(self, other: Any) -> bool:
        return isinstance(other, EnvFn) and (self.recipe, self.source) == (other.recipe, other.source)

    def of_spare(self) -> Callable[[], Env]:
        return replace(self, spare=True)

    def __call__(self) -> Env:
        recipe = self.recipe
        if recipe.initializer is not None and this_process() != recipe.home:
            recipe.initializer(mpi_rank=recipe.mpi_rank, subrank=self.subrank)
        if recipe.module:
            importlib.import_module(recipe.module)
        env = _checked(recipe.preprocessing.make(self.source, recipe.env_kwargs), "env_id")
        try:
            env = recipe.preprocessing.below_monitor(env)
            if recipe.flatten and is_flattened(env.observation_space):
                env = FlattenObservation(env)
            env = Monitor(env, **self._monitor_arguments())
            env = recipe.preprocessing.above_monitor(env)
            for wrap in recipe.wrappers:
                env = _checked(wrap(env), f"wrapper_class {wrap!r}")
            env = scale_reward(clip_action(recipe.preprocessing.clip(env)), recipe.reward_scale)
            if recipe.seed is not None:
                env.action_space.seed(recipe.seed + self.subrank)
        except BaseException:
            env.close()
            raise
        return env

    def description(self) -> dict[str, Any] | None:
        """Describe an env of a registered id, with nothing around it but what is known here; None for any other."""
        recipe, source = self.recipe, self.source
        if recipe.module or recipe.wrappers or recipe.initializer is not None or not isinstance(source, EnvSpec):
            return None
        found = {
            "id": source.id,
            "env_type": type(recipe.preprocessing).__name__.lower(),
            "wrapper_kwargs": vars(recipe.preprocessing),
            **{name: getattr(recipe, name) for name in _DESCRIBED},
        }
        try:
            plain = json.loads(json.dumps(found)) == found and gym.registry.get(source.id) == source
        except (TypeError, ValueError):
            return None
        return found if plain else None

    def _monitor_arguments(self) -> dict[str, Any]:
        arguments = dict(self.recipe.monitor_kwargs)
        if self.recipe.monitor_dir is not None and not self.spare:
            path = os.path.join(self.recipe.monitor_dir, f"{self.recipe.mpi_rank}.{self.subrank}.{Monitor.EXT}")
            arguments["filename"] = path
            # A worker that replaces one which died makes the env again, but appends to its file.
            if _begun_since(self.recipe.begun, path):
                arguments["override_existing"] = False
        return arguments


_DESCRIBED = ("env_kwargs", "flatten", "reward_scale", "seed")


def described(description: Mapping[str, Any]) -> EnvFn:
    """Return the function that `EnvFn.description` describes; its Monitor writes no file.

    Whatever is no description raises TypeError, ValueError, KeyError or an error of Gymnasium's.
    """
    env_id, env_type = description["id"], description["env_type"]
    if type(env_id) is not str or ":" in env_id:  # which would import a module
        raise ValueError(f"{env_id!r} is no id of a registered env")
    kwargs = {name: dict(description[name]) for name in ("env_kwargs", "wrapper_kwargs")}
    made = preprocessing(env_type if env_type != Preprocessing.__name__.lower() else "plain", kwargs["wrapper_kwargs"])
    rest = {name: description[name] for name in _DESCRIBED if name not in kwargs}
    return EnvFn(Recipe(made, kwargs["env_kwargs"], **rest), find_spec(env_id), 0)


def is_flattened(space: gym.Space[Any]) -> bool:
    """Tell whether observations are a Dict that becomes one vector: all parts have a fixed size and a known class."""
    with suppress(NotImplementedError):
        return isinstance(space, gym.spaces.Dict) and isinstance(flatten_space(space), gym.spaces.Box)
    return False


_PROCESS = uuid.uuid4().hex  # forks share it, and processes of other hosts have another


def this_process() -> tuple[str, int]:
    """Return a value that no other process has, on any host."""
    return _PROCESS, os.getpid()


def _begun_since(begun: float, path: str) -> bool:
    try:
        return float(read_header(path)["t_start"]) >= begun
    except (OSError, LoadMonitorResultsError):
        return False


def _checked(env: Any, giver: str) -> Env:
    """Return `env`; TypeError if it is not an env. `giver` is the argument that returned it."""
    problem = describe_interface_problem(env)
    if not problem and not isinstance(env, gym.Env):
        problem = f"a {type(env).__name__}, which is no gymnasium.Env, as wrappers need: make that its base class"
    if problem:
        close_refused(env)
        raise TypeError(f"{giver} gave {problem}")
    checked: Env = env
    return checked
