"""Toy environments with one property each, for tests of vectorised environments.

All are module-level classes whose constructor arguments pickle, so `functools.partial(CountingEnv, tag=3)` is an env
function that any backend can ship to a worker. Importing this package imports no test library.
"""

from __future__ import annotations

from vecenvs.testing.envs.buffers import SHARED, ActionKeepingEnv, BufferReusingEnv, SharedBufferEnv
from vecenvs.testing.envs.counting import CountingEnv, counting_fns
from vecenvs.testing.envs.failing import (
    AwkwardError,
    BadObservationEnv,
    FailingEnv,
    ToyError,
    UnpicklableEnv,
    UnpicklableError,
)
from vecenvs.testing.envs.ill import DyingEnv, ForkingEnv, GatedEnv, StubbornEnv
from vecenvs.testing.envs.rendering import RenderingEnv
from vecenvs.testing.envs.sampled import SampledEnv, digest
from vecenvs.testing.envs.simulator import SimulatorEnv
from vecenvs.testing.envs.spaces import NESTED, SPACES, LabelSpace

__all__ = [
    "NESTED",
    "SHARED",
    "SPACES",
    "ActionKeepingEnv",
    "AwkwardError",
    "BadObservationEnv",
    "BufferReusingEnv",
    "CountingEnv",
    "DyingEnv",
    "FailingEnv",
    "ForkingEnv",
    "GatedEnv",
    "LabelSpace",
    "RenderingEnv",
    "SampledEnv",
    "SharedBufferEnv",
    "SimulatorEnv",
    "StubbornEnv",
    "ToyError",
    "UnpicklableEnv",
    "UnpicklableError",
    "counting_fns",
    "digest",
]
