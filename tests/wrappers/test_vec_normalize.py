"""VecNormalize: equal to SB3's step by step; the same statistics in every mode and on every path; files; ranks."""

from __future__ import annotations

import contextlib
import gc
import json
import pickle
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import sb3
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd
from vec_plays import (
    DICT,
    MODES,
    PATHS,
    SPACES,
    compare_with_sb3,
    env_fns,
    equal,
    for_sb3,
    make,
    play,
    rows_by_recv,
    rows_by_step,
)

from vecenvs import DummyVecEnv
from vecenvs.errors import ClosedError, EnvError, VecEnvError
from vecenvs.testing.envs import FailingEnv, counting_fns
from vecenvs.wrappers import MergeOverRanks, VecFrameStack, VecNormalize

VECTOR = SPACES["vector"]
MIXED = spaces.Dict({"x": VECTOR, "kind": spaces.Discrete(3)})


@pytest.mark.sparse("name")
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"norm_obs": False},
        {"norm_reward": False},
        {"training": False},
        {"clip_obs": 0.5, "clip_reward": 0.2, "gamma": 0.9, "epsilon": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", SPACES)
def test_as_sb3(name: str, kwargs: dict[str, Any]) -> None:
    compare_with_sb3(
        SPACES[name], lambda vec: VecNormalize(vec, **kwargs), lambda vec: sb3().VecNormalize(vec, **kwargs)
    )


def test_as_sb3_with_keys() -> None:
    keys: Any = {"norm_obs_keys": ["x"]}
    compare_with_sb3(MIXED, lambda vec: VecNormalize(vec, **keys), lambda vec: sb3().VecNormalize(vec, **keys))


def test_statistics_and_originals_as_sb3() -> None:
    mine = VecNormalize(DummyVecEnv(env_fns(VECTOR)))
    theirs = sb3().VecNormalize(for_sb3(VECTOR))
    mine.seed(1)
    theirs.seed(1)
    mine.reset()
    theirs.reset()
    for t in range(60):
        mine.training = theirs.training = t % 3 > 0
        if t == 30:
            equal(mine.reset(), theirs.reset())
        obs, rewards, *_ = mine.step(np.arange(3))
        theirs.step(np.arange(3))
        np.testing.assert_array_equal(mine.rewards64.astype(np.float32), rewards)
        for ours, upstream in ((mine.obs_rms, theirs.obs_rms), (mine.ret_rms, theirs.ret_rms)):
            np.testing.assert_allclose(ours.mean, upstream.mean, rtol=1e-9)
            np.testing.assert_allclose(ours.var, upstream.var, rtol=1e-9)
            assert ours.count == pytest.approx(upstream.count)
        equal(mine.get_original_obs(), theirs.get_original_obs())
        equal(mine.get_original_reward(), theirs.get_original_reward())
        equal(mine.unnormalize_obs(obs), theirs.unnormalize_obs(obs))
        np.testing.assert_allclose(mine.unnormalize_reward(rewards), theirs.unnormalize_reward(rewards), rtol=1e-5)
        equal(mine.normalize_reward(rewards), theirs.normalize_reward(rewards))
    mine.close()
    theirs.close()


def discounted(rows: list[Any], gamma: float, same_step: bool) -> tuple[list[Any], list[float]]:
    """Compute by hand, from one env's raw rows, the observations and discounted returns that count."""
    observations, returns, total = [], [], 0.0
    for obs, reward, done, active, _ in rows:
        if same_step or not done:
            observations.append(obs)
        if active:
            total = total * gamma + reward
            returns.append(total)
        if done or not active:
            total = 0.0
    return observations, returns


@pytest.mark.parametrize(("backend", "path", "mode"), PATHS)
def test_the_same_rows_count_by_every_path(backend: str, path: str, mode: str) -> None:
    """The wrapper is over a recorder, so that all rows it got are known."""
    raw: list[Any] = [[] for _ in range(3)]
    with VecNormalize(Recorder(make(VECTOR, backend, mode), raw)) as vec:
        play(path, vec, 40)
        pairs = [discounted(rows, vec.gamma, mode == "same_step") for rows in raw]
        observations = np.concatenate([pair[0] for pair in pairs])
        returns = np.concatenate([pair[1] for pair in pairs])
        assert vec.obs_rms.count == pytest.approx(len(observations) + 1e-4)
        np.testing.assert_allclose(vec.obs_rms.mean, observations.mean(axis=0), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(vec.obs_rms.var, observations.var(axis=0), rtol=1e-3)
        assert vec.ret_rms.count == pytest.approx(len(returns) + 1e-4)
        np.testing.assert_allclose(vec.ret_rms.var, returns.var(), rtol=1e-3)


class Recorder(VecFrameStack):
    """Record each env's rows, unchanged."""

    def __init__(self, venv: Any, rows: list[Any]) -> None:
        super().__init__(venv, 1)
        self.rows = rows

    def _on_rows(self, batch: Any, exact: Any, lock_step: bool) -> None:
        for j, i in enumerate(batch.indices):
            if not batch.infos[j].get("resetting"):
                row = (batch.obs[j].copy(), float(batch.rewards[j]), bool(batch.dones[j]), bool(batch.active[j]), {})
                self.rows[i].append(row)


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_the_same_by_recv_and_by_step(mode: str) -> None:
    def trained() -> VecNormalize:
        vec = VecNormalize(DummyVecEnv(env_fns(VECTOR), autoreset=mode))
        vec.obs_rms.mean[:], vec.obs_rms.var[:] = [1, 2, 3], [4, 5, 6]
        vec.ret_rms.var = np.float64(7.0)
        vec.training = False
        return vec

    with trained() as one, trained() as two:
        by_step, by_recv = rows_by_step(one, 40), rows_by_recv(two, 40)
    for rows, others in zip(by_step, by_recv, strict=True):
        for a, b in zip(rows[1:], others[1:], strict=False):
            equal(a[0], b[0])
            assert a[1:4] == b[1:4]
            assert ("terminal_observation" in a[4]) == ("terminal_observation" in b[4])
            if "terminal_observation" in a[4]:
                assert a[4]["terminal_observation"].dtype == np.float32
                equal(a[4]["terminal_observation"], b[4]["terminal_observation"])


def test_reset_of_one_env_begins_its_return_anew_and_updates_its_original() -> None:
    with VecNormalize(DummyVecEnv(counting_fns(2))) as vec:
        with pytest.raises(VecEnvError, match="reset"):
            vec.get_original_obs()
        vec.reset()
        vec.step([0, 0])
        assert vec.returns.tolist() == [1.0, 1.125]
        vec.reset([1])
        assert vec.returns.tolist() == [1.0, 0.0]
        np.testing.assert_array_equal(vec.get_original_obs(), [[0, 1, 1], [1, 2, 0]])
        assert vec.obs_rms.count == pytest.approx(5, abs=1e-3)
        assert vec.observation_space.dtype == np.float32


def test_rewards_asked_for_are_the_last_by_any_path_and_the_callers_own() -> None:
    with VecNormalize(DummyVecEnv(counting_fns(2))) as vec:
        vec.reset()
        vec.step([0, 0])
        given = vec.get_original_reward(), vec.rewards64
        kept = [rewards.copy() for rewards in given]
        vec.send([0, 0])
        vec.recv(2)
        assert vec.get_original_reward().tolist() == [2.0, 2.125]
        for rewards, before in zip(given, kept, strict=True):
            np.testing.assert_array_equal(rewards, before)


def test_rows_beside_an_error_are_normalized() -> None:
    with VecNormalize(DummyVecEnv([*counting_fns(1), partial(FailingEnv, 1, at=1)])) as vec:
        vec.reset()
        with pytest.raises(EnvError) as error:
            vec.step([0, 0])
        assert error.value.batch is not None
        assert error.value.batch.obs.dtype == np.float32
        assert vec.obs_rms.count == pytest.approx(3, abs=1e-3)


def test_normalized_rewards_in_float64() -> None:
    with VecNormalize(DummyVecEnv(env_fns(VECTOR)), norm_reward=False) as plain:
        plain.reset(seed=1)
        _, rewards, _, _ = plain.step([0, 0, 0])
        assert (plain.rewards64 == plain.venv.rewards64).all()
        assert (plain.rewards64.astype(np.float32) == rewards).all()


@pytest.mark.parametrize(("space", "keys"), [(VECTOR, None), (DICT, None), (MIXED, ["x"])])
def test_save_and_load(tmp_path: Path, space: Any, keys: Any) -> None:
    path = tmp_path / "normal.bin"
    with VecNormalize(DummyVecEnv(env_fns(space)), gamma=0.5, clip_obs=3.0, norm_obs_keys=keys) as vec:
        vec.reset(seed=0)
        for _ in range(20):
            vec.step([0, 0, 0])
        vec.save(path)
        with VecNormalize.load(path, DummyVecEnv(env_fns(space))) as loaded:
            assert (loaded.gamma, loaded.clip_obs, loaded.training, loaded.norm_obs_keys) == (
                0.5,
                3.0,
                True,
                vec.norm_obs_keys,
            )
            equal(loaded.normalize_obs(vec.get_original_obs()), vec.normalize_obs(vec.get_original_obs()))
            equal(loaded.normalize_reward([1.0, 2.0]), vec.normalize_reward([1.0, 2.0]))
            assert loaded.ret_rms.count == vec.ret_rms.count
        with VecNormalize(DummyVecEnv(env_fns(space)), norm_obs_keys=keys) as other:
            other.copy_statistics(vec)
            vec.reset()  # the statistics of vec alone change
            assert other.ret_rms.var == vec.ret_rms.var
            assert np.array_equal(np.load(path)["returns/mean"], other.ret_rms.mean)
    assert [file.name for file in tmp_path.iterdir()] == ["normal.bin"]


@pytest.mark.parametrize("name", ["vector", "dict"])
def test_norm_obs_and_norm_reward_may_be_set_as_with_sb3(tmp_path: Path, name: str) -> None:
    path, space = tmp_path / "file", SPACES[name]
    mine, theirs = VecNormalize(DummyVecEnv(env_fns(space))), sb3().VecNormalize(for_sb3(space))
    declared = mine.observation_space
    for vec in (mine, theirs):
        vec.seed(1)
        vec.reset()
    for t in range(40):
        mine.norm_obs = theirs.norm_obs = np.bool_(t % 4 > 1)
        mine.norm_reward = theirs.norm_reward = np.bool_(t % 3 > 0)
        (obs, rewards, _, infos), theirs_rows = mine.step(np.arange(3)), theirs.step(np.arange(3))
        equal(obs, theirs_rows[0])
        equal(rewards, theirs_rows[1])
        for info, their_info in zip(infos, theirs_rows[3], strict=True):
            if "terminal_observation" in info:
                equal(info["terminal_observation"], their_info["terminal_observation"])
        equal(mine.normalize_obs(mine.get_original_obs()), obs)
        equal(mine.unnormalize_obs(obs), theirs.unnormalize_obs(obs))
        mine.save(path)
        with VecNormalize.load(path, DummyVecEnv(env_fns(space))) as loaded:
            assert loaded.norm_obs is (t % 4 > 1)
            assert loaded.observation_space == mine.observation_space == declared
            loaded.norm_obs = mine.norm_obs = True
            equal(loaded.normalize_obs(mine.get_original_obs()), mine.normalize_obs(mine.get_original_obs()))
    mine.close()
    theirs.close()


def test_statistics_are_set_as_with_sb3() -> None:
    """Both share the same statistics, of our class or of another library's."""
    with (
        VecNormalize(DummyVecEnv(env_fns(DICT))) as vec,
        VecNormalize(DummyVecEnv(env_fns(DICT)), training=False) as evaluation,
        VecNormalize(DummyVecEnv(env_fns(DICT))) as other,
        contextlib.closing(sb3().VecNormalize(for_sb3(DICT))) as theirs,
    ):
        evaluation.obs_rms, evaluation.ret_rms = vec.obs_rms, vec.ret_rms
        vec.reset(seed=0)
        theirs.seed(0)
        theirs.reset()
        assert evaluation.obs_rms["image"] is vec.obs_rms["image"]
        equal(evaluation.normalize_obs(vec.get_original_obs()), vec.normalize_obs(vec.get_original_obs()))
        vec.obs_rms, vec.ret_rms = theirs.obs_rms, theirs.ret_rms
        before = vec.obs_rms["image"].count
        vec.reset()
        assert vec.obs_rms["image"].count == theirs.obs_rms["image"].count == before + vec.num_envs
        vec.copy_statistics(other)
        assert theirs.obs_rms["image"].count == before + vec.num_envs  # no longer shared


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (VECTOR, np.zeros(3), "must be a RunningMeanStd"),
        (VECTOR, None, "must be a RunningMeanStd"),
        (VECTOR, RunningMeanStd(shape=(7,)), r"mean has shape \(7,\)"),
        (VECTOR, {"x": RunningMeanStd()}, "those here are obs_rms$"),
        (DICT, RunningMeanStd(), r"those here are obs_rms\['image'\], "),
        (spaces.Discrete(3), RunningMeanStd(), "those here are none"),
    ],
)
def test_statistics_of_other_observations_are_refused(space: Any, value: Any, message: str) -> None:
    norm_obs = not isinstance(space, spaces.Discrete)
    with VecNormalize(DummyVecEnv(env_fns(space)), norm_obs=norm_obs) as vec:
        with pytest.raises((TypeError, ValueError), match=message):
            vec.obs_rms = value
        with pytest.raises((TypeError, ValueError)):
            vec.ret_rms = RunningMeanStd(shape=(2,))


