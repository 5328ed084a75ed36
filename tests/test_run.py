"""`python -m vecenvs run`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from terminal import until_ctrl_c

import vecenvs
from vecenvs.__main__ import main
from vecenvs.cli import _play
from vecenvs.testing.envs import CountingEnv, FailingEnv
from vecenvs.wrappers import load_results


def a_counting_env(tag: int) -> CountingEnv:
    return CountingEnv(tag)


def test_random_policy_writes_monitor_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for backend in ("dummy", "subproc"):
        logs = tmp_path / backend
        command = ["run", "CartPole-v1", "--num-envs", "3", "--seed", "1", "--monitor-dir", str(logs), "--quiet"]
        assert main([*command, "--steps", "600", "--backend", backend]) == 0
        found.append(load_results(logs))
    assert len(found[0].files) == 3
    assert sorted(found[0].r) == sorted(found[1].r)
    out = capsys.readouterr().out.splitlines()
    k = len(found[0])
    assert out[0].startswith("600 steps in ")
    assert f"{k} episodes; of the last {k}: return {found[0].r.mean():.4g} (" in out[0]
    assert out[1] == f"monitor files: {tmp_path / 'dummy'}"


@pytest.mark.parametrize("name", ["CountingEnv", "a_counting_env"])
def test_an_env_by_its_class_or_function(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", f"{__name__}:{name}", "--num-envs", "2", "--steps", "20", "--quiet"]
    assert main([*command, "--backend", "dummy", "--env-kwargs", '{"tag": 3}']) == 0
    assert capsys.readouterr().out.startswith("20 steps in ")


class Fatal(FailingEnv):
    """An env that ends its process once: in the first step of the process that has made the file `mark`."""

    def __init__(self, mark: str, render_mode: str | None = None) -> None:
        super().__init__(0, at=1_000_000)
        self.mark = Path(mark)

    def step(self, action: Any) -> Any:
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return super().step(action)
        os._exit(3)


@pytest.mark.parametrize(("more", "code"), [([], 1), (["--on-failure", "restart"], 0)])
def test_workers_that_die(
    more: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(gymnasium.registry, "Fatal-v0", gymnasium.envs.registration.EnvSpec("Fatal-v0", Fatal))
    kwargs = json.dumps({"mark": str(tmp_path / "mark")})
    monkeypatch.setattr("vecenvs.cli._play._LINE_EVERY", 0.0)
    monkeypatch.setattr("vecenvs.cli._play._SHOW_EVERY", 0.0)
    command = ["run", "Fatal-v0", "--num-envs", "3", "--num-workers", "2", "--backend", "subproc"]
    assert main([*command, "--steps", "300", "--env-kwargs", kwargs, *more]) == code
    out, err = capsys.readouterr()
    assert ("workers replaced: 1" in out) == (code == 0)
    assert ("workers replaced 1, " in err) == (code == 0)
    assert ("died" in err) == (code == 1)


@pytest.mark.parametrize("backend", ["dummy", "subproc"])
def test_load_without_a_terminal(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line now and then has what a terminal shows."""
    monkeypatch.setattr("vecenvs.cli._play._LINE_EVERY", 0.1)
    command = ["run", "CartPole-v1", "--num-envs", "4", "--num-workers", "2", "--load", "--steps", "100000"]
    if backend == "dummy":
        command = [*command[:4], *command[6:]]
    monkeypatch.setattr("vecenvs.cli._play._SHOW_EVERY", 0.0)
    count, written = _play.Play.count, list[str]()
    monkeypatch.setattr("vecenvs.cli._play.sys.stderr.write", written.append)

    def counting(self: _play.Play, infos: Any, dones: Any) -> None:
        if len(written) >= 2:
            raise KeyboardInterrupt
        count(self, infos, dones)

    monkeypatch.setattr(_play.Play, "count", counting)
    assert main([*command, "--backend", backend]) == 130
    lines = [line for line in written if "steps/s" in line]
    envs = ["envs 0-3"] if backend == "dummy" else ["envs 0, 1", "envs 2, 3"]
    load = r"\d+% of the time stepping, \d+ MiB"
    for line in lines:
        assert re.search(f"workers {load}", line)
        assert all(re.search(f"worker {k}, {each} {load}, process \\d+ on ", line) for k, each in enumerate(envs)), line


def failing() -> FailingEnv:
    return FailingEnv(0, at=7)


def test_errors_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", f"{__name__}:failing", "--num-envs", "2", "--steps", "20", "--backend", "dummy", "--quiet"]
    assert main([*command, "--on-error", "renew"]) == 0
    assert re.search(r"; workers: \d+% of the time stepping, \d+ MiB; errors of envs: 2$", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["NoSuchEnv-v0"], "NoSuchEnv"),
        ([f"{__name__}:no_such_env"], "has no 'no_such_env', and registers no env of this id"),
        (["CartPole-v1", "--backend", "no"], "unknown backend 'no'"),
        (["CartPole-v1", "--env-kwargs", '{"no": 1}'], "unexpected keyword argument 'no'"),
        (["CartPole-v1", "--env-kwargs", "no"], "is not a JSON object"),
        (["CartPole-v1", "--policy", "no"], "unrecognized arguments: --policy"),
        (["CartPole-v1", "--num-envs", "0"], "at least 1"),
        (["CartPole-v1", "--monitor-dir", __file__], "is a file"),
    ],
)
def test_bad_input_is_one_line_and_2(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    try:
        code: object = main(["run", "--quiet", "--steps", "100", "--num-envs", "2", "--backend", "dummy", *arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_an_env_that_raises_is_exit_code_1_with_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Failing-v0", entry_point=lambda: FailingEnv(0, at=7))
    monkeypatch.setitem(gymnasium.registry, "Failing-v0", spec)
    assert main(["run", "Failing-v0", "--num-envs", "2", "--backend", "dummy", "--quiet"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Failing-v0: env 0 raised ToyError in step")
    assert "Traceback from where env 0 lives" in err


def test_live_progress_and_ctrl_c(tmp_path: Path) -> None:
    """In a terminal: the table appears, Ctrl-C to the whole group ends it, and everything written can be read."""
    command = ["run", "CartPole-v1", "--num-envs", "2", "--backend", "subproc", "--monitor-dir", str(tmp_path)]
    shown, out = until_ctrl_c(*command, word=b"steps/s")
    assert b"CartPole-v1: 2 envs, SubprocVecEnv" in shown
    assert b"return" in shown
    assert b" steps in " in out
    assert load_results(tmp_path).r.size >= 0


class Numbering(CountingEnv):
    """Its infos have the number of the episode."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "episode": self.episode}


def test_an_info_of_this_name_that_is_not_a_monitors() -> None:
    with vecenvs.DummyVecEnv([lambda: Numbering(0)]) as vec:
        play = _play.Play(vec, seed=1)
        play.run(None, steps=7)
    assert (play.steps, play.episodes) == (7, 0)
