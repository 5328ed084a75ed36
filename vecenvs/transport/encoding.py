"""The bodies of messages as bytes. What cannot be pickled or unpickled becomes a failure of its env alone."""

from __future__ import annotations

import contextlib
import pickle
import struct
from array import array
from typing import Any

from vecenvs.batch.packed_infos import pack
from vecenvs.errors import VecEnvError
from vecenvs.transport.pickling import can_pickle, dumps, loads
from vecenvs.transport.protocol import (
    OF_SOME,
    Answer,
    Message,
    RemoteFailure,
    RowExtras,
    RowsBody,
    Scattered,
    ShardSpec,
    Slots,
    addressed,
    safe_text,
)

_COUNT = struct.Struct("=i")
_WITH_ROWS = frozenset({int(Answer.ROWS), int(Answer.PLAIN_ROWS), int(Answer.SOME_ROWS)})


def encode(body: object) -> bytes:
    """Turn a message's body into bytes. None has none.

    Every extra of a RowsBody is pickled by itself, so that one which cannot be read costs its own env alone; and so are
    objects and columns, so that the forms of infos, which later rows have, can be read in any case.
    """
    if body is None:
        return b""
    if type(body) is Scattered:
        return _COUNT.pack(len(body.slots)) + array("i", body.slots).tobytes() + encode(body.body)
    if type(body) is RowsBody:
        extras = [(extra.slot, dumps(extra[1:])) for extra in body.extras]
        columns = None if body.columns is None else tuple(map(pack, body.columns))
        return dumps((extras, body.forms, dumps((body.objects, columns)) if body.objects or columns else None))
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
    pickled, forms, others = body
    extras, unread = [], []
    for slot, item in pickled:
        try:
            extras.append(RowExtras(slot, *loads(item)))
        except Exception as exc:  # as above
            extras.append(RowExtras(slot, {}, None, _unreadable(slot, "its info", item, exc)))
            unread.append(slot)
    rows = RowsBody(extras, None, None, forms, tuple(unread))
    try:
        objects, columns = (None, None) if others is None else loads(others)
    except Exception as exc:  # as above
        return rows._replace(failure=_unreadable(-1, "what was sent", others, exc))
    return rows._replace(objects=objects, columns=columns)


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


def check_portable(what: str, value: object) -> None:
    """Raise TypeError, which calls the value `what`, if it cannot be pickled, or not be unpickled."""
    try:
        loads(dumps(value))
    except Exception as exc:  # whatever a foreign __reduce__ or __setstate__ raises
        text = f"{type(exc).__name__}: {safe_text(exc)}"
        raise TypeError(
            f"{what} cannot be pickled, or not be unpickled in another process ({text}): leave out what cannot, "
            "or use DummyVecEnv"
        ) from exc


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
