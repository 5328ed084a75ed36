"""SPMD helpers, and the examples."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jobs import MPIS, OPEN_MPI_FLAGS, PROGRAMS, ROOT, SHORT_ON_ONE, launched, mpirun, run
from own_simulators import assert_own_simulators, free_ports

from vecenvs.mpi.arrays import gradient
from vecenvs.mpi.spmd import average_gradients

EXAMPLES = ROOT / "examples"


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_helpers(mpi: str) -> None:
    output = run(launched(mpi, 4, str(PROGRAMS / "spmd.py"), flags=["--spmd"]))
    assert output.count("all helpers agree") == 4


@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_what_one_rank_gets_wrong_is_an_error_on_all(mpi: str) -> None:
    output = run(launched(mpi, 3, str(PROGRAMS / "spmd_errors.py"), flags=["--spmd"]))
    assert output.count("all errors agree") == 3


@pytest.mark.long
def test_helpers_on_tensors() -> None:
    output = run(launched("openmpi", 3, str(PROGRAMS / "spmd_torch.py"), flags=["--spmd"]), OMP_NUM_THREADS="1")
    assert output.count("torch helpers agree") == 3


@pytest.mark.long
def test_an_exception_on_one_rank_ends_them_all() -> None:
    code = "from mpi4py import MPI; w = MPI.COMM_WORLD; w.rank == 1 and 1 / 0; w.barrier()"
    for mpi in MPIS:
        assert "ZeroDivisionError" in run(launched(mpi, 3, "-c", code, flags=["--spmd"]), expect=1)


@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS)
@pytest.mark.parametrize(("code", "expect"), [("'no luck'", 1), ("4", 4)])
def test_a_failed_exit_on_one_rank_ends_them_all(mpi: str, code: str, expect: int) -> None:
    program = f"import sys; from mpi4py import MPI; w = MPI.COMM_WORLD; w.rank == 1 and sys.exit({code}); w.barrier()"
    output = run(launched(mpi, 3, "-c", program, flags=["--spmd"]), expect=expect)
    assert ("no luck" in output) == (expect == 1)
    ends = "import sys; from mpi4py import MPI; sys.exit(0 if MPI.COMM_WORLD.rank else None)"
    run(launched(mpi, 3, "-c", ends, flags=["--spmd"]))


@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS)
def test_a_communicator_of_one_rank(mpi: str) -> None:
    program = (
        "from mpi4py import MPI; import vecenvs; from vecenvs.testing.envs import counting_fns; said = []\n"
        "for comm in (MPI.COMM_SELF, MPI.COMM_NULL):\n"
        "    try: vecenvs.MpiVecEnv(counting_fns(2), comm=comm)\n"
        "    except vecenvs.BackendUnavailable as exc: said.append(str(exc))\n"
        "print(*MPI.COMM_WORLD.gather(said) or [], sep='\\n')\n"
    )
    output = run(launched(mpi, 2, "-c", program, flags=["--spmd"]))
    assert output.count("comm is a communicator of this rank alone: envs need one more rank") == 2
    assert output.count("comm is MPI.COMM_NULL, which has no rank: envs need one more rank") == 2


@pytest.mark.long
@pytest.mark.parametrize("mpi", SHORT_ON_ONE)
def test_seeds_and_files_differ_where_nobody_has_imported_mpi(mpi: str, tmp_path: Path) -> None:
    code = (
        "import sys, vecenvs; from vecenvs.testing.envs import CountingEnv; "
        f"vec = vecenvs.make_vec_env(CountingEnv, None, 1, 5, monitor_dir={str(tmp_path)!r}); vec.reset(); "
        "print('seeds', vec.get_attr('seeds'), 'mpi4py' in sys.modules); vec.close()"
    )
    output = run(mpirun(mpi, 2, "-c", code), **OPEN_MPI_FLAGS)
    assert {"seeds [[5]] False", "seeds [[10005]] False"} <= {*output.splitlines()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.0.monitor.csv", "1.0.monitor.csv"]


@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS)
def test_example_spmd(mpi: str, tmp_path: Path) -> None:
    arguments = ("--total-timesteps", "3600", "--num-envs", "2", "--monitor-dir", str(tmp_path))
    output = run(launched(mpi, 3, str(EXAMPLES / "mpi_spmd.py"), *arguments, flags=["--spmd"]))
    assert output.count("mean episode length") == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{r}.{i}.monitor.csv" for r in range(3) for i in range(2)
    ]


@pytest.mark.long
@pytest.mark.parametrize("mpi", MPIS)
def test_example_own_simulators(mpi: str) -> None:
    arguments = ("--backend", "mpi", "--total-timesteps", "40", "--first-port", str(free_ports(4)))
    output = run(launched(mpi, 3, str(EXAMPLES / "own_simulators.py"), *arguments))
    assert_own_simulators(output)


@pytest.mark.long
def test_example_train() -> None:
    output = run(launched("openmpi", 3, str(EXAMPLES / "mpi_train.py"), "--total-timesteps", "100", "--num-envs", "8"))
    assert "mean return" in output


def test_gradients_without_weight_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an empty batch are NaN. The mean is the other rank's, for which a stand-in of MPI adds its own."""
    for module in ("spmd", "agreement"):
        mpi = SimpleNamespace(IN_PLACE=None, MAX="max")
        monkeypatch.setattr(f"vecenvs.mpi.{module}.load_mpi", lambda mpi=mpi: mpi)

    def allreduce(_: None, array: Any, op: str | None = None) -> None:
        if op is None:
            array += [2.0, 4.0, 2.0]  # gradients times their weight, and that

    gradients = np.full(2, np.nan, np.float32)
    average_gradients([gradients], weight=0.0, comm=SimpleNamespace(Allreduce=allreduce))
    assert gradients.tolist() == [1.0, 2.0]


def test_a_parameter_is_no_list_of_parameters() -> None:
    import torch

    parameter = torch.nn.Linear(2, 2).weight
    with pytest.raises(TypeError, match="give a list of them, not one parameter"):
        gradient(next(iter(parameter)))
