"""The names of the package ray_multiprocess_env: envs that are actors of the user's own, stepped as one.

    from vecenvs.compat.ray_multiprocess_env import RayVectorEnv, make_remote_class

An env here is any actor with `reset` and `step`: of Gymnasium's kind, of the old gym's, or with neither spaces nor
infos. For throughput use `RayVecEnv`, which steps many envs per actor: here every env costs a call per step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenvs import env_calls
from vecenvs.backends.ray.cluster import check_ray
from vecenvs.batch.values import copy_containers
from vecenvs.errors import EnvError, WorkerDied


def make_remote_class(cls: type, name: str, env_class: type) -> Any:
    """Make an actor class of `cls`, whose instances hold an env of `env_class` in their attribute `name`.

    The actor has every public method of `env_class` that `cls` does not define itself, and carries it out on that env.
    Actors have methods alone: an attribute or property of `env_class` becomes a method without arguments that reads
    it (`env.action_space.remote()`), and `get_attr(name)` and `set_attr(name, value)` reach those of the instance as
    VecEnv's do: through wrappers, `name` may be dotted.
    """
    check_ray()
    import ray

    members: dict[str, Any] = {"get_attr": _getter(name), "set_attr": _setter(name)}
    for member in {*dir(env_class), *_annotated(env_class)}:
        if not member.startswith("_"):
            value = inspect.getattr_static(env_class, member, None)
            method = isinstance(value, (staticmethod, classmethod)) or callable(value)
            members[member] = _method(name, member) if method else _reader(name, member)
    added = {member: function for member, function in members.items() if not hasattr(cls, member)}
    kind = type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__, **added})
    return ray.remote(kind)


class RayVectorEnv:
    """Actors of the user's as one vector env, with the interface of pfrl's MultiprocessVectorEnv.

    `reset` gives a list of observations, `step` four tuples: observations, rewards, dones, infos, each value as its
    env gave it (arrays are copies that may be written to). There is no autoreset: `reset(mask)` begins new episodes.
    Of a Gymnasium env, done is terminated or truncated, `info["TimeLimit.truncated"]` tells which, and the info of its
    reset is in `reset_infos`. Subclass to add methods: `remote_envs` are the actors, `gather` waits for their answers.
    """

    def __init__(self, remote_envs: Sequence[Any]) -> None:
        check_ray()
        self._remote_envs = list(remote_envs)
        self._seeds: dict[int, int] = {}
        self.last_obs: list[Any] = [None] * len(self._remote_envs)
        self.reset_infos: list[dict[str, Any]] = [{} for _ in self._remote_envs]

    @property
    def remote_envs(self) -> list[Any]:
        """The actors."""
        return self._remote_envs

    @property
    def num_envs(self) -> int:
        """How many there are."""
        return len(self._remote_envs)

    @property
    def action_space(self) -> Any:
        """That of the first env. AttributeError if its actor has no method of this name."""
        return self._ask_first("action_space")

    @property
    def observation_space(self) -> Any:
        """That of the first env. AttributeError if its actor has no method of this name."""
        return self._ask_first("observation_space")

    @property
    def spec(self) -> Any:
        """That of the first env. AttributeError if its actor has no method of this name."""
        return self._ask_first("spec")

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Reset the envs; give a list of observations.

        As in pfrl, one argument of a bool per env is a mask: where it is true the env is not reset and its last
        observation returned. All else goes to each env's `reset`. A tuple that is not (obs, info) counts as several
        values per env, and then a tuple of each is returned.
        """
        mask = np.zeros(self.num_envs, dtype=bool)
        if len(args) == 1 and args[0] is None:
            args = ()
        elif len(args) == 1 and self._is_mask(args[0]):
            mask, args = np.asarray(args[0], dtype=bool), ()
        if "mask" in kwargs:
            given = kwargs.pop("mask")
            mask = mask if given is None else np.asarray(given, dtype=bool)
        chosen = [i for i in range(self.num_envs) if not mask[i]]
        calls = {i: self._remote_envs[i].reset.remote(*args, **{**kwargs, **self._seed_of(i)}) for i in chosen}
        outcomes = self.gather(calls)
        if any(isinstance(out, tuple) and not _is_obs_and_info(out) for out in outcomes.values()):
            return tuple(zip(*outcomes.values(), strict=True))
        for i, out in outcomes.items():
            self.last_obs[i], self.reset_infos[i] = out if _is_obs_and_info(out) else (out, {})
        return list(self.last_obs)

    def step(self, actions: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Step each env with its action; give tuples of observations, rewards, dones and infos."""
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} envs: give one action per env")
        calls = {
            i: remote_env.step.remote(action, *args, **kwargs)
            for i, (remote_env, action) in enumerate(zip(self._remote_envs, actions, strict=True))
        }
        outcomes = [_four(out) for out in self.gather(calls).values()]
        if not all(isinstance(out, tuple) for out in outcomes):
            return outcomes
        self.last_obs = [out[0] for out in outcomes]
        return tuple(zip(*outcomes, strict=True))

    def seed(self, seeds: int | Sequence[int]) -> None:
        """Seed each env: by its actor's `seed` method if it has one, else its next reset is called with `seed=`.

        A sequence has one seed each; an int is the same for all of them, as in pfrl.
        """
        each = _one_each(seeds, self.num_envs)
        calls = {i: e.seed.remote(each[i]) for i, e in enumerate(self._remote_envs) if hasattr(e, "seed")}
        self._seeds = {i: seed for i, seed in enumerate(each) if i not in calls}
        self.gather(calls)

    def render(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Render each env; give what each returned."""
        calls = {i: remote_env.render.remote(*args, **kwargs) for i, remote_env in enumerate(self._remote_envs)}
        return list(self.gather(calls).values())

    def close(self) -> None:
        """Close the envs whose actors have a `close` method. The actors themselves are the user's, and stay."""
        self.gather({i: e.close.remote() for i, e in enumerate(self._remote_envs) if hasattr(e, "close")})

    def gather(self, calls: dict[int, Any]) -> dict[int, Any]:
        """Wait for the calls of some envs, {index: reference}; give their results, whose arrays are the caller's own.

        EnvError if envs raised, WorkerDied if an actor is gone, once every call has ended.
        """
        import ray

        results: dict[int, Any] = {}
        errors: list[EnvError] = []
        died: WorkerDied | None = None
        for i, call in calls.items():
            try:
                results[i] = copy_containers(ray.get(call))
            except ray.exceptions.RayTaskError as exc:
                errors.append(_env_error(i, exc))
            except ray.exceptions.RayActorError as exc:
                died = died or WorkerDied(i, [i], None, f" [{str(exc).splitlines()[0]}]")
        if died is not None:
            raise died
        if errors:
            errors[0].errors = tuple(errors)
            raise errors[0]
        return results

    def _ask_first(self, name: str) -> Any:
        if not self._remote_envs or not hasattr(self._remote_envs[0], name):
            raise AttributeError(f"these actors have no method {name}() that tells it: see make_remote_class")
        return self.gather({0: getattr(self._remote_envs[0], name).remote()})[0]

    def _is_mask(self, value: Any) -> bool:
        shape = np.shape(value) if isinstance(value, (list, tuple, np.ndarray)) else ()
        return shape == (self.num_envs,) and np.asarray(value).dtype == bool

    def _seed_of(self, i: int) -> dict[str, int]:
        return {"seed": self._seeds.pop(i)} if i in self._seeds else {}


def _one_each(seeds: Any, num_envs: int) -> Sequence[int]:
    if isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool):
        return [int(seeds)] * num_envs
    if isinstance(seeds, str) or not isinstance(seeds, (Sequence, np.ndarray)):
        raise TypeError(f"seeds must be an int or a sequence of one int per env, not {seeds!r}")
    if len(seeds) != num_envs:
        raise ValueError(f"{len(seeds)} seeds for {num_envs} envs: give one per env")
    return list(seeds)


