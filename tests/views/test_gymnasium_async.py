"""The asynchronous methods of the Gymnasium view: their order, their errors, their timeouts."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium_parity import asynchronous, info_fns, ours, sync

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.errors import EnvError, StepTimeout, WorkerDied
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv, DyingEnv, FailingEnv, GatedEnv, ToyError
from vecenvs.views import as_gymnasium, from_gymnasium

matrix = "contract"
ZEROS = np.zeros(4, np.int64)

STARTS: dict[str, Callable[[Any], Any]] = {
    "reset": lambda env: env.reset_async(seed=1),
    "step": lambda env: env.step_async(ZEROS),
    "call": lambda env: env.call_async("scale", 2.0),
}
WAITS: dict[str, Callable[[Any], Any]] = {
    "reset": lambda env: env.reset_wait(),
    "step": lambda env: env.step_wait(),
    "call": lambda env: env.call_wait(),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "reset()": lambda env: env.reset(),
    "step()": lambda env: env.step(ZEROS),
    "call()": lambda env: env.call("scale", 1.0),
    "get_attr": lambda env: env.get_attr("tag"),
    "set_attr": lambda env: env.set_attr("tag", 1),
    "render": lambda env: env.render(),
}


def test_async_and_wait_give_what_the_plain_calls_give(configuration: Any) -> None:
    mine, theirs = ours(configuration, info_fns(), "same_step"), asynchronous(info_fns(), "same_step")
    for env in (mine, theirs):
        env.reset_async(seed=[1, 2, 3, 4], options={"level": 2})
    assert_same(mine.reset_wait(timeout=30), theirs.reset_wait(timeout=30))
    for _ in range(8):
        for env in (mine, theirs):
            env.step_async(ZEROS)
        assert_same(mine.step_wait(timeout=30), theirs.step_wait(timeout=30))
    for env in (mine, theirs):
        env.call_async("scale", 2.0, offset=1.0)
    assert_same(mine.call_wait(), theirs.call_wait())
    mask = np.array([True, False, False, True])
    for env in (mine, theirs):
        env.reset_async(seed=9, options={"reset_mask": mask.copy()})
    assert_same(mine.reset_wait(), theirs.reset_wait())
    mine.close()
    theirs.close()


@pytest.mark.parametrize("pending", list(STARTS))
def test_nothing_else_starts_while_a_call_is_pending(configuration: Any, pending: str) -> None:
    env = ours(configuration, info_fns(), "next_step")
    env.reset(seed=0)
    STARTS[pending](env)
    for start in (*STARTS.values(), *OTHERS.values()):
        with pytest.raises(AlreadyPendingCallError, match=f"{pending}_wait first") as caught:
            start(env)
        assert caught.value.name == pending
    for name, wait in WAITS.items():
        if name != pending:
            with pytest.raises(NoAsyncCallError, match=f"{name}_wait without"):
                wait(env)
    WAITS[pending](env)
    env.step(ZEROS)
    env.close()


@pytest.mark.parametrize("name", list(WAITS))
def test_waiting_for_nothing(configuration: Any, name: str) -> None:
    env = ours(configuration, info_fns(), "next_step")
    env.reset()
    with pytest.raises(NoAsyncCallError) as caught:
        WAITS[name](env)
    assert caught.value.name == name
    env.close()


@pytest.mark.parametrize("pending", [None, *STARTS])
def test_everything_is_refused_after_close(configuration: Any, pending: str | None) -> None:
    env = ours(configuration, info_fns(), "next_step")
    env.reset()
    if pending is not None:
        STARTS[pending](env)
    env.close()
    env.close(timeout=1, terminate=True)
    assert env.closed
    assert env.vec.closed
    for call in (*STARTS.values(), *WAITS.values(), *OTHERS.values()):
        with pytest.raises(ClosedEnvironmentError):
            call(env)


def test_closing_the_vec_env_closes_the_view(configuration: Any) -> None:
    env = ours(configuration, info_fns(), "next_step")
    env.vec.close()
    for call in (*STARTS.values(), *WAITS.values(), *OTHERS.values()):
        with pytest.raises(ClosedEnvironmentError):
            call(env)
    env.close()


def gated(gate: Path, where: str, at: int) -> list[Any]:
    return [functools.partial(GatedEnv, 0, gate, "never"), functools.partial(GatedEnv, 1, gate, where, at)]


@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_timeout_loses_nothing(tmp_path: Path, where: str) -> None:
    gate = tmp_path / "gate"
    with SubprocVecEnv(gated(gate, where, 2), 2, "fork", autoreset="next_step") as vec:
        env = as_gymnasium(vec)
        env.reset()
        env.step(np.zeros(2, np.int64))
        (env.step_async(np.zeros(2, np.int64)) if where == "step" else env.reset_async())
        wait = env.step_wait if where == "step" else env.reset_wait
        for kind in (TimeoutError, multiprocessing.TimeoutError, StepTimeout):
            with pytest.raises(kind, match=f"did not finish their {where} within 0.05 s"):
                wait(timeout=0.05)
        with pytest.raises(AlreadyPendingCallError):
            env.reset()
        gate.touch()
        obs = wait()[0]
        assert obs.tolist() == ([[0, 1, 2], [1, 1, 2]] if where == "step" else [[0, 2, 0], [1, 2, 0]])


def test_a_plain_reset_over_the_step_timeout_loses_nothing(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with SubprocVecEnv(gated(gate, "reset", 1), 2, "fork", autoreset="next_step", step_timeout=1.0) as vec:
        env = as_gymnasium(vec)
        with pytest.raises(TimeoutError, match="env.* 1 did not finish their reset within 1 s"):
            env.reset()
        with pytest.raises(AlreadyPendingCallError, match="reset_wait first"):
            env.reset()
        gate.touch()
        assert env.reset_wait()[0].tolist() == [[0, 1, 0], [1, 1, 0]]
        assert env.step(np.zeros(2, np.int64))[0].tolist() == [[0, 1, 1], [1, 1, 1]]


def test_a_call_times_out_and_is_answered_later(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with SubprocVecEnv(gated(gate, "step", 1), 2, "fork", autoreset="next_step") as vec:
        env = as_gymnasium(vec)
        env.reset()
        env.call_async("_begin", "step")
        with pytest.raises(TimeoutError, match="did not finish their call within 0.05 s"):
            env.call_wait(timeout=0.05)
        gate.touch()
        assert env.call_wait(timeout=30) == (None, None)


def test_close_ends_an_env_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vecenvs.pool.pool_base.CLOSE_GRACE", 0.1)
    env = as_gymnasium(SubprocVecEnv(gated(tmp_path / "gate", "step", 1), 2, "fork", autoreset="next_step"))
    env.reset()
    env.step_async(np.zeros(2, np.int64))
    env.close()


def failing(**kwargs: Any) -> list[Any]:
    return [
        functools.partial(CountingEnv, 0, 50),
        functools.partial(FailingEnv, 1, **kwargs),
        functools.partial(CountingEnv, 2, 50),
    ]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_an_env_raises_its_own_exception(configuration: Any, mode: str) -> None:
    """The exception is raised as in Gymnasium, from the EnvError that names the env. The vector env stays usable."""
    env = ours(configuration, failing(where="step", at=3), mode)
    env.reset()
    zeros = np.zeros(3, np.int64)
    for _ in range(2):
        env.step(zeros)
    with pytest.raises(ToyError) as caught:
        env.step(zeros)
    cause = caught.value.__cause__
    assert isinstance(cause, EnvError)
    assert cause.index == 1
    assert cause.__cause__ is None
    with pytest.raises(ResetNeeded, match=r"env 1 failed before: call reset\(options=.*mask True for envs 1"):
        env.step(zeros)
    obs, infos = env.reset(options={"reset_mask": np.array([False, True, False])})
    assert obs.tolist() == [[0, 1, 4], [1, 2, 0], [2, 1, 4]]
    assert infos["_episode"].tolist() == [False, True, False]
    assert env.step(zeros)[0].tolist() == [[0, 1, 5], [1, 2, 1], [2, 1, 5]]
    env.close()


def reset_in_two(env: Any, **kwargs: Any) -> Any:
    env.reset_async(**kwargs)
    return env.reset_wait()


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_an_env_below_another_vector_env_raises(mode: str) -> None:
    """An exception from there is no VecEnvError; the step is over nevertheless."""
    fns = [functools.partial(CountingEnv, 0), functools.partial(FailingEnv, 1)]
    for below in (ours_of(fns, mode), sync(fns, mode)):
        env = as_gymnasium(from_gymnasium(below))
        env.reset()
        with pytest.raises(ToyError):
            env.step(np.zeros(2, np.int64))
        assert env.reset()[0].tolist() == [[0, 2, 0], [1, 2, 0]]
        assert env.step(np.zeros(2, np.int64))[0].tolist() == [[0, 2, 1], [1, 2, 1]]
        env.close()


def ours_of(fns: Any, mode: str) -> Any:
    return as_gymnasium(DummyVecEnv(fns, autoreset=mode))


@pytest.mark.parametrize("reset", [lambda env, **kwargs: env.reset(**kwargs), reset_in_two], ids=["at once", "in two"])
def test_an_exception_in_reset(configuration: Any, reset: Callable[..., Any]) -> None:
    env = ours(configuration, failing(where="reset", at=2), "next_step")
    env.reset()
    env.step(np.zeros(3, np.int64))
    with pytest.raises(ToyError):
        reset(env)
    obs, _ = reset(env, options={"reset_mask": np.array([False, True, False])})
    assert obs.tolist() == [[0, 2, 0], [1, 2, 0], [2, 2, 0]]
    assert reset(env)[0].tolist() == [[0, 3, 0], [1, 3, 0], [2, 3, 0]]
    env.close()


def test_after_a_first_reset_that_failed_all_must_be_reset() -> None:
    """A mask would exclude envs whose rows were never returned."""
    with DummyVecEnv(failing(where="reset", at=1), autoreset="next_step") as vec:
        env = as_gymnasium(vec)
        with pytest.raises(ToyError):
            env.reset()
        with pytest.raises(ResetNeeded, match=r"env 1 failed in reset: call reset\(\) first"):
            env.step(ZEROS[:3])
        env.reset()
        env.step(ZEROS[:3])


def test_an_exception_that_cannot_travel_comes_as_env_error() -> None:
    with SubprocVecEnv(failing(where="step", at=1, kind="awkward"), 2, "fork", autoreset="next_step") as vec:
        env = as_gymnasium(vec)
        env.reset()
        with pytest.raises(EnvError, match="env 1 raised AwkwardError"):
            env.step(np.zeros(3, np.int64))


def test_a_dead_worker(tmp_path: Path) -> None:
    fns = [functools.partial(CountingEnv, 0), functools.partial(DyingEnv, 1)]
    with SubprocVecEnv(fns, 2, "fork", autoreset="next_step") as vec:
        env = as_gymnasium(vec)
        env.reset()
        with pytest.raises(WorkerDied, match="envs 1 died"):
            env.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_replaced_worker_shows_as_a_truncation(tmp_path: Path, mode: str) -> None:
    fns = [functools.partial(CountingEnv, 0), functools.partial(DyingEnv, 1, lives_file=tmp_path / "lives")]
    with SubprocVecEnv(fns, 2, "fork", autoreset=mode, on_failure="restart") as vec:
        env = as_gymnasium(vec)
        env.reset()
        _, rewards, terminations, truncations, infos = env.step(np.zeros(2, np.int64))
        assert (rewards.tolist(), terminations.tolist(), truncations.tolist()) == (
            [1, 0],
            [False, False],
            [False, True],
        )
        infos = infos["final_info"] if mode == "same_step" else infos
        assert infos["_worker_restarted"].tolist() == [False, True]


def test_an_env_whose_episode_is_over_must_be_reset_first() -> None:
    env = as_gymnasium(
        DummyVecEnv([functools.partial(CountingEnv, tag, 2 + tag) for tag in range(3)], autoreset="disabled")
    )
    with pytest.raises(ResetNeeded, match="before the first reset"):
        env.reset(options={"reset_mask": np.array([True, False, False])})
    env.reset()
    env.step(ZEROS[:3])
    env.step(ZEROS[:3])
    with pytest.raises(ResetNeeded, match="envs 0 are over.*the mask True for envs 0"):
        env.step(ZEROS[:3])
    assert env.call("steps") == (2, 2, 2)  # nothing was stepped
    env.reset(options={"reset_mask": np.array([True, False, False])})
    assert env.step(ZEROS[:3])[2].tolist() == [False, True, False]
    env.reset(options={"reset_mask": np.array([True, False, True])})  # but not env 1
    with pytest.raises(ResetNeeded, match="envs 1 are over"):
        env.step(ZEROS[:3])
    assert env.call("steps") == (3, 3, 3)
    env.close()


def test_an_episode_that_ends_beside_an_env_that_raises_is_over() -> None:
    fns = [functools.partial(CountingEnv, 0, 1), functools.partial(FailingEnv, 1)]
    with DummyVecEnv(fns, autoreset="disabled") as vec:
        env = as_gymnasium(vec)
        env.reset()
        with pytest.raises(ToyError):
            env.step(ZEROS[:2])
        env.reset(options={"reset_mask": np.array([False, True])})
        with pytest.raises(ResetNeeded, match="envs 0 are over"):
            env.step(ZEROS[:2])
        assert env.call("steps") == (1, 0)


@pytest.mark.parametrize("wrong", [[0] * 3, [[0]] * 4, [0.5] * 4, ["a"] * 4], ids=str)
def test_wrong_actions_leave_everything_as_it_was(configuration: Any, wrong: list[Any]) -> None:
    env = ours(configuration, info_fns(), "next_step")
    env.reset()
    with pytest.raises((ValueError, TypeError)):
        env.step(np.array(wrong))
    assert env.step(ZEROS)[0][:, 1].tolist() == [1, 1, 1, 1]
    env.close()


def test_rows_are_left_when_on_episode_raises() -> None:
    seen: list[Any] = []

    def on_episode(info: Any) -> None:
        seen.append(info)
        if len(seen) == 1:
            raise ToyError

    with contextlib.closing(as_gymnasium(DummyVecEnv([CountingEnv] * 2, on_episode=on_episode))) as env:
        env.reset()
        with contextlib.suppress(ToyError):
            while True:
                env.step(ZEROS[:2])
        with pytest.raises(AlreadyPendingCallError, match="step_wait first"):
            env.step(ZEROS[:2])
        assert env.step_wait()[2].all()
        assert len(seen) == 2
        env.step(ZEROS[:2])
        with pytest.raises(NoAsyncCallError):
            env.step_wait()
