"""The section about batched envs in docs/benchmarks.md."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # its scripts import each other
    patch.syspath_prepend(str(BENCHMARKS))
    tables, envpool = map(import_module, ("batched_tables", "batched_envpool"))

ABOUT = {"command": "python x", "machine": {"cores": 2, "python": "3.11.7"}, "versions": {"envpool": "1"}}


def spread(median: float) -> dict[str, float]:
    return {"median": median, "min": median - 0.1, "max": median + 0.1}


def cell(env: str, num_envs: int, **shares: float) -> dict[str, Any]:
    found = {name: spread(median) for name, median in shares.items()}
    return {**ABOUT, "env": env, "num_envs": num_envs, "shares": found, "failures": {}}


def test_nothing_measured_is_nothing_written() -> None:
    assert tables.section({}) == ""
    assert tables.section({"envpool": {"Pong 64": cell("Pong", 64)}}) == ""


def test_rows_are_for_what_was_measured() -> None:
    record = {
        "envpool": {"Pong 64": cell("Pong", 64, subproc=0.9), "CartPole 64": cell("CartPole", 64)},
        "ray": {"Pong 1024": cell("Pong", 1024, ray=0.8)},
    }
    text = tables.section(record)
    assert "| Pong, 64 envs | 0.90 (0.80..1.00) | - |" in text
    assert "| Pong, 1024 envs | - | 0.80 (0.70..0.90) |" in text
    assert "|  | subproc | ray, two hosts |" in text
    assert "CartPole" not in text
    assert text.endswith("`python x` on 2 cores, Python 3.11.7; envpool 1.")


def test_numpy_cartpole() -> None:
    native = {
        "1024": {**ABOUT, "shares": {"dummy": {"limit": spread(0.5), "bare": 0.9}}, "rows_per_env": {"dummy": 3.0}},
        "64": {**ABOUT, "shares": {}, "rows_per_env": {}},
    }
    text = tables.section({"native": native})
    assert "|  | 1024 envs |" in text
    assert "| dummy | 0.50 (0.40..0.60) |" in text
    assert "| dummy | 3.0 |" in text


def test_rounds_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(envpool.time, "monotonic", lambda: now[0])
    rounds = []
    for seconds, of_cell in envpool.shared_out([10.0, 100.0, 1.0], 2.0, 9):
        rounds.append(0)
        for _ in of_cell:
            now[0] += seconds
            rounds[-1] += 1
    assert rounds == [4, 3, 3]
