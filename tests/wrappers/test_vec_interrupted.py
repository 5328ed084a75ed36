"""Wrappers and Ctrl-C at random moments: no row is lost, doubled or torn, whether it had come to a wrapper or not."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vecenvs
from vecenvs.errors import AlreadySteppingError, EnvError, NotSteppingError
from vecenvs.testing.envs import counting_fns
from vecenvs.vec_env import VecEnv
from vecenvs.wrappers import VecRecorder, load_results
from vecenvs.wrappers.vec_rows import VecRowsWrapper

pytestmark = [
    pytest.mark.timeout(90),
    # A file that is read as the handler raises is closed by the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
LENGTH = 5
ENVS = 12


class Counted(gymnasium.Env[Any, Any]):
    """Observation [episode, step]; the reward is the action plus the step."""

    observation_space = spaces.Box(0, 2**40, (2,), np.float64)
    action_space = spaces.Discrete(100)
    episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return self._row(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._row(), float(action) + self.t, self.t == LENGTH, False, {"env": [self.episode, self.t]}

    def _row(self) -> Any:
        return np.array([self.episode, self.t], np.float64)


@pytest.fixture
def interrupted() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Return what calls a function with a KeyboardInterrupt at a random moment, maybe, and returns what it returns."""
    armed, rng = [False], random.Random(random.randrange(2**31))

    def interrupt(*_: Any) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    def call(function: Callable[[], Any]) -> Any:
        try:
            armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, 10 ** rng.uniform(-5.5, -2.7))
            return function()
        except KeyboardInterrupt:
            return None
        finally:
            armed[0] = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, interrupt)
    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def stepped(vec: VecEnv, actions: Any, interrupted: Any) -> Any:
    """Step all envs once, whatever interrupts; return the rows, or None if a reset has to follow."""
    call: Any = lambda: vec.step(actions)  # noqa: E731
    while True:
        try:
            if (rows := interrupted(call)) is not None:
                return rows
            call = vec.step_wait
        except NotSteppingError:  # nothing was sent
            call = lambda: vec.step(actions)  # noqa: E731
        except EnvError:  # the handler has raised within an env of this process
            return None


@pytest.mark.parametrize("engine", ["dummy", "subproc"])
def test_each_step_counts_once(engine: str, tmp_path: Path, interrupted: Any) -> None:
    Engine = {"dummy": vecenvs.DummyVecEnv, "subproc": vecenvs.SubprocVecEnv}[engine]  # noqa: N806
    monitor = vecenvs.VecMonitor(Engine([Counted] * ENVS), tmp_path / "m", info_keywords=("env",))
    vec = vecenvs.VecFrameStack(monitor, 3)
    obs = vec.reset()
    before, failed = obs[:, -2:].copy(), 0
    for number in range(600):
        rows = stepped(vec, np.full(ENVS, number % 100), interrupted)
        if rows is None:
            failed += 1
            obs = vec.reset()
            before = obs[:, -2:].copy()
            continue
        obs, rewards, dones, infos = rows
        assert (rewards == before[:, 1] + 1 + number % 100).all()
        for slot, info in enumerate(infos):
            assert info["env"] == [*(before[slot] + [0, 1])]
            assert dones[slot] == ("episode" in info) == (info["env"][1] == LENGTH)
            frames = (info["terminal_observation"] if dones[slot] else obs[slot]).reshape(3, 2)
            t = int(info["env"][1])
            assert frames[:, 1].tolist() == [max(t - 2, 0), t - 1, t]
            assert not dones[slot] or info["episode"]["l"] == LENGTH
        before = obs[:, -2:].copy()
    vec.close()
    lengths = load_results(str(tmp_path / "m.monitor.csv"))["l"]
    assert {*lengths} == {LENGTH}, failed
    assert len(lengths) >= (600 - failed) // LENGTH


@pytest.mark.parametrize("engine", ["dummy", "subproc"])
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Minari needs Python 3.11")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_step_is_recorded_once(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: Any
) -> None:
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr("vecenvs.wrappers.vec_recorder._BYTES", 20_000)
    Engine = {"dummy": vecenvs.DummyVecEnv, "subproc": vecenvs.SubprocVecEnv}[engine]  # noqa: N806
    vec = VecRecorder(Engine([Counted] * ENVS), "made/here-v0")
    vec.reset()
    expected = 0
    for number in range(250):
        rows = stepped(vec, np.full(ENVS, number % 100), interrupted)
        expected += 0 if rows is None else ENVS
        if rows is None:
            vec.reset()
    vec.close()
    dataset = minari.load_dataset("made/here-v0")
    assert dataset.total_episodes == vec.episodes
    total = 0
    for episode in dataset:
        assert len({*episode.observations[:, 0]}) == 1
        assert episode.observations[:, 1].tolist() == [*range(len(episode.observations))]
        assert (episode.rewards == episode.actions + episode.observations[1:, 1]).all()
        total += len(episode.rewards)
    assert total >= expected  # and those of envs beside one in which the handler has raised


