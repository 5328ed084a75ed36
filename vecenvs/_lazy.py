"""Names of a package whose modules are imported when a program first asks for one of them (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def at_first_use(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package. `names` has, for each module, its names, divided by spaces."""
    modules = {name: module for module, several in names.items() for name in several.split()}
    there = vars(sys.modules[package])

    inside = {module.removeprefix(f"{package}.").partition(".")[0] for module in names}

    def get(name: str) -> Any:
        if name in modules:
            there[name] = found = getattr(import_module(modules[name]), name)  # the next look-up does not come here
            return found
        if name in inside:  # import_module sets it
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*there, *modules, *inside})
