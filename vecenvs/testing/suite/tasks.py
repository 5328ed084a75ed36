"""`tasks`: a function in the caller says how each episode begins."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenvs.errors import EnvError, NotSteppingError, VecEnvError, WorkerDied
from vecenvs.testing.envs import CountingEnv, DyingEnv, FailingEnv, counting_fns
from vecenvs.testing.envs.batches import batched_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT
from vecenvs.testing.suite.episode_seeds import MODES, seed_of
from vecenvs.vec_env import VecEnv


class Dealer:
    """A function of tasks which draws them, and records what it is asked and the episodes that rows tell of."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.asked: list[tuple[int, int, dict[str, Any]]] = []
        self.tasks: dict[tuple[int, int], Any] = {}
        self.begun: list[list[Any]] = [
            [] for _ in range(4)
        ]  # by slot: the task of each episode, and its number in the env
        self.ends: dict[tuple[int, int], int] = {}  # slot, episode -> t of its last row

    def __call__(self, slot: int, number: int, info: dict[str, Any]) -> Any:
        self.asked.append((slot, number, info))
        seed = self.rng.choice([None, 1000 * slot + number])
        options = self.rng.choice([None, {"slot": slot, "number": number, "data": np.arange(number)}])
        self.tasks[slot, number] = seed, options
        return seed, options

    def take(self, vec: VecEnv, slots: Iterable[int], dones: Any, infos: Any) -> None:
        """Take note of rows."""
        for slot, done, info in zip(slots, dones, infos, strict=True):
            assert ("task" in info) == (bool(done) or "episode_start" in info)
            if done:
                self.ends[slot, len(self.begun[slot]) - 1] = info["t"]
                assert info["task"] is self.begun[slot][-1][0]
            if info.get("episode_start"):
                reset_info = vec.reset_infos[slot]
                self.begun[slot].append((reset_info["task"], reset_info["episode"]))
                assert done or reset_info["task"] is info["task"]

    def check(self, vec: VecEnv) -> None:
        """Check all that was asked, and what the envs were given."""
        behind = 1 if vec.autoreset == "disabled" else 2  # episode k + 1 is asked for when k begins: k - 1 has ended
        numbers = [itertools.count() for _ in range(4)]
        for slot, number, info in self.asked:
            assert number == next(numbers[slot])
            before = slot, number - behind
            expected = (self.ends[before], self.tasks[before]) if before in self.ends else (None, None)
            assert (info.get("t"), str(info.get("task"))) == (expected[0], str(expected[1])), (slot, number)
        for slot, (seeds, options) in enumerate(zip(*map(vec.get_attr, ("seeds", "options")), strict=True)):
            assert len(self.begun[slot]) > 1
            for number, (task, count) in enumerate(self.begun[slot]):
                given = self.tasks[slot, number]
                had = given[0] and seeds[count - 1], options[count - 1] or None  # {} where a mask was beside them
                assert str(task) == str(given) == str(had), (
                    slot,
                    number,
                )


