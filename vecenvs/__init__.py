"""Step many reinforcement-learning environments at once: one contract, interchangeable engines.

All names that most programs need are here. Those which are not needed by each program are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vecenvs._version import __version__
from vecenvs.async_env import AsyncEnv
from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.backends.subproc import SubprocVecEnv
from vecenvs.batch.info_arrays import info_columns
from vecenvs.batched import Batched
from vecenvs.cpus import worker_cores
from vecenvs.errors import (
    AlreadySteppingError,
    BackendUnavailable,
    ClosedError,
    EnvError,
    NotSteppingError,
    ResetNeededError,
    SpaceMismatch,
    StartTimeout,
    StateError,
    StepTimeout,
    VecEnvError,
    WorkerDied,
)
from vecenvs.identity import this_worker
from vecenvs.make.make_vec_env import make_vec_env
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.wrappers import (
    Monitor,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecJax,
    VecMonitor,
    VecNormalize,
    VecTorch,
    VecTransposeImage,
    VecVideoRecorder,
)
from vecenvs.wrappers.base import VecEnvWrapper

if TYPE_CHECKING:  # `_LATER` for type checkers and editors
    from vecenvs.agents import MultiAgentVecEnv, make_multi_agent
    from vecenvs.backends.mpi import MpiVecEnv
    from vecenvs.backends.ray import RayVecEnv
    from vecenvs.evaluation import Evaluation, evaluate
    from vecenvs.views import as_gymnasium, as_pfrl, as_sb3, as_tianshou, from_gymnasium

# Names whose modules are imported when a program first asks for the name.
_LATER = {
    "Evaluation": "vecenvs.evaluation",
    "evaluate": "vecenvs.evaluation",
    "MultiAgentVecEnv": "vecenvs.agents",
    "make_multi_agent": "vecenvs.agents",
    "MpiVecEnv": "vecenvs.backends.mpi",
    "RayVecEnv": "vecenvs.backends.ray",
    "as_gymnasium": "vecenvs.views",
    "as_pfrl": "vecenvs.views",
    "as_sb3": "vecenvs.views",
    "as_tianshou": "vecenvs.views",
    "from_gymnasium": "vecenvs.views",
}

__all__ = [
    "AlreadySteppingError",
    "AsyncEnv",
    "BackendUnavailable",
    "Batch",
    "Batched",
    "ClosedError",
    "DummyVecEnv",
    "EnvError",
    "Evaluation",
    "Monitor",
    "MpiVecEnv",
    "MultiAgentVecEnv",
    "NotSteppingError",
    "RayVecEnv",
    "ResetNeededError",
    "SpaceMismatch",
    "StartTimeout",
    "StateError",
    "StepTimeout",
    "SubprocVecEnv",
    "VecCheckNan",
    "VecEnv",
    "VecEnvError",
    "VecEnvWrapper",
    "VecExtractDictObs",
    "VecFrameStack",
    "VecJax",
    "VecMonitor",
    "VecNormalize",
    "VecTorch",
    "VecTransposeImage",
    "VecVideoRecorder",
    "WorkerDied",
    "__version__",
    "as_gymnasium",
    "as_pfrl",
    "as_sb3",
    "as_tianshou",
    "evaluate",
    "from_gymnasium",
    "info_columns",
    "make_multi_agent",
    "make_vec_env",
    "this_worker",
    "worker_cores",
]


def __getattr__(name: str) -> Any:
    """Import a name of `_LATER` (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module 'vecenvs' has no attribute {name!r}")
    found = getattr(import_module(_LATER[name]), name)
    globals()[name] = found  # the next look-up does not come here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
