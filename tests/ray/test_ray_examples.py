"""examples/ray_cluster.py, as a user runs it."""

from __future__ import annotations

import pytest
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
