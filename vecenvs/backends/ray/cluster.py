"""Connect to a Ray that runs, or start one; stop only what was started here."""

from __future__ import annotations

import logging
import os
import socket
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vecenvs.cpus import usable_cores
from vecenvs.errors import BackendUnavailable
from vecenvs.pool.finalizers import close_before_hooks

# A Ray of our own is for these workers alone: no ping home, and workers at the caller's own priority.
OWN_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
KNOCKING = 5.0  # seconds for the head of a cluster to come up
OWN_ARGUMENTS: dict[str, Any] = {"include_dashboard": False, "logging_level": "error"}

_log = logging.getLogger("vecenvs")


class Connection:
    """The present connection of this process to Ray. `node` is this process's node."""

    def __init__(self) -> None:
        self._now = _node_and_job()
        self.node = self._now[0]
        self.pid = os.getpid()

    def alive(self) -> bool:
        """Tell whether the same Ray is still connected: otherwise each call would start another. False in a fork."""
        import ray

        return self.pid == os.getpid() and bool(ray.is_initialized()) and _node_and_job() == self._now


def _node_and_job() -> tuple[str, str]:
    """Return what two connections have not in common: either may be the same."""
    import ray

    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


class Session(Connection):
    """A connection to Ray, as one VecEnv sees it: made if there is none. `own`: whether Ray was started here.

    The VecEnvs of one process share what was started for them: the last one to `release` stops it. A Ray that was
    running, or connected to, before is left as it is.
    """

    # Of the Ray that this process's VecEnvs use at the moment: the caller's node and job in it, and what follows.
    _used = "", ""
    _connected = False  # whether this process's connection is ours to end
    _own = False
    _users = 0

    def __init__(self, num_workers: int | None, init_kwargs: Mapping[str, Any] | None) -> None:
        import ray

        connected = own = False
        if not ray.is_initialized():
            own = connect(num_workers, dict(init_kwargs or {}))
            connected = True
        close_before_hooks()  # Ray's ends the actors
        super().__init__()
        if self._now != Session._used:  # what others here have used has been shut down since
            Session._used, Session._connected, Session._own, Session._users = self._now, connected, own, 0
            how = "started a" if own else "joined the" if connected else "this program is connected to the"
            _log.info("%s Ray at %s", how, ray.get_runtime_context().gcs_address)
        Session._users += 1
        self._held = True
        self.own = Session._own

    def release(self) -> None:
        """Release the connection: this VecEnv needs Ray no longer. Repeatable."""
        if self._held and self.pid == os.getpid():
            self._held = False
            if self.alive():  # else its Ray is gone, and the count is another one's
                Session._users -= 1
                if not Session._users:
                    self.shut_down()

    @classmethod
    def shut_down(cls) -> None:
        """End the connection, and with it a Ray that was started here, if it is ours. Repeatable."""
        import ray

        if cls._connected:
            cls._connected = cls._own = False
            ray.shutdown()


def connect(num_workers: int | None, kwargs: dict[str, Any]) -> bool:
    """Join the cluster that `address` or RAY_ADDRESS names, or that `ray start` has begun here; else start one.

    Tells whether one was started.
    """
    import ray

    quiet = {"logging_level": OWN_ARGUMENTS["logging_level"], **kwargs}
    address = kwargs.get("address", os.environ.get("RAY_ADDRESS"))
    up = False
    try:
        if address is not None:
            _knock(str(address))
        elif _is_stale(note := _address_file(kwargs)):
            _log.warning("%s names a Ray that has gone: this program starts one of its own", note)
            kwargs = {**kwargs, "address": "local"}
        up = True
        return _init(quiet, kwargs, num_workers)
    except (ConnectionError, ray.exceptions.AuthenticationError) as exc:
        where = f"the Ray at {address}" if address is not None else "the Ray that runs on this machine"
        raise BackendUnavailable(
            f"this program cannot join {where} ({shorten(str(exc))}). Is it up (`ray status`), and is that its "
            f"address (RAY_ADDRESS, ray_init_kwargs)?{_about_tokens(address) if up else ''}"
        ) from exc


