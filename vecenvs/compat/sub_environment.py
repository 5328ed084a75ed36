"""What `get_sub_environments` gives: a handle of one env that lives in a worker."""

from __future__ import annotations

from typing import Any

from vecenvs.vec_env import VecEnv


class SubEnvironment:
    """One of the envs, where it lives. AlreadySteppingError while it has a command that is not polled."""

    def __init__(self, vec: VecEnv, index: int, prefix: str) -> None:
        self.index = index
        self._vec = vec
        self._prefix = prefix

    def get_attr(self, name: str) -> Any:
        """Read an attribute, which must be picklable."""
        return self._vec.get_attr(self._prefix + name, [self.index])[0]

    def set_attr(self, name: str, value: Any) -> None:
        """Write an attribute."""
        self._vec.set_attr(self._prefix + name, value, [self.index])

    def env_method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method and give what it returns."""
        return self._vec.env_method(self._prefix + name, *args, indices=[self.index], **kwargs)[0]

    def __repr__(self) -> str:
        return f"SubEnvironment({self.index})"
