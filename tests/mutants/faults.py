"""The list of faults.

Lines of the package were drawn by lot (each line of a function once, so that long modules have more), and each got a
fault where it lies: an off by one, a swapped branch, a forgotten copy, a state that is not reset, a wrong index, a lost
check, a dropped call. Left out were texts alone, and what changes nothing that anybody can observe. The faults of
C were added by reading it.
"""

from __future__ import annotations

from mutants.fault import Fault
from mutants.lists import around, engine, faces, kinds

FAULTS: list[Fault] = [*engine.FAULTS, *faces.FAULTS, *around.FAULTS, *kinds.FAULTS]