def _about_tokens(address: str | None) -> str:
    """Return what this program needs for a cluster with token authentication, and has not set yet."""
    copied = "a copy of ~/.ray/auth_token of the machine on which it was begun"
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        return (
            f" Token authentication is on here (RAY_AUTH_MODE=token): if the cluster was begun with it, this machine "
            f"needs {copied}; if without, set RAY_AUTH_MODE=disabled"
        )
    left = Path.home() / ".ray" / "auth_token"
    if address is None and left.exists() and not os.environ.get("RAY_AUTH_MODE"):  # Ray uses it where none is given
        return (
            f" Set RAY_AUTH_MODE=disabled if the cluster was begun without token authentication, as by `ray start`: "
            f"{left} is of a Ray that was started here before. If it was begun with it, this machine needs {copied}"
        )
    return (
        " If the cluster was begun with token authentication, begin this program with RAY_AUTH_MODE=token (where an "
        f"address is given Ray uses no token by itself), on a machine that has {copied}"
    )


def _init(quiet: dict[str, Any], kwargs: dict[str, Any], num_workers: int | None) -> bool:
    import ray

    if kwargs.get("address", "local") != "local":
        ray.init(**quiet)
        return False
    # Only for the processes that are started now.
    added = {name: value for name, value in OWN_ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        # Not address="auto": that would join the private Ray of any other program that runs here, and die with it.
        ray.init(**{**OWN_ARGUMENTS, "num_cpus": max(usable_cores(), num_workers or 1), **kwargs})
    except ValueError:  # there is a cluster, whose number of CPUs is fixed
        ray.init(**quiet)
        return False
    finally:
        for name in added:
            del os.environ[name]
    return True


def _address_file(kwargs: Mapping[str, Any]) -> Path:
    """Return the file in which `ray start` notes where its cluster is."""
    folder = kwargs.get("_temp_dir")
    if folder is None:
        temporary = os.environ.get("TMPDIR", "/tmp") if sys.platform == "linux" else "/tmp"
        folder = Path(os.environ.get("RAY_TMPDIR", temporary), "ray")
    return Path(folder, "ray_current_cluster")


def _is_stale(note: Path) -> bool:
    """Tell whether nothing listens at the address in a file, left by a Ray that crashed. Ray would try for minutes."""
    try:
        _knock(note.read_text(encoding="utf-8").strip())
    except ConnectionError:
        return True
    except (OSError, UnicodeDecodeError):  # none is noted
        return False
    return False


def _knock(address: str) -> None:
    """Raise ConnectionError if nothing listens at `host:port`: Ray itself would go on trying for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    end = time.monotonic() + KNOCKING
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCKING).close()
            return
        except OSError as exc:
            if time.monotonic() >= end:
                raise ConnectionError(f"nothing listens there: {exc}") from exc
            time.sleep(0.5)


def import_paths() -> list[str]:
    """Return where the caller's imports look, for actors to look there too."""
    return [os.path.abspath(path) for path in sys.path if "site-packages" not in path]


def room_for_workers(num_cpus: float) -> int:
    """Return the number of workers of `num_cpus` each for which the cluster has room in all."""
    import ray

    return int(ray.cluster_resources().get("CPU", 1.0) / num_cpus) if num_cpus else usable_cores()


def shorten(words: str) -> str:
    """Return the first sentence or so of what Ray says of an actor's end, without the list of its properties."""
    lines = [line.strip() for line in words.splitlines() if line.strip() and not line.startswith("\t")]
    telling = [line for line in lines if "dead because" in line or "node" in line.lower()] or lines
    return textwrap.shorten(telling[0], 200, placeholder=" ...") if telling else ""


def check_init_kwargs(kwargs: Any) -> None:
    """Refuse what is no mapping of arguments of `ray.init`."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"ray_init_kwargs must be a mapping of arguments of ray.init, or None, not {kwargs!r}")


def check_ray() -> None:
    """Raise BackendUnavailable, with the remedy, if Ray is not installed."""
    try:
        from ray import remote  # noqa: F401  # a folder named ray, which Python imports as a package, has none
    except ImportError as exc:
        raise BackendUnavailable(f"the ray backend needs Ray ({exc}): pip install ray") from exc
