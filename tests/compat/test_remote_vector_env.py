"""RLlib's RemoteVectorEnv over every backend: its dicts and methods, without its faults."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from bytecodes import interrupted
from conftest import Configuration
from gymnasium import spaces

import vecenvs
from vecenvs.compat.remote_vector_env import ASYNC_RESET_RETURN, RemoteBaseEnv, RemoteVectorEnv
from vecenvs.errors import AlreadySteppingError, ClosedError, EnvError, NotSteppingError, ResetNeededError, WorkerDied
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import SPACES, CountingEnv, DyingEnv, FailingEnv, GatedEnv, SampledEnv

matrix = "contract"
LONG = 20_000  # milliseconds: `poll` waits for all rows


def make(configuration: Configuration, make_env: Any, num_envs: int = 3, wait: float = LONG, **kwargs: Any) -> Any:
    given = {**configuration.kwargs, **kwargs}
    if "num_workers" in given:
        given["num_workers"] = min(given["num_workers"], num_envs)
    cls = given.pop("cls", RemoteVectorEnv)
    return cls(make_env, num_envs, given.pop("multiagent", False), wait, backend=configuration.backend, **given)


def by_agent(values: dict[int, Any]) -> dict[int, dict[str, Any]]:
    return {env_id: {"agent0": value} for env_id, value in values.items()}


# One agent


def test_five_dicts_of_single_agent_envs(configuration: Configuration) -> None:
    env = make(configuration, functools.partial(CountingEnv, length=2))
    assert env.get_agent_ids() == {"agent0"}
    assert env.action_space == spaces.Discrete(3)
    obs, rewards, dones, infos, off_policy = env.poll()
    for env_id in range(3):
        assert_same(obs[env_id], {"agent0": np.array([env_id, 1, 0])})
        assert infos[env_id]["agent0"]["episode_start"] is True
    assert rewards == by_agent(dict.fromkeys(range(3), 0.0))
    assert dones == {env_id: {"__all__": False} for env_id in range(3)}
    assert off_policy == {}

    env.send_actions(by_agent({2: 1, 0: 1}))
    obs, rewards, dones, infos, _ = env.poll()
    assert sorted(obs) == [0, 2]
    assert rewards == by_agent({0: 1.0, 2: 1.25})
    assert dones[2] == {"agent0": False, "__all__": False}
    assert infos[2]["agent0"] == {"tag": 2, "t": 1, "TimeLimit.truncated": False}

    env.send_actions(by_agent({0: np.int64(0)}))
    obs, _, dones, infos, _ = env.poll()
    assert dones == {0: {"agent0": True, "__all__": True}}
    assert_same(obs[0]["agent0"], np.array([0, 1, 2]))
    assert env.try_reset(0) == ASYNC_RESET_RETURN == "async_reset_return"
    obs, rewards, dones, _, _ = env.poll()
    assert_same(obs[0]["agent0"], np.array([0, 2, 0]))
    assert (rewards, dones) == (by_agent({0: 0.0}), {0: {"__all__": False}})
    env.stop()


def test_six_dicts_keep_the_flags_apart(configuration: Configuration) -> None:
    env = make(configuration, functools.partial(CountingEnv, length=1, ends="truncated"), cls=RemoteBaseEnv)
    _, _, terminateds, truncateds, _, off_policy = env.poll()
    assert terminateds == truncateds == {env_id: {"__all__": False} for env_id in range(3)}
    env.send_actions(by_agent({1: 0}))
    _, _, terminateds, truncateds, infos, off_policy = env.poll()
    assert terminateds == {1: {"agent0": False, "__all__": False}}
    assert truncateds == {1: {"agent0": True, "__all__": True}}
    assert infos[1]["agent0"]["TimeLimit.truncated"] is True
    assert off_policy == {}
    env.stop()


@pytest.mark.parametrize("name", ["nested", "tuple", "float64", "text", "objects_inside"])
def test_rows_of_any_space_are_the_envs_own(configuration: Configuration, name: str) -> None:
    env = make(configuration, lambda i: SampledEnv(SPACES[name], SPACES[name]), num_envs=2, seed=5)
    alone = [SampledEnv(SPACES[name], SPACES[name]) for _ in range(2)]
    obs, _, _, _, _ = env.poll()
    for env_id in range(2):
        assert_same(obs[env_id]["agent0"], alone[env_id].reset(seed=5 + env_id)[0])
    env.action_space.seed(1)
    for _ in range(4):
        actions = {env_id: env.action_space.sample() for env_id in range(2)}
        env.send_actions(by_agent(actions))
        obs, rewards, dones, _, _ = env.poll()
        for env_id in range(2):
            theirs, reward, terminated, truncated, _ = alone[env_id].step(actions[env_id])
            assert_same(obs[env_id]["agent0"], theirs)
            assert rewards[env_id]["agent0"] == float(reward)  # not rounded to float32
            assert dones[env_id]["__all__"] == (terminated or truncated)
            if terminated or truncated:
                env.try_reset(env_id)
                assert_same(env.poll()[0][env_id]["agent0"], alone[env_id].reset()[0])
    env.stop()


def test_try_reset_without_an_env_resets_all(configuration: Configuration) -> None:
    env = make(configuration, CountingEnv)
    env.poll()
    assert env.try_reset(seed=7, options={"level": 2}) == ASYNC_RESET_RETURN
    obs = env.poll()[0]
    assert [obs[env_id]["agent0"][1] for env_id in range(3)] == [2, 2, 2]
    handles = env.get_sub_environments()
    assert [handle.get_attr("seeds")[-1] for handle in handles] == [7, 8, 9]
    assert handles[1].get_attr("options")[-1] == {"level": 2}
    env.stop()


def test_sub_environments(configuration: Configuration) -> None:
    env = make(configuration, CountingEnv)
    env.poll()
    handles = env.get_sub_environments(as_dict=True)
    assert list(handles) == [0, 1, 2]
    handles[1].set_attr("length", 9)
    assert [handle.get_attr("length") for handle in env.get_sub_environments()] == [5, 9, 5]
    assert handles[2].env_method("add", 10, times=2) == 22
    env.stop()


def test_what_rllibs_class_has_inside(configuration: Configuration) -> None:
    env = make(configuration, CountingEnv)
    with pytest.raises(AttributeError, match=r"'RemoteVectorEnv' .* 'actors': get_sub_environments\(\) gives a handle"):
        _ = env.actors
    with pytest.raises(AttributeError, match=r"'pending': an env is pending from send_actions or try_reset until"):
        _ = env.pending
    with pytest.raises(AttributeError, match="no attribute 'moon'$"):
        _ = env.moon
    env.stop()


class OldCounting:
    """Count steps, by Gym's interface before 0.26. An episode ends after two steps, or by a `limit`."""

    def __init__(self, tag: int, limit: bool) -> None:
        self.observation_space, self.action_space = spaces.Box(-99, 99, (2,), np.int64), spaces.Discrete(3)
        self.tag, self.limit, self.seeds, self.closed = tag, limit, [], False

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> Any:
        self.steps = 0
        return np.array([self.tag, 0])

    def step(self, action: Any) -> Any:
        self.steps += 1
        done = self.steps == 2
        info = {"TimeLimit.truncated": True} if done and self.limit else {}
        return np.array([self.tag, self.steps]), float(action), done, info


