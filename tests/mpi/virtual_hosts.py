"""Hosts on one machine: network namespaces on one bridge, each with its own hostname and /dev/shm.

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

NAMES = tuple(f"vecenvs-{letter}" for letter in "abcdefghi")  # as many hosts as there can be
_ADDRESS = "10.213.77.{}"
_AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec nsenter --target "$(cat {folder}/$host)" --net --uts --mount sh -c "$*"
"""


def can_make_hosts() -> bool:
    """Root has them, without it nobody."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in ("ip", "nsenter", "unshare"))


class Hosts:
    """The hosts: how to run something on one of them, and what a launcher needs to reach the others."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.agent = folder / "agent"
        self.names = NAMES[:count]

    def on(self, host: int, *line: str) -> list[str]:
        return ["nsenter", "--target", self._holder(host), "--net", "--uts", "--mount", *line]

    def kill(self, host: int) -> None:
        """Kill every process of a host, as when it is lost: the launcher's, which are the oldest, last.

        They die one after another here; the other order leaves rank 0 no time to see a connection end.
        """
        holder = self._holder(host)
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

        With `by_link` all of MPI's messages go over the link. MPICH's do not by default: UCX sees that all hosts are
        one machine.
        """
        where = ",".join(f"{name}:{count}" for name, count in zip(self.names, ranks, strict=True))
        if mpi == "mpich":
            netmod = " -genv MPIR_CVAR_CH4_NETMOD ofi" if by_link else ""
            return f"-hosts {where} -launcher ssh -launcher-exec {self.agent} -iface veth0{netmod}"
        return (
            f"--host {where} --prtemca plm_ssh_agent {self.agent} --prtemca prte_if_include veth0 "
            "--mca btl_tcp_if_include veth0 --mca pml ob1 --mca btl self,sm,tcp -x PYTHONPATH -x VECENVS_TEST_JOB"
        )

    def _holder(self, host: int) -> str:
        return (self.folder / self.names[host]).read_text()


@contextmanager
def virtual_hosts(folder: Path, count: int) -> Iterator[Hosts]:
    """Make the hosts; take them down afterwards, with whatever still runs on them left to the caller's own checks."""
    hosts = Hosts(folder, count)
    hosts.agent.write_text(_AGENT.replace("{folder}", str(folder)))
    hosts.agent.chmod(0o755)
    addresses = [_ADDRESS.format(1 + host) for host in range(count)]
    names = "".join(f"{a} {n}\n" for a, n in zip(addresses, hosts.names, strict=True))
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + names)
    with ExitStack() as stack:
        switch = stack.enter_context(_namespaces("--net"))
        _run(*_enter(switch, "ip", "link", "add", "br0", "type", "bridge"))
        _run(*_enter(switch, "ip", "link", "set", "br0", "up"))
        for host, (name, address) in enumerate(zip(hosts.names, addresses, strict=True)):
            pid = stack.enter_context(_namespaces("--net", "--uts", "--mount"))
            (folder / name).write_text(pid)
            port = f"port{host}"
            _run("ip", "link", "add", "veth0", "netns", pid, "type", "veth", "peer", "name", port, "netns", switch)
            _run(*_enter(switch, "ip", "link", "set", port, "master", "br0", "up"))
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


@contextmanager
def _namespaces(*which: str) -> Iterator[str]:
    """Make namespaces; yield the process that holds them. They end with it, and it ends with this process."""
    holder = subprocess.Popen(
        ["unshare", *which, "sh", "-c", "echo; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # out of reach of a Ctrl-C, which is for what runs in them
    )
    with holder:
        try:
            holder.stdout.readline()  # type: ignore[union-attr]
            yield str(holder.pid)
        finally:
            holder.kill()


def _enter(pid: str, *line: str) -> list[str]:
    return ["nsenter", "--target", pid, "--net", *line]


def _run(*line: str) -> None:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(line)}: {done.stderr}"
