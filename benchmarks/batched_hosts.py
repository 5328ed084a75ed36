"""EnvPool over two hosts, one worker on each, by turns with EnvPool itself: on MPI and on Ray. `batched.py` runs it.

The hosts are network namespaces of this machine (root, iproute2) as in tests/mpi/virtual_hosts.py, and share its cores.
The caller is on the first host. It shares memory with the worker there; the other one sends its rows in messages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import batched_envpool
from batched_envpool import WORKERS, Cell
from shared import RAY_ENVIRONMENT, ROOT

FIRST, SECOND = "10.213.77.1", "10.213.77.2"  # the hosts' addresses
HEAD = f"{FIRST}:6379"
OPTIONS: dict[str, Any] = {"num_workers": WORKERS, "autoreset": "next_step", "placement": "spread"}
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "VECENVS_TEST_JOB": "benchmark",  # hosts.mpirun_args passes both on
    **RAY_ENVIRONMENT,
}


def on_mpi(fns: Sequence[Any]) -> Any:
    from vecenvs.backends.mpi import MpiVecEnv

    return _on_both(MpiVecEnv(fns, **OPTIONS))


def on_ray(fns: Sequence[Any]) -> Any:
    import ray

    from vecenvs.backends.ray import RayVecEnv

    if not ray.is_initialized():
        ray.init(HEAD, _node_ip_address=FIRST, log_to_driver=False, logging_level="error")
    return _on_both(RayVecEnv(fns, **OPTIONS))  # an actor of one CPU on each node


ENGINES = {"mpi": on_mpi, "ray": on_ray}


def _on_both(vec: Any) -> Any:
    """Return the VecEnv, whose workers must be on both hosts."""
    if vec.stats()["transports"] != {"shared": 1, "messages": 1}:
        vec.close()
        raise RuntimeError(f"the workers are not on both hosts: {vec.stats()['workers']}")
    return vec


def measure_all(
    engine: str, cells: Sequence[Cell], seconds: float, rounds: int, minutes: float
) -> Iterator[dict[str, Any]]:
    """Make the hosts, measure the cells there, and yield each result. Whatever happens, leave nothing behind."""
    sys.path.append(str(ROOT / "tests/mpi"))
    from virtual_hosts import virtual_hosts

    environ = os.environ | ENVIRONMENT
    with tempfile.TemporaryDirectory() as name, virtual_hosts(Path(name), 2) as hosts:
        given = {"cells": cells, "seconds": seconds, "rounds": rounds, "minutes": minutes}
        program = [__file__, engine, json.dumps(given)]
        try:
            if engine == "mpi":  # rank 0 steps no envs
                where = f"--mpirun-args={hosts.mpirun_args('openmpi', (2, 1))}"
                line = [sys.executable, "-m", "vecenvs.mpi", "-n", "3", where, *program]
            else:
                _start_ray(hosts, name, environ)
                line = [sys.executable, *program]
            with subprocess.Popen(hosts.on(0, *line), env=environ, stdout=subprocess.PIPE, text=True) as running:
                for text in running.stdout or ():
                    if text.startswith("{"):
                        yield json.loads(text)
                    else:
                        print(text, end="", flush=True)
            if running.returncode:
                raise SystemExit(f"the measurement on two hosts failed: exit code {running.returncode}")
        finally:
            for host in (1, 0):
                hosts.kill(host)


def _start_ray(hosts: Any, folder: str, environ: dict[str, str]) -> None:
    """Start a Ray of two nodes, one on each host."""
    head = ["--head", "--port=6379", f"--node-ip-address={FIRST}", f"--temp-dir={folder}", "--include-dashboard=false"]
    for host, options in enumerate([head, [f"--address={HEAD}", f"--node-ip-address={SECOND}"]]):
        line = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--num-cpus=1"]
        subprocess.run(hosts.on(host, *line), check=True, env=environ, stdout=subprocess.DEVNULL)


def main() -> None:
    """Measure, on the first host; print each result as a line of JSON."""
    engine, given = sys.argv[1], json.loads(sys.argv[2])
    for found in batched_envpool.measure_all(engines={engine: ENGINES[engine]}, **given):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
