"""Large libraries in the process of the tests. Ray's processes find this folder, too."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """A large module, imported when a test first uses it: where it is loaded, every fork takes longer."""

    def __init__(self, name: str) -> None:
        self._module = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks whether it is a fixture
            raise AttributeError(name)
        return getattr(importlib.import_module(self._module), name)
