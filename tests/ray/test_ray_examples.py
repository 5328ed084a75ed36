"""Examples for Ray, as a user runs them."""

from __future__ import annotations

import pytest
from conftest import NO_ENVPOOL
from own_simulators import assert_own_simulators, free_ports
from ray_session import ROOT, no_leaks, run_script  # noqa: F401

pytestmark = pytest.mark.long


def test_ray_cluster() -> None:
    script = ROOT / "examples" / "ray_cluster.py"
    said = run_script(
        "import runpy, sys; "
        "sys.argv = ['ray_cluster.py', '--num-envs', '4', '--num-workers', '2', '--total-timesteps', '240']; "
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    assert "2 workers on node" in said
    assert "episodes, mean return" in said


def test_own_simulators() -> None:
    script = ROOT / "examples" / "own_simulators.py"
    said = run_script(
        "import runpy, sys; "
        "sys.argv = ['own_simulators.py', '--backend', 'ray', '--total-timesteps', '40', "
        f"'--first-port', '{free_ports(4)}']; "
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    assert_own_simulators(said)


@pytest.mark.timeout(120)
@pytest.mark.skipif(NO_ENVPOOL, reason="no wheel for this Python")
def test_envpool_on_two_nodes() -> None:
    """The cluster is one of two nodes on this machine, with a CPU each."""
    script = ROOT / "examples" / "envpool_ray.py"
    said = run_script(
        "import os, runpy, sys, tempfile\n"
        "from ray.cluster_utils import Cluster\n"
        "with tempfile.TemporaryDirectory(prefix='ray-') as folder:\n"
        "    os.environ['RAY_TMPDIR'] = folder\n"
        "    node = {'num_cpus': 1, 'object_store_memory': 80 * 2**20}\n"
        "    cluster = Cluster(initialize_head=True, head_node_args={**node, 'include_dashboard': False})\n"
        "    try:\n"
        "        cluster.add_node(**node)\n"
        "        os.environ['RAY_ADDRESS'] = cluster.address\n"
        "        sys.argv = ['envpool_ray.py', '--num-workers', '2', '--num-envs', '8', '--total-timesteps', '800']\n"
        f"        runpy.run_path({str(script)!r}, run_name='__main__')\n"
        "    finally:\n"
        "        import ray\n"
        "        ray.shutdown()\n"
        "        cluster.shutdown()\n",
        timeout=100.0,
    )
    assert said.count("1 EnvPools on node") == 2
    assert "episodes" in said
