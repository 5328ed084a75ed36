"""`SubEnvironment`: a handle of one env in a worker, which `get_sub_environments` returns."""

from __future__ import annotations

from typing import Any

from vecenvs.vec_env import VecEnv


class SubEnvironment:
    """A handle of one env. Its methods raise AlreadySteppingError while the env's last command is not polled.

    `RemoteEnvs.get_sub_environments` makes it.

    Attributes:
        index: the env id.
    """

    def __init__(self, vec: VecEnv, index: int, prefix: str) -> None:
        self.index = index
        self._vec = vec
        self._prefix = prefix

    def get_attr(self, name: str) -> Any:
        """Read an attribute.

        Args:
            name: the attribute; dots are followed.

        Returns:
            Its value, which must be picklable.
        """
        return self._vec.get_attr(self._prefix + name, [self.index])[0]

    def set_attr(self, name: str, value: Any) -> None:
        """Write an attribute.

        Args:
            name: the attribute.
            value: the new value, picklable.
        """
        self._vec.set_attr(self._prefix + name, value, [self.index])

    def env_method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method.

        Args:
            name: the method.
            *args: its arguments, picklable.
            **kwargs: its keyword arguments, picklable.

        Returns:
            What it returned, which must be picklable.
        """
        return self._vec.env_method(self._prefix + name, *args, indices=[self.index], **kwargs)[0]

    def __repr__(self) -> str:
        return f"SubEnvironment({self.index})"
