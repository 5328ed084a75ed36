"""`on_error`: envs that raise begin new episodes, and the program goes on."""

from __future__ import annotations

import functools
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Box

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.errors import EnvError, SpaceMismatch
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import NESTED, BadObservationEnv, CountingEnv, FailingEnv, SampledEnv, ToyError, counting_fns
from vecenvs.testing.envs.batches import KINDS, batched_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.episode_seeds import MODES, Episodes, action_of, seed_of
from vecenvs.testing.suite.errors import failing_fns

POLICIES = ["reset", "renew"]


class RaisingEnv(SampledEnv):
    """A SampledEnv that raises in some steps and in some resets, by its own random state."""

    def __init__(self, step: float = 0.1, reset: float = 0.2) -> None:
        super().__init__(NESTED, end=0.2)
        self.odds = {"step": step, "reset": reset}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        first = super().reset(seed=seed, options=options)
        self._maybe_raise("reset")
        return first

    def step(self, action: Any) -> Any:
        self._maybe_raise("step")
        return super().step(action)

    def _maybe_raise(self, where: str) -> None:
        if self.np_random.random() < self.odds[where]:
            raise [ValueError, OSError, SystemExit][self.np_random.integers(3)](f"in {where}")


class OtherSpaceEnv(FailingEnv):
    """A FailingEnv whose second object in a process has another space."""

    made: ClassVar[Counter[int]] = Counter()

    def __init__(self, tag: int) -> None:
        super().__init__(tag, at=1)
        self.made[tag] += 1
        if self.made[tag] > 1:
            self.observation_space = Box(-1, 1_000_000, (4,), np.int64)


