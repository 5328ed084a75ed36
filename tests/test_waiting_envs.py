"""Envs that wait, in threads and as coroutines: what they have beyond the contract of all engines."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenvs
from vecenvs.errors import EnvError, StepTimeout
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv, GatedEnv, ToyError, counting_fns

pytestmark = pytest.mark.timeout(60)


class GateEnv(vecenvs.AsyncEnv[Any, Any]):
    """An env that waits in its steps and resets for a file, if it is there, to be removed; or for ever."""

    def __init__(self, tag: int, gate: Path, length: int = 3) -> None:
        self.observation_space = spaces.Box(-1, 1_000_000, (3,), np.int64)
        self.action_space = spaces.Discrete(3)
        self.tag, self.gate, self.length = tag, gate, length
        self.episode = self.t = self.closed = 0
        self.hangs = ""
        self.thread = threading.get_ident()

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        await super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.tag, self.episode, self.t]), {"drawn": float(self.np_random.random())}

    async def step(self, action: Any) -> Any:
        if self.hangs == "blocks":
            time.sleep(1.5)
        while self.gate.exists() or self.hangs:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                if self.hangs != "swallows":
                    raise
        self.t += 1
        return np.array([self.tag, self.episode, self.t]), float(action), self.t >= self.length, False, {}

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1

    async def asked(self, number: int) -> int:
        await asyncio.sleep(0)
        return self.tag + number


def fns_of(count: int, gate: Path, **kwargs: Any) -> list[Any]:
    return [functools.partial(GateEnv, tag, gate, **kwargs) for tag in range(count)]


@pytest.fixture(params=["dummy", "subproc"])
def engine(request: pytest.FixtureRequest) -> Any:
    return vecenvs.DummyVecEnv if request.param == "dummy" else functools.partial(vecenvs.SubprocVecEnv, num_workers=2)


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
def test_all_envs_of_a_worker_wait_at_the_same_time(engine: Any, kind: str, tmp_path: Path) -> None:
    """No row can come before the last env has begun: each waits for what is done when all have begun."""

    class Meeting(CountingEnv):
        """An env whose step ends when all four have begun theirs."""

        def step(self, action: Any) -> Any:
            (tmp_path / f"{self.tag}").touch()
            while len([*tmp_path.iterdir()]) < 4:
                time.sleep(0.001)
            return super().step(action)

    class MeetingAsync(GateEnv):
        async def step(self, action: Any) -> Any:
            (tmp_path / f"{self.tag}").touch()
            while len([*tmp_path.iterdir()]) < 4:
                await asyncio.sleep(0.001)
            return await super().step(action)

    fns: list[Any] = [functools.partial(Meeting, tag) for tag in range(4)]
    if kind == "asyncio":
        fns = [functools.partial(MeetingAsync, tag, tmp_path / "none") for tag in range(4)]
    with engine(fns, concurrency=kind) as vec:
        vec.reset()
        assert vec.step([0] * 4)[0][:, 2].tolist() == [1] * 4


def test_the_first_row_comes_alone(engine: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with engine(fns_of(4, gate), concurrency="asyncio") as vec:
        vec.reset()
        gate.touch()
        vec.call(let_through, [2])
        vec.send([0] * 4)
        assert vec.recv().indices.tolist() == [2]
        gate.unlink()
        assert sorted(vec.recv(3).indices.tolist()) == [0, 1, 3]


def let_through(env: Any) -> None:
    env.unwrapped.gate = Path("/no/such/file")


def set_hangs(env: Any, how: str) -> None:
    env.unwrapped.hangs = how


@pytest.mark.parametrize("how", ["waits", "swallows"])
def test_a_coroutine_that_hangs_fails_alone(engine: Any, how: str, tmp_path: Path) -> None:
    with engine(fns_of(4, tmp_path / "none"), concurrency="asyncio", step_timeout=0.4) as vec:
        vec.reset(seed=1)
        vec.call(set_hangs, [1], how)
        vec.send([0] * 4)
        assert sorted(vec.recv(3).indices.tolist()) == [0, 2, 3]
        with pytest.raises(EnvError, match="env 1|envs 1") as caught:
            vec.recv()
        assert isinstance(caught.value.__cause__, StepTimeout)
        vec.send([0], [1])
        with pytest.raises(EnvError, match="failed before"):
            vec.recv()
        vec.call(set_hangs, [1], "")
        assert vec.reset([1]).tolist() == [[1, 1 if how == "swallows" else 2, 0]], "another env, if it cannot be ended"
        assert vec.step([0] * 4)[0][:, 2].tolist() == [2, 1, 2, 2]


def test_a_thread_that_hangs_fails_alone(engine: Any, tmp_path: Path) -> None:
    """Another thread takes its place, with another env; what the first one returns at last is nobody's."""
    gate = tmp_path / "gate"
    fns: list[Any] = [*counting_fns(3), functools.partial(GatedEnv, 3, gate, at=2)]
    with engine(fns, concurrency="threads", step_timeout=0.4) as vec:
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(EnvError, match="env 3|envs 3") as caught:
            vec.step([0] * 4)
        assert isinstance(caught.value.__cause__, StepTimeout)
        assert caught.value.batch is not None
        assert caught.value.batch.obs[:, 2].tolist() == [2] * 3
        vec.set_attr("mark", 7, indices=[3])  # of the other one
        assert vec.get_attr("mark", indices=[3]) == [7]
        gate.touch()
        assert vec.reset([3]).tolist() == [[3, 1, 0]]
        assert vec.step([0] * 4)[0][:, 2].tolist() == [3, 3, 3, 1]
        assert vec.get_attr("tag") == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
