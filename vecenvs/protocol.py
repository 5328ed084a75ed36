"""What callers and workers say to each other, whichever transport carries it.

Every message is a tag and a body. Commands go to the worker, each is answered as the table in `Command` says, in the
order given. Rows themselves lie in the `Board`'s columns: a row belongs to the worker from the command for its slot
until the answer, and to the caller otherwise, so neither side ever reads what the other is writing.
"""

from __future__ import annotations

import copy
import pickle
import traceback
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from vecenvs.errors import EnvError, RemoteError, VecEnvError

Message = tuple[int, Any]  # a tag and a body


class Command(IntEnum):
    """Tag, and the answers it gets. `slot` is carried in the tag's upper bits: see `tag`.

    What is answered by a REPLY is a request: its number is there instead, also in the REPLY's tag.
    """

    STEP = 1  # step every slot of the shard -> one ROWS
    STEP_ONE = 2  # step one slot -> ROW
    RESET = 3  # body {slot: (seed, options)} -> a ROW each
    AWAIT_RESET = 4  # an async autoreset of one slot: report its first row -> ROW
    CALL = 5  # body (function, slots, args, kwargs) -> REPLY with a list of results or Failures
    PREPARE = 6  # body ({slot: seed}, {slot: options}) for the next reset of each slot -> REPLY None
    RESUME = 7  # body {slot: (last row, seed)}: this worker replaces another, whose episodes are lost -> REPLY None
    OPEN_INFO = 9  # body: the types of the info channel's attributes (`board.Specs`) -> REPLY None
    CLOSE = 8  # close the envs and leave -> CLOSED
    FAIL = 10  # body (slots, Failure): rows of theirs were lost on their way, refuse these until a reset -> no answer


class Answer(IntEnum):
    """Tags of what a worker sends back."""

    PLAIN_ROWS = 31  # every slot of the shard has its row, with no flags and nothing besides its columns
    INFO_ROWS = 30  # the same, and every env has an info; body: InfoPacker's bytes, never pickled; in process a list
    ROWS = 32  # the same where there is more; body None or RowBody
    ROW = 33  # one slot has its row; body None or RowBody
    REPLY = 34  # body as the command says
    CLOSED = 36  # body: a list of Failures, of what envs raised in close()
    MADE = 35  # body MadeEnvs or Failure: unasked, the first message of every worker
    # From `transport.replacement`, of a worker that replaces another:
    STARTED = 37  # it has been told its commands
    NOT_STARTED = 38  # it has been ended; body: the exception that says why


def tag(kind: IntEnum, slot: int = 0) -> int:
    """Put a message's kind and slot into one integer."""
    return int(kind) | slot << 8


def kind_of(tag: int) -> int:
    return tag & 0xFF


def slot_of(tag: int) -> int:
    return tag >> 8


class Extra(NamedTuple):
    """What a row has besides its columns; most rows have none."""

    slot: int
    info: dict[str, Any]
    reset_info: dict[str, Any] | None = None
    failure: Failure | None = None


class RowBody(NamedTuple):
    """Body of ROW and ROWS: extras of some slots, and the rows of object leaves if the space has any.

    `infos` are those of all slots of the shard, if every one has some: in process a list of dicts, else packed
    (`infos.InfoPacker`).
    """

    extras: list[Extra]
    objects: list[Any] | None = None
    infos: Any = None


class MadeEnvs(NamedTuple):
    """What a worker tells of the envs it has made; `mismatch` is (index, which, theirs, ours) if they disagree."""

    observation_space: Any
    action_space: Any
    spec: Any
    metadata: dict[str, Any]
    render_mode: str | None
    mismatch: tuple[int, str, Any, Any] | None


class Failure(NamedTuple):
    """An exception on its way to the caller."""

    slot: int
    summary: str
    traceback: str
    exception: BaseException | None

    @classmethod
    def capture(cls, slot: int, doing: str, exc: BaseException, *, portable: bool, remedy: str = "") -> Failure:
        """Describe `exc`, and say the `remedy` where there is one.

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
        error = EnvError(self.slot, self.summary, self.traceback)
        error.__cause__ = self.exception or RemoteError(self.traceback)
        return error


def safe_text(exc: BaseException) -> str:
    """Give str(exc), or say that it raises."""
    try:
        return str(exc)
    except Exception as problem:
        return f"(its __str__ raises {type(problem).__name__})"


def dumps(value: object) -> bytes:
    """Pickle; by value (cloudpickle) what another process may not reach by name.

    That includes what is defined in `__main__`: a worker on an MPI rank or in a Ray actor has another one.
    """
    try:
        data = pickle.dumps(value, protocol=5)
    except Exception:  # PicklingError, TypeError, AttributeError, or what a __reduce__ raises
        data = b"__main__"
    if b"__main__" in data:
        data = cloudpickle.dumps(value, protocol=5)
    return data


def can_pickle(value: object) -> bool:
    """Tell whether `dumps` takes it, and it can be brought back."""
    try:
        loads(dumps(value))
    except Exception:  # whatever a __reduce__ raises
        return False
    return True


loads: Callable[[Any], Any] = pickle.loads


def encode(tag: int, body: object) -> bytes:
    """Turn a message's body into bytes: INFO_ROWS' as they are, none for None."""
    if body is None:
        return b""
    return body if tag == _INFO_ROWS else dumps(body)  # type: ignore[return-value]  # INFO_ROWS has bytes


def decode(tag: int, data: Any) -> Any:
    """Undo `encode`. What pickle took but cannot bring back is a Failure in the body's place."""
    if not data:
        return None
    if tag == _INFO_ROWS:
        return data
    try:
        return loads(data)
    except Exception as exc:  # whatever a __setstate__ or a __init__ raises, or a module that is not here
        if _can_load(data):  # the second time: it was a signal's handler that raised
            raise
        text = f"{type(exc).__name__}: {safe_text(exc)}"
        problem = VecEnvError(f"a value (in an info, say) was pickled but cannot be unpickled again: {text}")
        return Failure.capture(-1, "unpickling", problem, portable=True)


def _can_load(data: Any) -> bool:
    try:
        loads(data)
    except Exception:  # as above
        return False
    return True


_INFO_ROWS = int(Answer.INFO_ROWS)


def own(value: Any) -> Any:
    """Copy the containers and arrays in a value that goes from a caller to an env or back in the same process.

    So nothing in them is changed later by the other side. Other objects are given as they are, and so is a container
    of a class of its own that cannot be copied.
    """
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is np.ndarray and value.dtype != object:
        return value.copy()
    if kind is dict:
        if IMMUTABLE.issuperset(map(type, value.values())):
            return value.copy()
        return {key: own(item) for key, item in value.items()}
    if kind is list:
        return [own(item) for item in value]
    if kind is tuple:
        return tuple(own(item) for item in value)
    if isinstance(value, _CONTAINERS):
        try:
            return copy.deepcopy(value)
        except Exception:  # whatever a foreign __deepcopy__ or __reduce__ raises
            return value
    return value


IMMUTABLE: frozenset[type] = frozenset(
    {bool, int, float, complex, str, bytes, type(None)} | {np.dtype(code).type for code in "?bhilqBHILQefdgFDG"}
)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, bytearray, np.ndarray)
