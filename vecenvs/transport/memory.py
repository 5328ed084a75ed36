"""Memory and semaphores that any process of this machine can open, and that are gone after a kill of all of them."""

from __future__ import annotations

# CPython's own semaphores. By name any process of the machine can open them, not only a child of this one.
import _multiprocessing
import contextlib
import ctypes
import errno
import io
import mmap
import os
import secrets
import tempfile
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from vecenvs.errors import BackendUnavailable

_SEMAPHORE = 1  # the kind that counts, as in multiprocessing.synchronize
_MAX = _multiprocessing.SemLock.SEM_VALUE_MAX


TAG = "VECENVS_TAG"
"""The environment variable with which programs tell their semaphores from others: 8 characters, for macOS's sake."""
SCARCE = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EROFS}
"""Errors of a system that has no more descriptors, processes, memory or room."""
_LARGE = 64 << 20  # bytes; less than that is not worth a look at what is free


def free_memory() -> float:
    """Return how many bytes of memory this process can still get, swap included; infinity where this is unknown."""
    found = float("inf")
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kibibytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        found = 1024.0 * (kibibytes["MemAvailable"] + kibibytes["SwapFree"])
    with contextlib.suppress(OSError, ValueError):  # of a container; "max" where it has no limit
        found = min(found, float(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return found


def check_system(engine: str) -> None:
    """Raise BackendUnavailable where a process cannot open the semaphores of another one: on Windows."""
    if not hasattr(os, "fork"):  # Windows
        raise BackendUnavailable(
            f"{engine} needs named POSIX semaphores, which Windows does not have. Use backend='dummy' there, or the "
            "Windows Subsystem for Linux"
        )


class Address(NamedTuple):
    """Where a `Segment` is found: a path (of a descriptor under /proc, or of a file) and its size in bytes."""

    path: str
    size: int


class Segment:
    """Zeroed memory, shared with every process that opens its address.

    On Linux it is an anonymous file, which is gone with the last process that maps it. Elsewhere, and where other
    processes cannot look into /proc, it is a temporary file. Call `forget()` once all processes have opened it: that
    closes the descriptor, and unlinks the file. Repeatable.
    """

    def __init__(self, size: int) -> None:
        size = max(size, mmap.PAGESIZE)
        if size > _LARGE and size > (free := free_memory()):  # the system would only notice when it is written to
            raise OSError(
                errno.ENOMEM, f"{size / 2**30:.1f} GiB of shared memory, where {free / 2**30:.1f} GiB are free"
            )
        # A file object closes its descriptor, and it has it from the call into C on that makes it. So an exception of a
        # signal's handler (Ctrl-C) leaves none open.
        files: list[io.FileIO] = []
        unlinked = hasattr(os, "memfd_create") and _shows_descriptors()
        if unlinked:
            files.extend(map(io.FileIO, map(os.memfd_create, ("vecenvs",)), ("r+",)))
            path = f"/proc/{os.getpid()}/fd/{files[0].fileno()}"
        else:
            fd, path = tempfile.mkstemp(prefix="vecenvs-")
            files.append(io.FileIO(fd, "r+"))
        self.address = Address(path, size)
        # Also runs where an exception keeps the caller from it.
        self.forget = weakref.finalize(self, _close, files[0], None if unlinked else path, os.getpid())
        files[0].truncate(size)
        if not unlinked and hasattr(os, "posix_fallocate"):  # else a full disk would be a SIGBUS, in any process
            try:
                os.posix_fallocate(files[0].fileno(), 0, size)
            except OSError as exc:
                if exc.errno in SCARCE:
                    raise OSError(exc.errno, f"{exc.strerror}, for shared memory, here the file {path}") from None
        self.buffer = memoryview(mmap.mmap(files[0].fileno(), size))


def _close(file: io.FileIO, path: str | None, maker: int) -> None:
    """Close a segment's descriptor, and unlink its file, if it has one: `Segment.forget`."""
    file.close()
    if path is not None and os.getpid() == maker:
        os.unlink(path)


def _shows_descriptors() -> bool:
    """Tell whether /proc shows our files to other processes of this user: not after a change of the user."""
    try:
        return os.stat(f"/proc/{os.getpid()}/fd").st_uid == os.geteuid()
    except OSError:
        return False


def open_segment(address: Address) -> memoryview:
    """Map a segment that another process made. FileNotFoundError or PermissionError if it is not reachable here."""
    fd = os.open(address.path, os.O_RDWR)
    try:
        return memoryview(mmap.mmap(fd, address.size))
    finally:
        os.close(fd)


def new_name() -> str:
    """Return an unused name for a semaphore. It begins with the tag of the environment, if there is one."""
    return f"/vecenvs-{os.environ.get(TAG, '')}{secrets.token_hex(6)}"


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


# CPython's semaphores wait until an hour of the day. Where that is set back by a day meanwhile, they wait for a day.
_clockwait: Any = None
_SHORT = 0.02  # seconds for which to wait by `acquire` first: most waits are shorter, and it costs 2 us less
with contextlib.suppress(AttributeError, OSError, TypeError):  # not Linux, or before glibc 2.30
    _clockwait = ctypes.CDLL(None, use_errno=True).sem_clockwait
    _clockwait.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Timespec)


class Semaphore:
    """A counting semaphore with a name. `acquire` and `release` are CPython's own, without a layer between.

    Wait by `wait`, as `acquire` with a timeout goes by the clock of the day.
    """

    def __init__(self, name: str | None = None, *, create: bool = False) -> None:
        """Open the semaphore of this name; make a new one with `create`, or without a name."""
        self.name = new_name() if name is None else name
        if create or name is None:
            try:
                self._lock = _multiprocessing.SemLock(_SEMAPHORE, 0, _MAX, self.name, False)
            except OSError as exc:
                what = f"{exc.strerror}, for a semaphore, on Linux a file in /dev/shm"
                if exc.errno in (errno.ENOENT, errno.EACCES, errno.ENOSYS):
                    raise BackendUnavailable(f"{what}: mount a tmpfs there, or use backend='dummy'") from exc
                raise OSError(exc.errno, what) from None
        else:
            self._lock = _multiprocessing.SemLock._rebuild(0, _SEMAPHORE, _MAX, name)  # noqa: SLF001  the only way to open one
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def wait(self, seconds: float | None) -> bool:
        """Acquire the semaphore; return False if that has not worked within so many seconds."""
        long = seconds is not None and seconds > _SHORT and _clockwait is not None
        if self.acquire(True, _SHORT if long else seconds):
            return True
        if seconds is None or not long:
            return False
        end = _Timespec(*divmod(time.monotonic_ns() + int(1e9 * (seconds - _SHORT)), 10**9))
        while not self.acquire(False):
            if _clockwait(self._lock.handle, time.CLOCK_MONOTONIC, end) == 0:
                return True
            if ctypes.get_errno() != errno.EINTR:  # handlers of signals run in between
                return False
        return True


def unlink_semaphores(names: Iterable[str]) -> None:
    """Remove names. Processes that have opened a semaphore go on using it. Names already gone are no error."""
    for name in names if hasattr(_multiprocessing, "sem_unlink") else ():  # Windows has none
        try:
            _multiprocessing.sem_unlink(name)
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.EROFS):
                raise
