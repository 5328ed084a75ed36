"""What a worker process does to differ from the others of its VecEnv."""

from __future__ import annotations

import errno
import itertools
import socket
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vecenvs.identity import ThisWorker

UNKNOWN = -1  # the number on its node of a worker which nobody has placed yet


class Told(NamedTuple):
    """What a worker is told of itself. `launch` numbers all that its caller has launched, `key` is of its VecEnv."""

    worker: ThisWorker
    launch: int
    key: str

    def placed(self) -> ThisWorker:
        """Return the worker, which runs in this process, with its number on this machine."""
        number = self.worker.index_on_node
        on_node = _claimed(self.key, self.worker.index) if number == UNKNOWN else number
        return replace(self.worker, node=socket.gethostname(), index_on_node=on_node)

    def separate_generators(self) -> None:
        """Give NumPy's global generator a state of its own, which follows from the one that this process has inherited.

        Python itself seeds that of `random` anew in each fork.
        """
        entropy = [*np.random.bytes(16), self.launch]  # noqa: NPY002
        np.random.seed(np.random.SeedSequence(entropy).generate_state(4))  # noqa: NPY002


_claims: list[socket.socket] = []  # held for as long as this process lives


def _claimed(key: str, otherwise: int) -> int:
    """Return the lowest number that no other worker here has: each holds a name of Linux's. Elsewhere `otherwise`."""
    _claims.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    for number in itertools.count():
        try:
            _claims[-1].bind(f"\0{key}-{number}")
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                continue
            return otherwise
        return number
    return otherwise
