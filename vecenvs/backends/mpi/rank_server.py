"""What a worker rank does: it hosts workers of any number of rank 0's VecEnvs, until rank 0 ends.

The rank leaves the user's script for good. It only starts processes (see `hosting`) and passes their boot messages on,
in one loop and one thread, so MPI needs no support for threads.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

from vecenvs.backends.mpi.abort import abort, flush
from vecenvs.backends.mpi.hosting import HostedProcess, forget_server, start_server
from vecenvs.backends.mpi.nodes import describe_self
from vecenvs.backends.mpi.nonblocking import CONTROL, NonblockingComm
from vecenvs.backends.mpi.polling import Backoff
from vecenvs.transport.pickling import dumps, loads
from vecenvs.worker.process import take_signals, watch_caller

END_GRACE = 1.0  # seconds for hosted processes to end when rank 0 has ended
LEAVE_GRACE = 30.0  # seconds after SIGTERM in which rank 0 may still use its workers, and end things in order
SPMD_PATIENCE = 20.0  # seconds without a worker after which a rank says what it waits for
_UNSENT_REST = 2e-5  # seconds of rest while MPI has messages to send

_WAITING = (
    f"vecenvs: rank 0 has made no MpiVecEnv for {SPMD_PATIENCE:g} s. The other ranks wait for one and run no script. "
    "A program in which every rank learns needs --spmd: python -m vecenvs.mpi --spmd -n 4 learner.py"
)


def serve_rank(mpi: Any, private: Any, node: int) -> NoReturn:
    """Serve rank 0 of a communicator of ours, then end this process: the rest of the script never runs here."""
    take_signals()
    watch_caller(os.getppid())  # the launcher: if it is killed, nothing else ends this rank
    try:
        start_server()
        server = RankServer(mpi, private, node)
        signal.signal(signal.SIGTERM, server.leave_soon)
        server.run()
        mpi.Finalize()
        forget_server()
        flush()
        ctypes.PyDLL(None).exit(0)  # not os._exit: MPICH takes a rank that skips C's exit handlers for a crash
    except mpi.Exception as exc:
        print(f"vecenvs: rank {private.Get_rank()} has lost rank 0 and ends: {exc}", file=sys.stderr)  # noqa: T201
        abort(private)
    except BaseException:
        traceback.print_exc()
        abort(private)
    finally:
        os._exit(1)


class RankServer:
    """The loop of a worker rank. `node`: the lowest rank of its node."""

    def __init__(self, mpi: Any, private: Any, node: int) -> None:
        self._rank = private.Get_rank()
        self._node = node
        self._comm = NonblockingComm(mpi, private, source=0)
        self._hosted: dict[int, HostedProcess] = {}
        self._backoff = Backoff()
        self._serving = True
        self._deadline = math.inf
        self._says_at = time.monotonic() + SPMD_PATIENCE if self._rank == 1 else math.inf

    def leave_soon(self, _: int, __: object) -> None:
        """Handle SIGTERM: rank 0 has usually got it too, and is given the time to end its workers in order."""
        self._deadline = min(self._deadline, time.monotonic() + LEAVE_GRACE)

    def run(self) -> None:
        """Serve until told to end, or until MPI raises because rank 0 is lost."""
        while self._serving and time.monotonic() < self._deadline:
            busy = self._receive()
            busy = self._poll_processes(0.0 if busy else self._backoff.next_rest()) or busy
            if busy:
                self._backoff.restart()
            elif time.monotonic() > self._says_at:
                self._says_at = math.inf
                print(_WAITING, file=sys.stderr, flush=True)  # noqa: T201
        self._end_hosted()
        if self._serving:
            forget_server()
            flush()
            os._exit(128 + signal.SIGTERM)  # some rank is not there to finalise MPI with
        while self._comm.has_unsent:
            self._comm.flush()

    def _receive(self) -> bool:
        """Act on every message that has arrived; tell whether there was one."""
        found = False
        while (message := self._comm.first()) is not None:
            found = True
            _, tag, data = message
            if tag == CONTROL:
                what, *rest = loads(data)
                self._control(what, *rest)
            elif tag in self._hosted:
                self._hosted[tag].relay.put(data)
            self._comm.drop()
        return found

    def _control(self, what: str, *rest: Any) -> None:
        if what == "probe":
            peer = describe_self(self._rank, self._node, rest[0])
            if peer.shares:
                watch_caller(rest[0].pid)  # not every launcher ends the job when it has lost rank 0
            self._tell("hello", peer)
        elif what == "launch":
            number, request = rest
            self._says_at = math.inf
            try:
                self._hosted[number] = HostedProcess(number, request)
            except (OSError, EOFError) as exc:  # there is no room for one more, or the fork server has ended for that
                sys.stderr.write(f"vecenvs: rank {self._rank} cannot start a worker: {exc!r}\n")
                self._tell("exited", number, 1)
        elif what == "stop":
            number, grace = rest
            if number in self._hosted:
                self._hosted[number].stop(grace)
        elif what == "ping":
            self._tell("pong")
        elif what == "end":
            self._serving = False
        elif what == "abandon":  # finalising MPI would wait for a rank that is gone
            self._deadline = -math.inf

    def _poll_processes(self, rest: float) -> bool:
        """Sleep until a hosted process sends something or ends, at most `rest` seconds; tell rank 0 of that."""
        hosted = list(self._hosted.values())
        poll = select.poll()  # select() knows no descriptor beyond 1023
        for each in hosted:
            each.enforce()
            poll.register(each.sentinel, select.POLLIN)
            if not each.relay.closed:
                poll.register(each.relay.fileno(), select.POLLIN | (select.POLLOUT if each.relay.has_unsent else 0))
        if self._comm.has_unsent:
            rest = min(rest, _UNSENT_REST)
        events = dict(poll.poll(1e3 * rest))
        relays = [(each, events.get(each.relay.fileno(), 0)) for each in hosted if not each.relay.closed]
        for each, found in relays:
            if found & select.POLLOUT:
                each.relay.flush()
            if found & ~select.POLLOUT:
                self._pass_on(each)
        for each in hosted:
            if each.sentinel in events:
                self._note_exit(each)
        return bool(events)

    def _pass_on(self, hosted: HostedProcess) -> None:
        for data in hosted.relay.take():
            self._comm.send(0, hosted.number, data)

    def _note_exit(self, hosted: HostedProcess) -> None:
        code = hosted.exitcode
        if code is None:
            return
        if not hosted.relay.closed:
            self._pass_on(hosted)  # what it sent before
        del self._hosted[hosted.number]
        hosted.free()
        self._tell("exited", hosted.number, code)

    def _tell(self, *what: Any) -> None:
        self._comm.send(0, CONTROL, dumps(what))

    def _end_hosted(self) -> None:
        for hosted in self._hosted.values():
            hosted.terminate()
        deadline = time.monotonic() + END_GRACE
        for hosted in self._hosted.values():
            while hosted.exitcode is None and time.monotonic() < deadline:
                time.sleep(0.005)
            hosted.kill()
            hosted.free()
        self._hosted.clear()
