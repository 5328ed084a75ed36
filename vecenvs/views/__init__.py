"""Adapters between VecEnvs and the vector envs of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vecenvs.views.gymnasium.from_gymnasium import from_gymnasium
from vecenvs.views.gymnasium.make_vec import make_gymnasium_vec, use_for_make_vec
from vecenvs.views.gymnasium.view import as_gymnasium
from vecenvs.views.pfrl import as_pfrl
from vecenvs.views.tianshou import as_tianshou

if TYPE_CHECKING:
    from vecenvs.vec_env import VecEnv
    from vecenvs.views.sb3 import SB3View

__all__ = [
    "as_gymnasium",
    "as_pfrl",
    "as_sb3",
    "as_tianshou",
    "from_gymnasium",
    "make_gymnasium_vec",
    "use_for_make_vec",
]


def as_sb3(vec: VecEnv) -> SB3View:
    """View a VecEnv as a `stable_baselines3.common.vec_env.VecEnv`.

    Closing the view closes `vec`. Step and reset `vec` through the view alone.

    Args:
        vec: a VecEnv in "same_step" mode with `copy=True`, both of which are the default.

    Returns:
        A subclass of Stable-Baselines3's VecEnv.

    Raises:
        TypeError: `vec` is not a VecEnv.
        ValueError: `vec` has another autoreset mode, or `copy=False`.
        BackendUnavailable: Stable-Baselines3 is not installed.
    """
    from vecenvs.views.sb3 import SB3View  # imports Stable-Baselines3, and with it torch

    return SB3View(vec)
