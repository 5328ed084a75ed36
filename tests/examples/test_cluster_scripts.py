"""The scripts of examples/cluster call programs that exist, with arguments that these have."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "cluster"
SCRIPTS = sorted(path.name for path in CLUSTER.iterdir() if path.suffix != ".md")


@pytest.mark.parametrize("name", SCRIPTS)
def test_programs_and_flags_exist(name: str) -> None:
    text = (CLUSTER / name).read_text()
    calls = re.findall(r"(examples/\w+\.py)((?: --[a-z-]+ \S+)*)", text)
    assert calls
    for program, arguments in calls:
        known = set(re.findall(r'add_argument\("(--[a-z0-9-]+)"', (ROOT / program).read_text()))
        used = set(re.findall(r"--[a-z-]+", arguments))
        assert used
        assert used <= known
    assert "Submit" in text
    assert "Change:" in text


@pytest.mark.parametrize("name", [name for name in SCRIPTS if not name.endswith(".yaml")])
def test_syntax(name: str) -> None:
    subprocess.run(["bash", "-n", str(CLUSTER / name)], check=True, timeout=20)


def test_readme_names_each() -> None:
    text = (CLUSTER / "README.md").read_text()
    assert all(f"({name})" in text for name in SCRIPTS)
