"""The worker that needs no transport: its envs live in the caller's process, which steps them when it asks for rows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gymnasium import Env

from vecenvs.board import Board
from vecenvs.making import make_envs
from vecenvs.protocol import Answer, Command
from vecenvs.transport import Message, Transport
from vecenvs.worker import Worker, close_envs

_AWAIT_RESET, _STEP = int(Command.AWAIT_RESET), int(Command.STEP)


class LocalTransport(Transport):
    """Queues commands and carries them out, one at a time, in `get`."""

    inline = True

    def __init__(self, env_fns: Sequence[Callable[[], Env[Any, Any]]], first: int, autoreset: str) -> None:
        self._first = first
        self._autoreset = autoreset
        self._commands: deque[tuple[int, Any]] = deque()
        self._answers: deque[Message] = deque()
        self._at_once = 0  # commands that have not been queued
        self._answered = threading.Event()  # for the threads of async resets, which answer by themselves
        self._worker: Worker | None = None
        self._envs, made = make_envs(env_fns, first, remote=False)
        self._answers.append((Answer.MADE, made))

    def attach(self, board: Board) -> None:
        asynchronous = self._autoreset == "async"

        def answer(tag: int, body: object) -> None:
            self._answers.append((tag, body))
            if asynchronous:
                self._answered.set()

        self._worker = Worker(self._envs, self._first, board, self._autoreset, answer, remote=False)

    def put(self, tag: int, body: object = None) -> None:
        if tag & 0xFF == _AWAIT_RESET and self._worker is not None:
            self._worker.handle(tag, body)  # only asks for what a thread is doing
            self._at_once += 1
        else:
            self._commands.append((tag, body))

    def sent(self) -> int | None:
        return len(self._commands) + self._at_once

    def get(self, timeout: float | None) -> Message | None:
        answers, worker = self._answers, self._worker
        if answers or timeout == 0:
            return self._first_answer()
        if self._commands and worker is not None:
            tag, body = self._commands[0]
            del self._commands[0]
            if tag == _STEP:
                try:
                    message = worker.step(body)
                except BaseException as exc:  # a Ctrl-C, and not while an env stepped
                    answers.append(worker.break_off(tag, exc))
                    raise
                if not worker.host.unsettled:
                    return message
                answers.append(message)
                worker.settle()
            elif not worker.handle(tag, body):
                self._worker, self._envs = None, []
        elif not answers:
            self._answered.clear()
            if not answers:
                self._answered.wait(timeout)
        return self._first_answer()

    def _first_answer(self) -> Message | None:
        if not self._answers:
            return None
        message = self._answers[0]
        del self._answers[0]  # after `popleft`, a call, the exception of a signal's handler might come
        return message

    def exit_status(self) -> tuple[bool, int | None]:
        return False, None

    def stop(self, grace: float) -> None:
        envs, self._envs, self._worker = self._envs, [], None
        close_envs(envs, self._first, remote=False)
