"""examples/replay_ray.py, replay_dqn.py and replay_actors.py, as a user runs them, and their arithmetic."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FEW = ("--num-explorers", "3", "--num-envs", "1")
LINE = re.compile(r"update +(\d+)  loss (\d+\.\d+)  batch \(16, 2, 2\)  stored (\d+)  explorers ([\d ]+)$")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100.0, check=False
    )


@pytest.mark.long
@pytest.mark.timeout(120)
def test_replay_ray_prints_each_update() -> None:
    done = run("replay_ray.py", "--num-updates", "6", *FEW)
    assert done.returncode == 0, done.stdout
    lines = [found for line in done.stdout.splitlines() if (found := LINE.match(line.rstrip()))]
    assert [int(found[1]) for found in lines] == [1, 2, 3, 4, 5, 6], done.stdout
    assert all(16 <= int(found[3]) <= 2000 for found in lines)
    explorers = [[int(explorer) for explorer in found[4].split()] for found in lines]
    assert all(len(each) == 16 for each in explorers)
    assert {explorer for each in explorers for explorer in each} <= {0, 1, 2}
    assert "6/6" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(120)
def test_ctrl_c_ends_replay_ray_and_all_it_started() -> None:
    command = [sys.executable, "-u", str(EXAMPLES / "replay_ray.py"), "--num-updates", "1000000", *FEW]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        before = []
        for line in process.stdout:
            before.append(line)
            if LINE.match(line.rstrip()):
                break
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) > 3
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all in its foreground
        said = process.stdout.read()
        assert process.wait(30.0) == 130, "".join(before) + said
    assert "stopped" in said
    assert "Traceback" not in said
    assert psutil.wait_procs(started, timeout=15.0)[1] == []


def test_the_table_of_replay_ray_learns_what_an_end_is() -> None:
    example = load("replay_ray")
    board = np.zeros((1, 2, 2), np.float32)
    board[0, 1, 0] = 1.0
    batch: dict[str, Any] = {"obs": board, "next_obs": board, "action": np.array([2]), "reward": np.ones(1, np.float32)}
    for terminated, value in ((True, 1.0), (False, 10.0)):
        weights = np.zeros((4, 4), np.float32)
        for _ in range(2000):
            loss = example.update(weights, {**batch, "terminated": np.array([terminated])}, gamma=0.9)
        assert loss < 1e-3
        assert weights[2, 2] == pytest.approx(value, abs=0.1)
        assert np.count_nonzero(weights) == 1


@pytest.mark.long
@pytest.mark.timeout(120)
def test_replay_dqn_runs_until_its_goal() -> None:
    small = ("--num-updates", "40", "--eval-frequency", "20", "--learning-starts", "70", "--hidden-size", "8")
    done = run("replay_dqn.py", "--target-return", "1", "--num-explorers", "2", *small)
    assert done.returncode == 0, done.stdout
    assert " 20 updates, " in done.stdout
    assert " 40 updates, " not in done.stdout
    assert "\nreached a mean return of 1: " in done.stdout


@pytest.mark.long
def test_explorers_of_replay_dqn_act_as_the_network_does() -> None:
    import torch

    example = load("replay_dqn")
    learner = example.Learner(4, 3, example.parse(["--hidden-size", "7"]))
    greedy = example.Greedy(3, 0.0, 0)
    obs = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)
    assert set(greedy.act(obs)) == {0, 1, 2}  # at random before it has any weights
    greedy.set_weights(learner.weights())
    with torch.no_grad():
        best = learner.net(torch.from_numpy(obs)).argmax(1).numpy()
    assert np.mean(greedy.act(obs) == best) > 0.99  # values may be as good as equal


@pytest.mark.long
def test_the_update_of_replay_dqn() -> None:
    import torch

    example = load("replay_dqn")
    torch.manual_seed(0)
    learner = example.Learner(4, 2, example.parse(["--hidden-size", "16", "--learning-rate", "0.01", "--tau", "0.0"]))
    obs = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    action, reward = np.arange(8) % 2, np.ones(8, np.float32)
    terminated, discount = np.arange(8) < 4, np.full(8, 0.5, np.float32)
    batch = {"obs": obs, "action": action, "reward": reward, "next_obs": obs, "terminated": terminated}
    losses = [learner.update({**batch, "discount": discount}) for _ in range(1500)]
    assert losses[-1] < 1e-3 < losses[0]
    with torch.no_grad():
        values, future = learner.net(torch.from_numpy(obs)), learner.target(torch.from_numpy(obs))
    best = future.numpy()[np.arange(8), values.argmax(1).numpy()]  # chosen by the one, valued by the other
    targets = reward + 0.5 * np.where(terminated, 0.0, best)
    np.testing.assert_allclose(values.numpy()[np.arange(8), action], targets, atol=0.1)


@pytest.mark.long
@pytest.mark.timeout(120)
def test_replay_actors_share_a_server() -> None:
    """Each round the learner, an actor, has more of what the explorers, actors as well, have pushed."""
    small = ("--num-iterations", "3", "--num-explorers", "2", "--num-fragments", "2", "--updates-per-iteration", "5")
    done = run("replay_actors.py", "--buffer-size", "200", *small)
    assert done.returncode == 0, done.stdout
    lines = re.findall(r"iteration +(\d)  stored (\d+)  inserted (\d+)  sampled (\d+)", done.stdout)
    rounds, stored, inserted, sampled = ([int(each[k]) for each in lines] for k in range(4))
    assert rounds == [1, 2, 3], done.stdout
    assert inserted == sorted(inserted)
    assert inserted[2] > inserted[0] >= stored[0] >= 128
    assert max(stored) <= 200
    assert sampled[-1] >= 3 * 5 * 128
    assert "Traceback" not in done.stdout


def test_the_table_of_replay_actors_learns_what_an_end_is() -> None:
    example = load("replay_actors")
    batch = {"obs": np.array([3, 3]), "action": np.array([1, 1]), "next_obs": np.array([3, 3]), "reward": np.ones(2)}
    for terminated, value in ((True, 1.0), (False, 20.0)):
        values = np.zeros((16, 4))
        for _ in range(2000):
            example.update(values, {**batch, "terminated": np.array([terminated] * 2)}, gamma=0.95)
        assert values[3, 1] == pytest.approx(value, abs=1e-6)
        assert np.count_nonzero(values) == 1
