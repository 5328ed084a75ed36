"""What an EnvShard and its worker do if several things go wrong in one step. See also the conformance suite."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
import pytest
from gymnasium import Env, spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from vecenvs import DummyVecEnv
from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv, FailingEnv
from vecenvs.transport.protocol import Answer, Command, RowsBody, address
from vecenvs.worker.rules import Rules
from vecenvs.worker.worker import Worker


class TellingEnv(Env[Any, Any]):
    """Counts its steps and says so in its infos; does at each step what `script` says of it."""

    observation_space = spaces.Box(-100, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, script: dict[int, str] | None = None, gate: threading.Event | None = None) -> None:
        self.t = 0
        self.script = script or {}
        self.gate = gate
        self.secret: Any = 0.0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.t and self.gate is not None:
            self.gate.wait(30)
        return np.float32([0]), {"lock": threading.Lock()} if "lock" in self.script.values() and self.t else {}

    @property
    def hp(self) -> float:
        if self.script.get(self.t) == "interrupt":
            raise KeyboardInterrupt
        return float(self.t)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.t += 1
        todo = self.script.get(self.t, "")
        if todo == "raise":
            raise ZeroDivisionError
        obs: Any = np.zeros(3) if todo == "misfit" else np.float32([self.t])
        reward: Any = "much" if todo == "reward" else 0.5
        return obs, reward, todo in ("end", "lock"), False, {} if todo == "silent" else {"t": self.t}


def worker_of(*envs: TellingEnv, remote: bool) -> tuple[Worker, list[tuple[int, Any]]]:
    answers: list[tuple[int, Any]] = []
    batch = BatchColumns(envs[0].observation_space, envs[0].action_space, len(envs), Allocator())
    worker = Worker(envs, 0, batch, Rules("same_step"), lambda _, tag, body: answers.append((tag, body)), remote=remote)
    worker.handle(1, *address(Command.RESET, range(len(envs))))
    answers.clear()
    return worker, answers


def test_other_rows_of_a_failed_step_have_their_own_infos() -> None:
    """Also where the step before brought everybody's infos, and this one goes without an env that is being reset."""
    gate = threading.Event()
    envs = [TellingEnv({1: "end"}, gate), TellingEnv(), TellingEnv({2: "raise"}), TellingEnv()]
    with DummyVecEnv([lambda env=env: env for env in envs], autoreset="async") as vec:  # type: ignore[misc]
        vec.reset()
        assert [info["t"] for info in vec.step([0] * 4)[3]] == [1] * 4
        with pytest.raises(EnvError) as caught:
            vec.step([0] * 4)
        gate.set()
        assert caught.value.batch is not None
        assert {
            int(i): info["t"] for i, info in zip(caught.value.batch.indices, caught.value.batch.infos, strict=True)
        } == {
            1: 2,
            3: 2,
        }


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("todo", ["misfit", "reward", "raise"])
def test_an_env_that_has_failed_says_nothing_else(todo: str, remote: bool) -> None:
    worker, answers = worker_of(TellingEnv(), TellingEnv({1: todo}), TellingEnv({1: "silent"}), remote=remote)
    worker.handle(2, Command.STEP, None)
    ((_, body),) = answers
    assert [extra.slot for extra in body.extras if extra.failure] == [1]
    assert [extra.slot for extra in body.extras].count(1) == 1


def test_a_ctrl_c_outside_of_the_envs_steps_leaves_no_command_unanswered() -> None:
    envs = [TellingEnv(), TellingEnv({2: "interrupt"})]
    with DummyVecEnv([lambda env=env: env for env in envs], info_attrs=["hp"]) as vec:  # type: ignore[misc]
        vec.reset()
        vec.step([0, 0])
        with pytest.raises(KeyboardInterrupt):
            vec.step([0, 0])
        with pytest.raises(EnvError, match="KeyboardInterrupt"):
            vec.step_wait(timeout=10)
        envs[1].script.clear()
        vec.reset()
        assert vec.step([0, 0])[0].shape == (2, 1)


def test_a_ctrl_c_comes_out_once() -> None:
    """Not again at the next end of an episode, when there is something to do after a step."""
    fns = [functools.partial(FailingEnv, 0, "step", 2, "interrupt", 9), functools.partial(CountingEnv, 1, 4)]
    with DummyVecEnv(fns, autoreset="async") as vec:
        vec.reset()
        vec.step([0, 0])
        with pytest.raises(KeyboardInterrupt):
            vec.step([0, 0])
        with pytest.raises(EnvError, match="KeyboardInterrupt"):
            vec.step_wait(timeout=10)
        vec.reset()
        dones = [vec.step([0, 0])[2][1] for _ in range(8)]
        assert any(dones)


def test_rows_that_come_before_an_error() -> None:
    """`recv` gives them first."""
    envs = [TellingEnv(), TellingEnv({1: "raise"}), TellingEnv()]
    with DummyVecEnv([lambda env=env: env for env in envs]) as vec:  # type: ignore[misc]
        vec.reset()
        vec.send([0] * 3)
        assert vec.recv(3).indices.tolist() == [0]
        with pytest.raises(EnvError, match="env 1"):
            vec.recv()
        assert vec.recv().indices.tolist() == [2]


def test_an_info_that_no_pickle_takes_costs_nobody_elses() -> None:
    """Infos of numbers of the same step still go out, in their columns."""
    envs = [TellingEnv({2: "lock"}), TellingEnv()]
    worker, answers = worker_of(*envs, remote=True)
    worker.handle(2, Command.STEP, None)
    answers.clear()

    def refuse_locks(_: int, tag: int, body: Any) -> None:
        if (
            body is not None
            and type(body) is RowsBody
            and any(e.reset_info and "lock" in e.reset_info for e in body.extras)
        ):
            raise TypeError("cannot pickle")
        answers.append((tag, body))

    worker._answer = refuse_locks
    worker.handle(3, Command.STEP, None)
    ((tag, body),) = answers
    assert tag == Answer.ROWS
    assert "its info['lock'] cannot be pickled" in body.extras[0].failure.summary
    assert [extra.slot for extra in body.extras] == [0]
    (form,) = worker.env_shard.info_writer._tables
    assert (form.form.keys, form.form.kinds) == (("t",), (int,))
    assert worker._batch.info_numbers[0].tolist() == [2, 2]


def test_a_step_that_is_replaced_below_wrappers_is_seen_at_once() -> None:
    """Some envs are machines whose states are methods."""

    class Machine(CountingEnv):
        def step(self, action: Any) -> Any:
            self.step = self.second  # type: ignore[method-assign]
            return super().step(action)

        def second(self, action: Any) -> Any:
            *row, info = super().step(action)
            return *row, {**info, "second": True}

    with DummyVecEnv([lambda: TimeLimit(OrderEnforcing(Machine()), 100)]) as vec:
        vec.reset()
        assert ["second" in vec.step([0])[3][0] for _ in range(3)] == [False, True, True]


def test_attributes_of_another_byte_order() -> None:
    envs = [TellingEnv({2: "end"})]
    envs[0].secret = np.array(7, ">f8")
    with DummyVecEnv([lambda: envs[0]], info_attrs=["secret"]) as vec:
        vec.reset()
        for _ in range(3):
            assert vec.step([0])[3][0]["secret"] == 7
        assert vec.reset_infos[0]["secret"] == 7
