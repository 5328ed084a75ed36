"""What workers log and print: records in the caller's format, and with `log_dir` all of it in a file per worker."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from vecenvs.errors import describe_indices

_TAIL = 4096  # bytes of a file in which the last lines are looked for, and how many of these are shown
_LINES = 10


class Format(NamedTuple):
    """How the caller's root logger writes records."""

    level: int
    text: str
    date: str | None
    style: str

    @classmethod
    def of(cls, handler: logging.Handler) -> Format:
        """Return the format of a handler."""
        style, formatter = getattr(handler.formatter, "_style", None), handler.formatter
        kinds = {"{": logging.StrFormatStyle, "$": logging.StringTemplateStyle}
        mark = next((mark for mark, kind in kinds.items() if isinstance(style, kind)), "%")
        text = getattr(formatter, "_fmt", None) or "%(message)s"
        return cls(handler.level, text, getattr(formatter, "datefmt", None), mark)

    def new_handler(self) -> logging.Handler:
        """Return a handler that writes to stderr."""
        handler = logging.StreamHandler()
        handler.setLevel(self.level)
        handler.setFormatter(logging.Formatter(self.text, self.date, self.style))  # type: ignore[arg-type]
        return handler


class Output(NamedTuple):
    """What a worker is told of this when it is launched. `file` is "" without a log_dir."""

    prefix: str
    file: str
    start: int  # the size of the file at the launch
    levels: dict[str, int]  # by logger
    format: Format | None  # None if the caller has no handlers: then Python's handler of last resort writes

    @classmethod
    def of_caller(cls, worker: int, shard: range, log_dir: str) -> Output:
        """Return what the worker of these slots is told by a caller that logs as this process does."""
        root = logging.getLogger()
        named = {name: each for name, each in root.manager.loggerDict.items() if isinstance(each, logging.Logger)}
        levels = {name: each.level for name, each in {**named, "": root}.items() if each.level}
        chosen = sorted(root.handlers, key=lambda each: type(each) is not logging.StreamHandler)[:1]
        file = os.path.join(log_dir, f"worker-{worker}.log") if log_dir else ""
        start = os.path.getsize(file) if os.path.exists(file) else 0
        prefix = f"[worker {worker} envs {describe_indices(shard)}] "
        return cls(prefix, file, start, levels, Format.of(chosen[0]) if chosen else None)

    def before(self, env_fns: Iterable[Any], *, forked: bool) -> Iterator[Any]:
        """Yield env functions, once this process logs and prints as told. What it cannot open is the first one's fault.

        A fork has the caller's handlers: these get the prefix.
        """
        if self.file:
            self._redirect()
        root = logging.getLogger()
        if self.format is not None and (self.file or not forked):
            root.handlers[:] = [self.format.new_handler()]
        for name, level in self.levels.items():
            logging.getLogger(name or None).setLevel(level)
        loggers = [root, *(each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))]
        last = [logging.lastResort] if logging.lastResort is not None else []
        for handler in {handler for each in loggers for handler in each.handlers}.union(last):
            handler.setFormatter(_Prefixed(self.prefix, handler.formatter or logging.Formatter()))
        yield from env_fns

    def _redirect(self) -> None:
        os.makedirs(os.path.dirname(self.file), exist_ok=True)
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for number in (1, 2):
            os.dup2(descriptor, number)
        os.close(descriptor)
        sys.stdout, sys.stderr = (
            open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            for number in (1, 2)
        )

    def last_lines(self) -> str:
        """Return the last lines in the file since the launch, as far as this machine has it."""
        if not (self.file and os.path.exists(self.file)):
            return ""
        with open(self.file, "rb") as file:
            file.seek(max(self.start, os.path.getsize(self.file) - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join([line for line in lines if line.strip()][-_LINES:])


class _Prefixed(logging.Formatter):
    def __init__(self, prefix: str, inner: logging.Formatter) -> None:
        super().__init__()
        self._prefix, self._inner = prefix, inner

    def format(self, record: logging.LogRecord) -> str:
        return self._prefix + self._inner.format(record)
