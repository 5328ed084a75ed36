"""Workers that cannot reach the caller's memory: a message carries its rows, packed, in either direction.

One message per worker per step each way. The worker keeps a batch of its own, in which only its shard's rows are ever
touched (untouched pages cost nothing).
"""

from __future__ import annotations

import abc
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.transport import Message, Transport
from vecenvs.transport.protocol import Answer, Command, ShardSpec, decode, encode, kind_of, loads, slot_of
from vecenvs.worker.worker import Worker

_HEADER = struct.Struct("=qqq")  # number, tag, bytes of rows; the pickled body is the rest
_OF_SHARD = frozenset({int(Command.STEP), int(Answer.ROWS), int(Answer.INFO_ROWS), int(Answer.PLAIN_ROWS)})
_OF_SLOT = frozenset({int(Command.STEP_ONE), int(Answer.ROW)})


def steps_shard(data: bytes | bytearray) -> bool:
    """Tell whether a packed message is the command to step a whole shard. Shorter messages are none of a `Packer`."""
    return len(data) >= _HEADER.size and kind_of(_HEADER.unpack_from(data)[1]) == Command.STEP


class Packer:
    """Packs messages of one direction: `arrays` are the columns whose rows go with a message about rows.

    So are those in `more`, as far as there are any at the time.
    """

    def __init__(
        self, arrays: Sequence[NDArray[Any]], shard: range, more: Sequence[Mapping[str, NDArray[Any]]] = ()
    ) -> None:
        self._fixed = [array for array in arrays if array.dtype != object]
        self._more = more
        self._shard = shard

    @classmethod
    def of_commands(cls, batch: BatchColumns, shard: range) -> Packer:
        return cls(batch.actions.arrays, shard)

    @classmethod
    def of_answers(cls, batch: BatchColumns, shard: range) -> Packer:
        return cls([*batch.observations.arrays, batch.rewards, batch.flags], shard, (batch.info, batch.first_info))

    @property
    def _arrays(self) -> Iterator[NDArray[Any]]:
        return itertools.chain(self._fixed, *(columns.values() for columns in self._more))

    def pack(self, number: int, tag: int, body: object) -> bytes:
        rows = self._rows(tag)
        packed = b"".join([array[rows].tobytes() for array in self._arrays]) if rows is not None else b""
        return b"".join([_HEADER.pack(number, tag, len(packed)), packed, encode(tag, body)])

    def unpack(self, data: bytes | bytearray | memoryview) -> Message:
        """Write the message's rows into the columns; return its number, tag and body."""
        view = memoryview(data)
        number, tag, length = _HEADER.unpack_from(view)
        at = _HEADER.size
        rows = self._rows(tag)
        if rows is not None:
            for array in self._arrays:
                block = array[rows]
                if block.nbytes:
                    block[...] = np.frombuffer(view, block.dtype, block.size, at).reshape(block.shape)
                    at += block.nbytes
        rest = view[_HEADER.size + length :]
        return number, tag, decode(tag, rest)

    def _rows(self, tag: int) -> slice | None:
        kind = kind_of(tag)
        if kind in _OF_SHARD:
            return slice(self._shard.start, self._shard.stop)
        if kind in _OF_SLOT:
            return slice(slot_of(tag), slot_of(tag) + 1)
        return None


class PackedTransport(Transport):
    """The caller's end. A backend's subclass adds `deliver`, `collect`, `boot`, `exit_status` and `stop`."""

    def __init__(self, shard: range) -> None:
        self._shard = shard
        self._commands: Packer | None = None
        self._answers: Packer | None = None

    @abc.abstractmethod
    def deliver(self, data: bytes) -> None:
        """Send bytes to the worker, in order, without waiting for it."""

    @abc.abstractmethod
    def collect(self, timeout: float | None) -> bytes | bytearray | memoryview | None:
        """Return the worker's oldest message that has not been dropped, waiting up to `timeout` seconds, or None."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Forget the message that `collect` returns."""

    @abc.abstractmethod
    def boot(self, batch: BatchColumns) -> None:
        """Tell the worker what a `PackedWorker` needs to know of the batch, and that it now serves."""

    def attach(self, batch: BatchColumns) -> None:
        self.boot(batch)
        self._commands = Packer.of_commands(batch, self._shard)
        self._answers = Packer.of_answers(batch, self._shard)

    def put(self, number: int, tag: int, body: object = None) -> None:
        if self._commands is None:
            raise BrokenPipeError("a command for a worker that is not attached")
        self.deliver(self._commands.pack(number, tag, body))
        self.sent = number

    def get(self, timeout: float | None) -> Message | None:
        data = self.collect(timeout)
        if data is None:
            return None
        if self._answers is None:
            message: Message = loads(data)
            return message
        return self._answers.unpack(data)

    def take(self) -> None:
        self.drop()


class PackedWorker:
    """The worker's end: bytes of a command in, bytes of its answers out through `send`."""

    def __init__(
        self,
        envs: Sequence[Any],
        made: ShardSpec,
        shard: range,
        n: int,
        autoreset: str,
        send: Callable[[bytes], None],
        info_attrs: Sequence[str] = (),
    ) -> None:
        batch = BatchColumns(made.observation_space, made.action_space, n, Allocator(), info_attrs, finals=False)
        self._commands = Packer.of_commands(batch, shard)
        answers = Packer.of_answers(batch, shard)
        self._worker = Worker(
            envs, shard.start, batch, autoreset,
            lambda number, tag, body: send(answers.pack(number, tag, body)), remote=True,
        )  # fmt: skip

    def handle(self, data: bytes | memoryview) -> bool:
        """Carry out one command; False after CLOSE."""
        return self._worker.handle(*self._commands.unpack(data))
