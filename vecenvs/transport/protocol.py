"""The messages between callers and workers, whichever transport carries them.

Every message is a number, a tag and a body. The caller numbers its commands, ascending; an answer has the number of its
command. A command may be sent more than once: the worker carries out each number once, in order. Rows themselves lie in
the batch's columns: a row belongs to the worker from the command for its slot until the answer, and to the caller
otherwise, so neither side ever reads what the other is writing.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from enum import IntEnum
from types import TracebackType
from typing import Any, NamedTuple

from vecenvs.batch.info_batches import info_of
from vecenvs.batch.infos import InfoForm
from vecenvs.batch.packed_infos import unpack
from vecenvs.errors import EnvError, RemoteError, VecEnvError
from vecenvs.transport.pickling import dumps, loads

_TEXT = 20_000  # characters of an error's text, and as many of its traceback
_AROUND = ("vecenvs.", "gymnasium.core", "gymnasium.wrappers.")  # modules whose frames come before an env's own
_PORTABLE = 2**24  # bytes of an exception that is sent to another process

Message = tuple[int, int, Any]  # a number, a tag and a body


class Command(IntEnum):
    """Tags of commands, with their answers. SOME_ROWS answer those about some slots, which name these (`address`)."""

    STEP = 1  # step every slot of the shard -> one ROWS
    STEP_SOME = 2  # step some slots, in this order; body: the rows of object leaves of their actions
    RESET = 3  # reset some slots, in this order; body: their ResetArguments, or None
    AWAIT_RESET = 4  # async: report the first rows of next episodes; begin the resets that have not begun
    CALL = 5  # body (function, slots, args, kwargs) -> REPLY with a list of results or RemoteFailures
    PREPARE = 6  # body ({slot: seed}, {slot: options}) for the next reset of each slot -> REPLY None
    RESUME = 7  # body ({slot: (LastStep, seed)}, forms): this worker replaces another, episodes are over -> REPLY None
    CLOSE = 8  # close the envs and leave -> CLOSED
    FAIL = 9  # body {slot: RemoteFailure}: these rows could not be read, refuse the slots until a reset -> no answer
    REPORT = 10  # body seconds: from now on send PROGRESS that often while there is some -> REPLY None
    HOLD = 11  # body as of PREPARE -> no answer
    RETIRE = 12  # answer the next step that ends an episode by RETIRED, and leave -> no answer


class Answer(IntEnum):
    """Tags of answers."""

    PLAIN_ROWS = 31  # every slot of the shard has its row, with no flags and no extras; body None or RowsBody
    ROWS = 32  # the same where there is more; body None or RowsBody
    SOME_ROWS = 33  # some slots of one command have their rows; body None or RowsBody
    REPLY = 34  # body as the command says
    MADE = 35  # body ShardSpec or RemoteFailure: unasked, the first message of every worker
    CLOSED = 36  # body: a list of RemoteFailures, of what envs raised in close()
    PROGRESS = 37  # the worker is getting on with its commands
    ENV_ERROR = 40  # unasked, with `on_error`: body (number of the worker's errors, what it was, slot if made anew)
    LOAD = 41  # unasked, now and then as a command comes: body worker.load.Load
    RETIRED = 42  # in the place of the row of a step: body LastStep, for the successor
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

    `infos` are those of all slots of the shard, where every one has some and they stay in the process. `forms` are all
    forms of the worker's infos, if there are new ones (see `batch/infos.py`). `columns` are those of batched envs, by
    name (`info_batches.InfoColumn`), and those of the resets among these rows; rows count from the shard's first slot.
    Those of another process are packed: see `packed_infos.unpack`.
    """

    extras: list[RowExtras]
    objects: list[Any] | None = None
    infos: list[dict[str, Any]] | None = None
    forms: tuple[InfoForm, ...] = ()
    unread: tuple[int, ...] = ()  # slots whose extras the caller could not unpickle: they are failures here
    columns: Any = None
    failure: RemoteFailure | None = None  # why objects and columns could not be unpickled: all rows are failures here

    def spread(self, first: int, some: Iterable[int]) -> RowsBody:
        """Return the same with extras for these rows instead of `columns`; `first` is the shard's first slot."""
        infos, resets = map(unpack, self.columns or ({}, {}))
        extras = list(self.extras)
        for local in some if infos or resets else ():
            info, reset_info = info_of(infos, local), info_of(resets, local)
            if info or reset_info:
                extras.append(RowExtras(first + local, info, reset_info or None))
        return self._replace(extras=extras, columns=None)


