"""The messages between callers and workers, whichever transport carries them.

Every message is a number, a tag and a body. The caller numbers its commands, ascending; an answer has the number of its
command. A command may be sent more than once: the worker carries out each number once, in order. Rows themselves lie in
the batch's columns: a row belongs to the worker from the command for its slot until the answer, and to the caller
otherwise, so neither side ever reads what the other is writing.
"""

from __future__ import annotations

import contextlib
import pickle
import struct
import traceback
from array import array
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import cloudpickle

from vecenvs.batch.infos import InfoForm
from vecenvs.batched import Batched, width
from vecenvs.errors import EnvError, RemoteError, VecEnvError

Message = tuple[int, int, Any]  # a number, a tag and a body


class Command(IntEnum):
    """Tags of commands, with their answers. SOME_ROWS answer those about some slots, which name these (`address`)."""

    STEP = 1  # step every slot of the shard -> one ROWS
    STEP_SOME = 2  # step some slots, in this order; body: the rows of object leaves of their actions
    RESET = 3  # reset some slots, in this order; body {slot: (seed, options)} for those that have some
    AWAIT_RESET = 4  # async: report the first rows of next episodes; begin the resets that have not begun
    CALL = 5  # body (function, slots, args, kwargs) -> REPLY with a list of results or Failures
    PREPARE = 6  # body ({slot: seed}, {slot: options}) for the next reset of each slot -> REPLY None
    RESUME = 7  # body {slot: (last row, seed)}: this worker replaces another, whose episodes are lost -> REPLY None
    CLOSE = 8  # close the envs and leave -> CLOSED
    OPEN_INFO = 9  # body: the types of the info channel's attributes (`batch.Specs`) -> REPLY None
    FAIL = 10  # body {slot: RemoteFailure}: these rows could not be read, refuse the slots until a reset -> no answer
    REPORT = 11  # body seconds: from now on send PROGRESS that often while there is some -> REPLY None


class Answer(IntEnum):
    """Tags of answers."""

    INFO_ROWS = 30  # as PLAIN_ROWS, and every env has an info; body as `RowsBody.infos`, or None for True
    PLAIN_ROWS = 31  # every slot of the shard has its row, with no flags and nothing besides its columns
    ROWS = 32  # the same where there is more; body None or RowsBody
    SOME_ROWS = 33  # some slots of one command have their rows; body None or RowsBody
    REPLY = 34  # body as the command says
    MADE = 35  # body ShardSpec or RemoteFailure: unasked, the first message of every worker
    CLOSED = 36  # body: a list of Failures, of what envs raised in close()
    PROGRESS = 37  # the worker is getting on with its commands
    # From `recovery.Replacement`:
    STARTED = 38  # the new worker is ready; body: its Transport
    NOT_STARTED = 39  # there is none; body: the exception that says why


Slots = range | list[int]  # a range if they are adjacent and ascending, see `slots_of`


class Scattered(NamedTuple):
    """The body of a message about slots that are no range, and these slots."""

    slots: list[int]
    body: Any


def slots_of(slots: list[int]) -> Slots:
    """Return slots as a range if they are one: then their rows are slices of the columns."""
    if not slots:
        return slots
    adjacent = range(slots[0], slots[0] + len(slots))
    return adjacent if slots[-1] == adjacent[-1] and slots == list(adjacent) else slots


def shifted(slots: Slots, by: int) -> Slots:
    """Return slots as envs of a shard, or the other way round: each number plus `by`."""
    if isinstance(slots, range):
        return range(slots.start + by, slots.stop + by)
    return [slot + by for slot in slots]


def rows_of(slots: Slots) -> slice | list[int]:
    """Return what indexes the columns at these slots."""
    return slice(slots.start, slots.stop) if type(slots) is range else slots


def address(kind: int, slots: Slots, body: Any = None) -> tuple[int, Any]:
    """Return the tag and the body of a message about some slots. A range fits into the tag, beside the kind."""
    if type(slots) is range:
        return int(kind) | slots.start << 8 | len(slots) << 40, body
    return int(kind), Scattered(slots, body)


def addressed(tag: int, body: Any) -> tuple[Slots, Any]:
    """Undo `address`: return the slots and the body."""
    if tag >> 40:
        first = tag >> 8 & 0xFFFFFFFF
        return range(first, first + (tag >> 40)), body
    slots, inner = body
    return slots, inner


def kind_of(tag: int) -> int:
    """Return the kind of message that a tag has."""
    return tag & 0xFF


