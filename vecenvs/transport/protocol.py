"""The messages between callers and workers, whichever transport carries them.

Every message is a number, a tag and a body. The caller numbers its commands, ascending; an answer has the number of its
command. A command may be sent more than once: the worker carries out each number once, in order. Rows themselves lie in
the batch's columns: a row belongs to the worker from the command for its slot until the answer, and to the caller
otherwise, so neither side ever reads what the other is writing.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import cloudpickle

from vecenvs.errors import EnvError, RemoteError, VecEnvError

Message = tuple[int, int, Any]  # a number, a tag and a body


class Command(IntEnum):
    """Tags of commands, with their answers. The slot is in the upper bits: see `tag`."""

    STEP = 1  # step every slot of the shard -> one ROWS
    STEP_ONE = 2  # step one slot -> ROW
    RESET = 3  # body {slot: (seed, options)} -> a ROW each
    AWAIT_RESET = 4  # async: report the first row of the next episode; begin the reset if it has not begun -> ROW
    CALL = 5  # body (function, slots, args, kwargs) -> REPLY with a list of results or Failures
    PREPARE = 6  # body ({slot: seed}, {slot: options}) for the next reset of each slot -> REPLY None
    RESUME = 7  # body {slot: (last row, seed)}: this worker replaces another, whose episodes are lost -> REPLY None
    CLOSE = 8  # close the envs and leave -> CLOSED
    OPEN_INFO = 9  # body: the types of the info channel's attributes (`batch.Specs`) -> REPLY None
    FAIL = 10  # body {slot: RemoteFailure}: these rows could not be read, refuse the slots until a reset -> no answer
    REPORT = 11  # body seconds: from now on send PROGRESS that often while there is some -> REPLY None


class Answer(IntEnum):
    """Tags of answers."""

    INFO_ROWS = 30  # as ROWS, and every env has an info; body: InfoPacker's bytes, never pickled; in process a list
    PLAIN_ROWS = 31  # every slot of the shard has its row, with no flags and nothing besides its columns
    ROWS = 32  # the same where there is more; body None or RowsBody
    ROW = 33  # one slot has its row; body None or RowsBody
    REPLY = 34  # body as the command says
    MADE = 35  # body ShardSpec or RemoteFailure: unasked, the first message of every worker
    CLOSED = 36  # body: a list of Failures, of what envs raised in close()
    PROGRESS = 37  # the worker is getting on with its commands
    # From `recovery.Replacement`:
    STARTED = 38  # the new worker is ready; body: its Transport
    NOT_STARTED = 39  # there is none; body: the exception that says why


def tag(kind: IntEnum, slot: int = 0) -> int:
    """Put a message's kind and slot into one integer."""
    return int(kind) | slot << 8


def kind_of(tag: int) -> int:
    """Return the kind of message that a tag has."""
    return tag & 0xFF


def slot_of(tag: int) -> int:
    """Return the slot that a tag has."""
    return tag >> 8


class RowExtras(NamedTuple):
    """The info, reset info and failure of one row. Most rows have none."""

    slot: int
    info: dict[str, Any]
    reset_info: dict[str, Any] | None = None
    failure: RemoteFailure | None = None


class RowsBody(NamedTuple):
    """Body of ROW and ROWS: extras of some slots, and the rows of object leaves if the space has any.

    `infos` are those of all slots of the shard, if every one has some: in process a list of dicts, else packed
    (`infos.InfoPacker`).
    """

    extras: list[RowExtras]
    objects: list[Any] | None = None
    infos: Any = None
    unread: tuple[int, ...] = ()  # slots whose extras the caller could not unpickle: they are failures here


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


def pickle_env_fns(env_fns: Sequence[Callable[[], Any]], first: int, remedy: str = "") -> list[bytes]:
    """Pickle the functions of the envs `first`, `first + 1`, ... by cloudpickle.

    Raises:
        VecEnvError: a function cannot be pickled. The message names its env, and ends with `remedy`.
    """
    pickled = []
    for slot, env_fn in enumerate(env_fns, first):
        try:
            pickled.append(cloudpickle.dumps(env_fn, protocol=5))
        except Exception as exc:  # whatever a __reduce__ raises
            raise VecEnvError(
                f"the env function of env {slot} cannot be pickled ({exc}): make everything it needs inside it{remedy}"
            ) from exc
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


def encode(tag: int, body: object) -> bytes:
    """Turn a message's body into bytes. Those of INFO_ROWS stay as they are; None has none.

    Every extra of a RowsBody is pickled by itself, so that one which cannot be read costs its own env alone.
    """
    if body is None:
        return b""
    if tag == _INFO_ROWS:
        return body  # type: ignore[return-value]  # INFO_ROWS has bytes
    if type(body) is RowsBody:
        extras = [(extra.slot, dumps(extra[1:])) for extra in body.extras]
        return dumps((extras, body.objects, body.infos))
    return dumps(body)


def decode(tag: int, data: Any) -> Any:
    """Undo `encode`. A RemoteFailure takes the place of what cannot be unpickled."""
    if not data:
        return None
    if tag == _INFO_ROWS:
        return data
    try:
        body = loads(data)
    except Exception as exc:  # whatever a __setstate__ or an __init__ raises, or a module that is not here
        return _unreadable(-1, "what was sent", data, exc)
    if tag & 0xFF not in _WITH_ROWS or type(body) is not tuple:
        return body
    pickled, objects, infos = body
    extras, unread = [], []
    for slot, item in pickled:
        try:
            extras.append(RowExtras(slot, *loads(item)))
        except Exception as exc:  # as above
            extras.append(RowExtras(slot, {}, None, _unreadable(slot, "its info", item, exc)))
            unread.append(slot)
    return RowsBody(extras, objects, infos, tuple(unread))


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


_WITH_ROWS = frozenset({int(Answer.ROWS), int(Answer.ROW)})
_INFO_ROWS = int(Answer.INFO_ROWS)