class LastStep(NamedTuple):
    """What a step has returned that ended an episode: by default that of an episode which is lost with its worker.

    `attrs` are the values of the info channel after it, for a worker whose env has not stepped. With `returned` an
    episode's last row was returned before, and no other one has begun.
    """

    obs: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = True
    info: dict[str, Any] = {"worker_restarted": True}  # noqa: RUF012  never changed
    attrs: list[Any] | None = None
    returned: bool = False


class ShardSpec(NamedTuple):
    """A worker's report of the envs that it has made, and of where it is.

    `mismatch` is (index, which, theirs, ours) if the envs disagree.
    """

    observation_space: Any
    action_space: Any
    spec: Any
    metadata: dict[str, Any]
    render_mode: str | None
    mismatch: tuple[int, str, Any, Any] | None
    pid: int
    host: str


class RemoteFailure(NamedTuple):
    """An exception on its way to the caller."""

    slot: int
    summary: str
    traceback: str
    exception: BaseException | None

    @classmethod
    def capture(cls, slot: int, doing: str, exc: BaseException, *, portable: bool, remedy: str = "") -> RemoteFailure:
        """Describe `exc`; the summary ends with `remedy`, and all text is limited.

        With `portable` it is kept only if it survives pickling in less than _PORTABLE bytes, else as text alone.
        """
        kept: BaseException | None = None
        kind = type(exc)
        try:
            text = shortened("".join(traceback.format_exception(kind, exc, _own_frames(exc.__traceback__))))
            isinstance(exc, EnvError)  # as callers may ask: raises here if it raises there
            kept = _portable(exc) if portable else exc
        except Exception as problem:  # from a foreign class: each of its attributes may raise
            text = f"{kind.__name__}: {safe_text(exc)} (its own code raises {type(problem).__name__}: no traceback)"
        shown = safe_text(exc)
        summary = shown if issubclass(kind, VecEnvError) else f"env {slot} raised {kind.__name__} in {doing}: {shown}"
        if remedy := remedy or _advice(kind, shown, remote=portable):
            summary = f"{summary}. {remedy}"
        return cls(slot, summary, text, kept)

    def to_error(self) -> EnvError:
        """Return the error to raise in the caller."""
        exception = self.exception
        kind = type(exception) if isinstance(exception, EnvError) else EnvError
        error = kind(self.slot, self.summary, self.traceback)
        error.__cause__ = RemoteError(self.traceback) if exception is None else exception
        return error


def _advice(kind: type, text: str, *, remote: bool) -> str:
    """Return what to do about an exception that is due to where its env lives."""
    if remote and (kind.__name__ == "BdbQuit" or text == "EOF when reading a line"):
        return "A worker has no terminal: use backend='dummy' (DummyVecEnv) for a debugger or for input"
    if "created in a thread" in text or "different thread" in text:  # SQLite; Playwright, by greenlet
        return "autoreset='async' resets in threads, unless each env has a worker of its own: num_workers=num_envs"
    return ""


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without what leads to the env: the worker and wrappers. All of it if there is nothing else."""
    own = trace
    while own is not None and str(own.tb_frame.f_globals.get("__name__")).startswith(_AROUND):
        own = own.tb_next
    return own or trace


def _portable(exc: BaseException) -> BaseException | None:
    """Return what arrives of an exception that is sent to another process, None if nothing does."""
    exc.__traceback__ = None
    try:
        data = dumps(exc)
        kept = loads(data) if len(data) < _PORTABLE else None
        return kept if isinstance(kept, BaseException) else None
    except Exception:  # whatever a foreign __reduce__ raises
        return None


def shortened(text: str) -> str:
    """Return a text without its middle if it is too long for an error: data belong into files."""
    left_out = len(text) - _TEXT
    if left_out <= 0:
        return text
    return f"{text[: _TEXT // 2]}\n... ({left_out} characters are left out here) ...\n{text[-_TEXT // 2 :]}"


def safe_text(exc: BaseException) -> str:
    """Return str(exc), shortened, or the fact that it raises."""
    try:
        return shortened(str(exc))
    except Exception as problem:
        return f"(its __str__ raises {type(problem).__name__})"


# Messages about every slot of a shard; those about some of them.
OF_SHARD = frozenset(map(int, (Command.STEP, Answer.ROWS, Answer.PLAIN_ROWS)))
OF_SOME = frozenset(map(int, (Command.STEP_SOME, Command.RESET, Command.AWAIT_RESET, Answer.SOME_ROWS)))
