"""The Pythons on which the examples of replay are not tested: tests/replay/conftest.py tells of it."""

from __future__ import annotations

import importlib.util
import sys

UNTESTED = sys.version_info >= (3, 13) and importlib.util.find_spec("cpprb") is None
collect_ignore = ["test_replay_examples.py"] if UNTESTED else []
