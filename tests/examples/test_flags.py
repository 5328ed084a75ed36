"""The examples have one set of names for their arguments: CleanRL's, where it has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))

CLEANRL = (
    "env-id seed num-envs total-timesteps learning-rate num-steps gamma gae-lambda num-minibatches update-epochs "
    "clip-coef ent-coef vf-coef max-grad-norm buffer-size batch-size learning-starts tau num-iterations"
)
# What CleanRL's programs do not have.
OWN = (
    "backend num-workers num-cpus num-eval-envs eval-frequency hidden-size plot monitor-dir num-explorers num-updates "
    "updates-per-iteration num-fragments publish-frequency samples-per-insert n-step target-return model video-folder "
    "first-port gpus"
)
# Programs whose length is a number of steps of the envs. The others count updates of a learner beside its explorers.
BY_STEPS = [name for name in PROGRAMS if not name.startswith("replay_")]


def flags(name: str) -> set[str]:
    return set(re.findall(r'add_argument\("--([a-z0-9-]+)"', (EXAMPLES / name).read_text()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_names_are_known(name: str) -> None:
    assert flags(name) <= {*CLEANRL.split(), *OWN.split()}


@pytest.mark.parametrize("name", BY_STEPS)
def test_all_that_step_envs_take_these(name: str) -> None:
    needed = {"num-envs", "total-timesteps", "seed"}
    with_own_env = name in ("tool_envs.py", "own_simulators.py")
    assert flags(name) >= (needed if with_own_env else {"env-id", *needed})
    assert "num-iterations" not in flags(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_prints_progress_at_once(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert re.search(r"\bprint\(", text)
    assert "flush=True" in text or "rich" in text
