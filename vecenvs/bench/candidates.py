"""The backends of vecenvs as candidates, parsed from what users write on the command line.

subproc                                    a backend with its defaults
subproc:num_workers=1,caller_steps=true    with options of its constructor
subproc:w=1,caller   subproc:spawn         the same, abbreviated
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from vecenvs.arguments import arguments_of
from vecenvs.backends import BACKENDS, backend_class, unknown_backend
from vecenvs.bench.contest import SelfTimedStepper, Stepper
from vecenvs.bench.workloads import BadRequest, Workload

_WORDS: dict[str, tuple[str, Any]] = {
    "caller": ("caller_steps", True),
    "fork": ("start_method", "fork"),
    "forkserver": ("start_method", "forkserver"),
    "spawn": ("start_method", "spawn"),
    "cluster": ("ray_init_kwargs", {"address": "auto"}),
}
_SHORT = {"w": "num_workers"}
# Options unless others are given. A Ray that runs here is other programs', and what is measured there depends on them.
_DEFAULTS: dict[str, dict[str, Any]] = {"ray": {"ray_init_kwargs": {"address": "local"}}}
_BY_DEFAULT = ("dummy", "subproc")  # each turn of the others starts a job or a Ray, which takes seconds
# The rows of the table in words, by backend.
_MEANINGS = {
    "dummy": "all envs in the calling process",
    "subproc": "worker processes on this machine step the envs, the calling process none",
    "subproc caller": "the calling process steps a share of the envs itself, worker processes the others",
    "mpi": "ranks of an MPI job step the envs, rank 0 none",
    "ray": "Ray actors step the envs, the calling process none",
    "ray caller": "the calling process steps a share of the envs itself, Ray actors the others",
}
_CONSTANTS = {"true": True, "false": False, "none": None}
_BATCHES = 256  # batches of actions, drawn beforehand
_MAX_BYTES = 8 << 20  # of all batches


@dataclass(frozen=True)
class Backend:
    """A backend with options. `name` is what the user wrote."""

    name: str
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)


def parse(text: str) -> Backend:
    """Parse `NAME[:OPTION,...]`, where an option is `key=value` or one of the words above.

    Raises:
        BadRequest: there is no such backend, its constructor has no such option.
        BackendUnavailable: a library that the backend needs is not installed.
    """
    name, _, rest = text.partition(":")
    if name not in BACKENDS:
        raise BadRequest(f"{unknown_backend(name)}; options follow a colon: subproc:w=2,caller")
    known = [key for key in arguments_of(backend_class(name)) if key != "env_fns"]
    options = dict(_DEFAULTS.get(name, {}))
    for option in filter(None, rest.split(",")):
        key, value = _option(option, text)
        if key not in known:
            raise BadRequest(f"{text!r}: {name} has no option {key!r}; it has {', '.join(known)}")
        options[key] = value
    return Backend(text, name, options)


def meanings(backends: Sequence[Backend]) -> list[str]:
    """Return for each backend a line that says where its envs are stepped, as far as this is known."""
    found = []
    for backend in backends:
        text = _MEANINGS.get(backend.backend + " caller" * bool(backend.options.get("caller_steps")))
        found += [f"{backend.name}: {text}."] if text is not None else []
    return found


def choose(texts: Sequence[str] | None) -> tuple[list[Backend], dict[str, str]]:
    """Return the backends of these names, and by name why the others are not available, with the remedy.

    None stands for those in process and by processes, with their defaults, and with `caller_steps`.
    """
    chosen: list[Backend] = []
    unavailable: dict[str, str] = {}
    for text in dict.fromkeys(_BY_DEFAULT if texts is None else texts):
        try:
            chosen.append(parse(text))
            if texts is None and "caller_steps" in arguments_of(backend_class(text)):
                chosen.append(parse(f"{text}:caller"))
        except ImportError as error:
            unavailable[text] = str(error)
    return chosen, unavailable


class MakesVec(Protocol):
    """Make and return a VecEnv of `num_envs` envs."""

    def __call__(self, num_envs: int, backend: Backend) -> Any: ...


def from_env_fn(env_fn: Workload) -> MakesVec:
    """Return a function which makes VecEnvs by their constructors. The envs are bare, as `env_fn` makes them."""

    def make(num_envs: int, backend: Backend) -> Any:
        construct: Callable[..., Any] = backend_class(backend.backend)
        return construct([env_fn] * num_envs, **backend.options)

    return make


class VecCandidate:
    """A backend as a candidate. With `rows` all rows count, also those that are no transitions."""

    def __init__(self, backend: Backend, make_vec: MakesVec, *, rows: bool = False) -> None:
        self.name = backend.name
        self._backend = backend
        self._make_vec = make_vec
        self._rows = rows

    def make(self, num_envs: int) -> Stepper | SelfTimedStepper:
        """Construct and reset the VecEnv."""
        vec = self._make_vec(num_envs, self._backend)
        try:
            return self._stepper(vec, vec.reset(seed=0))
        except BaseException:
            vec.close()
            raise

    def _stepper(self, vec: Any, first: Any) -> Stepper:
        return VecStepper(vec, first, rows=self._rows)


class VecStepper:
    """The loop of a user's program, without the learning. `first` are the first observations."""

    def __init__(self, vec: Any, first: Any, *, rows: bool = False) -> None:
        self._vec = vec
        self._rows = rows or vec.autoreset == "same_step"  # where every row is a transition
        self._first = first  # a user holds them, so they count as memory
        self._actions: Iterator[Any] | None = None

    def step(self, count: int) -> int:
        """Step all envs `count` times. The first call draws the actions."""
        if self._actions is None:
            self._actions = cycle(draw_actions(self._vec.action_space, self._vec.num_envs))
        step, made = self._vec.step, 0
        if self._rows:
            for actions in islice(self._actions, count):
                step(actions)
            return count * int(self._vec.num_envs)
        for actions in islice(self._actions, count):
            step(actions)
            made += int(np.count_nonzero(self._vec.active))
        return made

    def close(self) -> None:
        """Close the VecEnv."""
        self._vec.close()


def draw_actions(space: gym.Space[Any], num_envs: int) -> list[Any]:
    """Draw batches of random actions: arrays, dicts and tuples of these, or lists for spaces of no fixed shape."""
    if not _has_arrays(space):
        return [[space.sample() for _ in range(num_envs)] for _ in range(_BATCHES)]
    batched = batch_space(space, num_envs)
    batched.seed(0)
    batches = max(8, min(_BATCHES, _MAX_BYTES // max(1, _nbytes(batched))))
    return [batched.sample() for _ in range(batches)]


def _has_arrays(space: gym.Space[Any]) -> bool:
    if isinstance(space, gym.spaces.Dict):
        return all(map(_has_arrays, space.values()))
    if isinstance(space, gym.spaces.Tuple):
        return all(map(_has_arrays, space.spaces))
    plain = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
    return isinstance(space, plain)


def _nbytes(space: gym.Space[Any]) -> int:
    return 8 * int(gym.spaces.flatdim(space))


def _option(option: str, text: str) -> tuple[str, Any]:
    key, equals, value = option.partition("=")
    if not equals:
        if key not in _WORDS:
            raise BadRequest(f"{text!r}: {key!r} is neither key=value nor one of {', '.join(_WORDS)}")
        return _WORDS[key]
    key = _SHORT.get(key, key)
    if value.lower() in _CONSTANTS:
        return key, _CONSTANTS[value.lower()]
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
