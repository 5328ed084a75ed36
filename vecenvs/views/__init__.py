"""Any VecEnv behind the interface of another library, and theirs behind this one's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vecenvs.views.gymnasium.from_gymnasium import from_gymnasium
from vecenvs.views.gymnasium.make_vec import make_gymnasium_vec, use_for_make_vec
from vecenvs.views.gymnasium.view import as_gymnasium
from vecenvs.views.pfrl import as_pfrl

if TYPE_CHECKING:
    from vecenvs.vec_env import VecEnv
    from vecenvs.views.sb3 import SB3View

__all__ = ["as_gymnasium", "as_pfrl", "as_sb3", "from_gymnasium", "make_gymnasium_vec", "use_for_make_vec"]


def as_sb3(vec: VecEnv) -> SB3View:
    """View `vec`, which must be in "same_step" mode, as a `stable_baselines3.common.vec_env.VecEnv`.

    Closing the view closes `vec`; use one of them at a time. ValueError for another autoreset mode or `copy=False`,
    BackendUnavailable if Stable-Baselines3 is not installed.
    """
    from vecenvs.views import sb3  # which imports Stable-Baselines3

    return sb3.as_sb3(vec)
