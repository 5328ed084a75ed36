"""`episode_seeds`: every episode can be played again by its seed alone."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same, rows_at, stack
from vecenvs.testing.envs import NESTED, CountingEnv, DyingEnv, FailingEnv, GatedEnv, SampledEnv, counting_fns
from vecenvs.testing.envs.batches import batched_fns
from vecenvs.testing.envs.counting import pid_of
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT
from vecenvs.testing.suite.seeding import samples, sampling_fn
from vecenvs.vec_env import VecEnv

MODES = ["same_step", "next_step", "async", "disabled"]


def seed_of(root: int, slot: int, number: int) -> int:
    """Return the seed of an episode of a slot whose episode 0 has the seed `root`."""
    return int(np.random.SeedSequence(root, spawn_key=(slot, number)).generate_state(1)[0]) if number else root


def action_of(slot: int, t: int) -> int:
    """Return the action of a slot's step t of an episode."""
    return (3 * slot + t) % 4


class Episodes:
    """The episodes of a VecEnv's slots, as its rows tell them, and what each slot is to do next.

    Attributes:
        played: for each slot its episodes: the reset info, the first observation, then (obs, reward, flags) by step.
        ended: whether each slot needs a reset by the caller.
    """

    def __init__(self, vec: VecEnv) -> None:
        self.vec, self.space = vec, vec.observation_space
        self.played: list[list[list[Any]]] = [[] for _ in range(vec.num_envs)]
        self.ended = np.zeros(vec.num_envs, bool)

    def begin(self, slots: Iterable[int], obs: Any) -> None:
        for j, slot in enumerate(slots):
            self.played[slot].append([dict(self.vec.reset_infos[slot]), rows_at(obs, [j])])
            self.ended[slot] = False

    def take(self, slots: Iterable[int], obs: Any, rewards: Any, active: Any, flags: Any, infos: Any) -> None:
        for j, slot in enumerate(slots):
            info, over = infos[j], bool(flags[0][j] or flags[1][j])
            if active[j]:
                last = stack(self.space, [info["terminal_observation"]]) if over else rows_at(obs, [j])
                self.played[slot][-1].append((last, float(rewards[j]), bool(flags[0][j]), bool(flags[1][j])))
            if info.get("episode_start"):
                self.begin([slot], rows_at(obs, [j]))
            self.ended[slot] = over and self.vec.autoreset == "disabled"

    def actions(self, slots: Iterable[int]) -> list[int]:
        return [action_of(slot, len(self.played[slot][-1]) - 2) for slot in slots]

    def check(self, roots: dict[int, int], make_env: Any) -> None:
        """Play each episode again, in an env of its own, and compare."""
        for slot, episodes in enumerate(self.played):
            for number, (info, first, *steps) in enumerate(episodes):
                seed = seed_of(roots[slot], slot, number)
                assert (info["episode_seed"], info["episode_number"]) == (seed, number), (slot, number)
                env = make_env(slot)
                obs, _ = env.reset(seed=seed)
                assert_same(first, stack(self.space, [obs]), f"env {slot}, episode {number}: first observation")
                for t, step in enumerate(steps):
                    obs, reward, *flags, _ = env.step(np.int64(action_of(slot, t)))
                    expected = stack(self.space, [obs]), float(np.float32(reward)), *map(bool, flags)
                    assert_same(step, expected, f"env {slot}, episode {number}, step {t}")


def sampled(_: int = 0) -> SampledEnv:
    return SampledEnv(NESTED, end=0.3)


def check_steps(vec: VecEnv, count: int) -> None:
    """Check rows of so many steps of `sampled` envs, from a reset on, whatever the mode."""
    n, seed, episodes = vec.num_envs, random.randrange(2**31), Episodes(vec)
    episodes.begin(range(n), vec.reset(seed=seed))
    for _ in range(count):
        obs, rewards, _, infos = vec.step(episodes.actions(range(n)))
        episodes.take(range(n), obs, rewards, vec.active, (vec.terminated, vec.truncated), infos)
        if episodes.ended.any():
            slots = np.flatnonzero(episodes.ended)
            episodes.begin(slots.tolist(), vec.reset(slots))
    episodes.check({slot: seed + slot for slot in range(n)}, sampled)


