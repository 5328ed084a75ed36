"""The snippets of docs/async.md that a reader completes with envs and a policy: they run as they are written."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import gymnasium

import vecenvs

ROOT = Path(vecenvs.__file__).parent.parent


def run(word: str, path: Path, **names: Any) -> dict[str, Any]:
    """Run the snippet with the word in it, with these names; give the names it then has."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "async.md").read_text(), re.DOTALL)
    path.write_text(next(code for code in found if word in code))
    return runpy.run_path(str(path), names)


def test_send_and_recv(tmp_path: Path) -> None:
    with vecenvs.make_vec_env("CartPole-v1", num_env=6, autoreset="async", force_dummy=True) as vec:
        names = run("vec.send(", tmp_path / "a.py", vec=vec, actions=[0] * 6, policy=lambda obs: [0] * len(obs))
        assert len(names["batch"]) == 4


def test_remote_vector_env(tmp_path: Path) -> None:
    angles: list[float] = []

    def policy(obs: Any) -> int:
        angles.append(obs[2])
        return int(obs[2] > 0)

    run("RemoteVectorEnv", tmp_path / "a.py", make_env=lambda i: gymnasium.make("CartPole-v1"), policy=policy)
    assert len(angles) > 100
