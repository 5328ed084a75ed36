"""What a worker rank does: it serves any number of VecEnvs of rank 0 until that one ends.

The rank leaves the user's script for good. It only passes messages on: between MPI and the processes that step the envs
(see `hosting`), in one loop and one thread, so MPI needs no support for threads.
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
from vecenvs.backends.mpi.hosting import Hosted, forget_server, start_server
from vecenvs.backends.mpi.nodes import introduce
from vecenvs.backends.mpi.nonblocking import CONTROL, Mail
from vecenvs.backends.mpi.polling import LONGEST, Patience
from vecenvs.transport.protocol import dumps, loads
from vecenvs.worker.process import watch_caller

END_GRACE = 1.0  # seconds for hosted processes to leave when rank 0 has ended
LEAVE_GRACE = 3.0  # seconds after SIGTERM in which rank 0 may still end things in order


def serve(mpi: Any, private: Any, root_here: bool) -> NoReturn:
    """Serve rank 0 of a communicator of ours, then end this process: the rest of the script never runs here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0 to act upon
    watch_caller(os.getppid(), [])  # the launcher: if it is killed, nobody else ends this rank
    try:
        start_server()
        server = Server(mpi, private, root_here)
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


class Server:
    """Passes messages on."""

    def __init__(self, mpi: Any, private: Any, root_here: bool) -> None:
        self._rank = private.Get_rank()
        self._root_here = root_here
        self._mail = Mail(mpi, private, source=0)
        self._hosted: dict[int, Hosted] = {}
        self._patience = Patience()
        self._serving = True
        self._deadline = math.inf

    def leave_soon(self, _: int, __: object) -> None:
        """Handle SIGTERM: rank 0 has usually got it too, and is given the time to end its workers in order."""
        self._deadline = min(self._deadline, time.monotonic() + LEAVE_GRACE)

    def run(self) -> None:
        """Until told to end, or until rank 0 cannot be heard any more (an MPI exception)."""
        while self._serving and time.monotonic() < self._deadline:
            busy = self._take_mail()
            busy = self._take_answers(0.0 if busy else self._next_rest()) or busy
            if busy:
                self._patience.restart()
        self._end_hosted()
        if self._serving:
            forget_server()
            flush()
            os._exit(128 + signal.SIGTERM)  # some rank is not there to finalise with
        while self._mail.has_unsent:
            self._mail.flush()

    def _next_rest(self) -> float:
        if self._hosted and all(hosted.in_lock_step for hosted in self._hosted.values()):
            return LONGEST  # MPI can bring nothing but control, and their answers end the rest
        return self._patience.next_rest()

    def _take_mail(self) -> bool:
        found = False
        while (message := self._mail.take()) is not None:
            found = True
            _, tag, data = message
            if tag == CONTROL:
                what, *rest = loads(data)
                self._control(what, *rest)
            elif tag in self._hosted:
                self._hosted[tag].put(data)
        return found

    def _control(self, what: str, *rest: Any) -> None:
        if what == "probe":
            peer = introduce(self._rank, self._root_here, rest[0])
            if peer.shares:
                watch_caller(rest[0].pid, [])  # not every launcher ends the job when it has lost rank 0
            self._say("hello", peer)
        elif what == "host":
            number, order = rest
            self._hosted[number] = Hosted(number, order)
        elif what == "stop":
            number, grace = rest
            if number in self._hosted:
                self._hosted[number].stop(grace)
        elif what == "ping":
            self._say("pong")
        elif what == "end":
            self._serving = False
        elif what == "abandon":  # finalising MPI would wait for a rank that is gone
            self._deadline = -math.inf

    def _take_answers(self, rest: float) -> bool:
        """Rest until a hosted process says something, at most `rest` seconds; send it on."""
        hosted = list(self._hosted.values())
        for h in hosted:
            h.enforce()
        readers = {h.relay.fileno(): h for h in hosted if not h.relay.closed}
        sentinels = {h.sentinel: h for h in hosted}
        writers = {h.relay.fileno(): h for h in hosted if h.relay.has_unsent and not h.relay.closed}
        if self._mail.has_unsent:
            rest = min(rest, 2e-5)
        ready, writable, _ = select.select([*readers, *sentinels], list(writers), [], rest)
        for fd in writable:
            writers[fd].relay.flush()
        for fd in ready:
            if fd in readers:
                self._pass_on(readers[fd])
        for fd in ready:
            if fd in sentinels:
                self._note_exit(sentinels[fd])
        return bool(ready or writable)

    def _pass_on(self, hosted: Hosted) -> None:
        for data in hosted.take():
            self._mail.send(0, hosted.number, data)

    def _note_exit(self, hosted: Hosted) -> None:
        code = hosted.exitcode
        if code is None:
            return
        if not hosted.relay.closed:
            self._pass_on(hosted)  # what it said before
        del self._hosted[hosted.number]
        hosted.free()
        self._say("exited", hosted.number, code)

    def _say(self, *what: Any) -> None:
        self._mail.send(0, CONTROL, dumps(what))

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
