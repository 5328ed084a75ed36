"""Run a command in a terminal, and press Ctrl-C there."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def until_ctrl_c(*arguments: str, word: bytes) -> tuple[bytes, bytes]:
    """Run `python -m vecenvs` until its stderr, a terminal, has a word three times; send Ctrl-C to the whole group.

    Returns:
        What the terminal has, and stdout.
    """
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "vecenvs", *arguments],
        stdout=subprocess.PIPE,
        stderr=inside,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        start_new_session=True,
    )
    os.close(inside)
    shown = b""
    try:
        deadline = time.monotonic() + 40
        while shown.count(word) < 3 and time.monotonic() < deadline:
            if select.select([terminal], [], [], 1.0)[0]:
                shown += os.read(terminal, 4096)
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        while select.select([terminal], [], [], 0.2)[0]:
            try:
                shown += os.read(terminal, 4096)
            except OSError:
                break
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert b"interrupted" in shown
    assert b"Traceback" not in shown
    assert process.returncode == 130
    return shown, out