def _is_obs_and_info(out: Any) -> bool:
    return isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], dict)


def _four(out: Any) -> Any:
    """Make a Gymnasium env's five values the old gym's four; leave others as they are."""
    if not isinstance(out, tuple) or len(out) != 5:
        return out
    obs, reward, terminated, truncated, info = out
    if isinstance(info, dict):
        info = {**info, "TimeLimit.truncated": bool(truncated and not terminated)}
    return obs, reward, bool(terminated or truncated), info


def _env_error(i: int, exc: Any) -> EnvError:
    cause = exc.cause if isinstance(getattr(exc, "cause", None), BaseException) else exc
    error = EnvError(i, f"env {i} raised {type(cause).__name__}: {cause}", str(exc))
    error.__cause__ = cause
    return error


def _annotated(env_class: type) -> set[str]:
    """Names of the attributes that a class declares without giving them a value, as gymnasium.Env its spaces."""
    return {name for base in env_class.__mro__ for name in vars(base).get("__annotations__", {})}


def _method(holder: str, name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Arrays that Ray brings are read-only.
        return getattr(getattr(self, holder), name)(*copy_containers(args), **copy_containers(kwargs))

    return _named(method, name)


def _reader(holder: str, name: str) -> Callable[..., Any]:
    def read(self: Any) -> Any:
        return getattr(getattr(self, holder), name)

    return _named(read, name)


def _getter(holder: str) -> Callable[..., Any]:
    def get_attr(self: Any, name: str) -> Any:
        return env_calls.get_attr(getattr(self, holder), name)

    return get_attr


def _setter(holder: str) -> Callable[..., Any]:
    def set_attr(self: Any, name: str, value: Any) -> None:
        env_calls.set_attr(getattr(self, holder), name, copy_containers(value))

    return set_attr


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function
