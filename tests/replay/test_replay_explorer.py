"""The explorer's loop in one process: which rows are transitions, their fields, and the calls of the policy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bytecodes import interrupted
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from vecenvs import Batched, DummyVecEnv, SubprocVecEnv, replay
from vecenvs.errors import EnvError, VecEnvError
from vecenvs.replay import Explorer
from vecenvs.testing.envs import NESTED, CountingEnv, DyingEnv, FailingEnv, SampledEnv, counting_fns
from vecenvs.testing.envs.batches import ArrayBatch
from vecenvs.views import from_gymnasium
from vecenvs.wrappers import VecFrameStack

ENDS = st.sampled_from(["terminated", "truncated", "both"])
MODES = ["same_step", "next_step", "async", "disabled"]


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close every VecEnv that an explorer was given."""
    made: list[Explorer] = []
    begin = Explorer.__init__

    def noted(self: Explorer, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(Explorer, "__init__", noted)
    yield
    for explorer in made:
        explorer.close()


class Ones:
    """A policy that returns action 1 in an array which it reuses, and records its calls."""

    def __init__(self, n: int) -> None:
        self.actions = np.zeros(n, np.int64)
        self.acts = 0
        self.begun: list[tuple[int, list[int]]] = []

    def act(self, obs: Any) -> Any:
        self.actions[:] = 1
        self.acts += 1
        actions = self.actions.copy()
        self.actions[:] = 2
        return actions

    def episode_start(self, envs: list[int]) -> None:
        self.begun.append((self.acts, sorted(envs)))


def rows_of(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return a batch of CountingEnvs as (obs, action, reward, next_obs, terminated, truncated), env by env."""
    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
    rows = zip(*(batch[name].tolist() for name in names), strict=True)
    return sorted(rows, key=lambda row: row[0][0])  # stable: in the order of the steps


def gather(explorer: Explorer, count: int) -> list[tuple[Any, ...]]:
    """Return the first `count` transitions of each env."""
    found: list[tuple[Any, ...]] = []
    tags = range(explorer.vec.num_envs)
    while min(sum(row[0][0] == tag for row in found) for tag in tags) < count:
        found += rows_of(explorer.collect())
    return [row for tag in tags for row in [row for row in found if row[0][0] == tag][:count]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fragment_size", [1, 5])
def test_transitions_by_hand(mode: str, fragment_size: int) -> None:
    """Env 0 terminates after 2 steps, env 1 is truncated after 3: transitions are the same in every mode."""
    fns = [
        functools.partial(CountingEnv, 0, 2, ends="terminated"),
        functools.partial(CountingEnv, 1, 3, ends="truncated"),
    ]
    vec = DummyVecEnv(fns, autoreset=mode)
    assert gather(Explorer(vec, Ones(2), fragment_size=fragment_size), 5) == [
        ([0, 1, 0], 1, 1.0, [0, 1, 1], False, False),
        ([0, 1, 1], 1, 2.0, [0, 1, 2], True, False),
        ([0, 2, 0], 1, 1.0, [0, 2, 1], False, False),
        ([0, 2, 1], 1, 2.0, [0, 2, 2], True, False),
        ([0, 3, 0], 1, 1.0, [0, 3, 1], False, False),
        ([1, 1, 0], 1, 1.125, [1, 1, 1], False, False),
        ([1, 1, 1], 1, 2.125, [1, 1, 2], False, False),
        ([1, 1, 2], 1, 3.125, [1, 1, 3], False, True),
        ([1, 2, 0], 1, 1.125, [1, 2, 1], False, False),
        ([1, 2, 1], 1, 2.125, [1, 2, 2], False, False),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_episode_numbers_and_returns(mode: str) -> None:
    """Each episode has its own number, in the order in which they begin."""
    explorer = Explorer(DummyVecEnv(counting_fns(3, length=2), autoreset=mode), Ones(3), 7, fragment_size=18)
    batch = explorer.collect()
    assert set(batch["explorer"].tolist()) == {7}
    episodes = {(int(obs[0]), int(obs[1])): set() for obs in batch["obs"]}
    for obs, episode in zip(batch["obs"], batch["episode"], strict=True):
        episodes[int(obs[0]), int(obs[1])].add(int(episode))
    assert all(len(numbers) == 1 for numbers in episodes.values())
    assert {min(numbers) for (_, count), numbers in episodes.items() if count == 1} == {0, 1, 2}
    assert len(set.union(*episodes.values())) == len(episodes)
    stats = explorer.stats()
    assert stats["mean_length"] == 2.0
    assert explorer.recent_returns[0] == 3.0
    assert stats["transitions"] == len(batch["reward"])


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
def test_the_policy_hears_of_episodes_before_it_acts(mode: str) -> None:
    vec = DummyVecEnv([functools.partial(CountingEnv, 0, 2), functools.partial(CountingEnv, 1, 3)], autoreset=mode)
    policy = Ones(2)
    explorer = Explorer(vec, policy)
    for _ in range(4):
        explorer.step()
    after = {"same_step": [(2, [0]), (3, [1]), (4, [0])], "disabled": [(2, [0]), (3, [1]), (4, [0])]}
    # In next_step mode the reset is a step of its own.
    assert policy.begun == [(0, [0, 1]), *after.get(mode, [(3, [0]), (4, [1])])]


def test_a_fragment_is_no_larger_than_need_be() -> None:
    explorer = Explorer(DummyVecEnv(counting_fns(4)), Ones(4), fragment_size=10)
    assert [len(explorer.collect()["reward"]) for _ in range(3)] == [12, 12, 12]


def test_no_fragment_is_empty() -> None:
    """Transitions of several steps come late: those of the first steps after as many."""
    explorer = Explorer(DummyVecEnv(counting_fns(2, length=50)), Ones(2), n_step=9, fragment_size=1)
    assert [len(explorer.collect()["reward"]) for _ in range(4)] == [2, 2, 2, 2]


@pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize("space", ["nested", "image"])
def test_views_that_the_vec_env_overwrites(mode: str, space: str) -> None:
    """The transitions are the same with copy=False."""
    observation_space = NESTED if space == "nested" else spaces.Box(0, 255, (4, 4), np.uint8)
    batches = []
    for copy in (True, False):
        fns = [functools.partial(SampledEnv, observation_space) for _ in range(2)]
        vec = DummyVecEnv(fns, autoreset=mode, copy=copy)
        batches.append(Explorer(vec, Ones(2), fragment_size=40, seed=5).collect())
    for ours, theirs in zip(*(_leaves(batch) for batch in batches), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in _leaves(value[key])]
    return [leaf for part in value for leaf in _leaves(part)] if isinstance(value, tuple) else [value]


def test_wrapped() -> None:
    """With stacked frames, the terminal observation is a stack too."""
    explorer = Explorer(VecFrameStack(DummyVecEnv(counting_fns(1, length=2)), 2), Ones(1), fragment_size=3)
    batch = explorer.collect()
    assert batch["obs"].tolist() == [[0, 0, 0, 0, 1, 0], [0, 1, 0, 0, 1, 1], [0, 0, 0, 0, 2, 0]]
    assert batch["next_obs"].tolist() == [[0, 1, 0, 0, 1, 1], [0, 1, 1, 0, 1, 2], [0, 2, 0, 0, 2, 1]]


@pytest.mark.parametrize("fragment_size", [2, 60])
@pytest.mark.parametrize(("mode", "n"), [("same_step", 1), ("async", 1), ("next_step", 3)])
def test_a_lost_worker(tmp_path: Path, mode: str, n: int, fragment_size: int) -> None:
    """The row of a lost worker is no transition; earlier transitions are complete."""
    fns = [functools.partial(DyingEnv, 0, at=4, length=9, lives_file=tmp_path / "lives"), *counting_fns(2)[1:]]
    with SubprocVecEnv(fns, 2, on_failure="restart", autoreset=mode) as vec:
        explorer = Explorer(vec, Ones(2), n_step=n, fragment_size=fragment_size)
        batches = [explorer.collect()]
        while sum((batch["obs"][:, 0] == 0).sum() for batch in batches) < 12:  # env 1 goes on while a worker starts
            batches.append(explorer.collect())
        assert vec.stats()["restarts"] == 1
    obs, next_obs, episode, truncated = (
        np.concatenate([batch[name] for batch in batches]) for name in ("obs", "next_obs", "episode", "truncated")
    )
    assert not truncated.any()
    np.testing.assert_array_equal(next_obs[:, :2], obs[:, :2])
    ours = obs[:, 0] == 0
    # Three steps, the fourth of which was its last; then the whole episodes of a healthy one.
    lengths = [3] * 3 + [9] * (int(ours.sum()) - 3)
    assert next_obs[ours][:, 2].tolist() == [
        min(t + n, length) for t, length in zip(obs[ours][:, 2].tolist(), lengths, strict=True)
    ]
    assert len(set(episode[ours][:3].tolist())) == 1
    assert episode[ours][3] != episode[ours][2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [1, 3])
def test_the_row_of_an_error(mode: str, n: int) -> None:
    """An env that raises in its fourth step ends its episode; the row that tells of that is no transition."""
    with DummyVecEnv([functools.partial(FailingEnv, 0, at=4)], autoreset=mode, on_error="reset") as vec:
        batch = Explorer(vec, Ones(1), n_step=n, gamma=0.5, fragment_size=5).collect()
    first = batch["episode"] == batch["episode"][0]
    assert batch["obs"][first][:, 2].tolist() == [0, 1, 2]
    assert batch["next_obs"][first][:, 2].tolist() == [min(t + n, 3) for t in range(3)]
    assert not batch["terminated"][first].any()
    if n == 3:
        assert batch["discount"][first].tolist() == [0.125, 0.25, 0.5]


def test_errors_pass_through() -> None:
    with pytest.raises(EnvError, match="env 3 failed in step"):
        Explorer(DummyVecEnv([functools.partial(FailingEnv, 3, at=2)]), Ones(1)).collect()


@settings(max_examples=40)
@given(
    st.integers(2, 5),
    st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    st.lists(st.tuples(st.integers(1, 9), ENDS), min_size=1, max_size=3),
    st.integers(1, 12),
    st.sampled_from(MODES),
)  # fmt: skip
def test_n_steps(n: int, gamma: float, envs: list[tuple[int, str]], fragment_size: int, mode: str) -> None:
    """Compare with explicit sums, for episodes longer and shorter than n, and any fragments."""
    fns = [functools.partial(CountingEnv, tag, length, ends=ends) for tag, (length, ends) in enumerate(envs)]
    vec = DummyVecEnv(fns, autoreset=mode)
    explorer = Explorer(vec, Ones(len(envs)), n_step=n, gamma=gamma, fragment_size=fragment_size)
    seen: dict[int, list[tuple[int, int]]] = {tag: [] for tag in range(len(envs))}
    for _ in range(8):
        batch = explorer.collect()
        for k, (tag, episode, t) in enumerate(batch["obs"].tolist()):
            length, ends = envs[tag]
            m = min(n, length - t)
            assert batch["next_obs"][k].tolist() == [tag, episode, t + m]
            total = sum(gamma**i * (t + i + 1 + tag / 8) for i in range(m))
            assert batch["reward"][k] == pytest.approx(total, rel=1e-5)
            assert batch["discount"][k] == pytest.approx(gamma**m, abs=1e-6)
            over = t + m == length
            assert bool(batch["terminated"][k]) == (over and ends != "truncated")
            assert bool(batch["truncated"][k]) == (over and ends != "terminated")
            seen[tag].append((episode, t))
    for tag, steps in seen.items():
        length = envs[tag][0]
        whole = [(episode, t) for episode in range(1, len(steps) + 2) for t in range(length)]
        assert sorted(steps) == whole[: len(steps)], "each once, none left out"


def test_a_vector_env_of_gymnasium() -> None:
    """Natively batched envs work behind `from_gymnasium`."""
    import gymnasium as gym

    vec = from_gymnasium(gym.vector.SyncVectorEnv([functools.partial(CountingEnv, tag, 2) for tag in range(2)]))
    assert gather(Explorer(vec, Ones(2), fragment_size=4), 3) == [
        ([0, 1, 0], 1, 1.0, [0, 1, 1], False, False),
        ([0, 1, 1], 1, 2.0, [0, 1, 2], True, False),
        ([0, 2, 0], 1, 1.0, [0, 2, 1], False, False),
        ([1, 1, 0], 1, 1.125, [1, 1, 1], False, False),
        ([1, 1, 1], 1, 2.125, [1, 1, 2], True, False),
        ([1, 2, 0], 1, 1.125, [1, 2, 1], False, False),
    ]


class ForgettingBatch(ArrayBatch):
    """A batched env that keeps nothing of ended episodes."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        return *super().step(actions)[:4], {}


def test_a_batched_env_without_last_observations() -> None:
    vec = DummyVecEnv([Batched(functools.partial(ForgettingBatch, counting_fns(2, length=2)), 2)])
    with vec, pytest.raises(VecEnvError, match="env 0 keeps no last observation of an episode"):
        Explorer(vec, Ones(2), fragment_size=8).collect()


class Raising(CountingEnv):
    """Raises in the third step of its first episode, or is interrupted there."""

    def __init__(self, tag: int, kind: type[BaseException]) -> None:
        super().__init__(tag, 9)
        self.kind = kind

    def step(self, action: Any) -> Any:
        if (self.tag, self.episode, self.t) == (1, 1, 2):
            self.kind, kind = ValueError, self.kind
            self.episode = 5
            raise kind
        return super().step(action)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_joins_no_two_episodes(kind: type[BaseException], n_step: int) -> None:
    """After it all transitions are within an episode, one step on; the explorer can go on."""
    fns = [functools.partial(Raising, tag, kind) for tag in range(2)]
    explorer = Explorer(DummyVecEnv(fns), Ones(2), n_step=n_step, gamma=1.0, fragment_size=24)
    rows: list[Any] = []
    raised = 0
    while len(rows) < 60:
        try:
            batch = explorer.collect()
        except (EnvError, KeyboardInterrupt):
            raised += 1
            continue
        rows += zip(batch["obs"].tolist(), batch["next_obs"].tolist(), strict=True)
    assert raised == (1 if kind is ValueError else 2)  # the env at which a Ctrl-C comes has failed
    for one, other in rows:
        assert one[:2] == other[:2]
        assert 1 <= other[2] - one[2] <= n_step
    explorer.close()


@pytest.mark.parametrize("n_step", [1, 3])
def test_an_interrupted_collect(n_step: int) -> None:
    """Wherever it is cut off, later ones return the same transitions, each once, with the same numbers of episodes."""

    def collected(bytecodes: int | None) -> tuple[bool, list[Any]]:
        fns = [functools.partial(CountingEnv, tag, 2 + tag) for tag in range(2)]
        exploring = Explorer(DummyVecEnv(fns), Ones(2), n_step=n_step, fragment_size=6)
        batches: list[Any] = []
        more = bytecodes is not None and interrupted(lambda: batches.append(exploring.collect()), bytecodes, files)
        while sum(len(batch["reward"]) for batch in batches) < 40:
            batches.append(exploring.collect())
        names = ("episode", "reward", "terminated")
        columns = [
            zip(batch["obs"].tolist(), *(batch[name].tolist() for name in names), strict=True) for batch in batches
        ]
        rows = [(obs[0], obs[2], *rest) for obs, *rest in itertools.chain(*columns)]
        return more, [[row for row in rows if row[0] == tag][:15] for tag in range(2)]

    files = {str(Path(replay.__file__).parent / part) for part in ("explorer.py", "nstep.py", "recorder.py")}
    _, expected = collected(None)
    bytecodes, more = 0, True
    while more:
        more, found = collected(bytecodes)
        assert found == expected, bytecodes
        bytecodes += 1
    assert bytecodes > 40
