"""Find leaks of a VecEnv: processes, shared-memory files, file descriptors.

Processes are found by descent from this one, or by a token in the environment they were started with, which also
finds orphans. The semaphores that all of them make have a tag in their names, so that those of others, which test at
the same time, are not taken for theirs. On systems without /proc and /dev/shm the checks that need them find nothing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from vecenvs.transport.memory import TAG

SHM = Path("/dev/shm")
EXEMPT = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "vecenvs/worker/descendants.py")
"""Words in the command lines of processes that may stay: Python's own and the guardian, one of each per program."""
FOREIGN = ("mpich_shm_", "sm_segment.", "vader_segment.", "plasma")
"""Prefixes of the names of files that MPI libraries and Ray have in /dev/shm. These files are ignored."""
SEMAPHORES = "sem.vecenvs-"
"""What the files of the semaphores of all VecEnvs begin with."""


def child_processes(exempt: Collection[str] = EXEMPT) -> dict[int, str]:
    """Find the living descendants of this process, and its zombies.

    Args:
        exempt: words in the command lines of processes to leave out.

    Returns:
        {pid: command line}.
    """
    return _described(_descendants(), exempt)


def _described(pids: Collection[int], exempt: Collection[str]) -> dict[int, str]:
    if not pids:
        return {}
    import psutil

    found = {}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            zombie = process.status() == psutil.STATUS_ZOMBIE
            if zombie and process.ppid() != os.getpid():
                continue  # its parent (the fork server) will reap it
            words = "zombie" if zombie else " ".join(process.cmdline())
            if not any(word in words for word in exempt) or _is_worker_of_forkserver(process):
                found[pid] = words
    return found


def processes_with(name: str, value: str) -> dict[int, str]:
    """Find the processes started with `name=value` in their environment, orphans included.

    Args:
        name: the name of the environment variable.
        value: its value.

    Returns:
        {pid: command line}.
    """
    import psutil

    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(name) == value:
                found[process.pid] = " ".join(process.cmdline())
    return found


def tag_names() -> str:
    """Have the names of the semaphores of VecEnvs made from now on, here and in programs started here, begin alike.

    Returns:
        What their files' names in /dev/shm begin with.
    """
    return f"{SEMAPHORES}{os.environ.setdefault(TAG, secrets.token_hex(4))}"


def shared_memory_files() -> frozenset[str]:
    """Return the names in /dev/shm: shared-memory segments, and named semaphores as "sem.*".

    The semaphores of VecEnvs that other programs have made are left out: see `tag_names`.
    """
    ours = tag_names()
    names = os.listdir(SHM) if SHM.is_dir() else []
    return frozenset(name for name in names if name.startswith(ours) or not name.startswith((SEMAPHORES, *FOREIGN)))


def files_left(before: Collection[str]) -> list[str]:
    """Find new shared-memory files, without those that only other programs use.

    Args:
        before: an earlier result of `shared_memory_files`.

    Returns:
        The names in /dev/shm that are not in `before`.
    """
    return [name for name in shared_memory_files().difference(before) if not _in_use_elsewhere(name)]


def open_files() -> dict[str, int]:
    """Count the targets of this process's file descriptors.

    Returns:
        {target: number}, such as {"/memfd:x (deleted)": 1}.
    """
    counts: dict[str, int] = {}
    for link in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            target = os.readlink(link).partition(":[")[0]
            counts[target] = counts.get(target, 0) + 1
    return counts


@contextlib.contextmanager
def no_leaks(exempt: Collection[str] = EXEMPT, patience: float = 20.0) -> Iterator[None]:
    """Check that processes and shared-memory files made in the block are gone after it.

    Files that only other programs use do not count.

    Args:
        exempt: words in the command lines of processes that may stay.
        patience: seconds until they must be gone. A kill, for one, takes a moment.

    Raises:
        AssertionError: something is left behind.
    """
    processes, files = {*_descendants()}, shared_memory_files()
    suspects: set[str] = set()

    def left_behind() -> list[str]:
        found = _described({*_descendants()} - processes, exempt)
        new = [f"process {pid} ({words})" for pid, words in found.items()]
        # Files that appear after the first look belong to another program.
        suspects.intersection_update(shared_memory_files())
        return new + [str(SHM / name) for name in suspects if not _in_use_elsewhere(name)]

    yield
    suspects.update(shared_memory_files() - files)
    # Semaphores of other programs exist for a moment only. Searching for their users takes longer than waiting.
    wait_until_empty(lambda: suspects & shared_memory_files(), 0.1)
    if left_behind():
        gc.collect()  # a traceback's frames may have kept the last reference
    left = wait_until_empty(left_behind, patience)
    assert not left, f"left behind: {', '.join(left)}"


def wait_until_empty(look: Callable[[], Collection[Any]], patience: float) -> Collection[Any]:
    """Call a function until its result is empty.

    Args:
        look: the function.
        patience: the longest time to wait, in seconds.

    Returns:
        The last result.
    """
    end = time.monotonic() + patience
    while (found := look()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def _descendants() -> list[int]:
    """Return the pids of all descendants of this process, zombies included.

    The kernel's lists of children take microseconds. psutil reads the status of every process of the machine.
    """
    if not os.path.exists("/proc/thread-self/children"):
        import psutil

        return [process.pid for process in psutil.Process().children(recursive=True)]
    found = [os.getpid()]
    for pid in found:  # it grows in the loop
        with contextlib.suppress(OSError):  # the process has ended
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as children:
                    found += map(int, children.read().split())
    return found[1:]


def _is_worker_of_forkserver(process: Any) -> bool:
    """Tell whether it is a child of a fork server. These have the command line of the server."""
    parent = process.parent()
    return parent is not None and parent.pid != os.getpid() and "forkserver" in " ".join(parent.cmdline())


def _in_use_elsewhere(name: str) -> bool:
    """Return whether processes map the file `name`, none of which descends from this one; not if it has our tag.

    Files are compared by their numbers: the process that created a semaphore maps it under glibc's temporary name.
    """
    if name.startswith(tag_names()):
        return False
    try:
        found = (SHM / name).stat()
    except FileNotFoundError:  # it has been removed
        return False
    numbers = f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x} {found.st_ino} "
    ours = {os.getpid(), *_descendants()}
    users = set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc") if SHM.is_dir() else [])):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if numbers in Path(f"/proc/{pid}/maps").read_text():
                users.add(pid)
    return bool(users) and not users & ours
