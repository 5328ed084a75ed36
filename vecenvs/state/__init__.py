"""States of envs, files of whole runs, and adapters for classes whose objects are no plain data."""

from vecenvs.state.adapters import register
from vecenvs.state.env_state import EnvState
from vecenvs.state.saves import load, save

__all__ = ["EnvState", "load", "register", "save"]
