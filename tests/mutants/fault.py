"""A small fault: a text of the package and what replaces it, with the tests that have to notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A fault in one file.

    Attributes:
        file: its path below vecenvs/.
        before: a text that stands in it once.
        after: what stands there instead.
        tests: arguments of pytest: files of the short tier, and `-k` with the tests to choose. After a semicolon come
            those of another run.
    """

    file: str
    before: str
    after: str
    tests: str

    @property
    def room(self) -> str:
        """The package or root file with the fault."""
        return self.file.partition("/")[0]

    def problem(self, root: Path) -> str:
        """Return why the fault cannot be put into the tree at `root`; "" if it can."""
        path = root / "vecenvs" / self.file
        found = path.read_text().count(self.before) if path.exists() else 0
        return "" if found == 1 else f"the text before stands there {found} times"

    def apply(self, root: Path) -> None:
        """Put the fault into the tree at `root`."""
        path = root / "vecenvs" / self.file
        path.write_text(path.read_text().replace(self.before, self.after))
