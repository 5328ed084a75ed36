"""Step many reinforcement-learning environments at once: one contract, interchangeable engines.

All names that most programs need are here. Each is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vecenvs._lazy import at_first_use
from vecenvs._version import __version__

if TYPE_CHECKING:  # the names below for type checkers and editors
    from vecenvs.agents import MultiAgentVecEnv, make_multi_agent
    from vecenvs.async_env import AsyncEnv
    from vecenvs.backends.dummy import DummyVecEnv
    from vecenvs.backends.mpi import MpiVecEnv
    from vecenvs.backends.ray import RayVecEnv
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
    from vecenvs.evaluation import Evaluation, evaluate
    from vecenvs.identity import this_worker
    from vecenvs.make.make_vec_env import make_vec_env
    from vecenvs.pool.recycling import Recycle
    from vecenvs.vec_env import Batch, VecEnv
    from vecenvs.views import as_gymnasium, as_pfrl, as_sb3, as_tianshou, from_gymnasium
    from vecenvs.wrappers import (
        Monitor,
        VecCheckNan,
        VecExtractDictObs,
        VecFrameStack,
        VecJax,
        VecMonitor,
        VecNormalize,
        VecRecorder,
        VecTorch,
        VecTransposeImage,
        VecVideoRecorder,
    )
    from vecenvs.wrappers.base import VecEnvWrapper

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
    "Recycle",
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
    "VecRecorder",
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

__getattr__, __dir__ = at_first_use(
    __name__,
    {
        "vecenvs.agents": "MultiAgentVecEnv make_multi_agent",
        "vecenvs.async_env": "AsyncEnv",
        "vecenvs.backends.dummy": "DummyVecEnv",
        "vecenvs.backends.mpi": "MpiVecEnv",
        "vecenvs.backends.ray": "RayVecEnv",
        "vecenvs.backends.subproc": "SubprocVecEnv",
        "vecenvs.batch.info_arrays": "info_columns",
        "vecenvs.batched": "Batched",
        "vecenvs.cpus": "worker_cores",
        "vecenvs.errors": "AlreadySteppingError BackendUnavailable ClosedError EnvError NotSteppingError "
        "ResetNeededError SpaceMismatch StartTimeout StateError StepTimeout VecEnvError WorkerDied",
        "vecenvs.evaluation": "Evaluation evaluate",
        "vecenvs.identity": "this_worker",
        "vecenvs.make.make_vec_env": "make_vec_env",
        "vecenvs.pool.recycling": "Recycle",
        "vecenvs.vec_env": "Batch VecEnv",
        "vecenvs.views": "as_gymnasium as_pfrl as_sb3 as_tianshou from_gymnasium",
        "vecenvs.wrappers": "Monitor VecCheckNan VecExtractDictObs VecFrameStack VecJax VecMonitor VecNormalize "
        "VecRecorder VecTorch VecTransposeImage VecVideoRecorder",
        "vecenvs.wrappers.base": "VecEnvWrapper",
    },
)