def test_statistics_that_are_refused_change_none() -> None:
    of_two, of_three = (
        VecNormalize(DummyVecEnv(env_fns(spaces.Dict(a=VECTOR, b=spaces.Box(-1, 1, (n,)))))) for n in (2, 3)
    )
    of_two.reset(seed=1)
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        of_three.copy_statistics(of_two)
    assert {key: rms.count for key, rms in of_three.obs_rms.items()} == {"a": 1e-4, "b": 1e-4}


def test_norm_obs_cannot_be_set_where_there_are_no_statistics(tmp_path: Path) -> None:
    with VecNormalize(DummyVecEnv(env_fns(VECTOR)), norm_obs=False) as vec:
        vec.norm_obs = False
        with pytest.raises(ValueError, match="made with norm_obs=False"):
            vec.norm_obs = True
        vec.gamma, vec.clip_reward = np.float32(0.5), np.int64(3)
        vec.save(tmp_path / "file")
        loaded = VecNormalize.load(tmp_path / "file", vec.venv)
        assert (loaded.norm_obs, loaded.gamma, loaded.clip_reward) == (False, 0.5, 3.0)


def test_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with DummyVecEnv(env_fns(VECTOR)) as vec, DummyVecEnv(env_fns(SPACES["float32"])) as other:
        VecNormalize(other).save(path)
        with pytest.raises(ValueError, match="other observations.*shape"):
            VecNormalize.load(path, vec)
        listed = path.read_bytes().index(b"PK\1\2")  # in the directory of the zip file
        encrypted, compressed = bytearray(path.read_bytes()), bytearray(path.read_bytes())
        encrypted[listed + 8] |= 1
        compressed[listed + 10] = 77
        for content in (pickle.dumps({"a": 1}), b"", b"PK\x03\x04 broken", b"#", encrypted, compressed):
            path.write_bytes(content)
            with pytest.raises(ValueError, match="is not a file that VecNormalize.save wrote: "):
                VecNormalize.load(path, vec)
        with pytest.raises(FileNotFoundError):
            VecNormalize.load(tmp_path / "none", vec)


