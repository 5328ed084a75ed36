"""A rank sends itself messages. An exception, as of a signal's handler, comes at each bytecode in turn."""

import sys
from types import SimpleNamespace

from mpi4py import MPI

from vecenvs.backends.mpi import nonblocking, ranks
from vecenvs.transport.protocol import dumps

FILES = {nonblocking.__file__, ranks.__file__}
NUMBER = 5
SIZES = (0, 10, 100_000)  # the last one is more than MPI sends at once


class Interrupt(BaseException):
    """What a handler raises."""


def interrupted(call, after):
    """Call; tell whether it was interrupted, at its bytecode number `after`."""
    left = after

    def on_event(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise Interrupt
        return on_event

    sys.settrace(on_event)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def receive(comm, after):
    """Receive messages while being interrupted again and again; tell whether one comes within `after` bytecodes."""
    peers = ranks.WorkerRanks(MPI, comm, 1.0)
    launched = peers._launched[NUMBER] = ranks.LaunchedWorker(
        peers, NUMBER, SimpleNamespace(rank=0, host="here"), range(0)
    )
    sender = nonblocking.NonblockingComm(MPI, comm, MPI.ANY_SOURCE)
    sent = [bytes([n]) * size for n, size in enumerate(SIZES)]
    for data in sent:
        sender.send(0, NUMBER, data)
    sender.send(0, nonblocking.CONTROL, dumps(("exited", NUMBER, -9)))
    was = interrupted(peers.poll, after)
    for _ in range(30):
        interrupted(peers.poll, after)
    while sender.has_unsent or not launched.gone:
        sender.flush()
        peers.poll()
    assert list(launched.inbox) == sent, (after, [len(data) for data in launched.inbox])
    assert launched.exitcode == -9
    assert peers._comm.first() is None
    return was


def send(comm, after):
    """Send messages, the second one interrupted; tell whether it was. It comes once, or not at all; the others do."""
    end = nonblocking.NonblockingComm(MPI, comm, MPI.ANY_SOURCE)
    end.send(0, 1, b"first")
    was = interrupted(lambda: end.send(0, 2, b"interrupted" * 10_000), after)
    end.send(0, 3, b"last")
    came = []
    while end.has_unsent or 3 not in came:
        if (message := end.first()) is not None:
            came.append(message[1])
            end.drop()
    assert came in ([1, 2, 3], [1, 3] if was else None), came
    return was


if __name__ == "__main__":
    comm = MPI.COMM_WORLD.Dup()
    for play in (send, receive):
        after = 1
        while play(comm, after):
            after += 1
        print(play.__name__, "was interrupted", after > 50)