class OnErrorConformance(Conformance):
    """What an env raises ends its episode alone."""

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("policy", POLICIES)
    def test_the_row_of_an_error(self, make: Make, mode: str, policy: str, caplog: Any) -> None:
        """It has the last observation as the terminal one. Other envs go on as if nothing had happened."""
        vec = make(failing_fns(1, 3, where="step", at=3), autoreset=mode, on_error=policy)
        vec.reset(seed=0)
        for t in (1, 2):
            assert vec.step([0] * 3)[0][:, 2].tolist() == [t] * 3
        with caplog.at_level(logging.WARNING, "vecenvs"):
            obs, rewards, dones, infos = vec.step([0] * 3)
        assert dones.tolist() == vec.truncated.tolist() == [False, True, False]
        assert not vec.terminated.any()
        assert vec.active.all()
        assert_same(obs[[0, 2]], np.array([[0, 1, 3], [2, 1, 3]]))
        assert rewards.tolist() == [3.0, 0.0, 3.25]
        episode = 2 if policy == "reset" else 1
        assert_same(obs[1], np.array([1, episode, 0] if mode == "same_step" else [1, 1, 2]))
        assert_same(infos[1]["terminal_observation"], np.array([1, 1, 2]))
        assert infos[1]["env_error"] == "ToyError: env 1 failed in step"
        assert infos[1]["TimeLimit.truncated"] is True
        assert "env_error" not in infos[0]
        then = "begins a new episode" if policy == "reset" else "is made anew"
        expected = f"env 1 raised ToyError: env 1 failed in step in step, and {then} (error 1 of at most 10 in a row)"
        assert [record.getMessage() for record in caplog.records] == [expected]
        stats = vec.stats()
        assert stats["errors"] == sum(worker["errors"] for worker in stats["workers"]) == 1
        if mode == "disabled":
            with pytest.raises(EnvError, match=r"env 1 has ended its episode: reset\(\[1\]\) it first"):
                vec.step([0] * 3)
            vec.reset([1])
        row = obs[1]
        while mode != "disabled" and row.tolist()[1:] != [episode, 0]:
            row = vec.step([0] * 3)[0][1]
        assert vec.reset_infos[1]["episode"] == episode
        assert vec.step([0] * 3)[0][1].tolist() == [1, episode, 1]
        assert len(vec.get_attr("seeds", [1])[0]) == episode

    @pytest.mark.parametrize("mode", MODES)
    def test_a_reset_that_raises_is_tried_with_a_new_env(self, make: Make, mode: str, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        fns = failing_fns(1, 3, where="reset", at=2, length=2)
        vec = make(fns, autoreset=mode, on_error="reset")
        vec.reset(seed=[3, 4, 5])
        for _ in range(2):
            _, rewards, dones, infos = vec.step([0] * 3)
        assert dones.all()
        assert rewards.tolist() == [2.0, 2.125, 2.25], "the step itself has ended well"
        assert_same(infos[1]["terminal_observation"], np.array([1, 1, 2]))
        assert "env_error" not in infos[1]
        if mode == "disabled":
            vec.reset()
        while vec.reset_infos[1] != {"tag": 1, "episode": 1, "episode_start": True} or vec.stats()["errors"] == 0:
            vec.step([0] * 3)
        seed = int(np.random.SeedSequence([4, 1]).generate_state(1)[0])
        assert vec.get_attr("seeds", [1])[0][0] == seed, "a new env has a seed derived from the last one"
        vec.close()
        assert vec.stats()["errors"] == 1
        assert not closed.exists()

    @pytest.mark.parametrize("mode", ["same_step", "next_step"])
    @pytest.mark.parametrize("policy", POLICIES)
    def test_all_engines_go_on_alike(self, make: Make, mode: str, policy: str) -> None:
        fns = [functools.partial(RaisingEnv, 0.1, 0.1 * (k % 2)) for k in range(4)]
        seed = random.randrange(2**31)
        vec = make(fns, autoreset=mode, on_error=policy, max_errors=100)
        with DummyVecEnv(fns, autoreset=mode, on_error=policy, max_errors=100) as reference:
            assert_same(vec.reset(seed=seed), reference.reset(seed=seed), f"seed {seed}: first observations")
            for t in range(25):
                actions = [np.int64((t + k) % 4) for k in range(4)]
                ours, theirs = vec.step(actions), reference.step(actions)
                assert_same((*ours[:3], list(ours[3])), (*theirs[:3], list(theirs[3])), f"seed {seed}, step {t}")
            assert vec.stats()["errors"] == reference.stats()["errors"]

    @pytest.mark.parametrize("mode", MODES)
    def test_with_seeds_of_episodes(self, make: Make, mode: str) -> None:
        """Each episode equals that of an env of its own, up to an error, and numbers have no gaps."""
        n, seed = 3, random.randrange(2**31)
        vec = make(
            [functools.partial(RaisingEnv, 0.1, 0.0)] * n,
            autoreset=mode,
            on_error="reset",
            episode_seeds=True,
            max_errors=1000,
        )
        episodes = Episodes(vec)
        episodes.begin(range(n), vec.reset(seed=seed))
        for _ in range(30):
            obs, rewards, _, infos = vec.step(episodes.actions(range(n)))
            episodes.take(range(n), obs, rewards, vec.active, (vec.terminated, vec.truncated), infos)
            if episodes.ended.any():
                slots = np.flatnonzero(episodes.ended)
                episodes.begin(slots.tolist(), vec.reset(slots))
        for slot, played in enumerate(episodes.played):
            for number, (info, _, *steps) in enumerate(played):
                assert info["episode_seed"] == seed_of(seed + slot, slot, number)
                env = RaisingEnv(0.1, 0.0)
                obs, _ = env.reset(seed=info["episode_seed"])
                for t, (_, reward, terminated, truncated) in enumerate(steps):
                    try:
                        _, expected, *flags, _ = env.step(np.int64(action_of(slot, t)))
                    except (ValueError, OSError, SystemExit):
                        assert (reward, terminated, truncated) == (0.0, False, True)
                        assert t == len(steps) - 1
                    else:
                        assert (reward, terminated, truncated) == (float(np.float32(expected)), *flags)

    @pytest.mark.parametrize("most", [0, 1, 3])
    def test_too_many_errors(self, make: Make, most: int) -> None:
        """An episode that is completed, and an error that was raised, begin the count anew."""
        vec = make(failing_fns(1, 3, where="step", at=1), on_error="renew", max_errors=most)
        vec.reset()
        for _ in range(2):
            for _ in range(most):
                assert vec.step([0] * 3)[2][1]
            with pytest.raises(EnvError, match=rf"env 1 raised ToyError in step.*{most} errors before this one"):
                vec.step([0] * 3)
            vec.reset([1])
        vec = make(failing_fns(1, 3, where="step", at=2, length=1), on_error="renew", max_errors=1)
        vec.reset()
        for _ in range(8):  # each env completes an episode, and raises in the next one
            vec.step([0] * 3)
        assert vec.stats()["errors"] == 4

    def test_a_reset_that_always_raises(self, make: Make) -> None:
        vec = make(failing_fns(1, 3, where="reset", at=1), on_error="reset", max_errors=2)
        with pytest.raises(EnvError, match="env 1 raised ToyError in reset.*2 errors before this one") as caught:
            vec.reset()
        assert caught.value.batch is not None
        assert caught.value.batch.indices.tolist() == [0, 2]
        with pytest.raises(EnvError, match=r"env 1 failed in reset: reset\(\[1\]\) it first"):
            vec.step([0] * 3)

    def test_what_is_no_error_of_an_env_is_raised(self, make: Make) -> None:
        fns: list[Any] = counting_fns(3)
        fns[1] = functools.partial(BadObservationEnv, 1, 1)
        vec = make(fns, on_error="renew")
        with pytest.raises(EnvError, match="has not been reset"):
            vec.step([0] * 3)
        vec.reset()
        with pytest.raises(EnvError, match="env 1"):
            vec.step([0] * 3)
        assert vec.stats()["errors"] == 0

    def test_a_new_env_of_other_spaces(self, make: Make) -> None:
        OtherSpaceEnv.made.clear()
        fns: list[Any] = counting_fns(3)
        fns[1] = functools.partial(OtherSpaceEnv, 1)
        vec = make(fns, on_error="renew")
        vec.reset()
        with pytest.raises(EnvError, match="env 1.*observation_space") as caught:
            vec.step([0] * 3)
        assert isinstance(caught.value.__cause__, SpaceMismatch)
        for call in (functools.partial(vec.get_attr, "tag"), functools.partial(vec.set_attr, "given", 3)):
            with pytest.raises(EnvError, match=r"env 1 was closed.*reset\(\[1\]\) it first"):
                call(indices=[1])
            assert call(indices=[0]) in ([0], None)

    @pytest.mark.parametrize("mode", MODES)
    def test_every_env_is_closed_once(self, make: Make, mode: str, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        fns: list[Any] = [functools.partial(ClosingEnv, tag, closed) for tag in range(3)]
        vec = make(fns, autoreset=mode, on_error="renew", info_attrs=["t"])
        vec.reset()
        while vec.stats()["errors"] < 9:
            dones = vec.step([0] * 3)[2]
            if mode == "disabled":
                vec.reset(np.flatnonzero(dones))
        errors = vec.stats()["errors"]
        vec.close()
        count = len(closed.read_text().split())
        assert errors <= count <= errors + 3

    def test_wrong_arguments(self, make: Make) -> None:
        with pytest.raises(ValueError, match="on_error 'ignore' is none of raise, reset, renew"):
            make(counting_fns(2), on_error="ignore")
        for wrong, kind in ((-1, ValueError), (1.5, TypeError)):
            with pytest.raises(kind, match="max_errors must be"):
                make(counting_fns(2), max_errors=wrong)

    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("kind", [*KINDS])
    def test_a_batched_env_ends_the_episodes_of_all_its_envs(self, make: Make, kind: str, policy: str) -> None:
        mode = KINDS[kind][0]
        vec = make(
            batched_fns(failing_fns(1, 4, where="step", at=3, length=9), (3, 0), kind), autoreset=mode, on_error=policy
        )
        vec.reset(seed=0)
        for t in (1, 2):
            assert vec.step([0] * 4)[0][:, 2].tolist() == [t] * 4
        obs, rewards, dones, infos = vec.step([0] * 4)
        assert dones.tolist() == vec.truncated.tolist() == [True] * 3 + [False]
        assert rewards.tolist() == [0.0] * 3 + [3.375]
        assert not vec.terminated.any()
        assert all("ToyError: env 1 failed in step" in infos[slot]["env_error"] for slot in range(3))
        assert "env_error" not in infos[3]
        assert_same(
            np.array([infos[slot]["terminal_observation"] for slot in range(3)]),
            np.array([[k, 1, 2] for k in range(3)]),
        )
        episode = 2 if policy == "reset" else 1
        if mode == "disabled":
            with pytest.raises(EnvError, match="env 0 has ended its episode"):
                vec.step([0] * 4)
            vec.reset(range(3))
        elif mode == "same_step":
            assert_same(obs, np.array([[0, episode, 0], [1, episode, 0], [2, episode, 0], [3, 1, 3]]))
        else:
            assert_same(obs[:3, 2], np.array([2] * 3))
            assert vec.step([0] * 4)[0][:, 2].tolist() == [0] * 3 + [4]
            assert vec.active.tolist() == [False] * 3 + [True]
        assert [info["episode"] for info in vec.reset_infos] == [episode] * 3 + [1]
        assert vec.step([0] * 4)[0][:3].tolist() == [[slot, episode, 1] for slot in range(3)]
        assert vec.stats()["errors"] == 1

    @pytest.mark.parametrize("mode", ["same_step", "disabled"])
    def test_a_batched_env_whose_reset_raises(self, make: Make, mode: str) -> None:
        """Env 0 is reset after two steps: the host is made anew, so the episodes of the others are lost."""
        fns: list[Any] = [functools.partial(FailingEnv, 0, "reset", at=2, length=2), *counting_fns(4, length=7)[1:]]
        kind = "by_masks" if mode == "same_step" else "disabled"
        vec = make(batched_fns(fns, (3, 0), kind), autoreset=mode, on_error="reset")
        vec.reset(seed=4)
        vec.step([0] * 4)
        obs, _, dones, infos = vec.step([0] * 4)
        assert dones.tolist() == [True, False, False, False]
        assert "env_error" not in infos[0]
        if mode == "disabled":
            obs[0] = vec.reset([0])[0]
        assert_same(obs, np.array([[0, 1, 0], [1, 1, 2], [2, 1, 2], [3, 1, 2]]))
        obs, _, dones, infos = vec.step([0] * 4)
        assert dones.tolist() == vec.truncated.tolist() == [False, True, True, False]
        assert vec.active.tolist() == [False, True, True, True]
        assert ["ToyError" in info.get("env_error", "") for info in infos] == dones.tolist()
        assert_same(infos[1]["terminal_observation"], np.array([1, 1, 2]))
        assert obs[0].tolist() == [0, 1, 0]
        if mode == "disabled":
            vec.reset([1, 2])
        rows = vec.step([0] * 4)[0]
        assert rows[:, 2].tolist() == [1, 1, 1, 4]
        assert vec.stats()["errors"] == 1

    def test_a_batched_env_that_raises_too_often(self, make: Make) -> None:
        fns = batched_fns([functools.partial(CountingEnv, 0), AlwaysFailingEnv], (2,), "by_masks")
        vec = make(fns, on_error="renew", max_errors=2)
        vec.reset()
        for _ in range(2):
            assert vec.step([0] * 2)[2].all()
        with pytest.raises(EnvError, match=r"batched env of envs 0, 1 raised ToyError.*2 errors before.*max_errors"):
            vec.step([0] * 2)
        vec.reset()
        assert vec.step([0] * 2)[2].all()


class AlwaysFailingEnv(CountingEnv):
    """Raise at every step."""

    def step(self, action: Any) -> Any:
        raise ToyError("no step")


class ClosingEnv(CountingEnv):
    """Raise at every second step."""

    def __init__(self, tag: int, closed_file: Path) -> None:
        super().__init__(tag, closed_file=closed_file)

    def step(self, action: Any) -> Any:
        row = super().step(action)
        if self.t == 2:
            raise RuntimeError("every second step")
        return row