def test_files_of_version_0_1_0(tmp_path: Path) -> None:
    """Their settings are text in an array of their own."""
    path = tmp_path / "file"
    with VecNormalize(DummyVecEnv(env_fns(VECTOR)), gamma=0.5) as vec:
        vec.reset(seed=0)
        vec.save(path)
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        settings = {**json.loads(arrays.pop("header").tobytes()), "format": 1}
        del settings["version"]
        with path.open("wb") as opened:
            np.savez(opened, settings=np.array(json.dumps(settings)), **arrays)
        loaded = VecNormalize.load(path, vec.venv)
        assert loaded.gamma == 0.5
        equal(loaded.normalize_obs(vec.get_original_obs()), vec.normalize_obs(vec.get_original_obs()))


def test_a_closed_one_holds_no_rows() -> None:
    """Also where a program keeps it; a further `close` is as ever, and calls say that it is closed."""
    vec = VecNormalize(DummyVecEnv(env_fns(VECTOR)))
    vec.reset()
    rows = weakref.ref(vec._original)
    vec.close()
    gc.collect()
    assert rows() is None
    vec.close()
    with pytest.raises(ClosedError, match="get_original_obs"):
        vec.get_original_obs()


def test_files_about_other_kinds_of_observations(tmp_path: Path) -> None:
    path, only_image = tmp_path / "file", spaces.Dict({"image": DICT["image"]})
    with DummyVecEnv(env_fns(DICT)) as vec:
        VecNormalize(vec).save(path)
    for space in (VECTOR, spaces.Discrete(2), only_image):
        with (
            DummyVecEnv(env_fns(space)) as vec,
            pytest.raises(ValueError, match=rf"{path.name}' is about other observations: "),
        ):
            VecNormalize.load(path, vec)


