"""The model of nodes with leaders, and its tables in docs/scaling.md."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # its scripts import each other
    patch.syspath_prepend(str(BENCHMARKS))
    names = ("hosts_model", "hosts_tables", "scaling_tables", "shared")
    model, tables, scaling_tables, shared = map(import_module, names)

COSTS = model.NodeCosts(3e-5, 5e-5, 4e-6, 6e-8, 5e-11)
WRONG = model.Cell(6, 8, 192)  # a cell that the model predicts, measured as twice as much


def record() -> dict[str, Any]:
    results = []
    for cell in model.GRID:
        cost = COSTS.of(*cell[:4]) * (2 if cell == WRONG or not cell.leaders else 1)
        results.append(model.result(cell, [{**dict.fromkeys(model.QUANTITIES, cost), "bytes": 1e4}] * 2))
    return {"cartpole": 1e-5, "machine": {"load_before": 0.1}, "results": results}


def test_a_fit_finds_the_constants_again() -> None:
    for costs in model.fit_all(record()["results"]).values():
        assert vars(costs) == pytest.approx(vars(COSTS), rel=1e-6)


def test_predicted_cells_are_not_fitted_to() -> None:
    results = record()["results"]
    fitted = model.errors(results, COSTS, "caller_cpu", fitted=True)
    predicted = model.errors(results, COSTS, "caller_cpu", fitted=False)
    assert {(cell.nodes, cell.workers) for cell in fitted} == {(n, w) for n in (2, 4, 8) for w in (1, 4)}
    assert {cell.nodes for cell in predicted} >= {3, 6}
    assert predicted[WRONG] == pytest.approx(-0.5)
    assert max(map(abs, fitted.values())) < 1e-6


def test_too_few_cells() -> None:
    with pytest.raises(ValueError, match="two numbers each of nodes"):
        model.fit({model.Cell(2, w, 192): 1.0 for w in (1, 4)})


def test_a_caller_of_more_expensive_envs_serves_more_nodes() -> None:
    leaders = model.NodeCosts(1e-5, 1e-5, 1e-6, 1e-8, 1e-11)
    needs = [tables.Needs(COSTS, leaders, env, model.FLOATS) for env in (1e-5, 1e-3, 1e-2)]
    served = [each.nodes_of_a_caller for each in needs]
    assert served == sorted({*served})
    assert served[0] == 0
    assert [each.first for each in needs[:2]] == ["a leader", "the caller's CPU"]
    assert 0 < served[1] * needs[1].callers >= needs[1].nodes
    assert tables.Needs(leaders, leaders, 1e-2, model.IMAGE).first == "the caller's network"
    assert tables.Needs(leaders, COSTS, 1e-5, model.IMAGE).first == "a leader"


def test_tables_are_written_where_the_page_has_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scaling.md").write_text((shared.DOCS / "scaling.md").read_text(encoding="utf-8"))
    monkeypatch.setattr(shared, "DOCS", tmp_path)
    scaling_tables.write_docs(record(), tables.PAGES)
    written = (tmp_path / "scaling.md").read_text()
    for said in ("| 6 x 8 | 192 | 4 floats | prediction | 53 | 107 | -50% |", "| worst error, predicted cells | 50% |"):
        assert said in written, said
    scaling_tables.write_docs(record(), tables.PAGES)
    assert (tmp_path / "scaling.md").read_text() == written
