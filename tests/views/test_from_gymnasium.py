"""from_gymnasium: vector envs of other libraries behind the VecEnv contract."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium_parity import MODES, Fns, ReservedKeysEnv, asynchronous, info_fns, sampled_fns, sync

from vecenvs import Batched, DummyVecEnv, SubprocVecEnv, VecEnv
from vecenvs.errors import (
    AlreadySteppingError,
    ClosedError,
    EnvError,
    NotSteppingError,
    StepTimeout,
    VecEnvError,
)
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import NESTED, SPACES, CountingEnv, FailingEnv, GatedEnv, RenderingEnv, ToyError, counting_fns
from vecenvs.views import as_gymnasium, from_gymnasium
from vecenvs.wrappers.base import VecEnvWrapper

every_mode = pytest.mark.parametrize("mode", list(MODES))


def ours_again(fns: Fns, mode: str) -> Any:
    return as_gymnasium(DummyVecEnv(fns, autoreset=mode))


def wrapped(fns: Fns, mode: str) -> Any:
    return gym.wrappers.vector.TransformReward(sync(fns, mode), lambda rewards: rewards)


SOURCES: dict[str, Callable[[Fns, str], Any]] = {
    "sync": sync,
    "ours": ours_again,
    "wrapped": wrapped,
}
every_source = pytest.mark.parametrize("source", list(SOURCES))


def lists(value: Any) -> Any:
    """Return infos with Python's number types: in Gymnasium's arrays the envs' own types are lost."""
    if isinstance(value, dict):
        return {key: lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [lists(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


@every_mode
def test_what_an_env_says_of_its_own_truncation(mode: str) -> None:
    """The key is overwritten, as in DummyVecEnv."""
    fns = [functools.partial(ReservedKeysEnv, tag) for tag in range(4)]
    with from_gymnasium(sync(fns, mode)) as vec, DummyVecEnv(fns, autoreset=mode) as plain:
        for t in range(20):
            if t == 0 or (mode == "disabled" and plain.terminated.any() | plain.truncated.any()):
                vec.reset()
                plain.reset()
            got, wanted = (v.step(np.zeros(4, np.int64))[3] for v in (vec, plain))
            assert_same(lists(list(got)), lists(wanted), f"step {t}")


@every_mode
def test_an_envs_own_keys_come_first(mode: str) -> None:
    fns = counting_fns(2, length=2)
    with from_gymnasium(sync(fns, mode)) as vec, DummyVecEnv(fns, autoreset=mode) as plain:
        for v in (vec, plain):
            v.reset()
        for _ in range(2 if mode == "disabled" else 5):
            got, wanted = (v.step([0, 0])[3] for v in (vec, plain))
            assert [list(info) for info in got] == [list(info) for info in wanted]


@pytest.mark.sparse("name")
@every_mode
@every_source
@pytest.mark.parametrize("name", ["float64", "nested", "text", "infos"])
def test_equals_dummy_vec_env(source: str, mode: str, name: str) -> None:
    fns = info_fns() if name == "infos" else sampled_fns(SPACES[name])
    n = len(fns)
    with from_gymnasium(SOURCES[source](fns, mode)) as vec, DummyVecEnv(fns, autoreset=mode) as plain:
        assert (vec.observation_space, vec.action_space) == (plain.observation_space, plain.action_space)
        assert (vec.num_envs, vec.autoreset) == (n, mode)
        both: list[VecEnv] = [vec, plain]
        assert_same(*(v.reset(seed=3) for v in both))
        ended = 0
        for t in range(20):
            actions = np.full(n, t % 2)
            (obs, rewards, dones, infos), wanted = (v.step(actions) for v in both)
            assert_same((obs, rewards, dones), wanted[:3], f"step {t}")
            assert_same(*(lists(list(each)) for each in (infos, wanted[3])), f"infos {t}")
            for attribute in ("terminated", "truncated", "rewards64", "active"):
                assert_same(getattr(vec, attribute), getattr(plain, attribute), f"{attribute} {t}")
            assert_same(*(lists(list(v.reset_infos)) for v in both), f"reset_infos {t}")
            ended += int(dones.sum())
            if mode == "disabled" and dones.any():
                assert_same(*(v.reset(dones, options={"level": t}) for v in both))
        assert ended > 2
        assert_same(*(v.reset([1, 0], seed=[5, 6]) for v in both))


@every_mode
def test_statistics_of_an_episode_are_on_the_row_that_ends_it(mode: str) -> None:
    key = "statistics"  # the resets of these envs have an "episode" of their own
    recorded = gym.wrappers.vector.RecordEpisodeStatistics(sync(counting_fns(2, length=3), mode), stats_key=key)
    with from_gymnasium(recorded) as vec:
        vec.reset()
        lengths = []
        for _ in range(12):
            _, _, dones, infos = vec.step(np.zeros(2, np.int64))
            assert [key in info for info in infos] == dones.tolist()
            assert not any(key in info for info in vec.reset_infos)
            assert all(isinstance(info["episode"], int) for info in lists(list(vec.reset_infos)))
            lengths += [info[key]["l"] for info in infos if key in info]
            if mode == "disabled" and dones.any():
                vec.reset(dones)
        assert lengths == [3] * (6 if mode == "next_step" else 8)


@every_source
def test_rows_are_the_callers_own(source: str) -> None:
    with from_gymnasium(SOURCES[source](sampled_fns(NESTED), "next_step")) as vec:
        kept = [vec.reset(seed=0), *(vec.step(np.zeros(3, np.int64)) for _ in range(3))]
        texts = [repr(rows) for rows in kept]
        for _ in range(3):
            vec.step(np.zeros(3, np.int64))
        assert [repr(rows) for rows in kept] == texts


class SharingVectorEnv(VectorEnv[Any, Any, Any]):
    """A natively batched env that writes into arrays which it has returned, with infos without masks."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self) -> None:
        self.num_envs = 3
        self.single_observation_space = spaces.Box(0, 1000, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 3)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 3)
        self.rows = np.zeros((3, 1), np.float32)
        self.flags = np.zeros(3, bool)
        self.seen: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seen.append((seed, options))
        self.rows[:] = 0
        self.flags[:] = False
        return self.rows, {"env_id": np.arange(3), "shared": "text"}

    def step(self, actions: Any) -> Any:
        self.rows += 1
        return (
            self.rows,
            np.ones(3, np.float32),
            self.flags,
            self.flags,
            {"env_id": np.arange(3), "deep": {"x": [4, 5, 6]}},
        )


def test_natively_batched() -> None:
    bare = SharingVectorEnv()
    with from_gymnasium(bare) as vec:
        first = vec.reset(seed=7, options={"low": 1})
        assert [info["env_id"] for info in vec.reset_infos] == [0, 1, 2]
        assert "shared" not in vec.reset_infos[0]
        obs, rewards, dones, infos = vec.step(np.zeros(3, np.int64))
        assert (first.tolist(), obs.tolist()) == ([[0], [0], [0]], [[1], [1], [1]])
        assert (rewards.dtype, dones.dtype) == (np.float32, np.bool_)
        assert infos[1] == {"env_id": 1, "deep": {"x": 5}, "TimeLimit.truncated": False}
        assert vec.seed(11) == [11, 12, 13]
        vec.set_options({"low": 2})
        vec.reset()
        vec.reset()
        vec.reset(seed=[4, 4, 9])
        assert bare.seen == [(7, {"low": 1}), (11, {"low": 2}), (None, None), ([4, 4, 9], None)]
        with pytest.raises(EnvError, match="SharingVectorEnv resets all its envs at once"):
            vec.reset([0])
        assert VecEnvWrapper(vec).env_is_wrapped(gym.Wrapper) == vec.env_is_wrapped(gym.Wrapper) == [False] * 3
        assert vec.get_attr("flags") == [False] * 3
        assert vec.get_attr("num_envs", [1, 2]) == [3, 3]
        with pytest.raises(EnvError, match="SharingVectorEnv steps all its envs at once: there is no env 0"):
            vec.call(lambda env: env, None)
        assert vec.env_is_wrapped(gym.Wrapper) == [False, False, False]


def test_how_the_last_step_ended_is_known_until_the_next() -> None:
    """This holds also for a vector env that clears its arrays at a reset."""
    bare = SharingVectorEnv()
    with from_gymnasium(bare) as vec:
        vec.reset()
        bare.flags[:] = [True, False, True]
        vec.step(np.zeros(3, np.int64))
        vec.reset()
        assert not bare.flags.any()
        assert vec.terminated.tolist() == vec.truncated.tolist() == [True, False, True]


def test_a_list_of_seeds_where_one_int_is_wanted() -> None:
    with from_gymnasium(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")) as vec:
        with pytest.raises(VecEnvError, match="CartPoleVectorEnv takes no list of seeds .*: give one int for all"):
            vec.reset(seed=[5, 3])
        vec.reset(seed=[5, 6])  # as the int 5
        vec.reset(seed=5)


def test_a_seed_for_some_envs_is_one_int() -> None:
    bare = SharingVectorEnv()
    bare.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    with from_gymnasium(bare) as vec:
        vec.reset()
        vec.reset([1, 2], seed=7)
        vec.reset([2], seed=[1])  # of which env 0 would get -1
        assert [seed for seed, _ in bare.seen] == [None, 7, [None, None, 1]]


def test_numpy_cart_pole_is_what_its_vector_env_is() -> None:
    plain = gym.make_vec("CartPole-v1", num_envs=64, vectorization_mode="vector_entry_point")
    with from_gymnasium(gym.make_vec("CartPole-v1", num_envs=64, vectorization_mode="vector_entry_point")) as vec:
        assert vec.autoreset == "next_step"
        assert_same(vec.reset(seed=5), plain.reset(seed=5)[0])
        rng = np.random.default_rng(0)
        over = np.zeros(64, bool)
        for _ in range(60):
            actions = rng.integers(0, 2, 64)
            obs, rewards, dones, infos = vec.step(actions)
            wanted = plain.step(actions)
            assert_same((obs, rewards), (wanted[0], wanted[1].astype(np.float32)))
            assert_same((vec.terminated, vec.truncated), wanted[2:4])
            assert_same([info.get("episode_start", False) for info in infos], over.tolist())
            assert_same(["terminal_observation" in info for info in infos], dones.tolist())
            over = dones
        assert vec.stats()["steps"] == 60
    plain.close()


@every_mode
def test_there_and_back(mode: str) -> None:
    """Rows and infos of as_gymnasium over from_gymnasium equal the vector env's own."""
    inner, plain = sync(info_fns(), mode), sync(info_fns(), mode)
    view = as_gymnasium(from_gymnasium(inner))
    assert_same(view.reset(seed=1), plain.reset(seed=1))
    for t in range(12):
        got, wanted = view.step(np.zeros(4, np.int64)), plain.step(np.zeros(4, np.int64))
        assert_same(lists(got), lists(wanted), f"step {t}")
        over = wanted[2] | wanted[3]
        if mode == "disabled" and over.any():
            pair = [env.reset(options={"reset_mask": over.copy()}) for env in (view, plain)]
            assert_same(lists(pair[0]), lists(pair[1]), f"reset after {t}")
    view.close()
    plain.close()


def test_send_and_recv_in_portions() -> None:
    with from_gymnasium(sync(counting_fns(3), "next_step")) as vec:
        vec.reset_async(seed=1)
        first = vec.recv(1, 2)
        assert first.indices.tolist() == [0, 1]
        assert not first.active.any()
        assert first.infos[1] == {"tag": 1, "episode": 1, "episode_start": True, "TimeLimit.truncated": False}
        with pytest.raises(AlreadySteppingError):
            vec.send(np.zeros(3, np.int64))
        assert vec.recv().indices.tolist() == [2]
        with pytest.raises(NotSteppingError):
            vec.recv()
        with pytest.raises(VecEnvError, match="envs 0-2 are one batched env, which steps all its envs at once"):
            vec.send([0], [1])
        vec.send([1, 2, 0], [1, 2, 0])
        with pytest.raises(NotSteppingError):
            vec.step_wait()
        with pytest.raises(ValueError, match="min_envs=4"):
            vec.recv(4)
        batch = vec.recv(1)
        assert batch.indices.tolist() == [0, 1, 2]
        assert batch.active.all()
        assert [actions[-1] for actions in vec.get_attr("actions")] == [0, 1, 2]
        vec.reset_async([2, 0])
        assert vec.recv(indices=[2, 0]).obs.tolist() == [[2, 2, 0], [0, 2, 0]]
        vec.step_async(np.zeros(3, np.int64))
        with pytest.raises(NotSteppingError):
            vec.recv()
        with pytest.raises(AlreadySteppingError):
            vec.reset()
        assert vec.step_wait()[0].tolist() == [[0, 2, 1], [1, 1, 2], [2, 2, 1]]


def test_recv_of_some_envs() -> None:
    with from_gymnasium(sync(counting_fns(3), "next_step")) as vec:
        vec.reset()
        vec.send([0] * 3)
        assert vec.recv(indices=[2, 0]).obs.tolist() == [[2, 1, 1], [0, 1, 1]]
        with pytest.raises(NotSteppingError, match="envs? 0"):
            vec.recv(indices=[0, 1])
        with pytest.raises(ValueError, match="at least one"):
            vec.recv(indices=[])
        assert vec.recv(indices=[1]).indices.tolist() == [1]
        with pytest.raises(NotSteppingError):
            vec.recv(indices=[1])
        with pytest.raises(ValueError, match="2 groups of 1 batched envs and single ones, none of which is divided"):
            vec.groups(2)
        assert [group.tolist() for group in vec.groups(1)] == [[0, 1, 2]]


@every_source
def test_asking_between_portions(source: str) -> None:
    """Calls are allowed on the envs whose rows have been received, not on the others."""
    fns = [functools.partial(RenderingEnv, tag) for tag in range(3)]
    with from_gymnasium(SOURCES[source](fns, "next_step")) as vec:
        vec.reset()
        vec.send(np.zeros(3, np.int64))
        with pytest.raises(AlreadySteppingError, match="recv first"):
            vec.get_images([0])
        assert vec.recv(2, 2).indices.tolist() == [0, 1]
        assert [image[0, 0, 0] for image in vec.get_images([1, 0])] == [11, 1]
        assert vec.get_attr("tag", [1]) == [1]
        for asked in ([2], [0, 2], None):
            with pytest.raises(AlreadySteppingError, match="recv first"):
                vec.get_images(asked)
            with pytest.raises(AlreadySteppingError, match="recv first"):
                vec.get_attr("tag", asked)
        assert vec.recv().obs.tolist() == [[2, 1, 1]]
        assert [image[0, 0, 0] for image in vec.get_images()] == [1, 11, 21]


@every_source
@pytest.mark.parametrize("wrap", [lambda vec: vec, VecEnvWrapper], ids=["bare", "wrapped"])
def test_asking_the_envs(source: str, wrap: Callable[[VecEnv], VecEnv]) -> None:
    fns = [functools.partial(RenderingEnv, tag) for tag in range(3)]
    with wrap(from_gymnasium(SOURCES[source](fns, "next_step"))) as vec:
        vec.reset(seed=0)
        assert vec.get_attr("tag") == [0, 1, 2]
        assert vec.get_attr("tag", [2, 0]) == [2, 0]
        assert vec.has_attr("tag")
        assert not vec.has_attr("nothing")
        assert vec.env_method("add", 5, times=2) == [10, 11, 12]
        vec.set_attr("tag", 7)
        assert vec.get_attr("tag") == [7, 7, 7]
        assert [image[0, 0, 0] for image in vec.get_images()] == [70, 70, 70]
        assert vec.render().shape == (8, 12, 3)  # type: ignore[union-attr]
        assert vec.env_method("add", 5, indices=[1]) == [12]
        assert vec.env_is_wrapped(gym.Wrapper) == [False, False, False]
        assert vec.env_is_wrapped(CountingEnv) == [True, True, True]
        vec.call_async(lambda env: env.tag, [1])
        with pytest.raises(AlreadySteppingError):
            vec.step(np.zeros(3, np.int64))
        assert vec.call_wait() == [7]
        with pytest.raises(NotSteppingError):
            vec.call_wait()
        vec.reset()


def test_an_ended_env_must_be_reset() -> None:
    with from_gymnasium(sync(counting_fns(2, length=1), "disabled")) as vec:
        with pytest.raises(EnvError, match="env 0 has not been reset"):
            vec.step(np.zeros(2, np.int64))
        vec.reset()
        vec.step(np.zeros(2, np.int64))
        vec.reset([0])
        with pytest.raises(EnvError, match="env 1 has ended its episode"):
            vec.step(np.zeros(2, np.int64))


def test_envs_that_were_never_reset_must_be() -> None:
    """This holds also if the vector env resets ended envs."""
    with from_gymnasium(sync(counting_fns(3), "next_step")) as vec:
        vec.reset([0])
        with pytest.raises(EnvError, match="env 1 has not been reset"):
            vec.step(np.zeros(3, np.int64))
        vec.reset([1, 2])
        assert vec.step(np.zeros(3, np.int64))[0][:, 2].tolist() == [1, 1, 1]


def test_some_envs_of_a_sync_vector_env_before_all() -> None:
    with from_gymnasium(SyncVectorEnv(counting_fns(2), autoreset_mode=AutoresetMode.DISABLED)) as vec:
        assert vec.reset([0]).tolist() == [[0, 1, 0]]
        with pytest.raises(EnvError, match="env 1 has not been reset"):
            vec.step(np.zeros(2, np.int64))
        assert vec.reset([1]).tolist() == [[1, 2, 0]]  # the first reset was one of both


def test_a_vector_env_that_is_waited_for_never_times_out() -> None:
    with from_gymnasium(sync(counting_fns(2), "next_step")) as vec:
        vec.reset()
        vec.step_async(np.zeros(2, np.int64))
        assert vec.step_wait(timeout=0)[0].tolist() == [[0, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("by", ["step_wait", "recv"])
def test_a_timeout_loses_nothing(tmp_path: Path, by: str) -> None:
    fns = [functools.partial(GatedEnv, 0, tmp_path / "gate")]
    with from_gymnasium(as_gymnasium(SubprocVecEnv(fns, 1, "fork", autoreset="next_step"))) as vec:
        vec.reset()
        (vec.step_async if by == "step_wait" else vec.send)(np.zeros(1, np.int64))
        with pytest.raises(StepTimeout):
            (vec.step_wait if by == "step_wait" else vec.recv)(timeout=0.05)
        (tmp_path / "gate").touch()
        obs = vec.step_wait()[0] if by == "step_wait" else vec.recv().obs
        assert obs.tolist() == [[0, 1, 1]]


def test_a_step_that_failed_is_over() -> None:
    fns = [*counting_fns(1), functools.partial(FailingEnv, 1)]
    with from_gymnasium(ours_again(fns, "next_step")) as vec:
        vec.reset()
        with pytest.raises(EnvError) as caught:
            vec.step([0, 0])
        assert isinstance(caught.value.__cause__, ToyError)
        vec.reset()
        assert vec.step([0, 0])[0].tolist() == [[0, 2, 1], [1, 2, 1]]


@every_source
def test_close(source: str) -> None:
    vec = from_gymnasium(SOURCES[source](counting_fns(2), "next_step"))
    vec.reset()
    vec.step_async(np.zeros(2, np.int64))
    vec.close()
    vec.close()
    assert vec.closed
    for call in (
        vec.reset,
        vec.step_wait,
        vec.recv,
        lambda: vec.step(np.zeros(2, np.int64)),
        lambda: vec.get_attr("tag"),
    ):
        with pytest.raises(ClosedError):
            call()


def test_what_is_no_vector_env() -> None:
    with pytest.raises(TypeError, match=r"takes a gymnasium.vector.VectorEnv, not \w+: gym.make_vec makes one"):
        from_gymnasium(gym.make("CartPole-v1"))  # type: ignore[arg-type]
    with DummyVecEnv(counting_fns(1)) as vec, pytest.raises(TypeError, match="not DummyVecEnv: it is a VecEnv already"):
        from_gymnasium(vec)  # type: ignore[arg-type]


def test_an_async_vector_env_is_refused() -> None:
    """An env that raises would cost it a process, and it would be able to do little but step."""
    bare = asynchronous(counting_fns(2), "next_step")
    for given in (bare, gym.wrappers.vector.TransformReward(bare, lambda rewards: rewards)):
        with pytest.raises(TypeError, match="takes no AsyncVectorEnv.*: give vecenvs.SubprocVecEnv the functions that"):
            from_gymnasium(given)
    assert bare.reset()[0].tolist() == [[0, 1, 0], [1, 1, 0]]  # it still is the caller's
    bare.close()
    with pytest.raises(EnvError, match="gave a AsyncVectorEnv, which has a process for each env: give vecenvs.Subproc"):
        DummyVecEnv([Batched(lambda: asynchronous(counting_fns(2), "next_step"), 2)], autoreset="next_step")


def test_the_autoreset_mode_must_be_known() -> None:
    silent: Any = SharingVectorEnv()
    silent.metadata = {}
    with pytest.raises(ValueError, match="have no 'autoreset_mode'"):
        from_gymnasium(silent)
    with pytest.raises(ValueError, match="autoreset 'sometimes' is none of"):
        from_gymnasium(silent, autoreset="sometimes")
    with from_gymnasium(silent, autoreset="next_step") as vec:
        assert vec.autoreset == "next_step"
    silent.metadata["autoreset_mode"] = "SameStep"
    with from_gymnasium(silent) as vec:
        assert vec.autoreset == "same_step"
    with pytest.raises(ValueError, match="autoreset='next_step', but .* 'autoreset_mode' SameStep"):
        from_gymnasium(silent, autoreset="next_step")
    silent.close()


def test_what_envpool_makes_for_another_interface() -> None:
    """EnvPool's other functions return vector envs that are not Gymnasium's; the error has the right remedy."""
    kind = type("CartPoleDMEnvPool", (), {"__module__": "envpool.classic_control.registration"})
    with pytest.raises(TypeError, match="not CartPoleDMEnvPool: envpool.make_gymnasium gives one"):
        from_gymnasium(kind())
