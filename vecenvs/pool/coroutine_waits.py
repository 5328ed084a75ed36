"""Wait in a thread while the event loop of the caller goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


async def wait_in_thread(wait: Callable[[Callable[[], bool]], None]) -> None:
    """Call `wait(cancelled)` in a thread. Whatever happens, this returns or raises after `wait` has ended.

    If this is cancelled, `cancelled()` is True, and `wait` has to end soon.
    """
    over = False

    def cancelled() -> bool:
        return over

    waiting = asyncio.get_running_loop().run_in_executor(None, wait, cancelled)
    try:
        await asyncio.shield(waiting)
    finally:
        over = True
        while not waiting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([waiting])
        waiting.exception()  # one that comes after a cancellation has been seen, too
