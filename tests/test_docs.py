"""README, docs/ and the others: their Python blocks run, their commands are taken, their links lead somewhere."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT, SHORTER, SUPPLIED, blocks, run

import vecenvs.views
from vecenvs.__main__ import Parser, commands

# These start a Ray or ranks of MPI: they run beside the other tests of it.
ELSEWHERE = {
    "docs/ray.md": "ray/test_ray_docs.py",
    "docs/replay.md": "replay/test_replay_docs.py",
    "docs/tutorials/mpi_cluster.md": "mpi/test_mpi_docs.py",
    "docs/tutorials/ray.md": "ray/test_ray_docs.py",
}
# The site's own: its table of contents has all pages that README has no room for.
SITE = ("docs/index.md", "docs/changelog.md", "docs/tutorials/")
WITH_CODE = [page for page in PAGES if blocks(page)]
FIRST = ("README.md", "docs/errors.md")  # in the short tier


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page in FIRST else [pytest.mark.long])
        for page in WITH_CODE
        if page not in ELSEWHERE
    ],
)
def test_its_blocks_run(page: str, tmp_path: Path) -> None:
    run(page, tmp_path)


def test_every_page_with_code_is_run() -> None:
    assert {"README.md", "docs/async.md", "docs/gymnasium.md"} <= set(WITH_CODE)
    assert {*ELSEWHERE, *SHORTER, *SUPPLIED} <= set(WITH_CODE)
    for page, test in ELSEWHERE.items():
        assert f'"{page}"' in (Path(__file__).parent / test).read_text()


@pytest.mark.long
def test_the_conformance_suite_as_docs_testing_has_it(tmp_path: Path) -> None:
    """Its tests with a single env, and others that run fast."""
    (tmp_path / "test_mine.py").write_text(blocks("docs/testing.md")[0])
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "one_env or mistake or no_envs"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b[2-9] passed", done.stdout), done.stdout


@pytest.mark.long
def test_the_examples_of_the_reference_run(tmp_path: Path) -> None:
    page = runpy.run_path(str(ROOT / "docs" / "api_examples.py"))
    names = "import functools, torch, gymnasium as gym\nfrom stable_baselines3 import PPO\nfrom vecenvs import *\n"
    for name in page["EXAMPLES"]:
        module, _, own = name.rpartition(".")
        assert hasattr(import_module(module), own)
    shown = [text for name, text in page["EXAMPLES"].items() if name not in page["ELSEWHERE"]]
    program = names + "from vecenvs.wrappers import *\n" + "".join(shown)
    line = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def prose(page: str) -> str:
    return re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Return the names that GitHub gives a page's headings."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES)
def test_its_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not link.startswith("https://"):
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_readme_leads_to_every_page() -> None:
    links = set(re.findall(r"\]\(([^)#\s]+)", prose("README.md")))
    assert {page for page in PAGES if page not in ("README.md", "CHANGELOG.md") and not page.startswith(SITE)} <= links


def test_the_site_lists_every_page_and_name() -> None:
    """The whole site is built by a long test."""
    listed = set((ROOT / "docs" / "index.md").read_text().splitlines())
    pages = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES if page.startswith("docs/")}
    assert pages - {"index"} <= listed
    reference = "".join(path.read_text() for path in ROOT.glob("docs/api/*.rst"))
    whole = {name for module in (vecenvs.errors, vecenvs.views, vecenvs.wrappers) for name in dir(module)}
    missing = [name for name in vecenvs.__all__ if name not in whole and f"vecenvs.{name}\n" not in reference]
    assert missing == ["__version__"]


def test_a_package_index_shows_readme_with_absolute_links() -> None:
    line = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "--long-description"]
    shown = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    links = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
    assert "https://github.com/vecenvs/vecenvs/blob/main/docs/errors.md" in links


def commands_of(page: str) -> list[list[str]]:
    """Return the lines of a page's command blocks that start one of our commands, without comments."""
    lines = re.findall(r"^    python -m vecenvs (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    return [shlex.split(re.split(r"\s{2,}", line)[0], comments=True) for line in lines]


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_its_commands_are_taken(page: str) -> None:
    for command, *arguments in commands_of(page):
        assert command in commands()
        module = import_module(f"vecenvs.cli.{command}")
        parser = Parser()
        module.add_arguments(parser)
        parser.parse_args(arguments)