class RowExtras(NamedTuple):
    """The info, reset info and failure of one row. Most rows have none."""

    slot: int
    info: dict[str, Any]
    reset_info: dict[str, Any] | None = None
    failure: RemoteFailure | None = None


class RowsBody(NamedTuple):
    """Body of SOME_ROWS and ROWS: extras of some slots, and the rows of object leaves if the space has any.

    `infos` are those of all slots of the shard, if every one has some. In process that is a list of dicts; otherwise
    they lie in columns, and it is the columns' InfoForm, or True if that has been sent before. `columns` are those of
    batched envs, by name (`info_batches.InfoColumn`), and those of the resets among these rows; rows count from the
    shard's first slot.
    """

    extras: list[RowExtras]
    objects: list[Any] | None = None
    infos: list[dict[str, Any]] | InfoForm | bool = False
    unread: tuple[int, ...] = ()  # slots whose extras the caller could not unpickle: they are failures here
    columns: Any = None


class ShardSpec(NamedTuple):
    """A worker's report of the envs that it has made; `mismatch` is (index, which, theirs, ours) if they disagree."""

    observation_space: Any
    action_space: Any
    spec: Any
    metadata: dict[str, Any]
    render_mode: str | None
    mismatch: tuple[int, str, Any, Any] | None


class RemoteFailure(NamedTuple):
    """An exception on its way to the caller."""

    slot: int
    summary: str
    traceback: str
    exception: BaseException | None

    @classmethod
    def capture(cls, slot: int, doing: str, exc: BaseException, *, portable: bool, remedy: str = "") -> RemoteFailure:
        """Describe `exc`; the summary ends with `remedy`.

        With `portable` it is kept only if it survives pickling, else as text alone.
        """
        text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
        kept: BaseException | None = exc
        if portable:
            exc.__traceback__ = None
            try:
                kept = pickle.loads(dumps(exc))
            except Exception:  # whatever a foreign __reduce__ raises
                kept = None
        ours = isinstance(exc, VecEnvError)
        summary = str(exc) if ours else f"env {slot} raised {type(exc).__name__} in {doing}: {safe_text(exc)}"
        if remedy:
            summary = f"{summary}. {remedy}"
        return cls(slot, summary, text, kept if isinstance(kept, BaseException) else None)

    def to_error(self) -> EnvError:
        """Return the error to raise in the caller."""
        kind = type(self.exception) if isinstance(self.exception, EnvError) else EnvError
        error = kind(self.slot, self.summary, self.traceback)
        error.__cause__ = self.exception or RemoteError(self.traceback)
        return error


def safe_text(exc: BaseException) -> str:
    """Return str(exc), or the fact that it raises."""
    try:
        return str(exc)
    except Exception as problem:
        return f"(its __str__ raises {type(problem).__name__})"


def dumps(value: object) -> bytes:
    """Pickle by name where any process can import it, else by value (cloudpickle).

    What `__main__` defines goes by value, since a worker on an MPI rank or in a Ray actor has another `__main__`.
    """
    try:
        data = pickle.dumps(value, protocol=5)
    except Exception:  # PicklingError, TypeError, AttributeError, or what a __reduce__ raises
        data = b"__main__"
    if b"__main__" in data:
        data = cloudpickle.dumps(value, protocol=5)
    return data


def pickle_env_fns(env_fns: Sequence[Callable[[], Any]], first: int, remedy: str = "") -> list[Any]:
    """Pickle the functions of the envs `first`, `first + 1`, ... by cloudpickle. A Batched keeps bytes as its function.

    Raises:
        VecEnvError: a function cannot be pickled. The message names its env, and ends with `remedy`.
    """
    pickled: list[Any] = []
    slot = first
    for env_fn in env_fns:
        try:
            if isinstance(env_fn, Batched):
                pickled.append(env_fn.of(cloudpickle.dumps(env_fn.make, protocol=5)))
            else:
                pickled.append(cloudpickle.dumps(env_fn, protocol=5))
        except Exception as exc:  # whatever a __reduce__ raises
            raise VecEnvError(
                f"the env function of env {slot} cannot be pickled ({exc}): make everything it needs inside it{remedy}"
            ) from exc
        slot += width(env_fn)
    return pickled


