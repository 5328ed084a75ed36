"""Running programs under an MPI launcher, and looking at what they leave."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from vecenvs.testing import leaks

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
PYTHONS = {
    "openmpi": sys.executable,
    "mpich": os.environ.get("VECENVS_MPICH_PYTHON", str(ROOT / ".venv/mpich/bin/python")),
}
MPIS = tuple(PYTHONS)
SHORT_ON_ONE = ("openmpi", pytest.param("mpich", marks=pytest.mark.long))  # what MPI can hardly make a difference to
TOKEN = "VECENVS_TEST_JOB"
MPI_FILES = ("sm_segment.", "mpich_shm_")
OPEN_MPI_FLAGS = {  # what `python -m vecenvs.mpi -n` sets, for tests that call mpirun themselves
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
}


class Job:
    """A running program, with all processes that descend from it."""

    def __init__(self, line: Sequence[str], **environ: str) -> None:
        self.token = uuid.uuid4().hex
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
        self.process = subprocess.Popen(
            list(line),
            cwd=ROOT,
            env=clean | {"PYTHONPATH": str(ROOT), TOKEN: self.token} | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,  # else lines that came with the one which `wait_for_line` waits for would be in no output
            start_new_session=True,
        )
        self.output = ""

    def pids(self) -> dict[int, str]:
        return leaks.processes_with(TOKEN, self.token)

    def pid_of(self, name: str, folder: Path, patience: float = 60.0) -> int:
        """Wait for the program to write a process id into a file, and give it."""
        end = time.monotonic() + patience
        while not (folder / name).exists() or not (folder / name).read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"no {name}: {self.finish(5.0)}")
            time.sleep(0.02)
        return int((folder / name).read_text())

    def wait_for_line(self, line: str) -> None:
        """Wait for the program to print a line. What it prints until then is not in its output."""
        assert self.process.stdout is not None
        printed = []
        for each in self.process.stdout:
            printed.append(each.decode())
            if printed[-1] == line + "\n":
                return
        pytest.fail(f"no {line!r}: {printed}")

    def finish(self, timeout: float = 60.0) -> str:
        """Wait for the end; give what it printed. AssertionError if it hangs."""
        try:
            self.output = self.process.communicate(timeout=timeout)[0].decode()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"hangs: {self.pids()}\n{self.end()}") from None
        return self.output

    def end(self) -> str:
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return self.process.communicate()[0].decode()


@contextmanager
def job(line: Sequence[str], *, node_lost: bool = False, **environ: str) -> Iterator[Job]:
    """Run a job; at the end of the block fail if it left a process or a temporary folder of multiprocessing's.

    With `node_lost` folders may stay: processes which would remove theirs have been killed.
    """
    files = set(os.listdir(leaks.SHM))
    folder = tempfile.mkdtemp(prefix="job-")  # a short path: sockets lie in it
    running = Job(line, TMPDIR=folder, **environ)
    try:
        yield running
        if running.process.poll() is None:
            running.finish()
        left = leaks.wait_until_empty(running.pids, 10.0)
        assert not left, f"left behind: {running.pids()}\n{running.output}"
        folders = [name for name in os.listdir(folder) if name.startswith("pymp-")]
        assert node_lost or not folders, f"left behind: {folders}\n{running.output}"
    finally:
        running.end()
        for name in set(os.listdir(leaks.SHM)) - files:
            # What MPI itself leaves of a killed or lone rank, if no other test's job has it open; ours must be gone.
            if name.startswith(MPI_FILES) and not leaks._in_use_elsewhere(name):
                (leaks.SHM / name).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def launched(mpi: str, ranks: int, *program: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the command line of our own launcher."""
    return [PYTHONS[mpi], "-m", "vecenvs.mpi", "-n", str(ranks), *flags, *program]


def mpirun(mpi: str, ranks: int, *program: str) -> list[str]:
    """Return the command line of the MPI's own launcher."""
    return [str(Path(PYTHONS[mpi]).parent / "mpirun"), "-n", str(ranks), PYTHONS[mpi], *program]


def run(line: Sequence[str], expect: int = 0, **environ: str) -> str:
    """Run a job to its end; check its exit code; give what it printed."""
    with job(line, **environ) as running:
        output = running.finish()
    assert running.process.returncode == expect, output
    return output
