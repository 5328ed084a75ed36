"""Which Ray a program comes to, with token authentication and without: by `ray start`, `ray.init` and RAY_ADDRESS."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from ray_session import ENVIRONMENT, ROOT, no_leaks  # noqa: F401

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]  # each begins a Ray or two

RAY = str(Path(sys.executable).with_name("ray"))
TOKEN = "0123456789abcdef" * 3
LEAST = ["--num-cpus=1", f"--object-store-memory={80 * 2**20}", "--disable-usage-stats"]
HEAD = ["--head", "--include-dashboard=false"]

PROGRAM = """
import logging, os, sys
logging.basicConfig(level="INFO", format="%(name)s: %(message)s", stream=sys.stdout)
import ray
from vecenvs.backends.ray import RayVecEnv
from vecenvs.errors import BackendUnavailable
from vecenvs.testing.envs import CountingEnv
def make():
    return RayVecEnv([CountingEnv] * 2, 1, actor_options={"num_cpus": 0.1})
try:
    if "INIT" in os.environ:
        ray.init(os.environ["INIT"], logging_level="error")
    with make() as vec, make() as another:
        vec.reset()
        assert vec.step([0, 0])[0][:, 2].tolist() == [1, 1]
        print("nodes:", len(ray.nodes()))
except BackendUnavailable as exc:
    print("refused:", exc)
"""


class Machine:
    """A home directory, a folder for Ray's files, and what is set in the environment: another machine, nearly."""

    def __init__(self, folder: str, token: str | None = None, **environment: str) -> None:
        self.home = Path(folder)
        if token is not None:
            (self.home / ".ray").mkdir()
            self.token.write_text(token)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.environment = {**inherited, **ENVIRONMENT, "HOME": folder, "RAY_TMPDIR": folder, **environment}
        if "RAY_AUTH_MODE" not in environment:
            del self.environment["RAY_AUTH_MODE"]

    @property
    def token(self) -> Path:
        return self.home / ".ray" / "auth_token"

    def run(self, **environment: str) -> str:
        """Run the program above; return what it wrote."""
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**self.environment, **environment},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=55,
            check=False,
        )
        assert found.returncode == 0, found.stdout
        return found.stdout

    @contextmanager
    def started(self, *arguments: str) -> Iterator[None]:
        """Have `ray start` run, with what it starts."""
        log = self.home / "ray_start.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [RAY, "start", "--block", *arguments, *LEAST],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            end = time.monotonic() + 40.0
            while "Ray runtime started" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@contextmanager
def machine(token: str | None = None, **environment: str) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:  # sockets want short paths
        yield Machine(folder, token, **environment)


SOON = {"RAY_NUM_REDIS_GET_RETRIES": "2"}  # Ray tries to get in for some 20 s otherwise


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


def test_a_ray_of_its_own_has_a_token() -> None:
    """Ray sees to that; said once in the log, though there are two VecEnvs."""
    with machine() as here:
        written = here.run()
        assert written.count("vecenvs: started a Ray at ") == 1
        assert "vecenvs: joined" not in written
        assert here.token.exists()


def test_the_note_of_a_ray_that_has_crashed() -> None:
    """Ray itself would look for it for minutes."""
    with machine(RAY_AUTH_MODE="disabled") as here:
        note = here.home / "ray" / "ray_current_cluster"
        note.parent.mkdir()
        note.write_text(f"127.0.0.1:{free_port()}")
        written = here.run()
        assert f"vecenvs: {note} names a Ray that has gone" in written, written
        assert written.count("vecenvs: started a Ray at ") == 1, written
        assert "nodes: 1" in written


def test_a_cluster_without_authentication() -> None:
    """As `ray start` begins one where there is no token. It writes none."""
    with machine() as here:
        port = free_port()
        with here.started(*HEAD, f"--port={port}"):
            assert not here.token.exists()
            address = f"127.0.0.1:{port}"
            for environment in ({}, {"RAY_ADDRESS": address}):
                written = here.run(**environment)
                assert written.count("vecenvs: joined the Ray at ") == 1, written
                assert f":{port}\n" in written
            written = here.run(INIT=address)
            assert written.count("vecenvs: this program is connected to the Ray at ") == 1, written
            written = here.run(RAY_ADDRESS=address, RAY_AUTH_MODE="token")
            assert "refused: this program cannot join the Ray at" in written
            assert "if without, set RAY_AUTH_MODE=disabled" in written


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Machine, str]]:
    """Begin a cluster by `ray start` where there is a token; return it with its address."""
    with machine(TOKEN) as here:
        port = free_port()
        with here.started(*HEAD, f"--port={port}"):
            yield here, f"127.0.0.1:{port}"


def test_a_token_is_used_where_the_cluster_is_found(guarded: tuple[Machine, str]) -> None:
    here, _ = guarded
    assert "joined the Ray at " in here.run()


def test_a_token_is_used_for_an_address_if_told(guarded: tuple[Machine, str]) -> None:
    here, address = guarded
    assert "joined the Ray at " in here.run(RAY_ADDRESS=address, RAY_AUTH_MODE="token")
    assert "is connected to the Ray at " in here.run(INIT=address, RAY_AUTH_MODE="token")


def test_who_is_refused_is_told_the_mode(guarded: tuple[Machine, str]) -> None:
    """Not to copy the token, which is there."""
    here, address = guarded
    written = here.run(RAY_ADDRESS=address, **SOON)
    assert f"refused: this program cannot join the Ray at {address}" in written, written
    assert "begin this program with RAY_AUTH_MODE=token" in written


def test_who_is_refused_is_told_of_the_token(guarded: tuple[Machine, str]) -> None:
    """Where there is none, or another one."""
    _, address = guarded
    with machine(RAY_AUTH_MODE="token") as elsewhere:
        written = elsewhere.run(RAY_ADDRESS=address, **SOON)
        assert "this machine needs a copy of ~/.ray/auth_token" in written, written
    with machine("other" * 10, RAY_AUTH_MODE="token") as elsewhere:
        written = elsewhere.run(RAY_ADDRESS=address, **SOON)
        assert "this machine needs a copy of ~/.ray/auth_token" in written, written


def test_the_recipe_of_the_documentation() -> None:
    """RAY_AUTH_MODE=token and the same token everywhere: the head, another node, a program on either."""
    with machine(RAY_AUTH_MODE="token") as here:
        subprocess.run([RAY, "get-auth-token", "--generate"], env=here.environment, check=True, timeout=30,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        port = free_port()
        address = f"127.0.0.1:{port}"
        with (
            machine(here.token.read_text(), RAY_AUTH_MODE="token") as there,
            here.started(*HEAD, f"--port={port}"),
            there.started(f"--address={address}"),
        ):
            for written in (here.run(), there.run(RAY_ADDRESS=address)):
                assert "joined the Ray at " in written
                assert "nodes: 2" in written