class OldGymnasiumEnv(OldCounting, gymnasium.Env[Any, Any]):
    """The same as a subclass of gymnasium.Env, as in partly ported programs."""


@pytest.mark.parametrize("kind", [OldCounting, OldGymnasiumEnv])
@pytest.mark.parametrize("limit", [False, True])
def test_envs_from_before_gymnasium(configuration: Configuration, kind: Any, limit: bool) -> None:
    """Like multi-agent envs: seeds are passed to their own method, the reason of the end is in the info."""
    env = make(configuration, lambda i: kind(i, limit), cls=RemoteBaseEnv, seed=10)
    assert env.poll()[0][1]["agent0"].tolist() == [1, 0]
    handles = env.get_sub_environments()
    assert [handle.get_attr("seeds") for handle in handles] == [[10], [11], [12]]
    handles[2].set_attr("tag", 7)
    assert handles[2].get_attr("tag") == 7
    for t in (1, 2):
        env.send_actions(by_agent({0: 2, 2: 1}))
        obs, rewards, terminateds, truncateds, *_ = env.poll()
        assert [obs[i]["agent0"].tolist() for i in (0, 2)] == [[0, t], [7, t]]
        assert rewards == by_agent({0: 2.0, 2: 1.0})
        over = {"agent0": True, "__all__": True}
        assert (terminateds[0] == over, truncateds[0] == over) == (t == 2 and not limit, t == 2 and limit)
    env.try_reset(0)
    assert env.poll()[0][0]["agent0"].tolist() == [0, 0]
    env.try_reset(0, options={"level": 1})
    with pytest.raises(EnvError, match="takes no options"):
        env.poll()
    env.stop()