class TaskConformance(Conformance):
    """Each episode has the seed and options that the function has returned for it."""

    @pytest.mark.parametrize("mode", MODES)
    def test_lock_step(self, make: Make, mode: str) -> None:
        dealer = Dealer(random.Random(draw := random.randrange(2**31)))
        fns = [functools.partial(CountingEnv, tag, 1 + tag) for tag in range(4)]
        vec = make(fns, autoreset=mode, tasks=dealer, copy=bool(draw % 2))
        vec.reset(seed=5)
        dealer.take(vec, range(4), [False] * 4, vec.reset_infos)
        while min(map(len, dealer.begun)) < 4:
            dones, infos = vec.step([0] * 4)[2:]
            dealer.take(vec, range(4), dones, infos)
            slots = np.flatnonzero(dones).tolist() if mode == "disabled" else []
            if dealer.rng.random() < 0.2:
                slots = sorted({*slots, 3})
            if slots:
                vec.reset(slots)
                dealer.take(vec, slots, [False] * len(slots), [vec.reset_infos[slot] for slot in slots])
        dealer.check(vec)

    @pytest.mark.parametrize("mode", MODES)
    def test_tasks_in_any_order(self, make: Make, mode: str) -> None:
        dealer = Dealer(random.Random(random.randrange(2**31)))
        rng, busy, ended = dealer.rng, {*range(4)}, set[int]()
        vec = make([functools.partial(CountingEnv, tag, 2) for tag in range(4)], autoreset=mode, tasks=dealer)
        vec.reset_async()
        for k in itertools.count():
            free = [slot for slot in range(4) if slot not in busy] if k < 60 else []
            some = rng.sample(free, rng.randint(0, len(free)))
            again = [slot for slot in some if slot in ended or rng.random() < 0.1]
            steps = [slot for slot in some if slot not in again]
            if again:
                vec.reset_async(again)
            if steps:
                vec.send([0] * len(steps), steps)
            busy.update(some)
            if not busy:
                if k >= 60:
                    break
                continue
            batch = vec.recv(rng.randint(1, len(busy)))
            slots, dones = batch.indices.tolist(), batch.dones
            dealer.take(vec, slots, dones, batch.infos)
            over = {slot for slot, done in zip(slots, dones, strict=True) if done}
            busy.difference_update(slots)
            busy |= over if mode == "async" else set()  # the first rows come by themselves
            ended = (ended - {*slots}) | over if mode == "disabled" else ended
        dealer.check(vec)

    def test_a_list_is_dealt_each_once(self, make: Make) -> None:
        """In mode disabled, to whichever env is free. A slot for which nothing is left rests."""
        left = iter(range(7))
        vec = make(counting_fns(4, length=3), autoreset="disabled", tasks=lambda *_: (None, {"item": next(left)}))
        vec.reset_async()
        played: list[int] = []
        while len(played) < 7:
            batch = vec.recv()
            over = batch.dones
            played += [batch.infos[j]["task"][1]["item"] for j in np.flatnonzero(over)]
            if not over.all():
                vec.send([0] * int((~over).sum()), batch.indices[~over])
            if over.any():
                vec.reset_async(batch.indices[over])
        assert sorted(played) == [*range(7)]
        vec.reset_async()
        with pytest.raises(NotSteppingError, match="nothing is pending"):
            vec.recv()
        with pytest.raises(VecEnvError, match="envs 1, 2 rest.*reset_async"):
            vec.reset([1, 2])
        assert sorted(options["item"] for each in vec.get_attr("options") for options in each) == [*range(7)]

    @pytest.mark.parametrize("mode", MODES[:3])
    def test_after_the_last_one(self, make: Make, mode: str) -> None:
        asked = []

        def tasks(slot: int, number: int, _: Any) -> Any:
            asked.append((slot, number))
            if number > slot:
                raise StopIteration
            return 100 + number, {"number": number}

        vec = make(counting_fns(2, length=1), autoreset=mode, tasks=tasks)
        vec.reset()
        told: list[list[Any]] = [[vec.reset_infos[slot]["task"]] for slot in range(2)]
        while min(map(len, told)) < 4:
            for slot, info in enumerate(vec.step([0] * 2)[3]):
                told[slot] += [vec.reset_infos[slot]["task"]] if "episode_start" in info else []
        first = [(100, {"number": 0}), (101, {"number": 1})]
        assert [each[:4] for each in told] == [[first[0], None, None, None], [*first, None, None]]
        assert vec.get_attr("seeds", [1])[0][:4] == [100, 101, None, None]
        assert vec.get_attr("options", [1])[0][:4] == [{"number": 0}, {"number": 1}, None, None]
        assert sorted(asked) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]

    def test_a_task_that_raises_loses_no_rows(self, make: Make) -> None:
        faults = {(1, 2): KeyError("of the caller"), (2, 3): 7, (0, 3): (-1, None), (1, 3): (None, {"f": lambda: 0}, 1)}

        def tasks(slot: int, number: int, _: Any) -> Any:
            fault: Any = faults.pop((slot, number), (number, None))
            if isinstance(fault, Exception):
                raise fault
            return fault

        vec = make(counting_fns(3, length=1), tasks=tasks)
        vec.reset()
        vec.step_async([0] * 3)
        with pytest.raises(
            VecEnvError, match="tasks raised KeyError for episode 2 of env 1: 'of the caller'"
        ) as caught:
            vec.step_wait()
        assert isinstance(caught.value.__cause__, KeyError)
        assert [info["task"] for info in vec.step_wait()[3]] == [(0, None)] * 3
        assert [info["task"] for info in vec.reset_infos] == [(1, None)] * 3
        vec.send([0] * 3)
        texts = []
        for _ in range(3):
            with pytest.raises((TypeError, ValueError)) as wrong:
                vec.recv(3)
            texts.append(str(wrong.value))
        assert any("tasks returned 7 for episode 3 of env 2: return a tuple (seed, options)" in text for text in texts)
        assert any("for episode 3 of env 0: a seed must not be negative" in text for text in texts)
        assert [info["task"] for info in vec.recv().infos] == [(1, None)] * 3
        assert [info["task"] for info in vec.reset_infos] == [(2, None)] * 3
        assert vec.get_attr("seeds") == [[0, 1, 2]] * 3

    def test_a_task_comes_before_all_else(self, make: Make) -> None:
        """Seeds and options of `reset`, `seed` and `set_options` are for tasks that have none."""
        vec = make(
            counting_fns(2, length=2),
            tasks=lambda slot, number, _: (900 + number, {"a": number}) if slot else (None, None),
        )
        vec.seed(3)
        vec.set_options({"b": 0})
        vec.reset()
        vec.reset(seed=7, options={"b": 1})
        vec.seed(5)
        vec.set_options({"b": 2})
        vec.step([0] * 2)
        vec.step([0] * 2)
        assert vec.get_attr("seeds") == [[3, 7, 5], [900, 901, 902]]
        assert vec.get_attr("options") == [[{"b": 0}, {"b": 1}, {"b": 2}], [{"a": 0}, {"a": 1}, {"a": 2}]]

    def test_with_episode_seeds(self, make: Make) -> None:
        """A task without a seed has the slot's own; one with a seed begins with that anew."""
        vec = make(
            counting_fns(1, length=1),
            episode_seeds=True,
            tasks=lambda _, number, __: (7 if number == 2 else None, None),
        )
        vec.reset(seed=5)
        for _ in range(3):
            vec.step([0])
        assert vec.get_attr("seeds") == [[5, seed_of(5, 0, 1), 7, seed_of(7, 0, 1)]]

    def test_a_reset_that_fails_keeps_its_task(self, make: Make) -> None:
        asked = []

        def tasks(slot: int, number: int, _: Any) -> Any:
            asked.append((slot, number))
            return number, None

        vec = make([CountingEnv, functools.partial(FailingEnv, 1, "reset", at=2)], autoreset="disabled", tasks=tasks)
        vec.reset()
        with pytest.raises(EnvError, match="env 1 raised ToyError in reset"):
            vec.reset([1])
        vec.reset([1])
        assert asked == [(0, 0), (1, 0), (1, 1)]
        assert vec.get_attr("seeds", [1]) == [[0, 1]]

    @pytest.mark.parametrize(("kind", "mode"), [("by_masks", "same_step"), ("disabled", "disabled")])
    def test_tasks_of_batched_envs(self, make: Make, kind: str, mode: str) -> None:
        dealer = Dealer(random.Random(random.randrange(2**31)))
        fns = [functools.partial(CountingEnv, tag, 2 + tag) for tag in range(4)]
        vec = make(batched_fns(fns, (3, 0), kind), autoreset=mode, tasks=dealer)
        vec.reset()
        dealer.take(vec, range(4), [False] * 4, vec.reset_infos)
        for _ in range(12):
            dones, infos = vec.step([0] * 4)[2:]
            dealer.take(vec, range(4), dones, infos)
            if mode == "disabled" and dones.any():
                slots = np.flatnonzero(dones).tolist()
                vec.reset(slots)
                dealer.take(vec, slots, [False] * len(slots), [vec.reset_infos[slot] for slot in slots])
        dealer.check(vec)

    def test_tasks_and_wrong_arguments(self, make: Make) -> None:
        with pytest.raises(TypeError, match="tasks must be a function of a slot"):
            make(counting_fns(2), tasks=[1, 2])
        with pytest.raises(EnvError, match=r"env 0: \w+ begins its next episodes itself.*leave tasks out"):
            make(batched_fns(counting_fns(2), (2,)), tasks=lambda *_: (None, None))


