"""States of envs: what `VecEnv.get_state` returns, and adapters for classes whose objects are no plain data."""

from vecenvs.state.adapters import register
from vecenvs.state.env_state import EnvState

__all__ = ["EnvState", "register"]
