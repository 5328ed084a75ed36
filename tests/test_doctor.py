"""`python -m vecenvs doctor`."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from vecenvs.__main__ import main
from vecenvs._native import twin
from vecenvs.cli import doctor
from vecenvs.cli.doctor import ABSENT, BROKEN, OK, Finding
from vecenvs.errors import BackendUnavailable


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Return the state and the text of each printed line by its subject."""
    found = {}
    for line in capsys.readouterr().out.splitlines():
        state, what, text = line[:2], line[4:26].strip(), line[26:]
        found[what] = (state, text)
    return found


def test_all_is_well_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    found = lines(capsys)
    for method in multiprocessing.get_all_start_methods():
        assert found[f"subproc, {method}"][0] == OK
    assert found["cores"][0] == OK
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in found["Python"][1]
    assert "gymnasium" in found["libraries"][1]
    assert "mpirun is" in found["mpi"][1]
    assert found["mpi job"][0] == ABSENT
    assert "mpirun -n 5 python train.py" in found["mpi job"][1]
    assert found["ray"][0] == OK


def test_what_is_missing_comes_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ray", "mpi4py")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.setattr(doctor, "EXAMINATIONS", [doctor._mpi, doctor._ray])
    assert main(["doctor"]) == 0
    found = lines(capsys)
    for name in ("mpi", "ray"):
        assert found[name][0] == ABSENT
        assert "pip install" in found[name][1]
    assert "mpi job" not in found


@pytest.mark.parametrize("name", ["ray", "mpi4py"])
def test_a_folder_is_no_library(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the library is missing, Python imports any folder of this name as a package."""
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(doctor, "EXAMINATIONS", [doctor._mpi, doctor._ray])
    assert main(["doctor"]) == 0
    assert lines(capsys)["mpi" if name == "mpi4py" else name][0] == ABSENT


def test_what_is_broken_makes_it_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BackendUnavailable("no semaphores on this system\nand more")

    monkeypatch.setattr("vecenvs.backends.subproc.SubprocVecEnv", refuse)
    monkeypatch.setattr(doctor, "EXAMINATIONS", [doctor._processes])
    assert main(["doctor"]) == 1
    found = lines(capsys)
    assert found["subproc, spawn"] == (BROKEN, "BackendUnavailable: no semaphores on this system")


def test_a_source_folder_that_shadows_the_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vecenvs").mkdir()
    (tmp_path / "vecenvs-0.1.0.dist-info").mkdir()
    (tmp_path / "vecenvs-0.1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: vecenvs\nVersion: 0.1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("vecenvs._native.chosen", twin)
    monkeypatch.setattr(doctor, "EXAMINATIONS", [doctor._native])
    assert main(["doctor"]) == 0
    state, text = lines(capsys)["compiled core"]
    assert state == ABSENT
    assert f"the source in {doctor.HERE.parent} shadows the installation in {tmp_path}: start Python in another" in text


def test_limits_of_the_process_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("vecenvs.cpus.allowed_cpus", lambda: list(range(8)))
    monkeypatch.setattr("vecenvs.cpus.usable_cores", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr(doctor, "EXAMINATIONS", [doctor._cores, doctor._threads])
    assert main(["doctor"]) == 0
    found = lines(capsys)
    assert found["cores"][1].startswith("3 usable")
    assert "tied to 8 of 64 CPUs" in found["cores"][1]
    assert "quota allows the time of 3 of 8" in found["cores"][1]
    assert "OMP_NUM_THREADS=4" in found["threads"][1]


def test_a_launcher_of_another_mpi_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")  # and these tests have Open MPI
    monkeypatch.setattr(doctor, "EXAMINATIONS", [doctor._mpi])
    assert main(["doctor"]) == 1
    state, text = lines(capsys)["mpi job"]
    assert state == BROKEN
    assert "has started 4 processes" in text
    assert "different MPIs" in text


def test_a_job_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    monkeypatch.setattr(doctor, "EXAMINATIONS", [doctor._mpi])
    assert main(["doctor"]) == 0
    assert lines(capsys)["mpi job"] == (OK, "Open MPI's mpirun has started 3 processes; this is one of them")


def test_findings_are_shown_as_they_come(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def slow() -> Iterator[Finding]:
        yield Finding(OK, "first", "done")
        assert "first" in capsys.readouterr().out
        yield Finding(OK, "second", "done")

    monkeypatch.setattr(doctor, "EXAMINATIONS", [slow])
    assert main(["doctor"]) == 0


def test_it_starts_neither_mpi_nor_ray() -> None:
    program = (
        "import sys; from vecenvs.__main__ import main; main(['doctor']); "
        "import mpi4py.MPI as mpi, ray; sys.exit(mpi.Is_initialized() or ray.is_initialized())"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0
