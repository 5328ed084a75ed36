"""The training examples run and reach what their texts claim."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Keep torch on one core, so that sums come out the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load(name: str) -> ModuleType:
    """Import an example by its path."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sb3_ppo_learns_and_is_the_same_over_sb3s_own_envs(capsys: pytest.CaptureFixture[str]) -> None:
    main = load("sb3_ppo").main
    mean = main(["--total-timesteps", "6000"])
    assert mean > 2 * 22  # a random policy's; how far it comes in so few steps depends on how a processor rounds
    out = capsys.readouterr().out
    assert "step 5000: mean return" in out
    assert f"mean return {mean:.1f}" in out
    assert main(["--total-timesteps", "6000", "--backend", "sb3"]) == mean


def test_ppo_in_one_file_learns_the_same_with_its_make_vec_line_changed() -> None:
    main = load("ppo_cleanrl_style").main
    arguments = ["--total-timesteps", "6144"]
    returns = main([*arguments, "--backend", "subproc"])
    assert returns == main([*arguments, "--backend", "gymnasium"])
    assert sum(returns[-10:]) > 2 * sum(returns[:10])


def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of a rollout, twice, and gone on with on another engine."""
    example = load("sb3_resume")
    whole = example.main([str(tmp_path / "whole.npz"), "--total-timesteps", "2560", "--backend", "dummy"])
    stopped = str(tmp_path / "stopped.npz")
    for backend, last in (("dummy", 1000), ("subproc", 1700)):
        with monkeypatch.context() as patch:
            patch.setattr(example.SaveRollouts, "_on_step", lambda self, last=last: self.num_timesteps < last)
            assert not _equal(example.main([stopped, "--total-timesteps", "2560", "--backend", backend]), whole)
    assert _equal(example.main([stopped, "--total-timesteps", "2560", "--backend", "subproc"]), whole)


def test_a_run_in_one_file_that_was_stopped_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after an update that is not saved, twice, and gone on with on another engine."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = load("cleanrl_resume")
    length = ["--total-timesteps", "3072"]
    whole = example.main([str(tmp_path / "whole.npz"), "--backend", "dummy", *length])
    stopped = [str(tmp_path / "stopped.npz"), *length]
    for backend, last in (("dummy", 3), ("subproc", 5)):
        assert not _equal(example.main([*stopped, "--backend", backend], last), whole)
    assert _equal(example.main([*stopped, "--backend", "subproc"]), whole)


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())
