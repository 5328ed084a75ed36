"""The names of the package ray_multiprocess_env: envs that are the user's own Ray actors, stepped as one.

    from vecenvs.compat.ray_multiprocess_env import RayVectorEnv, make_remote_class

An env is any actor with `reset` and `step`, in Gymnasium's interface, in that of the old Gym, or without spaces and
infos. `RayVecEnv` is faster: it steps many envs per actor, while here every env costs one actor call per step.
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
    """Make an actor class from a class whose instances hold an env.

    The actor has every public method of `env_class` that `cls` does not define itself, and runs it on the env. Actors
    have methods only, so an attribute or property of `env_class` becomes a method without arguments that reads it
    (`env.action_space.remote()`). `get_attr(name)` and `set_attr(name, value)` reach the attributes of the env, as
    VecEnv's methods do.

    Args:
        cls: the class.
        name: the attribute of its instances that holds the env.
        env_class: the class of the env.

    Returns:
        The actor class: `make_remote_class(...).remote(...)` starts an actor.

    Raises:
        BackendUnavailable: Ray is missing.
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


def _of_first(name: str) -> Any:
    doc = f"The `{name}` of the first env. AttributeError if its actor has no method of this name."
    return property(lambda env: env._ask_first(name), doc=doc)  # noqa: SLF001


class RayVectorEnv:
    """The user's actors as one vector env, with the interface of pfrl's MultiprocessVectorEnv.

    There is no autoreset: `reset(mask)` begins new episodes. For Gymnasium envs done is terminated or truncated,
    `info["TimeLimit.truncated"]` is truncated and not terminated, and `reset_infos` has the infos of resets. A subclass
    may add methods, with `remote_envs` and `gather`.

    Args:
        remote_envs: the actors.

    Attributes:
        last_obs: the last observation of each env.
        reset_infos: the info of each env's last reset.

    Raises:
        BackendUnavailable: Ray is missing.
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
        """The number of envs."""
        return len(self._remote_envs)

    action_space = _of_first("action_space")
    observation_space = _of_first("observation_space")
    spec = _of_first("spec")

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Reset envs.

        Args:
            *args: one argument with a bool per env is a mask, as in pfrl: envs for which it is True are not reset.
                Other arguments are passed to each env's `reset`.
            **kwargs: `mask`, or arguments that are passed to each env's `reset`.

        Returns:
            A list of observations: for an env that is not reset its last one. If an env's `reset` returns a tuple that
            is not (obs, info), a tuple of each of its values for all envs that were reset.

        Raises:
            EnvError: envs raised.
            WorkerDied: an actor has ended.
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
        """Step each env.

        Args:
            actions: one action per env.
            *args: further arguments, passed to each env's `step`.
            **kwargs: further keyword arguments, passed to each env's `step`.

        Returns:
            Four tuples with one value per env: observations, rewards, dones, infos. The values are those of the envs;
            arrays are copies that may be written to. If a `step` returns no tuple, a list of what the envs returned.

        Raises:
            ValueError: there is not one action per env.
            EnvError: envs raised.
            WorkerDied: an actor has ended.
        """
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
        """Seed each env by its actor's `seed` method, or if it has none by the argument `seed` of its next reset.

        Args:
            seeds: a sequence of one seed per env, or one seed for all envs, as in pfrl.

        Raises:
            TypeError: `seeds` is neither an int nor a sequence.
            ValueError: there is not one seed per env.
        """
        each = _one_each(seeds, self.num_envs)
        calls = {i: e.seed.remote(each[i]) for i, e in enumerate(self._remote_envs) if hasattr(e, "seed")}
        self._seeds = {i: seed for i, seed in enumerate(each) if i not in calls}
        self.gather(calls)

    def render(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Render each env.

        Args:
            *args: passed to each env's `render`.
            **kwargs: passed to each env's `render`.

        Returns:
            A list of what each env returned.
        """
        calls = {i: remote_env.render.remote(*args, **kwargs) for i, remote_env in enumerate(self._remote_envs)}
        return list(self.gather(calls).values())

    def close(self) -> None:
        """Close the envs whose actors have a `close` method. The actors, which are the user's, stay alive."""
        self.gather({i: e.close.remote() for i, e in enumerate(self._remote_envs) if hasattr(e, "close")})

    def gather(self, calls: dict[int, Any]) -> dict[int, Any]:
        """Wait until actor calls have ended.

        Args:
            calls: the reference of a call for each env, by the env's index.

        Returns:
            The results by the env's index, whose arrays may be written to.

        Raises:
            EnvError: envs raised. It comes after all calls have ended.
            WorkerDied: an actor has ended. It comes after all calls have ended.
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
            raise AttributeError(f"these actors have no method {name}(): see make_remote_class")
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
    """Return the five values of a Gymnasium env as four, as in the old Gym; anything else unchanged."""
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
    """Return the attributes that a class declares without a value, such as the spaces of gymnasium.Env."""
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
