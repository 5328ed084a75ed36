"""Any VecEnv behind the interface of another library, and theirs behind this one's.

The views of Stable-Baselines3 and pfrl are in modules of their own: the first imports its library.
"""

from vecenvs.views.gymnasium_entry import make_gymnasium_vec, use_for_make_vec
from vecenvs.views.gymnasium_source import from_gymnasium
from vecenvs.views.gymnasium_view import as_gymnasium

__all__ = ["as_gymnasium", "from_gymnasium", "make_gymnasium_vec", "use_for_make_vec"]
