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
from vecenvs.transport.protocol import OF_SHARD, Answer, Command, addressed, kind_of, rows_of
from vecenvs.transport.tcp import TcpConnection

_HEADER = struct.Struct("=qqq")  # number, tag, bytes of rows; the pickled body is the rest
_OF_SOME = frozenset({int(Command.STEP_SOME), int(Answer.SOME_ROWS)})


class Packer:
    """Packs the messages of one direction, with the rows of `arrays` where a message is about rows.

    `more` has further arrays by name. Some may be added to it later. Answers about the whole shard also have as many of
    `batch.info_numbers` as the worker uses.
    """

    def __init__(
        self,
        batch: BatchColumns,
        arrays: Sequence[NDArray[Any]],
        shard: range,
        more: Sequence[Mapping[str, NDArray[Any]]] = (),
    ) -> None:
        self._batch = batch
        self._fixed = [array for array in arrays if array.dtype != object]
        self._more = more
        self._shard = shard

    @classmethod
    def of_commands(cls, batch: BatchColumns, shard: range) -> Packer:
        """Return the packer of commands, which have actions."""
        return cls(batch, batch.actions.arrays, shard)

    @classmethod
    def of_answers(cls, batch: BatchColumns, shard: range) -> Packer:
        """Return the packer of answers, which have all other columns."""
        columns = [*batch.observations.arrays, batch.rewards, batch.flags]
        return cls(batch, columns, shard, (batch.info, batch.first_info))

    @property
    def _arrays(self) -> Iterator[NDArray[Any]]:
        return itertools.chain(self._fixed, *(columns.values() for columns in self._more))

    def pack(self, number: int, tag: int, body: object) -> bytes:
        """Return a message as bytes."""
        rows = self._rows(tag, body)
        blocks = [array[rows] for array in self._arrays] if rows is not None else []
        if tag in OF_SHARD:
            blocks.append(self._batch.info_numbers[: self._batch.info_width, rows])
        packed = b"".join([block.tobytes() for block in blocks])
        return b"".join([_HEADER.pack(number, tag, len(packed)), packed, encode(body)])

    def unpack(self, data: bytes | bytearray | memoryview) -> Message:
        """Write the message's rows into the columns; return its number, tag and body."""
        view = memoryview(data)
        number, tag, length = _HEADER.unpack_from(view)
        at = _HEADER.size
        body = decode(tag, view[at + length :])
        rows = self._rows(tag, body)
        if rows is not None:
            for array in self._arrays:
                block = array[rows]
                if block.nbytes:
                    array[rows] = np.frombuffer(view, block.dtype, block.size, at).reshape(block.shape)
                    at += block.nbytes
            left = view[at : _HEADER.size + length]
            if left:
                numbers = np.frombuffer(left, np.int64).reshape(-1, len(self._shard))
                self._batch.info_numbers[: len(numbers), rows] = numbers
        return number, tag, body

    def _rows(self, tag: int, body: object) -> slice | list[int] | None:
        kind = kind_of(tag)
        if kind in OF_SHARD:
            return slice(self._shard.start, self._shard.stop)
        return rows_of(addressed(tag, body)[0]) if kind in _OF_SOME else None


class TcpTransport(Transport):
    """The caller's end of a connection that the worker of `shard` has opened."""

    def __init__(self, connection: socket.socket, shard: range) -> None:
        self._connection = TcpConnection(connection)
        self._shard = shard

    def attach(self, batch: BatchColumns) -> None:
        self._commands = Packer.of_commands(batch, self._shard)
        self._answers = Packer.of_answers(batch, self._shard)

    def put(self, number: int, tag: int, body: object = None) -> None:
        self._connection.send(self._commands.pack(number, tag, body))
        self.sent = number

    def get(self, timeout: float | None) -> Message | None:
        data = self._connection.receive(timeout)
        return None if data is None else self._answers.unpack(data)

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
