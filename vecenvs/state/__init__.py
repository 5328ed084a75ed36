"""States of envs, files of whole runs, and adapters for classes whose objects are no plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vecenvs._lazy import at_first_use

if TYPE_CHECKING:  # the names below for type checkers and editors
    from vecenvs.state.adapters import register
    from vecenvs.state.env_state import EnvState
    from vecenvs.state.saves import load, save

__all__ = ["EnvState", "load", "register", "save"]

__getattr__, __dir__ = at_first_use(
    __name__,
    {
        "vecenvs.state.adapters": "register",
        "vecenvs.state.env_state": "EnvState",
        "vecenvs.state.saves": "load save",
    },
)
