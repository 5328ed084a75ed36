"""Tasks, episode seeds and errors of envs together with deaths of workers and Ctrl-C, at random."""

from __future__ import annotations

import functools
import os
import random
import signal
from collections import Counter

import gymnasium
import numpy as np
import pytest

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.errors import EnvError, NotSteppingError
from vecenvs.worker.autoreset import AUTORESET_MODES, Autoreset

ROUNDS = int(os.environ.get("VECENVS_TASK_ROUNDS", "3"))  # of each test
PARTS = os.path.join("vecenvs", "")
GO_ON, END, RAISE, DIE = range(4)
ENGINES = {
    "dummy": DummyVecEnv,
    "subproc": functools.partial(SubprocVecEnv, num_workers=2),
    "caller": functools.partial(SubprocVecEnv, num_workers=2, caller_steps=True),
}


class TaskEnv(gymnasium.Env):
    """An env whose observations have what it was given: slot, number of the task, t, seed."""

    observation_space = gymnasium.spaces.Box(-1, 2**40, (4,), np.int64)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, caller):
        self.remote = os.getpid() != caller

    def reset(self, *, seed=None, options=None):
        self.given, self.seed, self.t = options["task"], -1 if seed is None else seed, 0
        return self._obs(), {}

    def step(self, action):
        if action == RAISE:
            raise ValueError("as told")
        if action == DIE and self.remote:
            os.kill(os.getpid(), signal.SIGKILL)
        self.t += 1
        return self._obs(), 1.0, action == END, False, {"given": list(self.given)}

    def _obs(self):
        return np.array([*self.given, self.t, self.seed])


class Round:
    """One VecEnv, from its first reset on, and what its tasks were."""

    def __init__(self, engine, mode, seed):
        self.rng, self.mode, self.counts = random.Random(seed), mode, Counter()
        self.asked, self.begun, self.armed = [0] * 4, [-1] * 4, False
        self.tasks, self.need = {}, {*range(4)}
        self.seeded, policy = self.rng.random() < 0.5, self.rng.choice(["reset", "renew"])
        self.vec = ENGINES[engine](
            [functools.partial(TaskEnv, os.getpid())] * 4,
            autoreset=mode,
            tasks=self.deal,
            on_error=policy,
            max_errors=10_000,
            episode_seeds=self.seeded,
            on_failure="restart",
            max_restarts=10_000,
        )

    def deal(self, slot, number, info):
        again = number == self.asked[slot] - 1 and self.counts["interrupts"]  # one came as this had returned
        assert again or number == self.asked[slot], "each is asked for once, in order"
        if info:
            ended = number - (1 if self.mode == "disabled" else 2)
            assert info["task"] == self.tasks[slot, ended]
            assert info.get("given", [slot, ended]) == [slot, ended]
        if self.rng.random() < 0.1:
            raise KeyError("of the caller")
        self.asked[slot] = number + 1
        seed = self.rng.choice([None, 1000 * slot + number])
        task = self.tasks[slot, number] = seed, {"task": (slot, number)}
        return task

    def interrupt(self, _, frame):
        if self.armed and PARTS in frame.f_code.co_filename:
            self.armed = False
            self.counts["interrupts"] += 1
            raise KeyboardInterrupt

    def attempt(self, call):
        """Call it, maybe with a Ctrl-C somewhere in the library; return the result, or None."""
        self.armed = self.rng.random() < 0.5
        signal.setitimer(signal.ITIMER_PROF, self.rng.random() * 0.002 + 1e-6, 0.0005)
        try:
            return call()
        except KeyboardInterrupt:
            return None
        except EnvError as exc:  # of a command that a Ctrl-C has broken off
            self.need |= {each.index for each in exc.errors}
        except RuntimeError as exc:  # of `deal`
            if "tasks raised KeyError for episode" not in str(exc):
                raise
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_PROF, 0)
        return None

    def drain(self):
        while True:
            batch = None
            try:
                batch = self.attempt(self.vec.recv)
            except NotSteppingError:
                return
            for j, slot in enumerate(batch.indices.tolist() if batch is not None else ()):
                self.take(slot, batch.obs[j], batch.dones[j], batch.infos[j])

    def take(self, slot, obs, done, info):
        self.counts["rows"] += 1
        self.counts["errors"] += "env_error" in info
        self.counts["restarts"] += "worker_restarted" in info
        self.need.discard(slot)
        if done and self.mode == "disabled":
            self.need.add(slot)
        assert ("task" in info) == (bool(done) or "episode_start" in info)
        if done:
            assert info["task"] == self.tasks[slot, self.begun[slot]]
        if "episode_start" in info:
            self.begun[slot] += 1
            number = self.begun[slot]
            self.counts["episodes"] += 1
            task = self.vec.reset_infos[slot]["task"]
            assert task == self.tasks[slot, number]
            assert done or info["task"] == task
            assert obs[:3].tolist() == [slot, number, 0]
            seed = task[0]
            if seed is not None:
                assert obs[3] == seed
            elif self.seeded:
                assert obs[3] == self.vec.reset_infos[slot]["episode_seed"]

    def play(self, steps):
        before = signal.signal(signal.SIGPROF, self.interrupt)
        try:
            for _ in range(steps):
                self.drain()
                some = self.rng.sample(range(4), self.rng.randint(1, 4))
                again = [slot for slot in some if slot in self.need or self.rng.random() < 0.05]
                on = [slot for slot in some if slot not in again]
                actions = self.rng.choices(range(4), [60, 25, 10, 5], k=len(on))
                if on:
                    self.attempt(functools.partial(self.vec.send, actions, on))
                if again:
                    self.attempt(functools.partial(self.vec.reset_async, again))
            self.drain()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
            self.vec.close()


