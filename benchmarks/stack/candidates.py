"""The candidates: each library's vectorised env in one setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vecenvs.bench.workloads import BadRequest

OURS = "vecenvs"


@dataclass(frozen=True)
class Candidate:
    """A library's vectorised env in one setting.

    `make` makes the envs of a `Job`. `family` names the process in which it takes its turns, apart from other
    libraries. `where`: the cells in which it makes sense. `most` is its largest number of envs; with a process per env,
    more take minutes to start. `slow`: it takes long to start, so only the cells for everyone have it. `python`: it
    steps the same Python envs as the others and returns their rows; otherwise it is there for scale and compared with
    nothing.
    """

    name: str
    library: str
    family: str
    setting: str
    make: Callable[[Any], Any]
    where: Callable[[Any], bool] = lambda cell: True
    most: int = 1024
    slow: bool = False
    python: bool = True

    def takes(self, cell: Any) -> bool:
        """Return whether it takes part in this cell."""
        return cell.num_envs <= self.most and (not self.slow or cell.everyone) and self.where(cell)


def candidates_of(candidates: Sequence[Candidate], cell: Any, only: Sequence[str] | None = None) -> list[Candidate]:
    """Return the candidates of a cell, of those named in `only` by name or library.

    Raises:
        BadRequest: There is no candidate and no library of this name.
    """
    for name in only or ():
        if all(name not in (found.name, found.library) for found in candidates):
            there = ", ".join(dict.fromkeys(found.library for found in candidates))
            raise BadRequest(f"--candidates {name}: no such candidate; the libraries are {there}")
    named = [found for found in candidates if not only or found.name in only or found.library in only]
    return [found for found in named if found.takes(cell)]
