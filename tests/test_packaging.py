"""What is published: the distributions, built from a clean copy and installed into an empty virtual environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from doc_pages import ROOT

import vecenvs

pytestmark = [pytest.mark.long, pytest.mark.timeout(420)]

# A user's program: its types are known if the package's are.
PROGRAM = """
import numpy as np
from numpy.typing import NDArray

import vecenvs

vec: vecenvs.VecEnv = vecenvs.make_vec_env("CartPole-v1", num_env=2)
obs, rewards, dones, infos = vec.step([0, 1])
these: NDArray[np.float32] = rewards
mpi: type[vecenvs.VecEnv] = vecenvs.MpiVecEnv
"""
WRONG = 'wrong: str = vecenvs.make_vec_env("CartPole-v1")\n'


def run(line: Sequence[object], folder: Path, **environment: str) -> str:
    """Run a program that has to succeed; return what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    done = subprocess.run(
        [str(word) for word in line], cwd=folder, env=clean | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build sdist and wheel from the files that git knows, and nothing else of this folder."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    names = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    # The wheel is built from the sdist, so that nothing can be missing in that.
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", source], folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def python(dist: Path) -> Path:
    """Install the wheel into an empty environment; it finds the packages that it needs in this one, and no vecenvs."""
    folder = dist.parent / "installed"
    run([sys.executable, "-m", "venv", "--without-pip", folder], dist)
    (wheel,) = dist.glob("*.whl")
    target = run([folder / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"], dist).strip()
    run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", target, wheel], dist)
    needed = ["numpy", "gymnasium", "cloudpickle", "threadpoolctl", "farama_notifications", "typing_extensions.py"]
    for path in [path for name in needed for path in Path(sys.prefix).glob(f"lib/python*/site-packages/{name}*")]:
        (Path(target) / path.name).symlink_to(path)
    return folder / "bin" / "python"


def test_both_are_well_formed(dist: Path) -> None:
    files = sorted(dist.iterdir())
    assert [path.suffix for path in files] == [".whl", ".gz"] or [path.suffix for path in files] == [".gz", ".whl"]
    run([sys.executable, "-m", "twine", "check", "--strict", *files], dist)
    # W004 and W009: what it says of modules and of several libraries does not concern a package with extensions.
    run([sys.executable, "-m", "check_wheel_contents", *dist.glob("*.whl")], dist)


def test_the_wheel_has_the_package_and_no_more(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"vecenvs", f"vecenvs-{vecenvs.__version__}.dist-info"}
    assert "vecenvs/py.typed" in names
    packed = {name for name in names if name.endswith(".py")}
    assert packed == {str(path.relative_to(ROOT)) for path in (ROOT / "vecenvs").rglob("*.py")}


def test_the_sdist_has_what_its_tests_and_pages_need(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "Makefile", "constraints.txt", "tests/conftest.py", "docs/conf.py"} <= names
    assert not [name for name in names if name.startswith(("docs/_build", ".venv"))]


def test_it_runs_where_it_is_installed(python: Path, tmp_path: Path) -> None:
    episodes = """
import vecenvs
if __name__ == "__main__":
    print(vecenvs.__file__)
    with vecenvs.make_vec_env("CartPole-v1", num_env=4, seed=0, backend="subproc", num_workers=2) as vec:
        vec.reset()
        print(vec.step([0, 1, 0, 1])[0].shape)
"""
    (tmp_path / "program.py").write_text(episodes)
    where, shape = run([python, "program.py"], tmp_path).splitlines()
    assert Path(where).is_relative_to(python.parents[1])
    assert shape == "(4, 4)"
    assert vecenvs.__version__ in run([python.parent / "python", "-m", "vecenvs", "--version"], tmp_path)


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_types_are_checked(checker: str, python: Path, tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(PROGRAM + WRONG)
    option = "--python-executable" if checker == "mypy" else "--pythonpath"
    line = [sys.executable, "-m", checker, *(["--strict"] if checker == "mypy" else []), option, python]
    run([*line, "right.py"], tmp_path)
    with pytest.raises(AssertionError, match=r"wrong\.py:11:.*(VecEnv|str)"):
        run([*line, "wrong.py"], tmp_path)


def test_one_version_everywhere() -> None:
    assert f"\nversion: {vecenvs.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {vecenvs.__version__} - 20" in (ROOT / "CHANGELOG.md").read_text()


def test_the_workflow_uses_what_the_makefile_has() -> None:
    """It cannot run here: its commands exist, and it has every Python that setup.py names."""
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"run: make (\w+)", workflow):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    named = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.py").read_text()))
    (matrix,) = re.findall(r"python: \[(.*)\]", workflow)
    assert set(re.findall(r"3\.\d+", matrix)) == named
