"""The documentation site: `make docs` without the installation, and what a reader looks for in it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from doc_pages import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site with warnings as errors, as the Makefile does."""
    folder = tmp_path_factory.mktemp("site")
    built = folder / "html"
    line = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(folder / "trees"), "docs", str(built)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return built


def test_every_link_inside_leads_somewhere(site: Path) -> None:
    line = [sys.executable, "docs/check_links.py", str(site)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<h1 id="here"></h1><a href="#here"></a><a href="#gone"></a><a href="b.html"></a>'
    )
    line = [sys.executable, str(ROOT / "docs/check_links.py"), str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "#gone has no such anchor" in done.stderr
    assert "b.html does not exist" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_the_reference_has_every_public_name(site: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    found = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    names = {name.rpartition(".")[2] for kind in found.data for name in found.data[kind] if kind.startswith("py:")}
    for module in ("vecenvs", "vecenvs.errors", "vecenvs.views", "vecenvs.wrappers", "vecenvs.mpi", "vecenvs.replay"):
        public = set(getattr(import_module(module), "__all__", ())) - {"__version__"}
        assert public <= names, module


def test_it_can_be_searched_and_has_every_page(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert "same_step" in index
    for page in [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md"), *ROOT.glob("docs/api/*.rst")]:
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists(), page


def test_names_in_pages_lead_to_the_reference(site: Path) -> None:
    assert 'href="api/views.html#vecenvs.views.as_sb3"' in (site / "sb3.html").read_text()
    assert "api/vec_env.html#vecenvs.VecEnv" in (site / "tutorials" / "first_vec_env.html").read_text()