def check_subsets(vec: VecEnv, mode: str, goes_on: Callable[[int], bool]) -> None:
    """Check rows of `sampled` envs by sends and resets of some of them, at random, as long as `goes_on(turn)`.

    Resets in the middle of episodes count. The root is the one that was drawn.
    """
    n, rng = vec.num_envs, random.Random(draw := random.randrange(2**31))
    root, episodes, busy = vec.stats()["root_seed"], Episodes(vec), set(range(n))
    vec.reset_async()
    turn = 0
    while (going := goes_on(turn)) or busy:
        turn += 1
        free = [slot for slot in range(n) if slot not in busy and going]
        some = rng.sample(free, rng.randint(0, len(free)))
        again = [slot for slot in some if episodes.ended[slot] or rng.random() < 0.1]
        steps = [slot for slot in some if slot not in again]
        if again:
            vec.reset_async(again)
        if steps:
            vec.send(episodes.actions(steps), steps)
        busy.update(some)
        if not busy:
            continue
        batch = vec.recv(rng.randint(1, len(busy)))
        slots = batch.indices.tolist()
        flags = batch.terminated, batch.truncated
        episodes.take(slots, batch.obs, batch.rewards, batch.active, flags, batch.infos)
        busy.difference_update(slots)
        if mode == "async":  # the first rows come by themselves
            busy.update(slot for j, slot in enumerate(slots) if flags[0][j] or flags[1][j])
    try:
        episodes.check({slot: root + slot for slot in range(n)}, sampled)
    except AssertionError as exc:
        raise AssertionError(f"schedule {draw}") from exc


class EpisodeSeedConformance(Conformance):
    """Every reset is seeded, by the root seed, the slot and the number of the episode."""

    @pytest.mark.parametrize("mode", MODES)
    def test_a_bare_loop_that_seeds_each_reset(self, make: Make, mode: str) -> None:
        check_steps(make([sampled] * 5, autoreset=mode, episode_seeds=True), 25)

    @pytest.mark.parametrize("mode", MODES)
    def test_any_subset_in_any_order(self, make: Make, mode: str) -> None:
        check_subsets(make([sampled] * 4, autoreset=mode, episode_seeds=True), mode, lambda turn: turn < 40)

    def test_a_seed_begins_with_episode_0_anew(self, make: Make) -> None:
        vec = make(counting_fns(3, length=2), episode_seeds=True)
        root, seeds = vec.stats()["root_seed"], list[list[int]]([[], [], []])
        vec.reset()
        vec.step([0] * 3)
        vec.step([0] * 3)
        vec.reset([1], seed=[2**40])
        vec.reset()
        vec.seed([7, None, None])
        for _ in range(4):
            vec.step([0] * 3)
        vec.reset(seed=np.random.SeedSequence(3))
        vec.reset([2])
        given = [int(child.generate_state(1)[0]) for child in np.random.SeedSequence(3).spawn(3)]
        seeds[0] = [*(seed_of(root, 0, k) for k in range(3)), 7, seed_of(7, 0, 1), given[0]]
        big = 2**40
        seeds[1] = [root + 1, seed_of(root + 1, 1, 1), big, *(seed_of(big, 1, k) for k in (1, 2, 3)), given[1]]
        seeds[2] = [*(seed_of(root + 2, 2, k) for k in range(5)), given[2], seed_of(given[2], 2, 1)]
        assert vec.get_attr("seeds") == seeds
        vec.reset(seed=root)
        assert [info["episode_seed"] for info in vec.reset_infos] == [root, root + 1, root + 2]

    def test_a_reset_that_fails_keeps_the_number(self, make: Make) -> None:
        vec = make([CountingEnv, functools.partial(FailingEnv, 1, "reset", at=2)], episode_seeds=True)
        root = vec.stats()["root_seed"]
        vec.reset()
        with pytest.raises(EnvError, match="env 1 raised ToyError in reset"):
            vec.reset()
        vec.reset([1])
        assert vec.get_attr("seeds", [1]) == [[root + 1, seed_of(root + 1, 1, 1)]]

    def test_action_spaces_are_seeded_too(self, make: Make) -> None:
        vec = make([functools.partial(sampling_fn, tag) for tag in range(2)], episode_seeds=True)
        vec.reset(seed=5)
        rewards = np.array([vec.step([0] * 2)[1] for _ in range(4)])
        expected = [samples(5 + tag, 2) + samples(seed_of(5 + tag, tag, 1), 2) for tag in range(2)]
        assert rewards.T.tolist() == expected

    def test_without_it_nothing_is_told(self, make: Make) -> None:
        vec = make(counting_fns(2))
        vec.reset(seed=3)
        assert "episode_seed" not in vec.reset_infos[0]
        assert "root_seed" not in vec.stats()
        with pytest.raises(TypeError, match="episode_seeds must be True or False"):
            make(counting_fns(2), episode_seeds=np.zeros(2))

    @pytest.mark.parametrize(("kind", "mode"), [("by_masks", "same_step"), ("disabled", "disabled")])
    def test_batched_envs(self, make: Make, kind: str, mode: str) -> None:
        fns = [functools.partial(CountingEnv, tag, 2 + tag) for tag in range(4)]
        vec = make(batched_fns(fns, (3, 0), kind), autoreset=mode, episode_seeds=True)
        vec.reset(seed=11)
        for _ in range(9):
            dones = vec.step([0] * 4)[2]
            if mode == "disabled" and dones.any():
                vec.reset(np.flatnonzero(dones))
        for slot, seeds in enumerate(vec.get_attr("seeds")):
            assert seeds == [seed_of(11 + slot, slot, k) for k in range(len(seeds))]
            assert len(seeds) == 1 + 9 // (2 + slot)
            info = vec.reset_infos[slot]
            assert (info["episode_seed"], info["episode_number"]) == (seeds[-1], len(seeds) - 1)

    @pytest.mark.parametrize("kind", ["same_step", "next_step", "arrays", "vec_env"])
    def test_batched_envs_that_reset_themselves(self, make: Make, kind: str) -> None:
        mode = "next_step" if kind == "next_step" else "same_step"
        with pytest.raises(EnvError, match=r"env 0: \w+ begins its next episodes itself.*episode_seeds"):
            make(batched_fns(counting_fns(2), (2,), kind), autoreset=mode, episode_seeds=True)


