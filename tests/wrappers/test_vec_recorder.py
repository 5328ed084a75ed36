"""VecRecorder: Minari datasets, read back by Minari."""

from __future__ import annotations

import copy
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenvs
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import SampledEnv
from vecenvs.testing.envs.states import BrittleEnv, StateEnv
from vecenvs.testing.suite.records import play
from vecenvs.wrappers import VecRecorder

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="Minari needs Python 3.11"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Minari's, of arguments that tests do without
]
NESTED = spaces.Dict(
    {
        "a": spaces.Box(-1, 1, (2, 3), np.float32),
        "b": spaces.Tuple((spaces.Discrete(5), spaces.Box(0, 255, (4,), np.uint8))),
    }
)


def nested() -> SampledEnv:
    return SampledEnv(copy.deepcopy(NESTED), copy.deepcopy(NESTED), end=0.2)


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def row(value: Any, t: int) -> Any:
    """Return row t of a structure of arrays."""
    if isinstance(value, dict):
        return {key: row(part, t) for key, part in value.items()}
    return tuple(row(part, t) for part in value) if isinstance(value, tuple) else value[t]


def check(env: gymnasium.Env[Any, Any], dataset: Any, episode: Any) -> None:
    """Play an episode again in a bare loop."""
    (metadata,) = dataset.storage.get_episode_metadata([episode.id])
    obs, _ = env.reset(seed=int(metadata["seed"]))
    assert_same(as_arrays(row(episode.observations, 0)), as_arrays(obs), "first observation")
    for t, reward in enumerate(episode.rewards):
        obs, expected, terminated, truncated, _ = env.step(row(episode.actions, t))
        assert np.float32(reward) == np.float32(expected)
        assert_same(as_arrays(row(episode.observations, t + 1)), as_arrays(obs), f"observation {t + 1}")
        assert episode.terminations[t] == terminated
        assert episode.truncations[t] in (truncated, t == len(episode.rewards) - 1)


def as_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_arrays(part) for key, part in value.items()}
    return tuple(map(as_arrays, value)) if isinstance(value, tuple) else np.asarray(value)


@pytest.mark.parametrize(
    ("name", "more", "error", "match"),
    [
        ("made/here", {}, ValueError, "a name with a version"),
        ("my data-v0", {}, ValueError, "Malformed"),
        ("made/here-v0", {"autor": "me"}, TypeError, "autor"),
        ("made/here-v0", {"env": "NoSuch-v0"}, gymnasium.error.Error, "NoSuch"),
        ("made/here-v0", {"data_format": "nope"}, ValueError, "nope"),
    ],
)
def test_arguments_are_refused_at_once(
    name: str, more: Any, error: type[Exception], match: str, tmp_path: Path
) -> None:
    """Nothing is left behind, so that the same name can be used."""
    with vecenvs.DummyVecEnv([nested]) as vec:
        with pytest.raises(error, match=match):
            VecRecorder(vec, name, **more)
        assert not [path for path in tmp_path.rglob("*") if path.name != "namespace_metadata.json" and path.is_file()]
        VecRecorder(vec, "made/here-v0")
        with pytest.raises(ValueError, match="a dataset 'made/here-v0' already"):
            VecRecorder(vec, "made/here-v0")


@pytest.mark.parametrize("mode", ["same_step", "next_step", "async", "disabled"])
@pytest.mark.parametrize("env_fn", [partial(StateEnv, 0.2), nested], ids=["walks", "nested"])
@pytest.mark.parametrize("limit", [2000, 10**9])
def test_what_minari_reads(mode: str, env_fn: Any, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The episodes of a bare loop, with their own last observations, in any order of calls."""
    import minari

    monkeypatch.setattr("vecenvs.wrappers.vec_recorder._BYTES", limit)
    vec = VecRecorder(
        vecenvs.DummyVecEnv([env_fn] * 3, autoreset=mode, episode_seeds=True),
        "toys/random-v0",
        algorithm_name="random",
    )
    with vec:
        vec.action_space.seed(random.randrange(2**30))
        vec.reset(seed=random.randrange(1000))
        play(vec, 60, with_options=False)
    dataset = minari.load_dataset("toys/random-v0")
    assert dataset.total_episodes == vec.episodes > 3
    assert dataset.storage.metadata["algorithm_name"] == "random"
    assert dataset.observation_space == vec.observation_space
    for episode in dataset.iterate_episodes():
        check(env_fn(), dataset, episode)
        assert episode.terminations[-1] or episode.truncations[-1]


def test_what_an_error_has_ended() -> None:
    import minari

    vecs = vecenvs.DummyVecEnv([BrittleEnv], episode_seeds=True, on_error="reset")
    with VecRecorder(vecs, "toys/brittle-v0") as vec:
        vec.reset(seed=7)
        for action in (1, 2, 3, 1):
            vec.step([action])
    dataset = minari.load_dataset("toys/brittle-v0")
    first, second = dataset.iterate_episodes()
    assert (first.actions.tolist(), first.truncations.tolist()) == ([1, 2], [False, True])
    assert second.actions.tolist() == [1]
    check(BrittleEnv(), dataset, first)


def test_what_it_cannot_write() -> None:
    with vecenvs.DummyVecEnv([lambda: SampledEnv(spaces.Text(5))]) as vec:  # noqa: SIM117
        with pytest.raises(TypeError, match="whose parts have fixed shapes, not Text"):
            VecRecorder(vec, "toys/text-v0")


def test_without_minari(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with vecenvs.DummyVecEnv([StateEnv]) as vec:  # noqa: SIM117
        with pytest.raises(vecenvs.BackendUnavailable, match=r"needs Minari .*: pip install 'vecenvs\[minari\]'"):
            VecRecorder(vec, "toys/none-v0")


class KeepsNone:
    """A batched env of two envs, which resets itself every 3 steps of env 0, and keeps no last observations."""

    num_envs = 2
    single_observation_space, single_action_space = spaces.Box(0, 99, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = np.zeros(2)
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.t = self.t + 1
        over = np.array([self.t[0] == 3, False])
        self.t[over] = 0
        return self.t[:, None].astype(np.float32), np.ones(2), over, np.zeros(2, bool), {}


def test_ends_without_last_observations() -> None:
    """The episode is cut off before its last step: there is nothing that it has led to."""
    import minari

    with VecRecorder(vecenvs.DummyVecEnv([vecenvs.Batched(KeepsNone, 2)]), "batched/none-v0") as vec:
        vec.reset()
        for _ in range(7):
            vec.step([0, 0])
    episodes = [*minari.load_dataset("batched/none-v0").iterate_episodes()]
    found = sorted((each.observations.ravel().tolist(), bool(each.truncations[-1])) for each in episodes)
    assert found == [([0, 1], True), ([0, 1, 2], True), ([0, 1, 2], True), ([*range(8)], True)]
