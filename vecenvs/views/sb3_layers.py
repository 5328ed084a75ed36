"""What the Stable-Baselines3 view asks where the envs live. Workers import this module, so it must not import SB3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vecenvs.calls import layers

_MAIN = ("__main__", "__mp_main__")  # the caller's script, and the same in a spawned worker


def name_of(cls: type) -> tuple[str, str]:
    """Give the module and the qualified name of a class: what is sent to workers in its place.

    Sending the class would make every worker import its module, and with SB3's Monitor torch.
    """
    return ("__main__" if cls.__module__ in _MAIN else cls.__module__, cls.__qualname__)


def is_wrapped_in(env: Any, names: Sequence[tuple[str, str]]) -> bool:
    """Tell whether a layer of the env is an instance of a class so named, or of a subclass."""
    return any(name_of(cls) in names for layer in layers(env) for cls in type(layer).__mro__)
