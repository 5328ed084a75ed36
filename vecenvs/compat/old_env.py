"""Adapt single-agent envs of Gym's interface before 0.26, which RLlib's RemoteVectorEnv took, to Gymnasium's."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym

_OWN = ("inner", "_takes_seed")


class OldEnvAdapter:
    """Gymnasium's interface of an env that may be written for the old one, by what its methods take and return.

    `reset` may take no seed, which is then passed to the env's `seed` method if there is one, and may return an
    observation alone. `step` may return four values: the episode is truncated if the info has "TimeLimit.truncated".
    All other attributes are those of `inner`, because programs read them from the env.

    Args:
        inner: the env.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._takes_seed = takes_seed(inner)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env; the info is {} if the env returns none. TypeError if its `reset` takes no options."""
        result = call_reset(self.inner, self._takes_seed, seed, options)
        with_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return (result[0], result[1]) if with_info else (result, {})

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env, as in Gymnasium. TypeError if it returns neither four nor five values."""
        result = self.inner.step(action)
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            raise TypeError(f"{type(self.inner).__name__}.step() must return four or five values, not {result!r}")
        if len(result) == 5:
            obs, reward, terminated, truncated, info = result
            return obs, reward, terminated, truncated, info
        obs, reward, done, info = result
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        return obs, reward, bool(done) and not truncated, truncated, info

    def close(self) -> None:
        """Close the env, if it has a `close`."""
        if hasattr(self.inner, "close"):
            self.inner.close()

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # not set yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self.inner, name, value)


def adapted(env: Any) -> Any:
    """Return the env, in an adapter if it has, or may have, the old interface."""
    whole = callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))
    spaces = all(isinstance(getattr(env, name, None), gym.Space) for name in ("observation_space", "action_space"))
    if not (whole and spaces):  # an error, raised where envs are made
        return env
    return env if isinstance(env, gym.Env) and takes_seed(env) else OldEnvAdapter(env)


def takes_seed(inner: Any) -> bool:
    """Tell whether the env's `reset` takes the keyword `seed`."""
    parameters = inspect.signature(inner.reset).parameters
    return "seed" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def call_reset(inner: Any, by_reset: bool, seed: int | None, options: dict[str, Any] | None) -> Any:
    """Reset the env. If its `reset` takes no keywords (`by_reset` False), pass the seed to its `seed` method."""
    if by_reset:
        given = {"seed": seed, "options": options}
        return inner.reset(**{name: value for name, value in given.items() if value is not None})
    if options is not None:
        raise TypeError(f"{type(inner).__name__}.reset() takes no options")
    if seed is not None and hasattr(inner, "seed"):
        inner.seed(seed)
    return inner.reset()