class TaskWorkerConformance(Conformance):
    """The caller knows the task of each episode: a worker that replaces another gets it."""

    @PROMPT
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("where", ["step", "reset"])
    def test_tasks_and_workers_that_die(self, make: Make, mode: str, where: str, tmp_path: Path) -> None:
        """A task is lost with its episode. That of one which nobody has seen is the next one's."""
        fns: list[Any] = [
            functools.partial(
                DyingEnv, 0, where, 6 if where == "step" else 3, length=2, lives_file=tmp_path / "lives", deaths=2
            )
        ]
        fns += counting_fns(4, length=3)[1:]
        vec = make(
            fns, autoreset=mode, on_failure="restart", tasks=lambda slot, number, _: (10 * number + slot, {"n": number})
        )
        begun: list[list[Any]] = [[] for _ in range(4)]
        vec.reset()
        while vec.stats()["restarts"] < 2 or min(map(len, begun)) < 6:
            for slot, info in enumerate(vec.reset_infos):
                if not begun[slot] or begun[slot][-1] is not info["task"]:
                    begun[slot].append(info["task"])
                    with contextlib.suppress(WorkerDied):  # meanwhile, in the reset of another env
                        seeds, options = (vec.get_attr(name, [slot])[0] for name in ("seeds", "options"))
                        # None where the worker died after it had sent this row and before that of another env.
                        assert not seeds or (seeds[-1], options[-1]) == info["task"]
            dones = vec.step([0] * 4)[2]
            if mode == "disabled" and dones.any():
                vec.reset(np.flatnonzero(dones))
        for slot in range(4):
            assert begun[slot] == [(10 * number + slot, {"n": number}) for number in range(len(begun[slot]))]
