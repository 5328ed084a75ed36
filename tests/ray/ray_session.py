"""One small Ray for all tests of this folder. Import `ray_session` and `no_leaks` into a test module to use it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from vecenvs.testing import leaks

os.environ["RAY_AUTH_MODE"] = "disabled"  # read by Ray's daemons when they start, so before the first ray.init
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_worker_niceness"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # else a FutureWarning

# Ray keeps processes for the next actors, and starts new ones whenever one is taken.
EXEMPT = (*leaks.EXEMPT, "ray::IDLE", "default_worker.py", "ray/_private", "ray/core/src", "ray::DashboardAgent")

SMALL = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 * 2**20, "logging_level": "error"}
OPTIONS = {"num_cpus": 0.1}  # so that many find room on a Ray that keeps few processes ready


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Ray, initialised for this process before the test, as by a user."""
    import ray

    with leaks.no_leaks(patience=20.0):
        ray.init(address="local", **SMALL)
        yield
        ray.shutdown()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves an actor or a shared-memory file behind."""
    with leaks.no_leaks(EXEMPT):
        yield
