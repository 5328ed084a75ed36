"""examples/ray_notebook.ipynb in a real Jupyter kernel."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from ray_session import ENVIRONMENT, ROOT, no_leaks  # noqa: F401

from vecenvs.testing import leaks

pytestmark = pytest.mark.long


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("default")  # Jupyter's own, about event loops and sockets
def test_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs, on Ray and in subprocesses, and the kernel leaves no process."""
    import nbformat
    from nbclient import NotebookClient

    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    token = uuid.uuid4().hex
    monkeypatch.setenv("VECENVS_TOKEN", token)
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = Path(ROOT / "examples" / "ray_notebook.ipynb")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)
    assert "{'shared': 2}" in text
    assert "{'messages': 2}" in text
    assert "3 ValueError [0 1 2]" in text
    assert not leaks.wait_until_empty(lambda: leaks.processes_with("VECENVS_TOKEN", token), 20.0)