class EpisodeSeedWorkerConformance(Conformance):
    """The caller knows the number of each episode: the next worker goes on with it."""

    @PROMPT
    def test_a_seed_that_a_reset_has_used_is_not_given_again(self, make: Make) -> None:
        """Though options were set before the first row of that reset came, and the worker dies after it."""
        vec = make(counting_fns(4, length=2), autoreset="async", episode_seeds=True, on_failure="restart")
        vec.reset(seed=20)
        vec.seed([77, None, None, None])
        while not vec.step([0] * 4)[2][0]:
            pass
        vec.set_options({"a": 1})
        vec.step([0] * 4)
        assert (vec.reset_infos[0]["episode_seed"], vec.reset_infos[0]["episode_number"]) == (77, 0)
        os.kill(vec.call(pid_of, [0])[0], signal.SIGKILL)
        while not vec.step([0] * 4)[3][0].get("worker_restarted"):
            pass
        while not vec.step([0] * 4)[3][0].get("episode_start"):
            pass
        assert vec.reset_infos[0]["episode_number"] == 1
        assert vec.reset_infos[0]["episode_seed"] == seed_of(77, 0, 1)

    @PROMPT
    def test_a_seed_that_a_row_has_used_which_is_not_taken_yet(self, make: Make, tmp_path: Path) -> None:
        """The worker dies after that row: the next one goes on with this seed, not with the one before."""
        gate = tmp_path / "gate"
        fns = [CountingEnv, functools.partial(GatedEnv, 1, gate, "reset", at=2), *counting_fns(4)[2:]]
        vec = make(fns, autoreset="next_step", episode_seeds=True, on_failure="restart")
        vec.reset(seed=20)
        pid = vec.call(pid_of, [0])[0]
        vec.seed(77)
        vec.reset_async([0])
        vec.reset_async([1])
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        gate.touch()
        vec.recv(2)
        while not vec.step([0] * 4)[3][0].get("worker_restarted"):
            pass
        vec.step([0] * 4)
        assert (vec.reset_infos[0]["episode_number"], vec.reset_infos[0]["episode_seed"]) == (1, seed_of(77, 0, 1))

    @PROMPT
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("where", ["step", "reset"])
    def test_a_worker_that_dies(self, make: Make, mode: str, where: str, tmp_path: Path) -> None:
        """Its lost episode counts. One that began with it, and which nobody has seen, begins again."""
        lives = tmp_path / "lives"
        fns: list[Any] = [
            functools.partial(DyingEnv, 0, where, 6 if where == "step" else 3, length=2, lives_file=lives, deaths=2)
        ]
        fns += counting_fns(4, length=3)[1:]
        vec = make(fns, autoreset=mode, episode_seeds=True, on_failure="restart")
        numbers: list[list[int]] = [[], [], [], []]

        def note(slots: Iterable[int]) -> None:
            for slot in slots:
                info = vec.reset_infos[slot]
                numbers[slot].append(info["episode_number"])
                assert info["episode_seed"] == seed_of(20 + slot, slot, numbers[slot][-1])

        vec.reset(seed=20)
        note(range(4))
        while vec.stats()["restarts"] < 2 or min(map(len, numbers)) < 6:
            _, _, dones, infos = vec.step([0] * 4)
            note(slot for slot, info in enumerate(infos) if info.get("episode_start"))
            if mode == "disabled" and dones.any():
                vec.reset(np.flatnonzero(dones))
                note(np.flatnonzero(dones).tolist())
        for slot in range(4):
            assert numbers[slot] == list(range(len(numbers[slot]))), slot
