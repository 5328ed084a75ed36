"""Three ways in, one code path; and what is said when none of them was taken."""

from __future__ import annotations

import os
import re
import socket
import sys
from contextlib import closing
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from jobs import MPIS, OPEN_MPI_FLAGS, PROGRAMS, PYTHONS, SHORT_ON_ONE, launched, mpirun, run

from vecenvs.backends.mpi import MpiVecEnv
from vecenvs.backends.mpi.library import load_mpi
from vecenvs.errors import BackendUnavailable
from vecenvs.testing.envs import CountingEnv

TRAIN = str(PROGRAMS / "train.py")
RUNS = "one more rank runs this script"


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.sparse
@pytest.mark.parametrize(
    ("mpi", "transport", "way"),
    [
        ("openmpi", "auto", "shared"),
        ("mpich", "messages", "messages"),
        pytest.param("mpich", "auto", "shared", marks=pytest.mark.long),
        pytest.param("openmpi", "messages", "messages", marks=pytest.mark.long),
    ],
)
def test_unmodified_script(mpi: str, transport: str, way: str) -> None:
    output = run(mpirun(mpi, 4, TRAIN, transport), **OPEN_MPI_FLAGS)
    assert "all is equal 3" in output
    assert f"['{way}']" in output
    assert output.count(RUNS) == 4
    assert "Traceback" not in output  # of a thread, say, for which nobody waits


@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS)
def test_script_on_rank_0_only(mpi: str) -> None:
    output = run(mpirun(mpi, 3, "-m", "vecenvs.mpi", TRAIN), **OPEN_MPI_FLAGS)
    assert "all is equal 2" in output
    assert output.count(RUNS) == 1


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_our_launcher(mpi: str) -> None:
    output = run(launched(mpi, 5, TRAIN))
    assert "all is equal 4" in output
    assert output.count(RUNS) == 1
    assert "Traceback" not in output


@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS)
def test_code_and_module(mpi: str) -> None:
    assert run(launched(mpi, 2, "-c", "import sys; print('argv', sys.argv)", "x")).count("argv ['-c', 'x']") == 1
    assert "usage" in run(launched(mpi, 2, "-m", "vecenvs.mpi", "--help"))


@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_not_launched(mpi: str) -> None:
    output = run([PYTHONS[mpi], TRAIN], expect=1)
    assert "mpirun -n 5 python train.py" in output
    assert "python -m vecenvs.mpi -n 5 train.py" in output
    assert "mpirun -n 5" in run([PYTHONS[mpi], "-m", "vecenvs.mpi", TRAIN], expect=1)


@pytest.mark.parametrize("error", [RuntimeError("cannot load MPI library"), ImportError("libmpi.so.40: not found")])
def test_without_an_mpi_library(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where mpi4py is installed, and says in either way that it finds no MPI."""

    def missing(name: str) -> None:
        raise error

    package: Any = ModuleType("mpi4py")
    package.rc, package.__getattr__ = SimpleNamespace(initialize=True), missing
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(BackendUnavailable, match=f"needs mpi4py and an MPI library .{error}"):
        load_mpi()


@pytest.mark.long
def test_launched_by_the_other_mpi() -> None:
    line = [os.path.join(os.path.dirname(PYTHONS["mpich"]), "mpirun"), "-n", "2", PYTHONS["openmpi"], TRAIN]
    output = run(line, expect=1)
    assert "launcher and library are of different MPIs" in output


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"autorest": "async"}, "MpiVecEnv has no argument 'autorest' .did you mean 'autoreset'"),
        ({"autoreset": "never"}, "autoreset 'never' is none of"),
        ({"step_timeout": "2"}, "step_timeout must be seconds or None, not '2'"),
        ({"info_attrs": 5}, "info_attrs must be a tuple of attribute names, not 5"),
        ({"num_workers": "2"}, "num_workers must be an int, not '2'"),
        ({"comm": 2}, "comm must be a communicator .* the number of workers is num_workers=2"),
        ({"num_workers": 0}, "num_workers must be at least 1, not 0"),
        ({"transport": "pigeon"}, "transport 'pigeon' is none of"),
        ({"address": 5}, "address must be an IP address .*, not 5"),
        ({"port": "7000"}, "port must be an int, not '7000'"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    """Are found before MPI is looked for."""
    with pytest.raises((TypeError, ValueError), match=message):
        MpiVecEnv([CountingEnv] * 4, **wrong)


@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS)
def test_wrong_arguments_on_every_rank(mpi: str) -> None:
    """No rank serves before the arguments are right; of the functions those of rank 0 count alone."""
    output = run(mpirun(mpi, 3, str(PROGRAMS / "mistaken.py")), **OPEN_MPI_FLAGS)
    assert output.count("told") == 3
    assert "shape (4, 3)" in output


@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS)
def test_sub_communicator(mpi: str) -> None:
    output = run(launched(mpi, 5, str(PROGRAMS / "groups.py"), flags=["--spmd"]))
    assert sorted(line for line in output.splitlines() if line.startswith("group")) == [
        "group 0: 2 workers",
        "group 1: 1 workers",
    ]


@pytest.mark.long
def test_workers_connect_to_an_address_and_a_port() -> None:
    """One after another: a single port is enough."""
    output = run(launched("openmpi", 3, str(PROGRAMS / "connecting.py"), "127.0.0.1", str(free_port())))
    assert "transports {'messages': 2}" in output


@pytest.mark.long
@pytest.mark.parametrize(
    ("address", "problem"),
    [("192.0.2.1", "OSError|Cannot assign"), ("no-such-host.invalid", "Name or service not known|Temporary failure")],
)
def test_workers_that_cannot_connect(address: str, problem: str) -> None:
    """The error says what they have tried to reach, and what to open or to choose."""
    output = run(launched("openmpi", 3, str(PROGRAMS / "connecting.py"), address, "0"))
    assert re.search(
        rf"VecEnvError the worker on rank \d of \S+ cannot connect to this process at {address}, port \d+ "
        rf"\(.*({problem}).*\), and .*\(asked for.*\). Open .*port=.*address= chooses another IP address",
        output,
    ), output
