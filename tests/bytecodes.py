"""Raise an exception, as a signal's handler does, at any bytecode of some files after which CPython runs handlers."""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from vecenvs.worker import process

CALLS = frozenset(name for name in dis.opmap if name.startswith("CALL") and "INTRINSIC" not in name)
BACK = frozenset(name for name in dis.opmap if name.startswith(("JUMP_BACKWARD", "JUMP_ABSOLUTE")))
BEGIN = "RESUME"


class Interrupt(BaseException):
    """What a signal's handler raises."""


def runs_handlers(before: str) -> bool:
    """Tell whether CPython looks for signals after this instruction: at the begin of a function, a call and a loop."""
    return before == BEGIN or before in CALLS or before in BACK


def interrupted(call: Callable[[], object], bytecodes: int, files: Collection[str | None]) -> bool:
    """Call, and raise after so many of these bytecodes of these files; tell whether that many came."""
    left, own = bytecodes, os.getpid()
    last: dict[FrameType, str] = {}  # the instruction before

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_back in last and frame.f_code.co_name != "__init__":  # a class is called by way of C
            last[frame.f_back] = ""  # it goes on without a look at signals
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        last[frame] = BEGIN
        return trace_opcode

    def trace_opcode(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "return":
            last.pop(frame, None)
        elif event == "opcode":
            before = last.get(frame, "")
            last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if runs_handlers(before) and not process._handlers:  # else signals are held back
                left -= 1
                if left < 0 and os.getpid() == own:  # not in a worker
                    raise Interrupt
        return trace_opcode

    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
        last.clear()
    return False
