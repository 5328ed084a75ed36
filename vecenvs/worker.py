"""What takes commands and answers them: one `Worker` for every engine.

It takes those of `protocol.Command`, in order, for the envs of its `Host`, which has written the rows when it answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from vecenvs.board import Board, Specs
from vecenvs.calls import name_for
from vecenvs.errors import VecEnvError
from vecenvs.host import ENV_ERRORS, Host, ResetOutcome
from vecenvs.protocol import (
    Answer,
    Command,
    Extra,
    Failure,
    Message,
    RowBody,
    can_pickle,
    dumps,
    kind_of,
    own,
    slot_of,
    tag,
)

Answering = Callable[[int, object], None]

# Plain ints compare faster.
_ROWS, _INFO_ROWS, _PLAIN = int(Answer.ROWS), int(Answer.INFO_ROWS), int(Answer.PLAIN_ROWS)
_CLOSE = int(Command.CLOSE)
_FLAGGED_ROWS, _PLAIN_ROWS = (_ROWS, None), (_PLAIN, None)


class Worker:
    """Serves the envs of one shard: slots first, first + 1, ... `answer(tag, body)` sends to the caller.

    `remote` says that this pickles.
    """

    def __init__(
        self, envs: Sequence[Any], first: int, board: Board, autoreset: str, answer: Answering, *, remote: bool
    ) -> None:
        self.host = Host(envs, first, board, autoreset, remote=remote)
        self._first = first
        self._board = board
        self._remote = remote
        self._answer = answer
        self._read_actions = board.actions.shard(first, len(envs)).reader()
        # One env alone in its process holds nobody up while it resets; others get a thread for each reset.
        self._threads = autoreset == "async" and (len(envs) > 1 or not remote)
        self._lock = threading.Lock()
        self._send = self._send_locked if self._threads else self._send_now
        self._send_bare = self._send_locked if self._threads else answer  # what has no body needs no check
        self._first_rows: dict[int, ResetOutcome] = {}
        self._awaited: set[int] = set()
        self._aside: dict[int, threading.Thread] = {}  # resets under way, or whose first row nobody has asked for
        self._commands: dict[int, Callable[[int, Any], None]] = {
            int(Command.STEP): self._on_step,
            int(Command.STEP_ONE): self._on_step_one,
            int(Command.RESET): self._on_reset,
            int(Command.AWAIT_RESET): self._on_await_reset,
            int(Command.CALL): self._on_call,
            int(Command.PREPARE): self._on_prepare,
            int(Command.RESUME): self._on_resume,
            int(Command.OPEN_INFO): self._on_open_info,
            int(Command.FAIL): self._on_fail,
            _CLOSE: self._on_close,
        }

    def handle(self, tag: int, body: Any) -> bool:
        """Carry out one command and answer it. False after CLOSE: the worker is done."""
        kind = tag & 0xFF
        if type(body) is Failure:  # nobody can tell what it was
            self._send(*self.refuse(tag, body._replace(slot=self._first)))
            return kind != _CLOSE
        try:
            self._commands[kind]((tag >> 8) - self._first, body)
        except BaseException as exc:  # a Ctrl-C
            if not self._remote:  # a worker's own process ends
                self._send_now(*self.break_off(tag, exc))
            raise
        if self.host.unsettled:
            self.settle()
        return kind != _CLOSE

    def step(self, objects: Any = None) -> Message:
        """Step the whole shard; give the answer, for who sends it himself. `settle` after that, if `host.unsettled`."""
        host = self.host
        if objects is not None:
            self._board.actions.take_objects(self._first, len(host.envs), objects)
        body = host.step(host.all, self._read_actions(), pack=True)
        if body is None:
            return _FLAGGED_ROWS if host.flagged else _PLAIN_ROWS
        return (_ROWS if type(body) is RowBody else _INFO_ROWS), body

    def break_off(self, command: int, exc: BaseException) -> Message:
        """Give the answer to a command that a Ctrl-C has ended, but not within an env's step or reset: no row."""
        problem = VecEnvError(f"ended by a {type(exc).__name__} before it was done")
        problem.__cause__ = exc
        return self.refuse(command, Failure.capture(self._first, "a command", problem, portable=self._remote))

    def refuse(self, command: int, why: Failure) -> Message:
        """Give the answer to a command that is not carried out."""
        kind, slot = kind_of(command), slot_of(command)
        if kind == Command.STEP:
            return _ROWS, RowBody(self.host.fail(self.host.all, why))
        if kind in (Command.STEP_ONE, Command.RESET, Command.AWAIT_RESET):
            return tag(Answer.ROW, slot), RowBody(self.host.fail([slot - self._first], why))
        return (int(Answer.CLOSED), []) if kind == Command.CLOSE else (tag(Answer.REPLY, slot), why)

    def settle(self) -> None:
        """Do what had to wait until a step was answered: begin the resets that it calls for, raise a Ctrl-C."""
        host = self.host
        host.unsettled = False
        if host.ended:
            ended, host.ended = host.ended, []
            self._begin_resets(ended)
        if host.interrupt is not None:
            interrupt, host.interrupt = host.interrupt, None
            raise interrupt

    # Stepping and resetting

    def _on_step(self, _: int, objects: Any) -> None:
        tag, body = self.step(objects)
        if body is None:
            self._send_bare(tag, None)
        else:
            self._send(tag, body)

    def _on_step_one(self, local: int, objects: Any) -> None:
        actions, slot = self._board.actions, self._first + local
        actions.take_objects(slot, 1, objects)
        self._send(tag(Answer.ROW, slot), self.host.step(range(local, local + 1), actions.rows(slot, 1)))

    def _on_reset(self, _: int, wanted: dict[int, tuple[Any, Any]]) -> None:
        for slot, (seed, options) in wanted.items():
            local = slot - self._first
            self._overtake(local)
            self.host.hold(local, seed, options)
            self._send_first_row(local, self.host.try_reset(local))

    def _send_first_row(self, local: int, outcome: ResetOutcome) -> None:
        self._send(tag(Answer.ROW, self._first + local), self.host.first_row(local, outcome))

    def _reply(self, local: int, body: Any) -> None:
        """Answer a request: its number stands where other commands have a slot."""
        self._send(tag(Answer.REPLY, self._first + local), body)

    def _on_prepare(self, number: int, body: tuple[dict[int, Any], dict[int, Any]]) -> None:
        seeds, options = body
        for slot in {*seeds, *options}:
            self.host.hold(slot - self._first, seeds.get(slot), options.get(slot))
        self._reply(number, None)

    def _on_resume(self, number: int, lost: dict[int, tuple[Any, int | None]]) -> None:
        self.host.resume(lost)
        self._reply(number, None)

    def _on_fail(self, _: int, body: tuple[Sequence[int], Failure]) -> None:
        slots, why = body
        for slot in slots:
            self._overtake(slot - self._first)
        self.host.fail([slot - self._first for slot in slots], why)

    # Async resets

    def _begin_resets(self, ended: Sequence[int]) -> None:
        for local in ended:
            if self._threads:
                self._aside[local] = threading.Thread(target=self._reset_aside, args=(local,), daemon=True)
                self._aside[local].start()
            else:
                self._reset_aside(local)

    def _reset_aside(self, local: int) -> None:
        outcome = self.host.try_reset(local)
        with self._lock:
            self._first_rows[local] = outcome
            awaited = local in self._awaited
        if awaited:
            self._on_await_reset(local, None)

    def _on_await_reset(self, local: int, _: Any) -> None:
        with self._lock:
            self._awaited.add(local)
            outcome = self._first_rows.pop(local, None)
            if outcome is None:
                return
            self._awaited.discard(local)
            self._aside.pop(local, None)
        self._send_first_row(local, outcome)

    def _overtake(self, local: int) -> None:
        """Wait out an async reset that nobody asks for, since the row before it has not reached the caller; drop it."""
        thread = self._aside.pop(local, None)
        if thread is not None:
            thread.join()
        self._first_rows.pop(local, None)

    # Everything else

    def _on_call(
        self, number: int, body: tuple[Callable[..., Any], list[int], tuple[Any, ...], dict[str, Any]]
    ) -> None:
        function, slots, args, kwargs = body
        results: list[Any] = []
        for slot in slots:
            try:
                # Each env gets its own, as it would if it were alone in its process.
                result = function(self.host.envs[slot - self._first], *own(args), **own(kwargs))
                results.append(result if self._remote else own(result))
            except ENV_ERRORS as exc:
                results.append(Failure.capture(slot, _describe(function, args), exc, portable=self._remote))
        try:
            self._reply(number, results)
        except Exception:  # some result that no pickle takes
            doing = _describe(function, args)
            checked = [_portable_result(slot, doing, result) for slot, result in zip(slots, results, strict=True)]
            self._reply(number, checked)

    def _on_open_info(self, number: int, specs: Specs) -> None:
        self.host.open_info(specs)
        self._reply(number, None)

    def _on_close(self, _: int, __: Any) -> None:
        self._send(Answer.CLOSED, close_envs(self.host.envs, self._first, remote=self._remote))

    def _send_locked(self, tag: int, body: Any) -> None:
        with self._lock:
            self._send_now(tag, body)

    def _send_now(self, tag: int, body: Any) -> None:
        try:
            self._answer(tag, body)
        except Exception:
            if not isinstance(body, RowBody):
                raise
            self._answer(tag, body._replace(extras=[self._portable(extra) for extra in body.extras]))

    def _portable(self, extra: Extra) -> Extra:
        """Turn infos that no pickle takes into an error of their env, which needs a reset after that."""
        try:
            dumps(extra)
        except Exception as exc:
            given = {**extra.info, **(extra.reset_info or {})}
            keys = [key for key, value in given.items() if not can_pickle(value)]
            problem = VecEnvError(f"its info{keys} cannot be pickled ({exc}): leave it out, or use DummyVecEnv")
            failure = Failure.capture(extra.slot, "step", problem, portable=True)
            return self.host.fail([extra.slot - self._first], failure)[0]
        return extra


def close_envs(envs: Sequence[Any], first: int, *, remote: bool) -> list[Failure]:
    """Close every env, whatever the others do."""
    failures = []
    for slot, env in enumerate(envs, first):
        try:
            env.close()
        except ENV_ERRORS as exc:
            failures.append(Failure.capture(slot, "close", exc, portable=remote))
    return failures


def _describe(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    return f"{name_for(function)}({', '.join(map(repr, args[:1]))})"


def _portable_result(slot: int, doing: str, result: Any) -> Any:
    try:
        dumps(result)
    except Exception as exc:
        problem = VecEnvError(f"{doing} of env {slot} gives a {type(result).__name__} that cannot be pickled ({exc})")
        return Failure.capture(slot, doing, problem, portable=True)
    return result
