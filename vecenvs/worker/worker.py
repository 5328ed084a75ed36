"""The worker, the same for every engine: it takes commands for the envs of one shard and answers them."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.infos import InfoForm
from vecenvs.errors import VecEnvError
from vecenvs.transport.pickling import can_pickle, dumps
from vecenvs.transport.protocol import (
    OF_SOME,
    Answer,
    Command,
    Message,
    RemoteFailure,
    RowExtras,
    RowsBody,
    Scattered,
    Slots,
    address,
    addressed,
    kind_of,
    rows_of,
    safe_text,
    shifted,
)
from vecenvs.transport.reset_arguments import NONE_GIVEN
from vecenvs.worker.async_resets import AsyncResets, FirstRows
from vecenvs.worker.autoreset import Retired
from vecenvs.worker.calls import CLOSE_WAIT, EnvCall, call_envs, close_envs, portable_results
from vecenvs.worker.env_errors import EnvErrors, Remake
from vecenvs.worker.env_shard import BROKEN_OFF, EnvShard, FirstRow
from vecenvs.worker.env_threads import EnvThreads
from vecenvs.worker.load import LOAD_EVERY, Load, resident_bytes
from vecenvs.worker.process import HeldSignals
from vecenvs.worker.rules import Rules, TimeLimits, WorkShare
from vecenvs.worker.shard import Shard, make_shard

Answering = Callable[[int, int, object], None]

_STOPPED = 1.0  # seconds by which a sleep takes too long if this process has been stopped

# Plain ints compare faster.
_ROWS, _PLAIN = int(Answer.ROWS), int(Answer.PLAIN_ROWS)
_CLOSE = int(Command.CLOSE)
_STEP_SOME, _RESET, _AWAIT_RESET = int(Command.STEP_SOME), int(Command.RESET), int(Command.AWAIT_RESET)
_SOME_ROWS = int(Answer.SOME_ROWS)


class SubsetCommand(NamedTuple):
    """A command about some slots that is being carried out, and the slots that are left of it."""

    number: int
    kind: int
    left: Slots
    given: Any  # the body


class Worker:
    """Carries out the commands of `protocol.Command` for envs of the slots first, first + 1, ..., in order.

    `answer(number, tag, body)` sends an answer to the caller; before that the rows have been written to `batch`. With
    `remote`, answers are pickled. A command is ignored if its number is not higher than the last one's: the caller has
    sent it twice.
    """

    def __init__(
        self,
        envs: list[Any],
        first: int,
        batch: BatchColumns,
        rules: Rules,
        answer: Answering,
        *,
        remote: bool,
        remake: Remake | None = None,
    ) -> None:
        report = partial(_call_method, weakref.WeakMethod(self._report_error))
        errors = None if rules.on_error == "raise" or remake is None else EnvErrors(rules, first, remake, report)
        self.env_shard = make_shard(envs, first, batch, rules, remote=remote, errors=errors, remake=remake)
        self._first = first
        self._batch = batch
        self._remote = remote
        self._answer = answer
        self._read_actions = self.env_shard.read_actions
        self.number = -(2**62)  # of the current command, or of the last one
        self._unanswered = -1  # the same, until it is answered
        # An env that is alone in its process delays no other one while it resets; otherwise its thread does.
        threads = rules.autoreset == "async" and rules.concurrency is None and (len(envs) > 1 or not remote)
        self._threads = threads  # whether threads send answers, too
        self._close_env = partial(_close_env, self.env_shard, first, remote)
        send = partial(_call_method, weakref.WeakMethod(self._send_first_row))
        env_threads = EnvThreads(first, TimeLimits(), WorkShare()) if threads else None
        resets = AsyncResets(self.env_shard.try_reset, send, self._close_env, env_threads, remote=remote)
        self._resets: FirstRows[Any] = resets
        self._leave_resets = resets.leave
        self._lock = threading.RLock()  # threads of async resets send as well, and a signal's handler may come between
        self._closed = False
        self._to_close: list[int] | None = None  # the envs that `close` has still to close
        self._made, self._cpu = perf_counter(), time.process_time()
        self._tell_at = self._made if remote else math.inf
        self._stepping = 0.0  # seconds spent within commands
        self.subset: SubsetCommand | None = None  # while there is something left of one

    def handle(self, number: int, tag: int, body: Any) -> bool:
        """Carry out one command and answer it. Return False after CLOSE, or if it retires: the worker is done."""
        try:
            return self._handle(number, tag, body)
        except Retired as exc:
            self._send(number, int(Answer.RETIRED), exc.last)
            self.close(CLOSE_WAIT)
            return False

    def _handle(self, number: int, tag: int, body: Any) -> bool:
        if number <= self.number:
            return True
        began = perf_counter()
        if began >= self._tell_at:
            self._tell_at = began + LOAD_EVERY
            with self._lock:
                self._answer(0, int(Answer.LOAD), self._load(began))
        kind = tag & 0xFF
        if kind in OF_SOME:
            self.begin_some(number, tag, body)
            while self.subset is not None:
                self.proceed()
                if self._remote and self.env_shard.deferred:
                    self.run_deferred()
        else:
            held = kind == Command.HOLD and type(body) is not RemoteFailure
            if held:  # before it counts as begun: if a Ctrl-C breaks it off it is carried out anew, as it has no answer
                self._on_hold(number, body)
            self.number = self._unanswered = number
            if type(body) is RemoteFailure:  # it could not be unpickled
                slot = self._first
                self._refuse(number, tag, body._replace(slot=slot, summary=f"env {slot}: {body.summary}"))
            elif not held:
                self._COMMANDS[kind](self, number, body)
            if self._remote and self.env_shard.deferred:
                self.run_deferred()
        self._stepping += perf_counter() - began
        return kind != _CLOSE

    def _load(self, now: float) -> Load:
        """Return the load of this worker and its process until now, as a command comes."""
        return Load(
            now - self._made - self._stepping, self._stepping, resident_bytes(), time.process_time() - self._cpu
        )

    def begin_some(self, number: int, tag: int, body: Any) -> None:
        """Begin a command about some slots. As long as there is a `subset`, `proceed` has to follow."""
        slots, body = addressed(tag, body)
        self.subset = SubsetCommand(number, tag & 0xFF, slots, body)
        self.number = self._unanswered = number

    def proceed(self) -> None:
        """Carry out the next portion of `subset` and answer it."""
        if self.subset is None:
            return
        number, kind, left, given = self.subset
        count = len(left)
        if type(given) is RemoteFailure:  # it could not be unpickled
            self._refuse_some(number, left, given._replace(summary=f"env {left[0]}: {given.summary}"))
        elif kind == _AWAIT_RESET:
            for slot in left:
                self._resets.ask(slot - self._first, number)
        else:
            if kind == _STEP_SOME and given is not None:
                self._batch.actions.take_objects(rows_of(left), given)
                given = None
            self._unanswered = number
            some = shifted(left, -self._first)
            if kind == _RESET:
                self._resets.drop(some)  # these are overtaken
                count, body = self.env_shard.reset_some(some, given or NONE_GIVEN)
            else:
                count, body = self.env_shard.step_some(some)
            self._send(number, *address(_SOME_ROWS, left[:count], body))
        self.subset = SubsetCommand(number, kind, left[count:], given) if count < len(left) else None

    def try_step(self, number: int) -> bool:
        """Step the whole shard ahead of `step`, which returns the answer. Return True if that is all."""
        return self.env_shard.try_step(number, self._read_actions())

    def step(self, number: int, objects: Any = None) -> Message:
        """Step the whole shard and return the answer. Call `run_deferred` then if there is `env_shard.deferred`."""
        self.number = self._unanswered = number
        env_shard = self.env_shard
        if not env_shard.was_tried(number):
            if objects is not None:
                rows = slice(self._first, self._first + len(env_shard.all))
                self._batch.actions.take_objects(rows, objects)
            if env_shard.try_step(number, self._read_actions()):
                self._unanswered = -1
                return number, _ROWS if env_shard.flags.some else _PLAIN, None
        body = env_shard.finish_step()
        self._unanswered = -1
        plain = not env_shard.flags.some and (body is None or not (body.extras or body.objects or body.columns))
        return number, _PLAIN if plain else _ROWS, body

    def break_off(self, number: int, tag: int, answered: Collection[int]) -> None:
        """Answer a begun command that an exception has ended which was no env's: a KeyboardInterrupt between two steps.

        `answered` are slots of a command about some slots which are answered.
        """
        why = RemoteFailure.capture(self._first, "a command", BROKEN_OFF, portable=self._remote)
        if kind_of(tag) not in OF_SOME:
            self._refuse(number, tag, why)
            return
        left = self.subset.left if self.subset is not None else []
        left = [slot for slot in left if slot not in answered and not self._resets.ask_again(slot - self._first)]
        if left:
            self._refuse_some(number, left, why)
        self.subset = None

    def _refuse_some(self, number: int, slots: Slots, why: RemoteFailure) -> None:
        """Answer a command with a failure of each of these slots."""
        some = shifted(slots, -self._first)
        self._resets.drop(some)  # one that ended later would hide the failure
        failures = RowsBody(self.env_shard.fail(some, why))
        self._send(number, *address(_SOME_ROWS, slots, failures))

    def _refuse(self, number: int, command: int, why: RemoteFailure) -> None:
        """Answer a command with a failure instead of carrying it out."""
        kind = kind_of(command)
        if kind == Command.STEP:
            self._send(number, _ROWS, RowsBody(self.env_shard.fail(self.env_shard.all, why)))
        elif kind == Command.CLOSE:
            self._send(number, Answer.CLOSED, [])
        else:
            self._reply(number, why)

    def run_deferred(self) -> None:
        """Do what had to wait until a step was answered: begin async resets, raise a Ctrl-C."""
        deferred = self.env_shard.deferred
        while deferred:
            first = deferred[0]
            if isinstance(first, BaseException):
                del deferred[0]
                raise first
            self._resets.begin(first)  # an exception here leaves it in the list
            del deferred[0]

    # Stepping and resetting

    def _on_step(self, number: int, objects: Any) -> None:
        _, tag, body = self.step(number, objects)
        if body is None and not self._threads:
            self._answer(number, tag, None)
        else:
            self._send(number, tag, body)

    def _send_first_row(self, number: int, local: int, write_row: FirstRow) -> None:
        slot = self._first + local
        self._send(number, *address(_SOME_ROWS, range(slot, slot + 1), write_row()))

    def _reply(self, number: int, body: Any) -> None:
        self._send(number, int(Answer.REPLY), body)

    def _on_prepare(self, number: int, body: tuple[dict[int, Any], dict[int, Any]]) -> None:
        self._on_hold(number, body)
        self._reply(number, None)

    def _on_hold(self, _: int, body: tuple[dict[int, Any], dict[int, Any]]) -> None:
        with HeldSignals():  # for all envs or none
            for name, values in zip(("seed", "options"), body, strict=True):
                for slot, value in values.items():
                    self.env_shard.hold(slot - self._first, name, value)

    def _on_resume(self, number: int, body: tuple[dict[int, tuple[Any, Any]], Sequence[InfoForm]]) -> None:
        lost, forms = body
        self.env_shard.resume(lost)
        self.env_shard.info_writer.take_over(forms)
        self._reply(number, None)

    def _on_retire(self, *_: Any) -> None:
        if isinstance(self.env_shard, EnvShard):
            self.env_shard.retire()

    def _on_fail(self, _: int, failures: dict[int, RemoteFailure]) -> None:
        for slot, why in failures.items():
            self._resets.drop([slot - self._first])
            self.env_shard.fail([slot - self._first], why)

    # Everything else

    def _on_call(self, number: int, body: EnvCall) -> None:
        self._reply_results(number, body, call_envs(self.env_shard, self._first, body, remote=self._remote))

    def _reply_results(self, number: int, body: EnvCall, results: list[Any]) -> None:
        try:
            self._reply(number, results)
        except Exception:  # one of the results cannot be pickled
            self._reply(number, portable_results(body, results))

    def _on_report(self, number: int, seconds: float) -> None:
        self._threads = True
        threading.Thread(target=self._report, args=(seconds,), daemon=True).start()
        self._reply(number, None)

    def _report(self, seconds: float) -> None:
        """Tell the caller every so many seconds if the command under way has made progress since."""
        seen = None
        while not self._closed:
            now = self._progress()
            if now != seen and self._is_busy():
                with self._lock:
                    self._answer(0, int(Answer.PROGRESS), None)
            began = time.monotonic()
            time.sleep(seconds)
            seen = now if time.monotonic() - began < seconds + _STOPPED else None  # it has been stopped: it is not late

    def _is_busy(self) -> bool:
        return self._unanswered >= 0

    def _progress(self) -> object:
        """Return something that is another one when the worker is getting on with the command under way."""
        return self.number, len(self.env_shard.done)

    def _report_error(self, total: int, what: str, anew: int | None = None) -> None:
        with self._lock:
            self._answer(0, int(Answer.ENV_ERROR), (total, what, anew))

    def _on_close(self, number: int, _: Any) -> None:
        self._send(number, int(Answer.CLOSED), self.close(CLOSE_WAIT))

    def close(self, grace: float) -> list[RemoteFailure]:
        """Close every env; return the failures. An env in an async reset is closed when the reset has ended.

        Called again, it goes on where an exception of a signal's handler has ended it.
        """
        self._closed = True
        if self._to_close is None:
            left = self._leave_resets(grace)
            self.env_shard.close_spares(grace)
            self._to_close = [local for local in self.env_shard.owned() if local not in left]
        failures: list[RemoteFailure] = []
        while self._to_close:
            failures += self._close_env(self._to_close[0])
            del self._to_close[0]
        return failures

    def _send(self, number: int, tag: int, body: Any) -> None:
        with self._lock:
            try:
                self._answer(number, tag, body)
            except Exception:
                rows = body.body if isinstance(body, Scattered) else body
                if not isinstance(rows, RowsBody):
                    raise
                rows = rows.spread(self._first, self.env_shard.all)
                rows = rows._replace(extras=[self._portable(extra) for extra in rows.extras])
                self._answer(number, tag, body._replace(body=rows) if isinstance(body, Scattered) else rows)
            if number == self._unanswered:
                self._unanswered = -1

    def _portable(self, extra: RowExtras) -> RowExtras:
        """Return `extra`, or if its infos cannot be pickled a failure of its env, which then needs a reset."""
        try:
            dumps(extra)
        except Exception as exc:
            given = {**extra.info, **(extra.reset_info or {})}
            keys = [key for key, value in given.items() if not can_pickle(value)]
            what = f"env {extra.slot}: its info{keys} cannot be pickled ({safe_text(exc)})"
            problem = VecEnvError(f"{what}: leave it out, or use DummyVecEnv")
            failure = RemoteFailure.capture(extra.slot, "step", problem, portable=True)
            return self.env_shard.fail([extra.slot - self._first], failure)[0]
        return extra

    _COMMANDS: ClassVar[dict[int, Callable[[Worker, int, Any], None]]] = {
        int(Command.STEP): _on_step,
        int(Command.CALL): _on_call,
        int(Command.PREPARE): _on_prepare,
        int(Command.RESUME): _on_resume,
        int(Command.FAIL): _on_fail,
        int(Command.REPORT): _on_report,
        int(Command.RETIRE): _on_retire,
        _CLOSE: _on_close,
    }


def _close_env(env_shard: Shard, first: int, remote: bool, local: int) -> list[RemoteFailure]:
    return close_envs([env_shard.owned()[local]], first + local, remote=remote)


def _call_method(method: weakref.WeakMethod[Callable[..., None]], *args: Any) -> None:
    """Call it if its object still lives."""
    found = method()
    if found is not None:
        found(*args)
