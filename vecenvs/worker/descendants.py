"""What envs have started (children, daemons, simulators) ends with their worker if that is killed, or its caller.

Linux alone. A worker has a mark that all processes inherit which it starts, directly or not, and that they keep as
orphans and in sessions of their own: a time limit of real-time scheduling (RLIMIT_RTTIME), far too long to have an
effect. /proc shows it. Process groups would not do: Ctrl-Z has to stop envs, too.

The caller ends what a killed worker has left. Where the caller itself is killed, a guardian does: a process of this
file's last lines, one per caller, which needs none of the libraries, interpreters and locks that a worker may hang in.
A Ray actor, which may be on another machine, has a guardian of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Collection

with contextlib.suppress(ImportError):  # on Windows there is none
    import resource  # before each fork would

_LEAST = 1 << 62  # microseconds: no limit that anybody sets
GRACE = 5.0  # seconds for workers to end on their own after their caller


def new_mark() -> int:
    """Return an unused mark."""
    return _LEAST + int.from_bytes(os.urandom(6), "big")


def put_on(mark: int) -> None:
    """Mark this process, and what it starts from now on; by 0, remove the mark that it has inherited."""
    with contextlib.suppress(NameError, AttributeError, OSError, ValueError):  # not Linux, or not allowed
        hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark or hard, hard))


def find(marks: Collection[int]) -> set[int]:
    """Return the processes that have one of these marks."""
    found: set[int] = set()
    names: list[str] = []
    with contextlib.suppress(OSError):  # not Linux, or no descriptor is left
        names = os.listdir("/proc")
    for name in names:
        with contextlib.suppress(OSError, ValueError):  # it has ended, or there is no limit
            with open(f"/proc/{int(name)}/limits", "rb") as file:
                _, _, text = file.read().partition(b"Max realtime timeout")
            if int(text.split(None, 1)[0]) in marks:
                found.add(int(name))
    return found


def kill(marks: Collection[int]) -> None:
    """Kill the processes that have one of these marks, and what they start meanwhile."""
    killed: set[int] = set()
    while new := find(marks) - killed:
        for pid in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= new


class Guardian:
    """A process that kills what has the marks that were `added`, and not `removed`, once this process has ended.

    It is no child of this one if it is to be an `orphan`: Ray ends the children of its actors.
    """

    def __init__(self, *, orphan: bool = False) -> None:
        self.orphan = orphan
        self._lock = threading.Lock()
        self._marks: set[int] = set()
        self._pipe = -1

    def add(self, mark: int) -> None:
        """Guard this mark. To be called within `process.child_environment`, as it may start the guardian."""
        with self._lock:
            self._marks.add(mark)
            if not self._tell(f"+{mark}\n"):
                self._start()
                self._tell("".join(f"+{each}\n" for each in self._marks))

    def remove(self, mark: int) -> None:
        """Guard this mark no more: its worker has ended."""
        with self._lock:
            self._marks.discard(mark)
            self._tell(f"-{mark}\n")

    def forget(self) -> None:
        """In a fork, leave the guardian to the parent."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self.__init__(orphan=self.orphan)  # type: ignore[misc]

    def _tell(self, text: str) -> bool:
        try:
            return self._pipe >= 0 and os.write(self._pipe, text.encode()) > 0
        except BrokenPipeError:  # somebody has ended it
            return False

    def _start(self) -> None:
        from multiprocessing import spawn, util  # the guardian itself is to start fast

        if self._pipe >= 0:
            os.close(self._pipe)
        theirs, self._pipe = os.pipe()
        program = [spawn.get_executable(), "-I", "-S", __file__, str(theirs), *["orphan"] * self.orphan]
        try:
            child = util.spawnv_passfds(os.fsencode(program[0]), program, [theirs])
            if self.orphan:
                os.waitpid(child, 0)
        finally:
            os.close(theirs)


guardian = Guardian()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=guardian.forget)


def release(mark: int, *, killed: bool) -> None:
    """End what envs have started whose worker has been killed. Envs that were closed have seen to that."""
    if killed:
        kill([mark])
    guardian.remove(mark)


def _guard(pipe: int, *, orphan: bool) -> None:
    if orphan and os.fork():
        os._exit(0)
    os.setsid()  # so that what kills the caller's group or session spares it
    os.chdir("/")
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(silence, descriptor)
    put_on(0)
    marks: set[int] = set()
    with open(pipe, encoding="ascii") as lines:
        for line in lines:
            (marks.add if line[0] == "+" else marks.discard)(int(line[1:]))
    end = time.monotonic() + GRACE
    while find(marks) and time.monotonic() < end:
        time.sleep(0.1)
    kill(marks)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), orphan=len(sys.argv) > 2)
