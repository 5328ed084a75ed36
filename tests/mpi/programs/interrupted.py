"""A rank sends itself messages. An exception, as of a signal's handler, comes at each bytecode in turn."""

from types import SimpleNamespace

from mpi4py import MPI

from tests.bytecodes import interrupted
from vecenvs.backends.mpi import launched_worker, nonblocking, ranks
from vecenvs.transport.pickling import dumps

FILES = {nonblocking.__file__, ranks.__file__}
NUMBER = 5
SIZES = (0, 10, 100_000)  # the last one is more than MPI sends at once


def receive(comm, after):
    """Receive messages while being interrupted again and again; tell whether one comes within `after` bytecodes."""
    peers = ranks.WorkerRanks(MPI, comm, 1.0)
    launched = peers._launched[NUMBER] = launched_worker.LaunchedWorker(
        peers, NUMBER, SimpleNamespace(rank=0, host="here"), range(0)
    )
    sender = nonblocking.NonblockingComm(MPI, comm, MPI.ANY_SOURCE)
    sent = [bytes([n]) * size for n, size in enumerate(SIZES)]
    for data in sent:
        sender.send(0, NUMBER, data)
    sender.send(0, nonblocking.CONTROL, dumps(("exited", NUMBER, -9)))
    was = interrupted(peers.poll, after, FILES)
    for _ in range(30):
        interrupted(peers.poll, after, FILES)
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
    was = interrupted(lambda: end.send(0, 2, b"interrupted" * 10_000), after, FILES)
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
        after = 0
        while play(comm, after):
            after += 1
        print(play.__name__, "was interrupted", after > 3)
