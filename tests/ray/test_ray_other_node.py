"""The conformance suite over two nodes of Ray: workers and their leader are not on the node of the caller."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from ray_session import ENVIRONMENT, OPTIONS, SMALL
from test_ray_contract import EnvPoolOnRay, OnRay

from vecenvs.backends.ray.actor import ActorLocation
from vecenvs.backends.ray.actor_end import ActorEnd
from vecenvs.backends.ray.foreign_process import ForeignProcess
from vecenvs.testing import leaks
from vecenvs.testing.suite import DeathConformance, RowConformance, ScheduleConformance, WorkerConformance

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("two_nodes")]


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[None]:
    """Join a cluster of two nodes, which ends with this module's tests."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": SMALL["object_store_memory"]}
    with (
        leaks.no_leaks(patience=20.0),
        tempfile.TemporaryDirectory(prefix="ray-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {**ENVIRONMENT, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            cluster.add_node(resources={"there": 1}, **node)
            ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()


class OnOtherNode(OnRay):
    """Two workers on the other node."""

    way = "messages"
    options: ClassVar[dict[str, Any]] = {**OPTIONS, "resources": {"there": 0.001}}
    gathers = True

    @pytest.fixture(autouse=True)
    def watched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Watch the processes, as only those of the caller's node are, for the exit codes that the suite asks for."""
        arrive = ActorEnd._arrive

        def watch(end: ActorEnd, location: ActorLocation | None) -> None:
            arrive(end, location)
            if location is not None and end._process is None:
                end._process = ForeignProcess(location.pid)

        monkeypatch.setattr(ActorEnd, "_arrive", watch)


class TestEnds(OnOtherNode, RowConformance, DeathConformance, ScheduleConformance):
    """Rows, and how actors end."""


class TestEnvPool(OnOtherNode, EnvPoolOnRay):
    """EnvPools on the other node."""


@pytest.mark.release
class TestContract(OnOtherNode, WorkerConformance):
    """Everything."""
