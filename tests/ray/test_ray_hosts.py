"""Ray on two hosts, which are namespaces of this machine, and a link that is cut: a node that nobody hears of again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from ray_session import ENVIRONMENT, ROOT, no_leaks  # noqa: F401
from virtual_hosts import Hosts, can_make_hosts, virtual_hosts

pytestmark = pytest.mark.long

HEAD, OTHER = "10.213.77.1", "10.213.77.2"
ADDRESS = f"{HEAD}:6379"
PROGRAM = str(Path(__file__).with_name("cut_link.py"))

if can_make_hosts():  # else there is nothing to collect

    def environment(hosts: Hosts, host: int) -> dict[str, str]:
        folder = hosts.folder / f"ray-{host}"
        folder.mkdir(exist_ok=True)
        return {**os.environ, **ENVIRONMENT, "RAY_TMPDIR": str(folder)}

    def start(hosts: Hosts, host: int, *arguments: str) -> None:
        line = [str(Path(sys.executable).with_name("ray")), "start", *arguments]
        line += ["--num-cpus=1", f"--object-store-memory={80 * 2**20}", "--disable-usage-stats"]
        subprocess.run(hosts.on(host, *line), env=environment(hosts, host), check=True, timeout=90, capture_output=True)

    @pytest.mark.timeout(240)
    @pytest.mark.parametrize("on_failure", [pytest.param("raise", marks=pytest.mark.release), "restart"])
    def test_a_cut_link(on_failure: str) -> None:
        """The death of the worker is seen long before Ray's own minute, and its envs go on on the host that is left."""
        with TemporaryDirectory(prefix="ray-") as folder, virtual_hosts(Path(folder), 2) as hosts:  # a short path
            try:
                start(hosts, 0, "--head", f"--node-ip-address={HEAD}", "--port=6379", "--include-dashboard=false")
                start(hosts, 1, f"--address={ADDRESS}", f"--node-ip-address={OTHER}")
                line = hosts.on(0, sys.executable, PROGRAM, ADDRESS, on_failure)
                with subprocess.Popen(
                    line, env=environment(hosts, 0), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                ) as process:
                    assert process.stdout is not None
                    up = process.stdout.readline()
                    if up:
                        hosts.cut(1)
                    output, errors = process.communicate(timeout=120)
            finally:
                hosts.kill(1)
                hosts.kill(0)
        assert process.returncode == 0, errors[-3000:]
        expected = "[its node does not answer]" if on_failure == "raise" else "restarted"
        assert expected in output
