"""Two hosts on one machine: network namespaces joined by a veth pair, each with its own hostname and /dev/shm.

Needs root and iproute2. In place of ssh, launchers get a script that enters a host's namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

NAMES = ("vecenvs-a", "vecenvs-b")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
_AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec nsenter --target "$(cat {folder}/$host)" --net --uts --mount sh -c "$*"
"""


def can_make_hosts() -> bool:
    """Root has them, without it nobody."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in ("ip", "nsenter", "unshare"))


class Hosts:
    """Both hosts: how to run something on one of them, and what a launcher needs to reach the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = folder / "agent"

    def on(self, host: int, *line: str) -> list[str]:
        pid = (self.folder / NAMES[host]).read_text()
        return ["nsenter", "--target", pid, "--net", "--uts", "--mount", *line]

    def kill(self, host: int) -> None:
        """Kill every process of a host, as when it is lost: the launcher's, which are the oldest, last.

        They die one after another here; the other order leaves rank 0 no time to see a connection end.
        """
        holder = (self.folder / NAMES[host]).read_text()
        there = os.readlink(f"/proc/{holder}/ns/net")
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # it has just ended
                if pid != holder and os.readlink(f"/proc/{pid}/ns/net") == there:
                    found.append(int(pid))
        for number in sorted(found, reverse=True):
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)

    def cut(self, host: int) -> None:
        """Cut its link."""
        _run(*self.on(host, "ip", "link", "set", "veth0", "down"))

    def mpirun_args(self, mpi: str, ranks: Sequence[int], *, by_link: bool = False) -> str:
        """Arguments that place so many ranks on each host, the first ones on the first.

        With `by_link` all of MPI's messages go over the link. MPICH's do not by default: UCX sees that both hosts are
        one machine.
        """
        where = ",".join(f"{name}:{count}" for name, count in zip(NAMES, ranks, strict=True))
        if mpi == "mpich":
            netmod = " -genv MPIR_CVAR_CH4_NETMOD ofi" if by_link else ""
            return f"-hosts {where} -launcher ssh -launcher-exec {self.agent} -iface veth0{netmod}"
        return (
            f"--host {where} --prtemca plm_ssh_agent {self.agent} --prtemca prte_if_include veth0 "
            "--mca btl_tcp_if_include veth0 --mca pml ob1 --mca btl self,sm,tcp -x PYTHONPATH -x VECENVS_TEST_JOB"
        )


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Make the hosts; take them down afterwards, with whatever still runs on them left to the test's own checks."""
    hosts = Hosts(folder)
    hosts.agent.write_text(_AGENT.replace("{folder}", str(folder)))
    hosts.agent.chmod(0o755)
    names = "".join(f"{a} {n}\n" for a, n in zip(ADDRESSES, NAMES, strict=True))
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + names)
    with ExitStack() as stack:
        pids = []
        for name in NAMES:
            holder = subprocess.Popen(
                ["unshare", "--net", "--uts", "--mount", "sh", "-c", "echo ready; exec sleep infinity"],
                stdout=subprocess.PIPE,
            )
            stack.callback(holder.wait)
            stack.callback(holder.kill)
            assert holder.stdout is not None
            stack.callback(holder.stdout.close)
            holder.stdout.readline()
            (folder / name).write_text(str(holder.pid))
            pids.append(str(holder.pid))
        _run("ip", "link", "add", "veth0", "netns", pids[0], "type", "veth", "peer", "name", "veth0", "netns", pids[1])
        for host, (name, address) in enumerate(zip(NAMES, ADDRESSES, strict=True)):
            for line in (
                ("hostname", name),
                ("mount", "-t", "tmpfs", "tmpfs", "/dev/shm"),
                ("mount", "--bind", str(folder / "hosts"), "/etc/hosts"),
                ("ip", "address", "add", f"{address}/24", "dev", "veth0"),
                ("ip", "link", "set", "veth0", "up"),
                ("ip", "link", "set", "lo", "up"),
            ):
                _run(*hosts.on(host, *line))
        yield hosts


def _run(*line: str) -> None:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(line)}: {done.stderr}"
