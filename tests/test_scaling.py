"""The model of one caller with W workers, and the tables of docs/scaling.md."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from vecenvs import SubprocVecEnv
from vecenvs.bench.workloads import workload

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # its scripts import each other
    patch.syspath_prepend(str(BENCHMARKS))
    names = ("scaling_model", "scaling_samples", "scaling_tables", "shared")
    model, sampling, tables, shared = map(import_module, names)

COSTS = model.Costs(3e-6, 2e-6, 1e-7, 5e-11, 4e-7, 1e-10, 8e-6)


def samples(costs: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Return samples in which envs that cost nothing have half of the latency."""
    grid = [(w, n, b) for w in (1, 2, 4) for n in (8, 64, 512) for b in (16, 28224)]
    alone = [model.Sample(w, n, b, costs.caller(n, w, b)) for w, n, b in grid]
    quick = [model.Sample(w, n, b, costs.step(0.0, n, w, b) - costs.latency / 2) for w, n, b in grid]
    return alone, quick, [model.Sample(1, n, 16, costs.step(1e-4, n, 1, 16), 1e-4) for n in (1, 2, 8)]


class TestFit:
    def test_finds_the_constants_again(self) -> None:
        found = model.fit(*samples(COSTS))
        for name, value in vars(COSTS).items():
            assert getattr(found.costs, name) == pytest.approx(value, rel=1e-6), name
        assert found.worst < 1e-6

    def test_no_constant_is_negative(self) -> None:
        alone, steps, slow = samples(COSTS)
        shrinking = [model.Sample(s.workers, s.num_envs, s.row_bytes, s.seconds / s.workers) for s in alone]
        found = model.fit(shrinking, steps, slow)
        assert min(vars(found.costs).values()) >= 0
        assert found.costs.per_worker == 0
        assert found.worst > 0.1  # and the misfit is reported

    def test_too_few_samples(self) -> None:
        alone, steps, slow = samples(COSTS)
        with pytest.raises(ValueError, match="two numbers of workers"):
            model.fit([s for s in alone if s.workers == 1], steps, slow)
        with pytest.raises(ValueError, match="a slow one"):
            model.fit(alone, steps, [])


class TestModel:
    def test_workers_at_a_share_have_that_share(self) -> None:
        for env in (1e-5, 1e-3):
            workers = COSTS.workers_at(0.8, env, 16, 16)
            assert COSTS.share(env, 16 * workers, workers, 16) == pytest.approx(0.8)

    def test_a_share_that_is_never_reached(self) -> None:
        assert COSTS.workers_at(0.8, 1e-7, 16, 16) < 1

    def test_with_slower_envs_one_caller_feeds_more_workers(self) -> None:
        found = [COSTS.workers_at(0.5, env, 16, 16) for env in (1e-6, 1e-5, 1e-4)]
        assert found == sorted(found)

    def test_a_caller_can_take_no_more_than_its_own_time_allows(self) -> None:
        steps_per_second = 1e6 / COSTS.step(0.0, 1e6, 1e3, 16)
        assert 0.8 * COSTS.most(16) < steps_per_second < COSTS.most(16)


def test_samples_of_a_real_vec_env() -> None:
    with SubprocVecEnv([workload("spin:0us")] * 4, num_workers=2) as vec:
        vec.reset()
        whole = sampling.step_sample(vec, 2, 16, 0.03)
        alone = sampling.caller_sample(vec, 2, 16, whole.seconds)
    assert (whole.workers, whole.num_envs, whole.row_bytes) == (alone.workers, alone.num_envs, 16) == (2, 4, 16)
    assert whole.seconds > 0
    assert alone.seconds > 0


RECORD = {
    "flat": {
        "results": [
            {
                "engine": engine,
                "num_envs": n,
                "relative_cost": {"median": 1.02, "min": 1.0, "max": 1.04},
                "beyond_bare": {"median": 1.01, "min": 0.9, "max": 1.1},
                "startup": {"median": n * cost},
                "memory": {"total": n * 2048},
            }
            for engine, cost in (("bare loop", 1.0), ("dummy", 1.5))
            for n in (64, 4096)
        ]
    },
    "shm": {
        "costs": vars(COSTS),
        "worst_error_of_caller": 0.12,
        "checks": [
            {
                "env": "CartPole-v1",
                "num_envs": 64,
                "workers": 1,
                "env_seconds": 2e-6,
                "share": {"median": 0.7, "min": 0.6, "max": 0.8},
                "predicted_share": 0.72,
            }
        ],
    },
    "ray": {"missing": "no ray"},
    "auto": {
        "results": [
            {"env": "CartPole-v1", "num_envs": 2, "engine": e, "beside_dummy": {"median": 1.2, "min": 1.1, "max": 1.3}}
            for e in ("dummy", "subproc", "subproc:caller")
        ]
    },
    "callers": {
        "results": [
            {"env": "spin:0us", "num_envs": 128, "candidate": "a", "share": {"median": 0.5, "min": 0.4, "max": 0.6}}
        ]
    },
}


class TestTables:
    def pages(self, folder: Path) -> None:
        for page, names in tables.PAGES.items():
            places = "".join(f"<!-- {name}: begin -->\nold\n<!-- {name}: end -->\nkept\n" for name in names)
            (folder / page).write_text(f"# Top\n{places}")

    def test_written_between_the_marks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages(tmp_path)
        monkeypatch.setattr(shared, "DOCS", tmp_path)
        tables.write_docs(RECORD)
        written = "".join((tmp_path / page).read_text() for page in tables.PAGES)
        assert "old" not in written
        assert written.count("kept") == sum(map(len, tables.PAGES.values()))
        for said in (
            "1.02 (1.00..1.04)",
            "| dummy | 1.50 | 2.00 KiB |",
            "| 12% |",
            "0.72 | 0.70 (0.60",
            "| 2 | 1.20 (1",
        ):
            assert said in written, said
        tables.write_docs(RECORD)
        assert "".join((tmp_path / page).read_text() for page in tables.PAGES) == written

    def test_a_missing_mark_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages(tmp_path)
        (tmp_path / "tuning.md").write_text("nothing")
        monkeypatch.setattr(shared, "DOCS", tmp_path)
        with pytest.raises(SystemExit, match="tuning.md: the page has no place for the section: <!-- auto: begin -->"):
            tables.write_docs(RECORD)

    def test_the_pages_have_a_place_for_each(self) -> None:
        for page, names in tables.PAGES.items():
            text = (shared.DOCS / page).read_text(encoding="utf-8")
            for name in names:
                assert f"<!-- {name}: begin -->" in text
                assert f"<!-- {name}: end -->" in text