def test_what_no_env_gives(configuration: Configuration) -> None:
    class Three(OldCounting):
        def step(self, action: Any) -> Any:
            return np.zeros(2, np.int64), 0.0, False

    env = make(configuration, lambda i: Three(i, False))
    env.poll()
    env.send_actions(by_agent({0: 1}))
    with pytest.raises(EnvError, match=r"Three.step\(\) must return four or five values"):
        env.poll()
    env.stop()


# When rows come


def test_each_env_has_a_process_unless_told_otherwise() -> None:
    for kwargs, processes in (({}, 3), ({"num_workers": 2}, 2)):
        env = RemoteVectorEnv(CountingEnv, 3, False, 0, **kwargs)
        assert env._vec.stats()["num_workers"] == processes
        env.stop()


@pytest.mark.parametrize("wait", [0, 20])
def test_poll_does_not_wait_for_a_slow_env(tmp_path: Path, wait: float) -> None:
    gates = [tmp_path / str(i) for i in range(3)]
    env = RemoteVectorEnv(lambda i: GatedEnv(i, gates[i]), 3, False, wait)
    seen = set[int]()
    while len(seen) < 3:
        seen |= env.poll()[0].keys()
    for gate in gates[:2]:
        gate.touch()
    env.send_actions(by_agent(dict.fromkeys(range(3), 0)))
    fast = set[int]()
    while len(fast) < 2:
        fast |= env.poll()[0].keys()
    assert fast == {0, 1}
    gates[2].touch()
    assert env.poll()[0].keys() == {2}
    env.stop()


def test_poll_blocks_without_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RLlib's class, with a wait of 0, polls without a pause until the first env is ready."""
    env = RemoteVectorEnv(lambda i: GatedEnv(i, tmp_path / "gate"), 1, False, 0)
    env.poll()
    env.send_actions(by_agent({0: 0}))
    calls, recv = [], env._vec.recv

    def counted(**kwargs: Any) -> Any:
        calls.append(kwargs)
        return recv(**kwargs)

    monkeypatch.setattr(env._vec, "recv", counted)
    opener = threading.Timer(0.3, (tmp_path / "gate").touch)
    opener.start()
    assert env.poll()[0].keys() == {0}
    opener.join()
    assert len(calls) <= 2  # one for the first row, one for rows that came meanwhile
    env.stop()


@pytest.mark.parametrize("cls", [RemoteVectorEnv, RemoteBaseEnv])
def test_rows_of_an_interrupted_poll_come_once(cls: type[RemoteVectorEnv | RemoteBaseEnv]) -> None:
    """Wherever it is cut off, by the next one, and no command takes their place."""
    root = Path(vecenvs.__file__).parent
    files = {
        str(root / part) for part in ("compat/remote_envs.py", "compat/remote_vector_env.py", "wrappers/kept_rows.py")
    }
    bytecodes, more = 0, True
    env = cls(functools.partial(CountingEnv, length=10**6), 2, False, LONG, backend="dummy")
    env.poll()
    while more:
        env.send_actions(by_agent({0: 0, 1: 0}))
        more = interrupted(env.poll, bytecodes, files)
        if more:
            with pytest.raises(AlreadySteppingError, match="poll their last rows first"):
                env.try_reset(0)
            obs = env.poll()[0]
            assert [obs[env_id]["agent0"].tolist() for env_id in range(2)] == [[i, 1, bytecodes + 1] for i in range(2)]
        bytecodes += 1
    assert bytecodes > 20
    env.stop()