def test_with_restarts_a_late_env_begins_a_new_episode(engine: Any, kind: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fns: list[Any] = fns_of(2, gate) if kind == "asyncio" else [CountingEnv, functools.partial(GatedEnv, 1, gate, at=1)]
    with engine(fns, concurrency=kind, step_timeout=0.4, on_failure="restart") as vec:
        vec.reset()
        if kind == "asyncio":
            vec.call(set_hangs, [1], "swallows")
        obs, rewards, dones, infos = vec.step([0, 0])
        assert (obs[1, 2], rewards[1], dones.tolist()) == (0, 0.0, [False, True])
        assert infos[1]["worker_restarted"]
        assert infos[1]["TimeLimit.truncated"]
        assert "worker_restarted" not in infos[0]
        assert vec.stats()["errors"] == 1
        gate.touch() if kind == "threads" else None
        assert vec.step([0, 0])[0][:, 2].tolist() == [2, 1]


@pytest.mark.parametrize("how", ["waits", "swallows"])
def test_with_on_error_a_late_env_begins_a_new_episode(engine: Any, how: str, tmp_path: Path) -> None:
    with engine(fns_of(2, tmp_path / "none"), concurrency="asyncio", step_timeout=0.4, on_error="reset") as vec:
        vec.reset()
        vec.call(set_hangs, [1], how)
        _, _, dones, infos = vec.step([0, 0])
        assert dones.tolist() == [False, True]
        assert "StepTimeout" in infos[1]["env_error"]
        vec.call(set_hangs, [1], "")
        assert vec.step([0, 0])[0][:, 2].tolist() == [2, 1]


class Opening(GateEnv):
    """Takes the level out of its options, and raises in the first reset of its slot."""

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        level = (options or {}).pop("level", None)
        obs, _ = await super().reset(seed=seed)
        if not self.gate.with_suffix(f".{self.tag}").exists():
            self.gate.with_suffix(f".{self.tag}").touch()
            raise ToyError
        return obs, {"level": level}


def test_a_reset_that_is_tried_again_has_the_options_that_were_given(engine: Any, tmp_path: Path) -> None:
    fns = [functools.partial(Opening, tag, tmp_path / "none") for tag in range(2)]
    with engine(fns, concurrency="asyncio", on_error="reset") as vec:
        vec.reset(options={"level": 7})
        assert [info["level"] for info in vec.reset_infos] == [7, 7]


class CancellingEnv(GateEnv):
    """Awaits what it has cancelled itself: in a step of action 1, and in its second reset."""

    async def reset(self, **kwargs: Any) -> Any:
        await wait_for_cancelled(self.episode == 1)
        return await super().reset(**kwargs)

    async def step(self, action: Any) -> Any:
        await wait_for_cancelled(action == 1)
        return await super().step(action)


async def wait_for_cancelled(cancelled: bool) -> None:
    task = asyncio.ensure_future(asyncio.sleep(0))
    if cancelled:
        task.cancel()
    await task


def test_what_an_env_cancels_itself_is_an_error_like_others(engine: Any, tmp_path: Path) -> None:
    fns = [functools.partial(CancellingEnv, tag, tmp_path / "none") for tag in range(2)]
    with engine(fns, concurrency="asyncio", on_error="reset") as vec:
        vec.reset()
        obs, _, dones, infos = vec.step([1, 0])
        assert dones.tolist() == vec.truncated.tolist() == [True, False]
        assert infos[0]["env_error"].startswith("CancelledError")
        assert obs.tolist() == [[0, 1, 0], [1, 1, 1]], "of an env that was made anew, as the reset has failed, too"
        assert vec.stats()["errors"] == 2
        assert vec.step([0, 0])[0][:, 2].tolist() == [1, 2]


def test_what_close_cancels_begins_no_episode(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    envs = [GateEnv(tag, tmp_path / "gate") for tag in range(2)]
    fns = [functools.partial(envs.__getitem__, tag) for tag in range(2)]
    with vecenvs.DummyVecEnv(fns, concurrency="asyncio", on_error="reset") as vec:
        vec.reset()
        vec.send([0, 0])
    assert [(env.episode, env.closed) for env in envs] == [(1, 1)] * 2


def test_an_env_that_blocks_the_loop_is_named(tmp_path: Path) -> None:
    fns = fns_of(2, tmp_path / "none")
    with vecenvs.SubprocVecEnv(fns, 1, concurrency="asyncio", step_timeout=0.5, log_dir=tmp_path) as vec:
        vec.reset()
        vec.call(set_hangs, [1], "blocks")
        with pytest.raises((StepTimeout, EnvError)):
            vec.step([0, 0])
    assert "time.sleep(1.5)" in (tmp_path / "worker-0.log").read_text()


def test_async_methods_are_awaited_and_envs_closed(engine: Any, tmp_path: Path) -> None:
    with engine(fns_of(3, tmp_path / "none"), concurrency="asyncio") as vec:
        vec.reset()
        assert vec.env_method("asked", 10) == [10, 11, 12]
        assert vec.env_method("asked", 10, indices=[2]) == [12]
        assert vec.get_attr("closed") == [0, 0, 0]
        assert vec.stats()["concurrency"] == "asyncio"


def test_each_thread_makes_and_runs_its_env(engine: Any) -> None:
    with engine([ThreadEnv] * 3, concurrency="threads") as vec:
        vec.reset()
        vec.step([0] * 3)
        made, ran = vec.get_attr("made"), vec.get_attr("ran")
        assert made == ran
        assert len({*made}) >= 2


class ThreadEnv(CountingEnv):
    """An env that knows which threads have made and stepped it."""

    def __init__(self) -> None:
        super().__init__()
        self.made = self.ran = threading.get_ident()

    def step(self, action: Any) -> Any:
        self.ran = threading.get_ident()
        return super().step(action)


def test_wrappers_around_coroutines_get_what_was_awaited(tmp_path: Path) -> None:
    class Doubled(gymnasium.ActionWrapper[Any, Any, Any]):
        def action(self, action: Any) -> Any:
            return 2 * action

    class Shifted(gymnasium.ObservationWrapper[Any, Any, Any]):
        def observation(self, observation: Any) -> Any:
            return observation + 1

    def make(tag: int) -> Any:
        return gymnasium.wrappers.TimeLimit(Shifted(Doubled(GateEnv(tag, tmp_path / "none", 99))), 2)

    fns = [functools.partial(make, tag) for tag in range(2)]
    with vecenvs.make_vec_env(fns, concurrency="asyncio", reward_scale=0.5, monitor_dir=tmp_path, seed=3) as vec:
        assert vec.reset().tolist() == [[1, 2, 1], [2, 2, 1]]
        vec.step([1, 2])
        obs, rewards, dones, infos = vec.step([1, 2])
        assert (rewards.tolist(), dones.tolist(), obs[:, 1].tolist()) == ([1.0, 2.0], [True, True], [3, 3])
        assert_same([info["terminal_observation"].tolist() for info in infos], [[1, 2, 3], [2, 2, 3]])
        assert [info["episode"]["r"] for info in infos] == [4.0, 8.0]


class Repeating(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that steps its env twice."""

    def step(self, action: Any) -> Any:
        self.env.step(action)
        return self.env.step(action)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    gate = tmp_path / "none"
    with vecenvs.DummyVecEnv(fns_of(2, gate)) as vec, pytest.raises(EnvError, match="concurrency='asyncio'"):
        vec.reset()
    with (
        vecenvs.DummyVecEnv(counting_fns(2), concurrency="asyncio") as vec,
        pytest.raises(EnvError, match="concurrency='threads' is for"),
    ):
        vec.reset()
    with (
        vecenvs.DummyVecEnv(fns_of(2, gate), concurrency="threads") as vec,
        pytest.raises(EnvError, match="concurrency='asyncio'"),
    ):
        vec.reset()
    with pytest.raises(EnvError, match=r"env 0: the wrapper Repeating calls GateEnv, whose methods are coroutines"):
        vecenvs.DummyVecEnv([lambda: Repeating(GateEnv(0, gate))], concurrency="asyncio")
    with pytest.raises(ValueError, match="concurrency 'greenlets' is none of asyncio, threads"):
        vecenvs.DummyVecEnv(counting_fns(1), concurrency="greenlets")
    batched = [vecenvs.Batched(functools.partial(gymnasium.make_vec, "CartPole-v1", 2), 2)]
    with pytest.raises(ValueError, match="concurrency='threads' is for single envs that wait, and a Batched"):
        vecenvs.DummyVecEnv(batched, concurrency="threads")
    with pytest.raises(ValueError, match="leave caller_steps=True out"):
        vecenvs.SubprocVecEnv(counting_fns(2), caller_steps=True, concurrency="threads")


class Asked(CountingEnv):
    """Raises in its second step, if it is the first env of its slot; asks who made it, a while after it began."""

    made: ClassVar[list[Any]] = []

    def __init__(self, tag: int) -> None:
        time.sleep(0.02 * (1 + tag % 2))
        super().__init__(tag)
        type(self).made.append((tag, vecenvs.this_worker().env_index))
        self.first = [each[0] for each in type(self).made].count(tag) == 1

    def step(self, action: Any) -> Any:
        if self.first and self.t == 1:
            raise ValueError("the first one")
        return super().step(action)


def test_envs_that_are_made_anew_at_once_are_told_their_own_indices(engine: Any) -> None:
    Asked.made.clear()
    with engine([functools.partial(Asked, tag) for tag in range(6)], concurrency="threads", on_error="renew") as vec:
        vec.reset()
        for _ in range(2):
            vec.step([0] * 6)
        made = {pair for pairs in vec.call(asked_by, None) for pair in pairs}
        assert made == {(tag, tag) for tag in range(6)}
        assert vec.stats()["errors"] == 6
    with pytest.raises(vecenvs.errors.VecEnvError, match="is for env functions"):
        vecenvs.this_worker()


def asked_by(env: Any) -> Any:
    assert env.unwrapped.made.count((env.unwrapped.tag, env.unwrapped.tag)) == 2
    return env.unwrapped.made
