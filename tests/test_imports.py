"""The layers of docs/design.md, what each room may weigh, and that importing the package costs only what it needs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vecenvs

ROOT = Path(vecenvs.__file__).parent

# From the bottom up: the modules and packages of vecenvs in one layer, which may import each other, and what they are.
# `python tests/test_imports.py` writes this into the pages that show it.
LAYERS = [
    (
        "_lazy _version errors env_calls cpus identity batch batched async_env _native",
        "lazy names; the version; exceptions; calls by name; cores; columns of a batch; compiled code, its twin",
    ),
    ("vec_env transport", "the contract; what carries commands and rows"),
    (
        "arguments array_file worker state",
        "checks of what callers pass; all that runs where envs live; the states of these",
    ),
    ("pool wrappers plots", "the caller's side of any engine; wrappers of VecEnvs and envs; curves"),
    ("backends", "launch and supervise workers: in process, as processes, MPI ranks or Ray actors"),
    (
        "make mpi views agents evaluation replay",
        "`make_vec_env`; SPMD helpers and mpirun; VecEnvs as others see them; envs of several agents; episodes of "
        "a policy; the replay buffer between actors",
    ),
    ("compat bench", "other libraries' names; measuring"),
    ("cli __main__", "the command line"),
]
# How many lines of Python each room may have. One that needs more takes them from another one.
ROOT_FILES, BENCHMARKS = "(root)", "benchmarks"
BUDGETS = {
    ROOT_FILES: 2_241,
    "batch _native": 2_234,
    "transport": 2_626,
    "worker": 6_968,
    "state": 1_580,
    "pool": 5_161,
    "backends": 3_964,
    "mpi make": 1_951,
    "views wrappers compat": 6_573,
    "replay": 2_750,
    "bench cli plots": 3_942,
    "testing": 11_023,
    BENCHMARKS: 8_342,
    "agents evaluation": 2_244,
}
PAGES = [ROOT.parent / "docs" / "design.md", ROOT.parent / "CONTRIBUTING.md"]
TABLE = re.compile(r"(?<=<!-- layers -->\n).*?(?=<!-- /layers -->)", re.DOTALL)
ANYWHERE = {"__init__", "testing"}  # see all layers; nothing imports them
OPTIONAL = ["ray", "mpi4py", "torch", "matplotlib", "stable_baselines3", "psutil", "rich", "pytest", "hypothesis"]


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if "testing" not in path.parts]


def layer_of(name: str) -> int:
    for height, (names, _) in enumerate(LAYERS):
        if name in names.split():
            return height
    raise AssertionError(f"vecenvs.{name} is in no layer: name it in LAYERS here")


def part_of(path: Path) -> str:
    """Return the first word below vecenvs: a module, or the package it is in."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST) -> Iterator[str]:
    """Yield what a module imports of vecenvs, at any depth of its code, but not for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "vecenvs" else [module]
        yield from (name.split(".")[1] for name in names if name.startswith("vecenvs."))
        yield from imported_parts(node)


def test_imports_go_down_only() -> None:
    for path in modules():
        part = part_of(path)
        for other in () if part in ANYWHERE else imported_parts(ast.parse(path.read_text())):
            assert other not in ANYWHERE, f"{path} imports vecenvs.{other}"
            assert layer_of(other) <= layer_of(part), f"{path} imports vecenvs.{other}, which is above it"


def table() -> str:
    """Return the layers as the pages show them, from the top down."""
    rows = [
        "    " + f"{'  '.join(f'{n}/' if (ROOT / n).is_dir() else f'{n}.py' for n in names.split()):<48} {what}"
        for names, what in reversed(LAYERS)
    ]
    budgets = "; ".join(f"{names.replace(' ', ', ')} {lines:,}" for names, lines in BUDGETS.items())
    return "\n" + "\n".join(rows) + f"\n\nAt most so many lines of Python: {budgets}.\n\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_show_the_layers(page: Path) -> None:
    assert TABLE.findall(page.read_text()) == [table()], "run: python tests/test_imports.py"


def files_of(room: str) -> Iterator[Path]:
    if room == ROOT_FILES:
        yield from ROOT.glob("*.py")
    elif room == BENCHMARKS:
        yield from (ROOT.parent / room).rglob("*.py")
    else:
        for name in room.split():
            yield from (ROOT / name).rglob("*.py")


@pytest.mark.parametrize("room", BUDGETS)
def test_no_room_weighs_more_than_its_budget(room: str) -> None:
    lines = sum(len(path.read_text().splitlines()) for path in files_of(room))
    problem = f"{room} has {lines} lines of {BUDGETS[room]}: delete some, there or in another room"
    assert lines <= BUDGETS[room], problem


def test_every_room_has_a_budget() -> None:
    budgeted = {name for room in BUDGETS if room not in (ROOT_FILES, BENCHMARKS) for name in room.split()}
    assert budgeted == {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}


def test_every_layer_is_named() -> None:
    for path in modules():
        assert part_of(path) in ANYWHERE or layer_of(part_of(path)) >= 0


def test_no_import_is_relative() -> None:
    for path in modules():
        relative = [node for node in ast.walk(ast.parse(path.read_text())) if getattr(node, "level", 0)]
        assert not relative, path


@pytest.mark.parametrize(
    "module", ["vecenvs", "vecenvs.pool.pool_vec_env", "vecenvs.backends.subproc", "vecenvs.testing.envs"]
)
def test_importing_brings_no_optional_library(module: str) -> None:
    code = f"import {module}, sys; found = set({OPTIONAL!r}) & set(sys.modules); sys.exit(str(found) if found else 0)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, check=False)
    assert run.returncode == 0, run.stderr


def uses_of_an_env(tree: ast.AST) -> Iterator[str]:
    """Every `env.step` and `env.reset`, called or only looked up, outside subclasses of gymnasium's wrappers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and any("Wrapper" in ast.unparse(base) for base in node.bases):
            continue
        if isinstance(node, ast.Attribute) and re.fullmatch(r".*\b(_envs\[.*\]|env)\.(step|reset)", ast.unparse(node)):
            yield node.attr
        yield from uses_of_an_env(node)


def test_one_place_steps_and_one_resets() -> None:
    """autoreset.py, batched_*.py for batched envs, agents_env.py for several agents; apart from wrappers and bench."""
    found = {
        path.name: {*uses_of_an_env(ast.parse(path.read_text()))} for path in modules() if part_of(path) != "bench"
    }
    assert {name: uses for name, uses in found.items() if uses} == {
        "agents_env.py": {"reset", "step"},
        "autoreset.py": {"reset", "step"},
        "batched_host.py": {"reset", "step"},
        "batched_vec_env.py": {"reset", "step"},
        "coroutines.py": {"reset", "step"},
    }


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(TABLE.sub(lambda _: table(), page.read_text()))
