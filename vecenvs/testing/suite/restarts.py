"""`on_failure="restart"`: a dead worker is replaced without effects on other slots."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenvs.errors import AlreadySteppingError, EnvError, StepTimeout, WorkerDied
from vecenvs.testing.envs import DyingEnv, GatedEnv, counting_fns
from vecenvs.testing.oracle import PlainLoop
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT, dying_fns
from vecenvs.vec_env import Batch, VecEnv

ACTIONS = [0, 1, 2, 0]
WAIT = 0.02  # seconds between looks at a file


def make_when_open(gate: Path, lives: Path, env_fn: Callable[[], Any]) -> Any:
    """Make the env. After a death, wait until `gate` exists."""
    while lives.exists() and not gate.exists():
        time.sleep(WAIT)
    return env_fn()


def make_once(lives: Path, env_fn: Callable[[], Any]) -> Any:
    """Make the env. After a death, raise."""
    if lives.exists():
        raise RuntimeError("made only once")
    return env_fn()


def gated_fns(folder: Path) -> list[Any]:
    """Return env functions: env 0 dies at its second step, and its replacement waits for the file "gate"."""
    lives = folder / "lives"
    return [functools.partial(make_when_open, folder / "gate", lives, fn) for fn in dying_fns(at=2, lives_file=lives)]


def open_after(seconds: float, gate: Path) -> threading.Timer:
    timer = threading.Timer(seconds, gate.touch)
    timer.start()
    return timer


def lost_in_a_lock_step(make: Make, folder: Path) -> VecEnv:
    """Return a VecEnv during a step in which env 0 died and `step_wait` timed out."""
    vec = make(gated_fns(folder), on_failure="restart")
    vec.reset()
    vec.step(ACTIONS)
    vec.step_async(ACTIONS)
    with pytest.raises(StepTimeout):
        vec.step_wait(timeout=0.2)
    return vec


def send_on(vec: VecEnv, batch: Batch) -> None:
    """Step the envs of a batch again, except those under an async autoreset."""
    resting = (batch.terminated | batch.truncated) & (vec.autoreset == "async")
    slots = batch.indices[~resting]
    if len(slots):
        vec.send([0] * len(slots), slots)


class RestartConformance(Conformance):
    """A worker's slots return truncated rows and begin new episodes."""

    @PROMPT
    def test_slots_begin_new_episodes(self, make: Make, tmp_path: Path) -> None:
        fns = dying_fns(at=3, lives_file=tmp_path / "lives")
        vec = make(fns, on_failure="restart")
        plain = PlainLoop(counting_fns(4))
        vec.reset(seed=0)
        plain.reset(seed=0)
        for _ in range(2):
            vec.step(ACTIONS)
            plain.step(ACTIONS)
        obs, rewards, dones, infos = vec.step(ACTIONS)
        rows = plain.step(ACTIONS)
        lost = [i for i, info in enumerate(infos) if info.get("worker_restarted")]
        assert 0 in lost
        assert 3 not in lost
        for i in range(4):
            assert vec.truncated[i] == dones[i] == (i in lost)
            assert not vec.terminated[i]
            if i in lost:
                assert obs[i].tolist() == [i, 1, 0], "first observation of a new env's first episode"
                assert np.isfinite(rewards[i])
                assert infos[i]["TimeLimit.truncated"] is True
                assert infos[i]["episode_start"] is True
                assert vec.reset_infos[i] == {"tag": i, "episode": 1, "episode_start": True}
            else:
                assert obs[i].tolist() == rows[i].obs.tolist()
                assert infos[i] == rows[i].info
        obs, *_ = vec.step(ACTIONS)
        assert obs[:, 2].tolist() == [1 if i in lost else 4 for i in range(4)]
        vec.reset(seed=5)
        assert [seeds[-1] for seeds in vec.get_attr("seeds")] == [5, 6, 7, 8]

    @PROMPT
    @pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
    @pytest.mark.parametrize("partial", [False, True])
    def test_a_death_after_the_last_row(self, make: Make, mode: str, partial: bool) -> None:
        """An episode ends once: where its last row was returned, the next row is the first one of another episode."""
        dying = functools.partial(DyingEnv, 0, "never", length=2)
        vec = make([dying, *counting_fns(4, length=50)[1:]], autoreset=mode, on_failure="restart")

        def row() -> tuple[list[int], float, bool, dict[str, Any]]:
            """Step, and return the row of env 0."""
            if not partial:
                obs, rewards, dones, infos = vec.step([0] * 4)
                return obs[0].tolist(), rewards[0], dones[0], infos[0]
            vec.send([0], [0])
            batch = vec.recv(1)
            return batch.obs[0].tolist(), batch.rewards[0], batch.dones[0], batch.infos[0]

        vec.reset(seed=3)
        assert [row()[2] for _ in range(2)] == [False, True]
        with pytest.raises(WorkerDied):
            vec.env_method("exit_now", indices=[0])
        if mode == "next_step":
            obs, reward, done, info = row()
            assert (obs, reward, done) == ([0, 1, 0], 0.0, False)
            assert info.get("episode_start")
            assert not info.get("worker_restarted")
        elif mode == "disabled":
            with pytest.raises(EnvError, match=r"reset\(\[0\]\)"):
                row()
            assert vec.reset()[0].tolist() == [0, 1, 0]
        else:  # its next episode had begun, and is lost
            _, _, done, info = row()
            assert (done, info.get("worker_restarted")) == (True, True)
        assert [row()[2] for _ in range(2)] == [False, True]
        assert vec.stats()["restarts"] == 1

    @PROMPT
    def test_infos_of_numbers(self, make: Make, tmp_path: Path) -> None:
        """The new worker opens their columns anew."""
        vec = make(dying_fns(at=5, lives_file=tmp_path / "lives"), on_failure="restart")
        vec.reset()
        obs, restarted = None, 0
        for _ in range(12):
            obs, _, _, infos = vec.step(ACTIONS)
            for slot, info in enumerate(infos):
                if info.get("worker_restarted"):
                    restarted += 1
                elif "terminal_observation" not in info:
                    assert {key: info[key] for key in ("tag", "t")} == {"tag": slot, "t": obs[slot][2]}
        assert restarted

    @PROMPT
    @pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
    def test_on_restart_comes_before_the_first_reset(self, make: Make, autoreset: str, tmp_path: Path) -> None:
        """It may use its own envs alone. What it raises is raised by the call, which can be repeated."""
        asked: list[list[int]] = []

        def on_restart(slots: list[int]) -> None:
            asked.append(slots)
            for refused in (vec.step_wait, lambda: vec.send([0], [3]), lambda: vec.get_attr("tag"), vec.reset):
                with pytest.raises(AlreadySteppingError, match="in on_restart"):
                    refused()
            if len(asked) == 1:
                raise KeyError("a fault of the program's")
            assert vec.get_attr("tag", slots) == slots
            vec.set_attr("tag", 700, slots[:1])

        fns = dying_fns(at=2, lives_file=tmp_path / "lives")
        vec = make(fns, on_failure="restart", on_restart=on_restart, autoreset=autoreset)
        vec.reset()
        vec.step(ACTIONS)
        with pytest.raises(KeyError):
            vec.step(ACTIONS)
        lost = [slot for slot, info in enumerate(vec.step_wait()[3]) if info.get("worker_restarted")]
        obs = vec.step(ACTIONS)[0]
        assert asked == [lost, lost]
        assert obs[:, 0].tolist() == [700, 1, 2, 3]
        assert obs[0].tolist() == [700, 1, 1 if autoreset == "same_step" else 0]

    @PROMPT
    def test_raises_after_max_restarts(self, make: Make, tmp_path: Path) -> None:
        vec = make(dying_fns(lives_file=tmp_path / "lives", deaths=3), on_failure="restart", max_restarts=2)
        vec.reset()
        for _ in range(2):
            infos = vec.step(ACTIONS)[3]
            assert infos[0]["worker_restarted"] is True
        with pytest.raises(WorkerDied) as caught:
            vec.step(ACTIONS)
        assert 0 in caught.value.indices
        assert "max_restarts" in str(caught.value)
        assert "on_failure" not in str(caught.value)

    @PROMPT
    def test_what_waits_for_a_reset_is_not_lost(self, make: Make, tmp_path: Path) -> None:
        """Seeds and options of `seed` and `set_options` reach the replacement if they wait for a reset."""
        vec = make(dying_fns(where="reset", at=2, lives_file=tmp_path / "lives"), on_failure="restart")
        vec.reset()
        vec.seed(100)
        vec.set_options({"a": 1})
        before = vec.stats()["workers"]
        assert vec.reset()[:, [0, 2]].tolist() == [[tag, 0] for tag in range(4)]
        assert vec.stats()["restarts"] == 1
        after = vec.stats()["workers"]
        assert [worker["restarts"] for worker in after] == [int(0 in worker["slots"]) for worker in before]
        assert [worker["pid"] == old["pid"] for worker, old in zip(after, before, strict=True)] == [
            0 not in worker["slots"] for worker in before
        ]
        assert [seeds[-1] for seeds in vec.get_attr("seeds")] == [100, 101, 102, 103]
        assert [options[-1] for options in vec.get_attr("options")] == [{"a": 1}] * 4
        assert vec.step(ACTIONS)[0][:, 2].tolist() == [1] * 4

    @PROMPT
    def test_what_was_taken_back_does_not_return(self, make: Make, tmp_path: Path) -> None:
        """Neither seeds nor options that `seed(None)` and `set_options(None)` have taken back."""
        vec = make(dying_fns(where="reset", lives_file=tmp_path / "lives"), on_failure="restart")
        vec.seed(100)
        vec.set_options({"a": 1})
        vec.seed([None, 8, None, 9])
        vec.set_options(None)
        vec.reset()
        assert vec.stats()["restarts"] == 1
        assert vec.get_attr("seeds") == [[None], [8], [None], [9]]
        assert vec.get_attr("options") == [[None]] * 4

    @PROMPT
    def test_next_step_rows_end_where_they_were(self, make: Make, tmp_path: Path) -> None:
        """The truncated row comes first, the new episode's first observation after it."""
        fns = dying_fns(at=2, lives_file=tmp_path / "lives")
        vec = make(fns, on_failure="restart", autoreset="next_step")
        vec.reset()
        vec.step(ACTIONS)
        _, _, dones, infos = vec.step(ACTIONS)
        assert infos[0]["worker_restarted"] is True
        assert dones[0]
        assert "episode_start" not in infos[0]
        obs, rewards, dones, infos = vec.step(ACTIONS)
        assert obs[0].tolist() == [0, 1, 0]
        assert (rewards[0], bool(dones[0])) == (0.0, False)
        assert infos[0]["episode_start"] is True
        assert obs[3].tolist() == [3, 1, 3]

    @PROMPT
    @pytest.mark.parametrize("autoreset", ["same_step", "async"])
    def test_others_go_on_meanwhile(self, make: Make, autoreset: str, tmp_path: Path) -> None:
        """While the new worker makes its envs only their rows are missing. Their commands are done afterwards."""
        vec = make(gated_fns(tmp_path), on_failure="restart", autoreset=autoreset)
        vec.reset(seed=0)
        vec.step(ACTIONS)
        vec.send(ACTIONS)
        steps = 0
        while steps < 12:
            batch = vec.recv()
            assert 0 not in batch.indices
            send_on(vec, batch)
            steps += list(batch.indices).count(3)
        with pytest.raises(StepTimeout) as caught:
            vec.recv(4, timeout=1.0)
        assert 0 in caught.value.indices
        assert 3 not in caught.value.indices
        (tmp_path / "gate").touch()
        while 0 not in batch.indices:
            batch = vec.recv()
            send_on(vec, batch)
        row = batch.indices.tolist().index(0)
        assert batch.infos[row]["worker_restarted"] is True
        assert batch.truncated[row]
        assert vec.stats()["restarts"] == 1

    @PROMPT
    def test_a_lock_step_waits_as_long_as_it_may(self, make: Make, tmp_path: Path) -> None:
        vec = lost_in_a_lock_step(make, tmp_path)
        with pytest.raises(StepTimeout):
            vec.step_wait(timeout=0.2)
        (tmp_path / "gate").touch()
        infos = vec.step_wait()[3]
        assert infos[0]["worker_restarted"] is True
        assert vec.step(ACTIONS)[0][3, 2] == 3

    @PROMPT
    def test_starting_is_not_stepping(self, make: Make, tmp_path: Path) -> None:
        """`step_timeout` does not run while the new worker makes its envs."""
        vec = make(gated_fns(tmp_path), on_failure="restart", step_timeout=1.0)
        vec.reset()
        vec.step(ACTIONS)
        timer = open_after(1.5, tmp_path / "gate")
        assert vec.step(ACTIONS)[3][0]["worker_restarted"] is True
        timer.join()
        assert vec.stats()["restarts"] == 1

    @PROMPT
    def test_closed_meanwhile(self, make: Make, tmp_path: Path) -> None:
        lost_in_a_lock_step(make, tmp_path).close()

    @PROMPT
    def test_attributes_meanwhile(self, make: Make, tmp_path: Path) -> None:
        """Calls on a worker that is starting wait until it has started."""
        vec = make(gated_fns(tmp_path), on_failure="restart")
        vec.reset()
        vec.step(ACTIONS)
        vec.send([0] * 3, [0, 2, 3])
        while vec.stats()["restarts"] == 0:
            batch = vec.recv()
            assert 0 not in batch.indices
            send_on(vec, batch)
        timer = open_after(0.3, tmp_path / "gate")
        assert vec.get_attr("tag", [1]) == [1]
        timer.join()

    @PROMPT
    def test_one_that_cannot_be_made(self, make: Make, tmp_path: Path) -> None:
        """The failure is reported once it is known, and again by calls on these envs. Other rows are not lost."""
        lives = tmp_path / "lives"
        fns = [functools.partial(make_once, lives, fn) for fn in dying_fns(at=2, lives_file=lives)]
        vec = make(fns, on_failure="restart")
        vec.reset()
        vec.step(ACTIONS)
        vec.send(ACTIONS)
        pending = {0, 1, 2, 3}
        with pytest.raises(EnvError, match="made only once"):
            while True:
                batch = vec.recv()
                pending -= set(batch.indices.tolist())
                slots = [slot for slot in batch.indices.tolist() if slot > 1]
                vec.send([0] * len(slots), slots)
                pending |= set(slots)
        with pytest.raises(EnvError, match="made only once"):
            vec.send([0], [0])
        for _ in range(3):
            batch = vec.recv(len(pending - {0, 1}))
            assert set(batch.indices.tolist()) >= {2, 3}
            vec.send([0, 0], [2, 3])
            pending = {2, 3}

    @PROMPT
    def test_one_that_cannot_be_made_during_a_call(self, make: Make, tmp_path: Path) -> None:
        """The call is over. Other envs stay usable."""
        lives = tmp_path / "lives"
        fns = [functools.partial(make_once, lives, fn) for fn in dying_fns(at=99, lives_file=lives)]
        vec = make(fns, on_failure="restart")
        vec.reset()
        lives.touch()
        with pytest.raises(WorkerDied, match="Another worker takes its place"):
            vec.env_method("exit_now", indices=[0])
        with pytest.raises(EnvError, match="made only once"):
            vec.get_attr("tag")
        assert vec.get_attr("tag", [3]) == [3]
        vec.send([0], [3])
        assert vec.recv().indices.tolist() == [3]

    @PROMPT
    def test_a_hung_env_beside_others_that_always_have_something(self, make: Make, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        fns: list[Any] = [functools.partial(GatedEnv, 0, gate, at=1), *counting_fns(4)[1:]]
        vec = make(fns, on_failure="restart", step_timeout=1.0)
        vec.reset()
        vec.send(ACTIONS)
        for _ in range(200):  # for two seconds at least
            send_on(vec, vec.recv())
            time.sleep(0.01)  # the others answer meanwhile: no recv has to wait
            if vec.stats()["restarts"]:
                break
        gate.touch()
        assert vec.stats()["restarts"] == 1

    @PROMPT
    def test_a_death_in_the_first_reset_of_a_neighbour(self, make: Make, tmp_path: Path) -> None:
        """An episode whose first row came but was not returned is lost like any other."""
        fns = counting_fns(4)
        fns[1] = functools.partial(DyingEnv, 1, where="reset", at=1, lives_file=tmp_path / "lives")
        vec = make(fns, on_failure="restart")
        assert vec.reset()[:, 0].tolist() == [0, 1, 2, 3]
        obs, *_ = vec.step(ACTIONS)
        assert obs[:, 0].tolist() == [0, 1, 2, 3]

    @PROMPT
    def test_a_death_in_a_call(self, make: Make, tmp_path: Path) -> None:
        """Replies to a failed call do not answer the next one."""
        fns = dying_fns(at=99, lives_file=tmp_path / "lives")
        vec = make(fns, on_failure="restart")
        vec.reset()
        for _ in range(2):
            with pytest.raises(WorkerDied):
                vec.env_method("exit_now", indices=[0, 3])
            assert vec.get_attr("tag") == [0, 1, 2, 3]
            vec.step(ACTIONS)

    def test_unknown_policy(self, make: Make) -> None:
        with pytest.raises(ValueError, match="on_restart.*needs on_failure='restart'"):
            make(counting_fns(1), on_restart=print)
        with pytest.raises(TypeError, match="on_restart must be a function"):
            make(counting_fns(1), on_failure="restart", on_restart=[0])

    @PROMPT
    def test_an_exception_is_no_death(self, make: Make) -> None:
        from vecenvs.testing.envs import FailingEnv

        vec = make([functools.partial(FailingEnv, tag, at=2 if tag else 99) for tag in range(4)], on_failure="restart")
        vec.reset()
        vec.step(ACTIONS)
        with pytest.raises(EnvError):
            vec.step(ACTIONS)