def test_a_long_wait_gives_all(configuration: Configuration) -> None:
    env = make(configuration, CountingEnv, num_envs=5)
    for _ in range(3):
        assert sorted(env.poll()[0]) == [0, 1, 2, 3, 4]
        env.send_actions(by_agent(dict.fromkeys(range(5), 0)))
    env.stop()


def test_every_command_is_answered_once(configuration: Configuration) -> None:
    env = make(configuration, functools.partial(CountingEnv, length=4), num_envs=5, wait=0.2)
    rng = np.random.default_rng(0)
    sent, got, idle = 5, 0, set[int]()
    over: dict[int, bool] = {}
    for _ in range(300):
        if sent > got:
            obs, _, dones, _, _ = env.poll()
            got += len(obs)
            assert not idle & obs.keys()
            idle |= obs.keys()
            over.update((env_id, flags["__all__"]) for env_id, flags in dones.items())
        chosen = [env_id for env_id in sorted(idle) if rng.random() < 0.6]
        for env_id in chosen:
            if over[env_id]:
                env.try_reset(env_id)
        env.send_actions(by_agent({env_id: 0 for env_id in chosen if not over[env_id]}))
        sent += len(chosen)
        idle -= set(chosen)
    while sent > got:
        got += len(env.poll()[0])
    assert sent == got
    with pytest.raises(NotSteppingError):
        env.poll()
    env.stop()


# Faults and bad input


def test_nothing_pending_is_an_error(configuration: Configuration) -> None:
    env = make(configuration, CountingEnv, wait=LONG)
    env.poll()
    for _ in range(2):
        with pytest.raises(NotSteppingError, match="send_actions or try_reset"):
            env.poll()
    env.send_actions({})
    with pytest.raises(NotSteppingError):
        env.poll()
    env.stop()


def test_a_second_command_is_refused_whole(configuration: Configuration) -> None:
    env = make(configuration, CountingEnv)
    with pytest.raises(AlreadySteppingError, match="poll"):
        env.send_actions(by_agent({0: 0}))  # the first resets are under way
    env.poll()
    env.send_actions(by_agent({1: 0}))
    for again in (
        lambda: env.send_actions(by_agent({0: 0, 1: 0})),
        lambda: env.try_reset(1),
        lambda: env.try_reset(),
        lambda: env.get_sub_environments()[1].get_attr("tag"),
    ):
        with pytest.raises(AlreadySteppingError):
            again()
    assert env.poll()[0].keys() == {1}
    with pytest.raises(NotSteppingError):
        env.poll()
    env.stop()


def test_after_stop(configuration: Configuration, tmp_path: Path) -> None:
    log = tmp_path / "closed"
    env = make(configuration, functools.partial(CountingEnv, closed_file=log))
    env.poll()
    env.send_actions(by_agent({0: 0}))
    env.stop()
    env.stop()
    assert sorted(log.read_text().split()) == ["0", "1", "2"]
    for use in (
        env.poll,
        env.try_reset,
        lambda: env.send_actions(by_agent({1: 0})),
        lambda: env.get_sub_environments()[0].get_attr("tag"),
    ):
        with pytest.raises(ClosedError):
            use()


