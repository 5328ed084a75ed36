"""Try one fault in a copy of the tree."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutants.fault import Fault

ROOT = Path(__file__).parents[2]
COPIED = ("vecenvs", "tests", "docs", "examples", "benchmarks", "Makefile", "README.md", "CONTRIBUTING.md",
          "constraints.txt", "pyproject.toml", "setup.py", "LICENSE", ".ci")  # fmt: skip
PYTEST = ("-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not long", "--tb=no")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", re.MULTILINE)

FOUND, NOT_FOUND, MISFIT = "found", "NOT FOUND", "MISFIT"


@dataclass(frozen=True)
class Outcome:
    """What came of a fault: a verdict, and by which test or why."""

    verdict: str
    detail: str
    seconds: float


class Copy:
    """A copy of the tree, into which one fault after the other is put."""

    def __init__(self, root: Path, limit: float) -> None:
        self.root, self._limit = root, limit
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name)
            else:
                shutil.copy2(ROOT / name, root / name)
        (root / ".venv").symlink_to(Path(sys.prefix))

    def try_fault(self, fault: Fault) -> Outcome:
        """Put the fault in, run its tests, and take it out again."""
        if problem := fault.problem(self.root):
            return Outcome(MISFIT, problem, 0.0)
        start = time.monotonic()
        with self._changed(fault):
            for tests in fault.tests.split(";"):
                code, text = self._run(shlex.split(tests))
                if code != 0:
                    break
        found = FAILED.findall(text)
        seconds = time.monotonic() - start
        if code == 0:
            return Outcome(NOT_FOUND, fault.tests, seconds)
        if code is None:
            return Outcome(FOUND, f"nothing ended within {self._limit:g} s", seconds)
        if code in (4, 5) and not found:
            return Outcome(MISFIT, f"pytest finds no such tests: {fault.tests}", seconds)
        if not found:
            return Outcome(FOUND, f"pytest ended with exit code {code}", seconds)
        # A test that fails without the fault, too, has found nothing.
        if "::" in found[0] and self._run([found[0]])[0] != 0:
            return Outcome(MISFIT, f"fails without the fault: {found[0]}", seconds)
        return Outcome(FOUND, found[0], seconds)

    @contextlib.contextmanager
    def _changed(self, fault: Fault) -> Iterator[None]:
        path = self.root / "vecenvs" / fault.file
        kept = {path: path.read_bytes()}
        if path.suffix == ".c":
            kept |= {library: library.read_bytes() for library in path.parent.glob("*.so")}
        try:
            fault.apply(self.root)
            self._forget_bytecode(path)
            if path.suffix == ".c":
                build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
                subprocess.run(build, cwd=self.root, check=True, capture_output=True)
            yield
        finally:
            for each, data in kept.items():
                each.unlink()  # a process may have the library mapped
                each.write_bytes(data)
            self._forget_bytecode(path)

    @staticmethod
    def _forget_bytecode(path: Path) -> None:
        """Remove what Python has compiled: it looks at the size and at whole seconds alone."""
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def _run(self, arguments: list[str]) -> tuple[int | None, str]:
        """Run tests; return pytest's exit code, None if they had to be killed, and what it wrote."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "", "OPENBLAS_THREAD_TIMEOUT": "4"}
        process = subprocess.Popen(
            [sys.executable, *PYTEST, *arguments], cwd=self.root, env=environment, start_new_session=True,
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            text, _ = process.communicate(timeout=self._limit)
            return process.returncode, text
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self._end_what_is_left()
            process.wait()
            process.stdout.close()

    def _end_what_is_left(self) -> None:
        """Kill what the tests have started in sessions of its own: an mpirun, say, of a test that had to be killed."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if (folder / "cwd").readlink() == self.root:
                    os.kill(int(folder.name), signal.SIGKILL)
