"""One small Ray for the tests of several modules. Import `ray_session` and `no_leaks` into a test module to use it.

It stays for the tests of the next module if that uses it, too; `leave` ends it before others. So one process has to run
these modules one after another (see `group_of` in tests/conftest.py).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vecenvs.testing import leaks

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

# Ray keeps processes for the next actors, and starts new ones whenever one is taken.
EXEMPT = (*leaks.EXEMPT, "ray::IDLE", "default_worker.py", "ray/_private", "ray/core/src", "ray::DashboardAgent")

SMALL: dict[str, Any] = {
    "num_cpus": 2,
    "include_dashboard": False,
    "object_store_memory": 80 * 2**20,
    "logging_level": "error",
    "log_to_driver": False,  # a thread of Ray's would print into streams that pytest has closed meanwhile
}
OPTIONS = {"num_cpus": 0.1}  # so that many find room on a Ray that keeps few processes ready

ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a FutureWarning
    "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)]),  # Ray's processes import the tests' classes
}


_session = contextlib.ExitStack()  # has something to undo while there is a Ray


@pytest.fixture(scope="module")
def ray_session() -> None:
    """Ray, initialised for this process before the test, as by a user."""
    import ray

    if ray.is_initialized():
        return
    _session.enter_context(leaks.no_leaks(patience=20.0))
    patch = _session.enter_context(pytest.MonkeyPatch.context())
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)
    _session.callback(ray.shutdown)
    ray.init(address="local", **SMALL)


def leave(nextitem: pytest.Item | None) -> None:
    """End Ray, after a test, unless the module of the next one uses it."""
    if not hasattr(getattr(nextitem, "module", None), ray_session.__name__):
        _session.close()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves an actor or a shared-memory file behind."""
    with leaks.no_leaks(EXEMPT):
        yield


def run_script(text: str, *, timeout: float = 100.0, **environment: str) -> str:
    """Run a script in a Python of its own; give what it wrote. It fails the test if it fails."""
    found = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", text],
        env={**os.environ, **ENVIRONMENT, **environment},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert found.returncode == 0, found.stdout
    return found.stdout


def kill(*actors: Any) -> None:
    """Kill actors and wait until they are dead: a call that comes right after `ray.kill` may still be answered."""
    import ray

    for actor in actors:
        ray.kill(actor)
    end = time.monotonic() + 20.0
    for actor in actors:
        with contextlib.suppress(ray.exceptions.RayActorError):
            while time.monotonic() < end:
                ray.get(actor.__ray_ready__.remote(), timeout=20.0)
                time.sleep(0.01)
            pytest.fail(f"{actor} still answers")
