"""The MPI backend as a candidate: each turn starts an MPI job, whose rank 0 steps and reads the clock.

`python -m vecenvs.bench.mpi_job SOCKET` is rank 0. It makes what it is sent, answers, and ends with the connection.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import IO, Any

import cloudpickle

from vecenvs.bench.candidates import Backend, MakesVec, VecCandidate
from vecenvs.bench.contest import SelfTimedStepper, Timing, describe, run_for
from vecenvs.cpus import usable_cores
from vecenvs.errors import BackendUnavailable, VecEnvError

_START = 60.0  # seconds for rank 0 to connect: a library of MPI may look around in the network first
_LEAVE = 10.0  # seconds for the job to end by itself, and again after SIGTERM
_REFUSAL = "vecenvs.mpi: "  # how the launcher begins to say that something is not installed


class MpiCandidate(VecCandidate):
    """The MPI backend in a job of its own, with a rank for each worker besides the one that steps."""

    def make(self, num_envs: int) -> SelfTimedStepper:
        """Start the job, and make and reset the envs in it."""
        asked = self._backend.options.get("num_workers")
        workers = min(num_envs, usable_cores()) if asked is None else int(asked)
        job = MpiJob(1 + workers)
        try:
            job.ask((VecCandidate(self._backend, self._make_vec, rows=self._rows), num_envs))
        except BaseException:
            job.close()
            raise
        return job


def candidate(backend: Backend, make_vec: MakesVec, *, rows: bool = False) -> VecCandidate:
    """Return a backend as a candidate. One for MPI starts its own job, unless this process is a rank of a job."""
    from vecenvs.backends.mpi.library import was_launched

    kind = MpiCandidate if backend.backend == "mpi" and not was_launched() else VecCandidate
    return kind(backend, make_vec, rows=rows)


class MpiJob(SelfTimedStepper):
    """A running MPI job. BackendUnavailable if MPI is not installed, VecEnvError for what else fails."""

    def __init__(self, ranks: int) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        try:
            with tempfile.TemporaryDirectory(prefix="vecenvs-") as folder, socket.socket(socket.AF_UNIX) as server:
                path = str(Path(folder, "socket"))
                server.bind(path)
                server.listen(1)
                program = ["-m", "vecenvs.mpi", "-n", str(ranks), "-m", "vecenvs.bench.mpi_job", path]
                self._process = subprocess.Popen(
                    [sys.executable, *program],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C ends the benchmark, which then closes the connection
                )
                self._connection = self._accept(server)
                self._connection.send(sys.path)
        except BaseException:
            self.close()
            raise

    def ask(self, what: Any) -> Any:
        """Send something to rank 0 and return its answer."""
        assert self._connection is not None
        try:
            self._connection.send_bytes(cloudpickle.dumps(what))
            kind, answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if kind != "ok":
            raise (BackendUnavailable if kind == "unavailable" else VecEnvError)(answer)
        return answer

    def run(self, seconds: float) -> Timing:
        """Step for about this long, and return the timing by the clock of rank 0."""
        timing: Timing = self.ask(seconds)
        return timing

    def close(self) -> None:
        """End the job. It may be called again."""
        if self._connection is not None:
            self._connection.close()  # which ends rank 0, and with it the job
        process = self._process
        if process is not None and not self._has_ended():
            process.terminate()
            if not self._has_ended():
                process.kill()
                process.wait()
        self._log.close()

    def _accept(self, server: socket.socket) -> Connection:
        server.settimeout(0.1)
        end = time.monotonic() + _START
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                return Connection(server.accept()[0].detach())
            if self._process is None or self._process.poll() is not None:
                raise self._ended()
        raise VecEnvError(f"the MPI job did not start within {_START:g} s: {self._last_words()}")

    def _ended(self) -> VecEnvError:
        self._has_ended()
        said = self._last_words()
        if said.startswith(_REFUSAL):
            return BackendUnavailable(said.removeprefix(_REFUSAL))
        return VecEnvError(f"the MPI job has ended: {said}")

    def _has_ended(self) -> bool:
        """Wait for the end of the job, but not long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process is None or self._process.wait(_LEAVE) is not None
        return False

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        said = [line for line in lines if line.strip("-*")]  # mpirun draws lines of dashes
        refusals = [line for line in said if line.startswith(_REFUSAL)]
        return (refusals or said or ["it has printed nothing"])[-1]


def main() -> None:
    """Serve one candidate as rank 0."""
    with contextlib.suppress(EOFError, OSError), contextlib.ExitStack() as stack:
        connection = stack.enter_context(Client(sys.argv[1], "AF_UNIX"))
        sys.path[:] = connection.recv()  # where what the caller can import is found
        stepper: Any = None
        while True:
            received = connection.recv_bytes()
            try:
                asked = cloudpickle.loads(received)
                if stepper is None:
                    candidate, num_envs = asked
                    stepper = stack.enter_context(contextlib.closing(candidate.make(num_envs)))
                    answer: tuple[str, Any] = "ok", None
                else:
                    answer = "ok", run_for(stepper.step, asked)
            except ImportError as error:
                answer = "unavailable", " ".join(str(error).split())
            except Exception as error:
                answer = "failed", describe(error)
            connection.send(answer)


if __name__ == "__main__":
    main()
