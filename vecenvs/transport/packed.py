"""Workers that cannot reach the caller's memory: messages over a TCP connection, with their rows packed in them.

There is one message per worker and step each way. The worker keeps columns of its own, in which only the rows of its
shard are ever touched (untouched pages cost nothing).
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.transport import Message, Transport
from vecenvs.transport.encoding import decode, encode
from vecenvs.transport.protocol import OF_SHARD, Answer, Command, Slots, addressed, kind_of, rows_of
from vecenvs.transport.tcp import TcpConnection

_HEADER = struct.Struct("=qqqq")  # number, tag, columns of infos of numbers, bytes of rows; then rows, pickled body
_OF_SOME = frozenset({int(Command.STEP_SOME), int(Answer.SOME_ROWS)})


class RowColumns:
    """The columns of one direction's messages, in their order: of `arrays`, infos of numbers, and `more`.

    `more` has further arrays by name. Either end may add some to it later; they come last, so a message that was packed
    without them ends before them.
    """

    def __init__(
        self, batch: BatchColumns, arrays: Sequence[NDArray[Any]], more: Sequence[Mapping[str, NDArray[Any]]] = ()
    ) -> None:
        self._batch = batch
        self._fixed = [array for array in arrays if array.dtype != object and array.nbytes]
        self._more = more

    @classmethod
    def of_commands(cls, batch: BatchColumns) -> RowColumns:
        """Return the columns of commands: the actions."""
        return cls(batch, batch.actions.arrays)

    @classmethod
    def of_answers(cls, batch: BatchColumns) -> RowColumns:
        """Return the columns of answers: all others."""
        columns = [*batch.observations.arrays, batch.rewards, batch.flags]
        return cls(batch, columns, (batch.info, batch.first_info))

    @property
    def added(self) -> int:
        """How many arrays `more` has now."""
        return sum(map(len, self._more))

    def all(self, width: int) -> Iterator[NDArray[Any]]:
        """Return the columns of a message with so many columns of infos of numbers."""
        more = itertools.chain.from_iterable(columns.values() for columns in self._more)
        return itertools.chain(self._fixed, self._batch.info_numbers[:width], (array for array in more if array.nbytes))

    def write(self, data: memoryview, rows: slice | Sequence[int] | NDArray[np.int64], count: int, width: int) -> None:
        """Write so many rows of a message, which may have fewer columns than this end."""
        at = 0
        for array in self.all(width):
            if at >= len(data):
                break
            block = np.ndarray((count, *array.shape[1:]), array.dtype, data, at)
            array[rows] = block
            at += block.nbytes


class Packer:
    """Packs the messages of one direction, with their rows where a message is about rows.

    Answers about the whole shard also have as many columns of infos of numbers as the worker uses.
    """

    def __init__(self, batch: BatchColumns, columns: RowColumns, shard: range) -> None:
        self._batch = batch
        self._columns = columns
        self._shard = shard

    @classmethod
    def of_commands(cls, batch: BatchColumns, shard: range) -> Packer:
        """Return the packer of commands."""
        return cls(batch, RowColumns.of_commands(batch), shard)

    @classmethod
    def of_answers(cls, batch: BatchColumns, shard: range) -> Packer:
        """Return the packer of answers."""
        return cls(batch, RowColumns.of_answers(batch), shard)

    def pack(self, number: int, tag: int, body: object) -> bytes:
        """Return a message as bytes."""
        slots = self._slots(tag, body)
        width = self._batch.info_width if tag in OF_SHARD and tag != Command.STEP else 0
        rows = rows_of(slots)
        packed = b"".join([array[rows].tobytes() for array in self._columns.all(width)]) if slots else b""
        return b"".join([_HEADER.pack(number, tag, width, len(packed)), packed, encode(body)])

    def unpack(self, data: bytes | bytearray | memoryview, *, rows: bool = True) -> Message:
        """Return a message's number, tag and body; with `rows` write its rows into the columns."""
        view = memoryview(data)
        number, tag, width, length = _HEADER.unpack_from(view)
        end = _HEADER.size + length
        body = decode(tag, view[end:])
        if length and rows:
            slots = self._slots(tag, body)
            self._columns.write(view[_HEADER.size : end], rows_of(slots), len(slots), width)
        return number, tag, body

    def _slots(self, tag: int, body: object) -> Slots:
        kind = kind_of(tag)
        if kind in OF_SHARD:
            return self._shard
        return addressed(tag, body)[0] if kind in _OF_SOME else range(0)


class TcpTransport(Transport):
    """The caller's end of a connection that the worker of `shard` has opened."""

    def __init__(self, connection: socket.socket, shard: range) -> None:
        self._connection = TcpConnection(connection)
        self._shard = shard
        self._closing = False  # whether the worker has been told to close: nobody needs the rows that it has sent

    def attach(self, batch: BatchColumns) -> None:
        self._commands = Packer.of_commands(batch, self._shard)
        self._answers = Packer.of_answers(batch, self._shard)

    def put(self, number: int, tag: int, body: object = None) -> None:
        self._closing = self._closing or tag == Command.CLOSE
        self._connection.send(self._commands.pack(number, tag, body))
        self.sent = number

    def get(self, timeout: float | None) -> Message | None:
        data = self._connection.receive(timeout)
        return None if data is None else self._answers.unpack(data, rows=not self._closing)

    def take(self) -> None:
        self._connection.drop()

    def watch(self) -> tuple[int, int] | None:
        return self._connection.watch()

    def fileno(self) -> int:
        """Return the connection's descriptor."""
        return self._connection.fileno()

    def exit_status(self) -> tuple[bool, int | None]:
        """Return whether the connection has ended, which says nothing of an exit code."""
        return self._connection.closed, None

    def stop(self, grace: float) -> None:
        self._connection.close()
