"""Raise an exception, as of a signal's handler, at any bytecode of some files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from vecenvs.worker import process


class Interrupt(BaseException):
    """What a signal's handler raises."""


def interrupted(call: Callable[[], object], bytecodes: int, files: Collection[str | None]) -> bool:
    """Call, and raise after so many bytecodes of these files; tell whether that many came."""
    left, own = bytecodes, os.getpid()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= not process._handlers  # else signals are held back, and no handler raises
            if left < 0 and os.getpid() == own:  # not in a worker
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return False