@pytest.mark.parametrize("mode", [mode for mode in AUTORESET_MODES if mode != "disabled"])
def test_a_ctrl_c_while_a_task_is_taken(monkeypatch, mode):
    """An env in the caller's process gets the task all the same."""
    hold, fired = Autoreset.hold, []

    def interrupted(self, local, name, value):
        if name == "options" and value["task"] == (0, 2) and not fired:
            fired.append(True)
            raise KeyboardInterrupt
        hold(self, local, name, value)

    monkeypatch.setattr(Autoreset, "hold", interrupted)
    begun = []
    tasks = lambda slot, number, info: (None, {"task": (slot, number)})  # noqa: E731
    with DummyVecEnv([functools.partial(TaskEnv, os.getpid())], autoreset=mode, tasks=tasks) as vec:
        vec.reset_async()
        while len(begun) < 5:
            try:
                batch = vec.recv()
            except KeyboardInterrupt:
                continue
            begun += [batch.obs[0, 1]] * ("episode_start" in batch.infos[0])
            if mode != "async" or not batch.dones[0]:
                vec.send([END])
    assert fired
    assert begun == [*range(5)]


@pytest.mark.parametrize("mode", AUTORESET_MODES)
@pytest.mark.parametrize(
    "engine", ["dummy", *(pytest.param(name, marks=pytest.mark.long) for name in ENGINES if name != "dummy")]
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a Ctrl-C between open and its with
def test_no_task_is_lost(engine, mode):
    """Each slot's episodes have its tasks in order, each once, whatever comes between."""
    counts = Counter()
    for _ in range(ROUNDS):
        seed = random.randrange(2**31)
        try:
            each = Round(engine, mode, seed)
            each.play(60)
        except BaseException as exc:
            raise AssertionError(f"round {seed} of {engine}, {mode}") from exc
        counts += each.counts
    print(engine, mode, dict(counts))
    assert counts["episodes"] > 8 * ROUNDS


def test_an_end_is_told_for_the_next_episode_alone(monkeypatch):
    """Also if a task was asked for in the middle of an episode, and the reset was interrupted before it was sent."""
    told = []

    def tasks(slot, number, info):
        told.append((number, info.get("task")))
        return None, {"task": (slot, number)}

    def interrupted(*_):
        raise KeyboardInterrupt

    with DummyVecEnv([functools.partial(TaskEnv, os.getpid())], autoreset="disabled", tasks=tasks) as vec:
        vec.reset()
        with monkeypatch.context() as patch:
            patch.setattr(vec, "_send_resets", interrupted)
            with pytest.raises(KeyboardInterrupt):
                vec.reset()
        while not vec.step([END])[2][0]:
            pass
        vec.reset()
        vec.reset()
        assert told == [(0, None), (1, None), (2, None)]