def encode_made(made: ShardSpec | RemoteFailure, first: int, *, by_name: bool) -> bytes:
    """Turn the body of MADE into bytes; a RemoteFailure takes the place of a ShardSpec that cannot be pickled.

    With `by_name` classes of `__main__` are pickled by name, for a worker that was forked from the caller. By value
    each worker's spaces would be of another class.
    """
    if by_name and isinstance(made, ShardSpec):
        with contextlib.suppress(Exception):  # a class without a name
            return pickle.dumps(made, protocol=5)
    try:
        return dumps(made)
    except Exception as exc:
        which = next((name for name, value in made._asdict().items() if not can_pickle(value)), "description")
        problem = VecEnvError(f"env {first} has an {which} that cannot be pickled ({exc}): use DummyVecEnv")
        return dumps(RemoteFailure.capture(first, "its env function", problem, portable=True))


def decode_made(data: Any, first: int) -> Message:
    """Return the message MADE, from the body that `encode_made` has written for a worker whose first env is `first`."""
    made = decode(int(Answer.MADE), data)
    if type(made) is RemoteFailure and made.slot < 0:  # it could not be unpickled here
        made = made._replace(slot=first, summary=f"env {first}: {made.summary}")
    return 0, int(Answer.MADE), made


def can_pickle(value: object) -> bool:
    """Tell whether a value can be pickled by `dumps`, and unpickled."""
    try:
        loads(dumps(value))
    except Exception:  # whatever a __reduce__ raises
        return False
    return True


loads: Callable[[Any], Any] = pickle.loads


def encode(body: object) -> bytes:
    """Turn a message's body into bytes. None has none.

    Every extra of a RowsBody is pickled by itself, so that one which cannot be read costs its own env alone.
    """
    if body is None:
        return b""
    if type(body) is Scattered:
        return _COUNT.pack(len(body.slots)) + array("i", body.slots).tobytes() + encode(body.body)
    if type(body) is RowsBody:
        extras = [(extra.slot, dumps(extra[1:])) for extra in body.extras]
        return dumps((extras, body.objects, body.infos, body.columns))
    return dumps(body)


def decode(tag: int, data: Any) -> Any:
    """Undo `encode`. A RemoteFailure takes the place of what cannot be unpickled."""
    if not data:
        return None
    if tag in OF_SOME:  # nothing but a kind: the slots are in the body
        slots, rest = _scattered(data)
        return Scattered(slots, _decode_body(tag, rest))
    return _decode_body(tag, data)


def slots_in(tag: int, data: Any) -> Slots:
    """Return the slots of a message about some slots, whose body is encoded."""
    return _scattered(data)[0] if tag in OF_SOME else addressed(tag, None)[0]


def _scattered(data: Any) -> tuple[list[int], Any]:
    """Return the slots of an encoded Scattered, and what follows them."""
    (count,), slots = _COUNT.unpack_from(data), array("i")
    end = _COUNT.size + count * slots.itemsize
    slots.frombytes(data[_COUNT.size : end])
    return slots.tolist(), data[end:]


def _decode_body(tag: int, data: Any) -> Any:
    if not data:
        return None
    try:
        body = loads(data)
    except Exception as exc:  # whatever a __setstate__ or an __init__ raises, or a module that is not here
        return _unreadable(-1, "what was sent", data, exc)
    if tag & 0xFF not in _WITH_ROWS or type(body) is not tuple:
        return body
    pickled, objects, infos, columns = body
    extras, unread = [], []
    for slot, item in pickled:
        try:
            extras.append(RowExtras(slot, *loads(item)))
        except Exception as exc:  # as above
            extras.append(RowExtras(slot, {}, None, _unreadable(slot, "its info", item, exc)))
            unread.append(slot)
    return RowsBody(extras, objects, infos, tuple(unread), columns)


def _unreadable(slot: int, what: str, data: Any, exc: Exception) -> RemoteFailure:
    try:
        loads(data)
    except Exception:  # as before
        pass
    else:  # it was the handler of a signal that raised
        raise exc
    where = f"env {slot}: " if slot >= 0 else ""
    problem = VecEnvError(
        f"{where}{what} was pickled but cannot be unpickled in another process "
        f"({type(exc).__name__}: {safe_text(exc)}): leave out what cannot, or use DummyVecEnv"
    )
    return RemoteFailure.capture(slot, "unpickling", problem, portable=True)


# Messages about every slot of a shard; those about some of them.
OF_SHARD = frozenset(map(int, (Command.STEP, Answer.ROWS, Answer.INFO_ROWS, Answer.PLAIN_ROWS)))
OF_SOME = frozenset(map(int, (Command.STEP_SOME, Command.RESET, Command.AWAIT_RESET, Answer.SOME_ROWS)))
_COUNT = struct.Struct("=i")
_WITH_ROWS = frozenset({int(Answer.ROWS), int(Answer.SOME_ROWS)})