@pytest.mark.parametrize(("space", "given"), [(DICT, np.zeros(3)), (VECTOR, {"vector": np.zeros(3)})])
def test_observations_of_another_kind(space: Any, given: Any) -> None:
    with VecNormalize(DummyVecEnv(env_fns(space))) as vec:
        for method in (vec.normalize_obs, vec.unnormalize_obs):
            with pytest.raises(TypeError, match="obs must be an observation of"):
                method(given)


class ThreadComm:
    """The part of a communicator that is used here, between threads."""

    def __init__(self, size: int) -> None:
        self.barrier, self.box, self.size = threading.Barrier(size, timeout=30), [None] * size, size

    def at(self, rank: int) -> Any:
        comm = self

        class Rank:
            def allgather(self, value: Any) -> list[Any]:
                comm.box[rank] = value
                comm.barrier.wait()
                found = list(comm.box)
                comm.barrier.wait()
                return found

        return Rank()


def test_merged_over_ranks() -> None:
    """Two ranks with different envs have, on both, the statistics of one VecEnv with all envs."""
    comm = ThreadComm(2)
    vecs = [
        VecNormalize(DummyVecEnv(env_fns(VECTOR, n)), merge=MergeOverRanks(comm.at(rank)))
        for rank, n in enumerate((1, 3))
    ]
    whole = VecNormalize(DummyVecEnv(env_fns(VECTOR, 4)))

    def play(vec: VecNormalize, seed: int) -> None:
        vec.reset(seed=seed)
        for t in range(30):
            vec.step(np.full(vec.num_envs, t % 4))
            if t == 10:
                vec.reset([0])  # merged by the next step: the other rank need not do the same

    threads = [threading.Thread(target=play, args=(vec, seed)) for vec, seed in zip(vecs, (0, 1), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    whole.reset(seed=0)
    for t in range(30):
        whole.step(np.full(4, t % 4))
        if t == 10:
            whole.reset([0, 1])
    for name in ("obs_rms", "ret_rms"):
        first, second, expected = (getattr(vec, name) for vec in (*vecs, whole))
        assert np.array_equal(first.mean, second.mean)
        assert np.array_equal(first.var, second.var)
        assert first.count == second.count == pytest.approx(expected.count)
        np.testing.assert_allclose(first.mean, expected.mean, rtol=1e-9)
        np.testing.assert_allclose(first.var, expected.var, rtol=1e-9)
    for vec in (*vecs, whole):
        vec.close()


class NotingMerger:
    """One rank alone. `counts` has the number of values in each merge: observations, returns, observations, ..."""

    def __init__(self) -> None:
        self.counts: list[float] = []

    def merge(self, mean: Any, var: Any, count: float) -> Any:
        self.counts.append(count)
        return mean, var, count


class TestWhenRanksMerge:
    """Merge at each step and each reset of all envs only: a merge that one rank alone begins would not end."""

    def test_rows_of_some_envs_wait(self) -> None:
        merger = NotingMerger()
        with VecNormalize(DummyVecEnv(counting_fns(2)), merge=merger) as vec:
            vec.reset()
            assert merger.counts == [2, 0]
            vec.send([0, 0])
            vec.recv(2)
            vec.reset([1])
            assert merger.counts == [2, 0]
            vec.step([0, 0])
            assert merger.counts == [2, 0, 5, 4]

    def test_a_reset_that_fails_merges_too(self) -> None:
        """The resets of the other ranks have not failed, so they merge."""
        merger = NotingMerger()
        fns = [*counting_fns(1), partial(FailingEnv, 1, "reset")]
        with VecNormalize(DummyVecEnv(fns), merge=merger) as vec:
            with pytest.raises(EnvError, match="env 1"):
                vec.reset()
            assert merger.counts == [1, 0]

    def test_copied_statistics_take_the_place_of_what_waits(self) -> None:
        with (
            VecNormalize(DummyVecEnv(counting_fns(2)), merge=NotingMerger()) as vec,
            VecNormalize(DummyVecEnv(counting_fns(2))) as other,
        ):
            vec.reset()
            vec.reset([0])
            vec.copy_statistics(other)
            vec.flush()
            assert vec.obs_rms.count == other.obs_rms.count


@pytest.mark.parametrize(
    ("space", "kwargs", "error", "message"),
    [
        (spaces.Discrete(3), {}, ValueError, "give norm_obs=False"),
        (MIXED, {}, ValueError, "'kind' is Discrete.3., not a Box"),
        (DICT, {"norm_obs_keys": ["none"]}, ValueError, "no key 'none': there are image, vector"),
        (DICT, {"norm_obs_keys": ["image", "image"]}, ValueError, "norm_obs_keys has a name twice"),
        (VECTOR, {"norm_obs_keys": ["x"]}, ValueError, "leave it out"),
        (VECTOR, {"gamma": 1.1}, ValueError, "gamma"),
        (VECTOR, {"epsilon": 0}, ValueError, "epsilon"),
        (VECTOR, {"clip_obs": float("nan")}, ValueError, "clip_obs"),
        (VECTOR, {"merge": max}, TypeError, "merge"),
    ],
)
def test_what_it_refuses(space: Any, kwargs: Any, error: type[Exception], message: str) -> None:
    with DummyVecEnv(env_fns(space)) as vec, pytest.raises(error, match=message):
        VecNormalize(vec, **kwargs)