class Slow(VecRowsWrapper):
    """Calls a function within its work on rows."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.work: Any = list

    def _on_rows(self, batch: Any, exact: Any, lock_step: bool) -> None:
        self.work()
        batch.rewards = batch.rewards + 1000


def test_a_second_ctrl_c_ends_work_on_rows() -> None:
    def endless() -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        raise AssertionError("went on")

    with Slow(vecenvs.DummyVecEnv([Counted])) as vec:
        vec.reset()
        vec.work = endless
        with pytest.raises(KeyboardInterrupt):
            vec.step([1])
        vec.work = list
        assert vec.step([1])[1] == [1003]  # the row before is lost


@pytest.mark.parametrize("call", ["step", "recv", "reset"])
def test_rows_of_an_interrupted_call_come_first(call: str) -> None:
    with Slow(vecenvs.DummyVecEnv([Counted] * 2)) as inner:
        vec = vecenvs.VecMonitor(inner)
        vec.reset()
        inner.work = lambda: signal.raise_signal(signal.SIGINT)
        if call == "recv":
            vec.send([1], [1])
        with pytest.raises(KeyboardInterrupt):
            vec.step([1, 1]) if call == "step" else getattr(vec, call)()
        inner.work = list
        commands = [lambda: vec.step_async([1, 1]), lambda: vec.send([1], [0]), lambda: vec.reset_async([0])]
        if call != "reset":  # else another one takes its place
            commands.append(vec.reset)
        for command in commands:
            with pytest.raises(AlreadySteppingError, match="step_wait first" if call == "step" else "recv first"):
                command()
        if call == "step":
            with pytest.raises(AlreadySteppingError, match="step_wait first"):
                vec.recv()
            assert vec.step_wait()[1].tolist() == [1002, 1002]
        else:
            with pytest.raises(NotSteppingError, match="recv first"):
                vec.step_wait()
            batch = vec.recv()
            assert batch.indices.tolist() == ([1] if call == "recv" else [0, 1])
            assert batch.rewards.tolist() == ([1002] if call == "recv" else [1000, 1000])
        vec.step([1, 1])


class Pair:
    """Two agents, alive at once, with the rows of a Counted."""

    possible_agents = agents = ("a", "b")
    metadata: dict[str, Any] = {}  # noqa: RUF012
    render_mode = None

    def __init__(self) -> None:
        self.env = Counted()
        self.observation_spaces = dict.fromkeys(self.agents, self.env.observation_space)
        self.action_spaces = dict.fromkeys(self.agents, self.env.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.agents = self.possible_agents
        obs, _ = self.env.reset()
        return dict.fromkeys(self.agents, obs), {}

    def step(self, actions: dict[str, Any]) -> Any:
        both = self.agents
        obs, _, over, _, _ = self.env.step(0)
        self.agents = () if over else both
        rewards = {agent: float(action) for agent, action in actions.items()}
        return dict.fromkeys(both, obs), rewards, dict.fromkeys(both, over), dict.fromkeys(both, False), {}


@pytest.mark.parametrize("engine", ["dummy", "subproc"])
def test_each_step_of_agents_counts_once(engine: str, interrupted: Any) -> None:
    vec = vecenvs.VecMonitor(vecenvs.make_multi_agent(Pair, 4, backend=engine).flat())
    before = vec.reset().copy()
    ended = 0
    for number in range(500):
        rows = stepped(vec, np.arange(8) + number % 50, interrupted)
        if rows is None:
            before = vec.reset().copy()
            continue
        obs, rewards, dones, infos = rows
        assert (rewards == np.arange(8) + number % 50).all()
        assert (dones == (before[:, 1] == LENGTH - 1)).all()
        first, same = np.array([1, 0]), np.array([0, 1])
        assert (obs == np.where(dones[:, None], before * first + first, before + same)).all()
        assert {info["episode"]["l"] for info in infos if "episode" in info} <= {LENGTH}
        ended += dones.sum()
        before = obs.copy()
    assert ended
    vec.close()


class Interrupted(VecRowsWrapper):
    """A Ctrl-C comes while it does its first work on rows."""

    raises = True

    def _on_rows(self, batch: Any, exact: Any, lock_step: bool) -> None:
        if self.raises:
            self.raises = False
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("view", [None, vecenvs.as_gymnasium, vecenvs.as_sb3])
def test_a_reset_takes_the_place_of_one_whose_rows_are_here(view: Any) -> None:
    vec = Interrupted(vecenvs.DummyVecEnv(counting_fns(2)))
    layered = vec if view is None else view(vec)
    with pytest.raises(KeyboardInterrupt):
        layered.reset()
    layered.reset()
    assert np.stack(layered.step(np.zeros(2, np.int64))[0])[:, 2].tolist() == [1, 1]
    vec.raises = True
    with pytest.raises(KeyboardInterrupt):
        vec.reset([1])
    with pytest.raises(AlreadySteppingError):
        vec.reset([0])  # of another env
    vec.reset([1, 0])
    layered.close()


class Unready(Counted):
    """Raises in a reset with options."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        row = super().reset(seed=seed)
        if options:
            raise RuntimeError("not now")
        return row


def test_a_reset_takes_the_place_of_one_whose_error_is_here() -> None:
    with Interrupted(vecenvs.DummyVecEnv([Unready] * 2)) as vec:
        with pytest.raises(KeyboardInterrupt):
            vec.reset(options={"fail": True})
        with pytest.raises(AlreadySteppingError):
            vec.reset([0])
        assert vec.reset()[:, 0].tolist() == [1, 1]


def test_a_mask_that_is_written_into_after_an_interrupted_reset() -> None:
    with Interrupted(vecenvs.DummyVecEnv(counting_fns(2))) as vec:
        vec.raises = False
        vec.reset()
        vec.raises, mask = True, np.array([True, False])
        with pytest.raises(KeyboardInterrupt):
            vec.reset(mask)
        mask[:] = ~mask
        with pytest.raises(AlreadySteppingError):
            vec.reset(mask)
        assert vec.recv().indices.tolist() == [0]


def test_an_episode_whose_end_raises_is_over() -> None:
    with vecenvs.VecMonitor(vecenvs.DummyVecEnv([Counted]), info_keywords=("missing",)) as vec:
        vec.reset()
        for t in range(1, 2 * LENGTH):
            if t == LENGTH:
                with pytest.raises(KeyError, match="missing"):
                    vec.step([0])
            else:
                vec.step([0])
        assert vec.episode_lengths.tolist() == [LENGTH - 1]