def test_bad_actions_touch_no_env(configuration: Configuration) -> None:
    env = make(configuration, CountingEnv)
    env.poll()
    for actions, error, words in (
        ([0, 0, 0], TypeError, "env id -> agent id"),
        ({0: 1}, TypeError, "actions of env 0"),
        (by_agent({3: 0}), IndexError, "no env 3"),
        (by_agent({-1: 0}), IndexError, "no env -1"),
        ({"0": {"agent0": 0}}, TypeError, "must be an int"),
        ({True: {"agent0": 0}}, TypeError, "must be an int"),
        ({1: {}}, ValueError, "one agent"),
        ({0: {"agent0": 0}, 1: {"agent1": 0}}, ValueError, "env 1 has one agent"),
        (by_agent({0: 0, 1: "left"}), (TypeError, ValueError), None),
        (by_agent({0: 0, 1: [0, 0]}), (TypeError, ValueError), None),
    ):
        with pytest.raises(error, match=words):
            env.send_actions(actions)
    with pytest.raises(IndexError):
        env.try_reset(3)
    with pytest.raises(NotSteppingError):
        env.poll()
    assert [handle.get_attr("steps") for handle in env.get_sub_environments()] == [0, 0, 0]
    env.stop()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"make_env": CountingEnv()}, TypeError),
        ({"num_envs": 0}, ValueError),
        ({"num_envs": 2.0}, TypeError),
        ({"remote_env_batch_wait_ms": -1}, ValueError),
        ({"remote_env_batch_wait_ms": None}, ValueError),
        ({"remote_env_batch_wait_ms": float("inf")}, ValueError),
        ({"remote_env_batch_wait_ms": "1"}, TypeError),
        ({"backend": "threads"}, ValueError),
        ({"autoreset": "same_step"}, TypeError),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    usual = {"make_env": CountingEnv, "num_envs": 2, "multiagent": False, "remote_env_batch_wait_ms": 0}
    with pytest.raises(error):
        RemoteVectorEnv(**{**usual, **arguments})


@pytest.mark.parametrize("cls", [RemoteVectorEnv, RemoteBaseEnv])
def test_unknown_arguments_are_those_of_the_class_called(cls: Any) -> None:
    usual = (CountingEnv, 2, False, 0)
    with pytest.raises(
        TypeError, match=f"^{cls.__name__} with backend 'subproc' has no argument 'fast': it has make_e"
    ):
        cls(*usual, fast=True)
    with pytest.raises(TypeError, match="with backend 'dummy' has no argument 'num_workers'"):
        cls(*usual, backend="dummy", num_workers=2)


def test_an_env_that_raises_costs_its_own_rows_alone(configuration: Configuration) -> None:
    env = make(configuration, lambda i: FailingEnv(i, at=2) if i == 1 else CountingEnv(i))
    env.poll()
    for _ in range(2):
        env.send_actions(by_agent({0: 0, 1: 0, 2: 0}))
        seen, failed = set[int](), []
        while len(seen) + len(failed) < 3:
            try:
                seen |= env.poll()[0].keys()
            except EnvError as error:
                failed.append(error.index)
    assert (seen, failed) == ({0, 2}, [1])
    with pytest.raises(NotSteppingError):
        env.poll()
    env.send_actions(by_agent({1: 0}))
    with pytest.raises(EnvError, match=r"env 1 failed before: try_reset\(1\) first$") as caught:
        env.poll()
    assert isinstance(caught.value.__cause__, ResetNeededError)
    env.try_reset(1)
    assert env.poll()[0].keys() == {1}
    env.stop()


def test_an_ended_env_must_be_reset(configuration: Configuration) -> None:
    env = make(configuration, functools.partial(CountingEnv, length=1), num_envs=1)
    env.poll()
    env.send_actions(by_agent({0: 0}))
    assert env.poll()[2][0]["__all__"]
    env.send_actions(by_agent({0: 0}))
    with pytest.raises(EnvError, match=r"env 0 has ended its episode: try_reset\(0\) first$"):
        env.poll()
    env.try_reset(0)
    assert env.poll()[0].keys() == {0}
    env.stop()


def dying(i: int, **kwargs: Any) -> Any:
    return DyingEnv(i, **kwargs) if i == 1 else CountingEnv(i)


def test_a_dead_worker_costs_its_own_envs() -> None:
    env = RemoteVectorEnv(dying, 3, False, LONG)
    env.poll()
    seen, died = set[int](), set[int]()
    env.send_actions(by_agent(dict.fromkeys(range(3), 0)))
    while len(seen) + len(died) < 3:
        try:
            seen |= env.poll()[0].keys()
        except WorkerDied as error:
            died.update(error.indices)
    assert (seen, died) == ({0, 2}, {1})
    env.send_actions(by_agent({0: 0, 2: 0}))
    assert env.poll()[0].keys() == {0, 2}
    with pytest.raises(WorkerDied):
        env.send_actions(by_agent({0: 0, 1: 0}))
    env.stop()
