"""The conformance suite on Ray, by shared memory and by messages."""

from __future__ import annotations

from typing import Any

import pytest
from ray_session import EXEMPT, OPTIONS, ray_session  # noqa: F401

from vecenvs.backends.ray import RayVecEnv
from vecenvs.testing.suite import WorkerConformance

pytestmark = pytest.mark.usefixtures("ray_session")


class OnRay(WorkerConformance):
    """As many workers as fit, two at most. Every VecEnv made must have gone the way that is under test."""

    exempt = EXEMPT
    transport = "auto"
    way = "shared"

    def make_vec(self, env_fns: Any, **common: Any) -> RayVecEnv:
        workers = min(2, len(env_fns)) or 2
        vec = RayVecEnv(env_fns, workers, actor_options=OPTIONS, transport=self.transport, **common)
        assert vec.stats()["transports"] == {self.way: workers}
        return vec


class TestShared(OnRay):
    """Same node: rows in shared memory."""


class TestMessages(OnRay):
    """As between nodes: rows in actor calls."""

    transport = way = "messages"
