"""Workers of start method "forkserver": what the fork server has imported for them, and what that must not change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
PATIENCE = 60.0  # seconds; what is waited for takes far less

# What the script sees when a worker begins to import it: before its own imports.
SCRIPT = """
import os, sys
early = [name for name in ("json.tool", "gymnasium", "numpy", "vecenvs", "threadpoolctl") if name in sys.modules]
with open("imports.txt", "a") as file:
    file.write(f"{os.getpid()}\\n")
BEGIN
import numpy as np
from vecenvs import SubprocVecEnv
from vecenvs.testing.envs import CountingEnv

class Env(CountingEnv):
    def __init__(self):  # in a worker
        super().__init__()
        self.early, self.draw = sys.modules["__main__"].early, float(np.random.random())
        self.path = os.environ.get("PYTHONPATH")
        self.left = [name for name in os.environ if name.startswith("VECENVS_")]

def ask(names):
    with SubprocVecEnv([Env] * 3, 3, "forkserver") as vec:
        vec.reset()
        for name in names:
            print(vec.get_attr(name))

if __name__ == "__main__":
    before = dict(os.environ)
    MAIN
    assert os.environ == before
"""
# What the fork server of a newer Python gets from the caller: where the script is, which it imports once for all.
NEWER = """
from multiprocessing import spawn
preparation = spawn.get_preparation_data
def with_path(name):
    data = preparation(name)
    return {**data, "main_path": data.get("init_main_from_path")}
spawn.get_preparation_data = with_path
"""
IMPORTS_SCRIPT = sys.version_info >= (3, 14)  # whether this Python's own fork server gets it
ALL = "['gymnasium', 'numpy', 'vecenvs', 'threadpoolctl']"


def run(folder: Path, main: str, begin: str = "", cwd: Path | None = None) -> list[str]:
    """Run the script in this folder; give the lines that it has written."""
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("BEGIN", begin).replace("MAIN", main))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=cwd or folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(IMPORTS_SCRIPT, reason="its fork server imports the script, before anything else")
def test_workers_find_their_libraries_imported(tmp_path: Path) -> None:
    """The script itself is imported as often as it would be: once by each process."""
    assert run(tmp_path, "ask(['early'])") == [f"[{ALL}, {ALL}, {ALL}]"]
    importers = (tmp_path / "imports.txt").read_text().split()
    assert len(importers) == len(set(importers))


@pytest.mark.long
def test_a_list_of_the_users_own_stays(tmp_path: Path) -> None:
    main = "import multiprocessing; multiprocessing.set_forkserver_preload(['json.tool']); ask(['early'])"
    assert run(tmp_path, main) == ["[['json.tool'], ['json.tool'], ['json.tool']]"]


@pytest.mark.long
def test_a_server_that_runs_already(tmp_path: Path) -> None:
    main = "from multiprocessing import forkserver; forkserver.ensure_running(); ask(['early'])"
    assert run(tmp_path, main) == ["[[], [], []]"]


@pytest.mark.long
def test_the_list_can_be_set_for_the_next_server(tmp_path: Path) -> None:
    main = "ask([]); from multiprocessing import forkserver; print(forkserver._forkserver._preload_modules)"
    assert run(tmp_path, main) == ["['__main__']"]


@pytest.mark.long
@pytest.mark.skipif(IMPORTS_SCRIPT, reason="a script that it imports may have seeded the generator on purpose")
def test_workers_draw_numbers_of_their_own(tmp_path: Path) -> None:
    """A fork has NumPy's global generator as it was: without a seed all would draw the same."""
    (draws,) = run(tmp_path, "ask(['draw'])")
    assert len(set(draws.strip("[]").split(", "))) == 3


@pytest.mark.sparse
@pytest.mark.parametrize("newer", ["", NEWER], ids=["this Python", "newer"])
def test_a_seed_in_the_script_holds(tmp_path: Path, newer: str) -> None:
    """As with spawn, where each worker runs that line, too: what each draws follows from it."""
    draws = [run(tmp_path, "ask(['draw'])", newer + "import numpy; numpy.random.seed(3)") for _ in range(2)]
    assert draws[0] == draws[1]
    assert len(set(draws[0][0].strip("[]").split(", "))) == 3


def test_a_python_whose_fork_server_imports_the_script(tmp_path: Path) -> None:
    assert run(tmp_path, "ask(['path', 'left'])", NEWER)[1] == "[[], [], []]"
    importers = (tmp_path / "imports.txt").read_text().split()
    assert len(importers) == len(set(importers)) == 2, "the program and the fork server"


@pytest.mark.sparse
@pytest.mark.parametrize("method", ["spawn", "forkserver", "newer forkserver"])
def test_a_script_without_a_guard(tmp_path: Path, method: str) -> None:
    """The error says what to do first, and nothing else is printed but the way to the line."""
    newer, method = method.startswith("newer"), method.rsplit(maxsplit=1)[-1]
    in_server = newer or (IMPORTS_SCRIPT and method == "forkserver")
    (tmp_path / "script.py").write_text(
        (NEWER if newer else "")
        + "from vecenvs import SubprocVecEnv\nfrom vecenvs.testing.envs import CountingEnv\n"
        + f"SubprocVecEnv([CountingEnv] * 3, 3, {method!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    *_, last = done.stderr.splitlines()
    ended = "VecEnvError: multiprocessing's fork server has ended as it started: "
    says = ended if in_server else "WorkerDied: the script"
    assert last.startswith(f"vecenvs.errors.{says}")
    assert done.stderr.count("__name__ == '__main__'") == 1
    assert done.returncode == 1


def test_a_fork_server_that_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("import os; os._exit(3)\n")
    main = """
    import multiprocessing, vecenvs.errors
    multiprocessing.set_forkserver_preload(['leaving'])
    try:
        ask([])
    except vecenvs.errors.VecEnvError as error:
        print(error)
"""
    (told,) = run(tmp_path, main)
    assert "fork server has ended as it started" in told


def test_the_environment_is_what_it_was(tmp_path: Path) -> None:
    root = str(Path(__file__).parent.parent)
    assert run(tmp_path, "ask(['path', 'left'])") == [str([root] * 3), "[[], [], []]"]


@pytest.mark.long
def test_a_library_where_only_the_program_finds_it(tmp_path: Path) -> None:
    """The fork server takes the caller's, not another one of the name."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "threadpoolctl.py").write_text("class ThreadpoolController:\n    lib_controllers = ()\n")
    begin = f"""
sys.path.insert(0, {str(own)!r})
import threadpoolctl
import vecenvs.testing.envs
vecenvs.testing.envs.CountingEnv.where = property(lambda self: threadpoolctl.__file__)
"""
    assert run(tmp_path, "ask(['where'])", begin) == [str([str(own / "threadpoolctl.py")] * 3)]


NEEDS_JSON = pytest.mark.skipif(IMPORTS_SCRIPT, reason="its fork server itself imports json, from there")


@pytest.mark.sparse
@pytest.mark.parametrize("shadow", ["threadpoolctl.py", pytest.param("json", marks=NEEDS_JSON)])
def test_modules_of_the_same_names_in_the_current_directory(tmp_path: Path, shadow: str) -> None:
    """The program does not find them, since its script lies elsewhere; a fork server would."""
    cwd = tmp_path / "elsewhere"
    cwd.mkdir()
    target = cwd / shadow / "__init__.py" if shadow == "json" else cwd / shadow
    target.parent.mkdir(exist_ok=True)
    target.write_text("raise SystemExit(3)\n")
    assert run(tmp_path, "ask(['early'])", cwd=cwd) == ["[[], [], []]"]
