"""Where the tests of replay find each other, and the Pythons on which there are none."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "ray"))  # for `ray_session`

# setup.py leaves cpprb out of the tests' libraries where it has no wheel; where it is missing elsewhere, tests fail.
UNTESTED = sys.version_info >= (3, 13) and importlib.util.find_spec("cpprb") is None
collect_ignore_glob = ["test_*.py"] if UNTESTED else []


def pytest_report_header() -> str | None:
    """Say so where nothing is tested."""
    return "vecenvs.replay: NOT TESTED, since cpprb has no wheel for this Python" if UNTESTED else None
