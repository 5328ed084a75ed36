"""The tutorial about MPI: its program runs as the page says, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import check_shown, program
from jobs import MPIS, launched, run

PAGE = "docs/tutorials/mpi_cluster.md"
pytestmark = pytest.mark.long


@pytest.mark.parametrize("mpi", MPIS)
def test_its_program_runs(mpi: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program(PAGE))
    check_shown(PAGE, run(launched(mpi, 3, str(tmp_path / "train.py"))))
