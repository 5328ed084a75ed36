"""The rules of `Batched`: rows of every kind of batched env, modes, failures. Workers carry them out, on any engine."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.batched import Batched
from vecenvs.errors import EnvError, NotSteppingError, SpaceMismatch, VecEnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import NESTED, SPACES, CountingEnv, FailingEnv, SampledEnv, counting_fns
from vecenvs.testing.envs.batches import KINDS, ArrayBatch, batched_fns
from vecenvs.testing.lockstep import Lockstep
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.batched import SPLITS, both_ways, check_rows, lengthy_fns


class SilentBatch(ArrayBatch):
    """A batched env in next_step mode, which nothing tells of it."""

    mode = AutoresetMode.NEXT_STEP


class UnknownModeBatch(ArrayBatch):
    """A batched env whose metadata have a mode that does not exist."""

    metadata = {"autoreset_mode": "sometimes"}  # noqa: RUF012  # as Gymnasium's envs have it


class Halved:
    """A user's own class around a VecEnv, which it calls `vec` as this library's views do."""

    def __init__(self) -> None:
        self.vec = DummyVecEnv(counting_fns(2))
        self.num_envs = 2
        self.observation_space, self.action_space = self.vec.observation_space, self.vec.action_space

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.vec.reset(seed=seed), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        obs, rewards, dones, _ = self.vec.step(actions)
        return obs, rewards / 2, dones, np.zeros(2, bool), {}

    def close(self) -> None:
        self.vec.close()


class ForeignVecEnv:
    """What tells a VecEnv of Stable-Baselines3 or baselines."""

    num_envs = 2

    def reset(self) -> Any:
        """Return observations alone."""

    def step(self, actions: Any) -> Any:
        """Return four values."""

    def step_async(self, actions: Any) -> None:
        """Begin a step."""

    def close(self) -> None:
        """Close nothing."""


class NamingEnv(CountingEnv):
    """An env whose observations are text. Action 1 fails."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag)
        self.observation_space: Any = Text(9)

    def step(self, action: Any) -> Any:
        if action == 1:
            raise ValueError("action 1")
        return super().step(action)

    def _observe(self) -> Any:
        return f"{self.tag} at {self.t}"


class BatchedRuleConformance(Conformance):
    """The rules of `Batched`: modes, seeds, attributes, failures and restarts."""

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("disabled", "same_step")])
    @pytest.mark.parametrize("sizes", SPLITS, ids=str)
    def test_every_kind_of_batched_env(self, make: Make, sizes: tuple[int, ...], kind: str) -> None:
        check_rows(make, sizes, kind)

    @pytest.mark.parametrize("kind", ["same_step", "next_step", "by_masks"])
    def test_nested_spaces(self, make: Make, kind: str) -> None:
        fns = [functools.partial(SampledEnv, NESTED, NESTED)] * 6
        both = both_ways(make, fns, (4, 0, 1), kind)
        both.reset(seed=11)
        both.run(25)

    @pytest.mark.parametrize("batch_space", list(SPACES))
    def test_every_space(self, make: Make, batch_space: str) -> None:
        fns = [functools.partial(SampledEnv, SPACES[batch_space], SPACES[batch_space])] * 5
        for kind in ("same_step", "next_step"):
            both = both_ways(make, fns, (3, 0, 1), kind)
            both.reset(seed=2)
            both.run(9)
            both.vec.close()

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
    def test_rows_of_an_env_that_reuses_its_arrays(self, make: Make, mode: AutoresetMode) -> None:
        """Rows and infos of a step stay as they are, whatever the env and the caller write to afterwards."""
        one = Batched(functools.partial(SyncVectorEnv, lengthy_fns(3), copy=False, autoreset_mode=mode), 3)
        vec = make([one], autoreset="next_step" if mode is AutoresetMode.NEXT_STEP else "same_step")
        vec.reset(seed=0)
        vec.step([0] * 3)
        vec.step([0] * 3)
        obs, rewards, dones, infos = vec.step([0] * 3)
        seen, active = obs.copy(), vec.active
        obs[:], rewards[:] = -1, -1
        vec.step([0] * 3)
        assert dones.tolist() == [True, False, False]
        assert active.all()
        assert_same(infos[0]["terminal_observation"], np.array([0, 1, 3]))
        assert seen[1:].tolist() == [[1, 1, 3], [2, 1, 3]]
        assert (obs == -1).all()

    def test_a_class_around_a_vec_env_is_no_view(self, make: Make) -> None:
        vec = make([Batched(Halved, 2)])
        vec.reset()
        assert vec.step([0, 0])[1].tolist() == [0.5, 0.5625]

    def test_groups_are_of_whole_batches(self, make: Make) -> None:
        vec = make(batched_fns(counting_fns(7), (2, 2, 0, 2)))
        assert [group.tolist() for group in vec.groups(2)] == [[0, 1, 4], [2, 3, 5, 6]]
        assert len(vec.groups(4)) == 4
        with pytest.raises(ValueError, match="5 groups of 4 batched envs and single ones"):
            vec.groups(5)

    def test_a_mode_that_the_batch_does_not_tell(self, make: Make) -> None:
        silent = functools.partial(SilentBatch, lengthy_fns(3))
        both = Lockstep(lambda _, **rest: make([Batched(silent, 3, "next_step")], **rest), lengthy_fns(3),
                        autoreset="next_step")  # fmt: skip
        both.reset()
        both.run(8)
        with pytest.raises(EnvError, match="says autoreset='same_step', but its function gave a SyncVectorEnv of 'ne"):
            make([Batched(functools.partial(SyncVectorEnv, counting_fns(2)), 2, "same_step")])
        with pytest.raises(ValueError, match="'async' is none of"):
            Batched(CountingEnv, 2, "async")

    def test_send_of_whole_batches(self, make: Make) -> None:
        vec = make(batched_fns(counting_fns(5), (2, 0, 2)))
        vec.reset()
        vec.send([0, 1, 2], [0, 1, 2])
        vec.send([1, 2], [3, 4])
        batches = [vec.recv(max_envs=1) for _ in range(5)]
        got = sorted(
            (int(i), obs.tolist()) for batch in batches for i, obs in zip(batch.indices, batch.obs, strict=True)
        )
        assert got == [(k, [k, 1, 1]) for k in range(5)]

    def test_a_part_of_a_batch_is_refused(self, make: Make) -> None:
        vec = make(batched_fns(counting_fns(5), (3, 2), "arrays"))
        vec.reset()
        with pytest.raises(VecEnvError, match=r"envs 0, 1: envs 0-2 are one batched env"):
            vec.send([0, 0], [0, 1])
        with pytest.raises(EnvError, match="resets all its envs at once"):
            vec.reset([0])
        obs, *_ = vec.step([0] * 5)
        assert obs[:, 2].tolist() == [1] * 5

    def test_the_envs_of_a_batch_fail_together(self, make: Make) -> None:
        bad = functools.partial(FailingEnv, 1, "step", 2)
        vec = make(batched_fns([*counting_fns(1), bad, *counting_fns(4)[2:]], (2, 2)))
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(EnvError, match="batched env of envs 0, 1 raised ToyError") as raised:
            vec.step([0] * 4)
        assert [error.index for error in raised.value.errors] == [0, 1]
        assert raised.value.batch is not None
        assert raised.value.batch.indices.tolist() == [2, 3]
        with pytest.raises(EnvError, match="failed before"):
            vec.step([0] * 4)
        vec.reset()
        obs, *_ = vec.step([0] * 4)
        assert obs[:, 2].tolist() == [1] * 4

    def test_the_envs_of_a_batch_fail_by_one_error(self, make: Make) -> None:
        """Also where rows come one after another."""
        bad = functools.partial(FailingEnv, 1, "step", 1)
        vec = make(batched_fns([*counting_fns(1), bad, *counting_fns(4)[2:]], (2, 2)))
        vec.reset()
        vec.send([0] * 4)
        rows, errors = set[int](), list[EnvError]()
        while len(rows) < 2 or not errors:
            try:
                rows |= {*vec.recv(timeout=30).indices.tolist()}
            except EnvError as error:
                errors.append(error)
        assert rows == {2, 3}
        assert [[each.index for each in error.errors] for error in errors] == [[0, 1]]
        with pytest.raises(NotSteppingError):
            vec.recv()

    def test_one_of_two_resets_of_a_batch_fails(self, make: Make) -> None:
        """Its error is that of this reset alone."""
        envs: list[Any] = [functools.partial(FailingEnv, 0, "reset", 2), *counting_fns(4)[1:]]
        mode = AutoresetMode.DISABLED
        fns = [Batched(functools.partial(SyncVectorEnv, pair, autoreset_mode=mode), 2) for pair in (envs[:2], envs[2:])]
        vec = make(fns, autoreset="disabled")
        vec.reset()
        vec.reset_async([0])
        vec.reset_async([1])
        got: list[Any] = []
        while len(got) < 2:
            try:
                got += vec.recv(timeout=30).indices.tolist()
            except EnvError as error:
                got.append([each.index for each in error.errors])
        assert sorted(got, key=str) == [1, [0]]

    def test_a_batch_of_text_that_fails(self, make: Make) -> None:
        """Rows that are no numbers arrive from the other envs of its worker."""
        vec = make(batched_fns([functools.partial(NamingEnv, tag) for tag in range(4)], (2, 0, 0)))
        vec.reset()
        with pytest.raises(EnvError, match="batched env of envs 0, 1 raised ValueError in step: action 1") as raised:
            vec.step([1, 0, 0, 0])
        assert raised.value.batch is not None
        assert raised.value.batch.obs.tolist() == ["2 at 1", "3 at 1"]
        vec.reset([0, 1])
        assert vec.step([0] * 4)[0].tolist() == ["0 at 1", "1 at 1", "2 at 2", "3 at 2"]

    def test_bad_arguments(self, make: Make) -> None:
        with pytest.raises(EnvError, match=r"Batched says 3 envs, but its function gave a SyncVectorEnv of 2"):
            make([Batched(functools.partial(SyncVectorEnv, counting_fns(2)), 3)], autoreset="next_step")
        with pytest.raises(EnvError, match=r"pass autoreset='next_step'"):
            make([Batched(functools.partial(SyncVectorEnv, counting_fns(2)), 2)])
        with pytest.raises(EnvError, match=r"vecenvs.Batched\(make, num_envs\)"):
            make([functools.partial(SyncVectorEnv, counting_fns(2))])
        with pytest.raises(EnvError, match="a ForeignVecEnv, a VecEnv of Stable.*: give the functions that make its"):
            make([Batched(ForeignVecEnv, 2)])
        with pytest.raises(EnvError, match="does not tell its `num_envs`"):
            make([Batched(CountingEnv, 2)])
        with pytest.raises(ValueError, match="async"):
            make(batched_fns(counting_fns(2), (2,)), autoreset="async")
        with pytest.raises(SpaceMismatch, match="env 2"):
            make(batched_fns([*counting_fns(2), *[functools.partial(SampledEnv, NESTED)] * 2], (2, 2)))
        with pytest.raises(EnvError, match="has the autoreset_mode 'sometimes', which is none of"):
            make([Batched(functools.partial(UnknownModeBatch, counting_fns(2)), 2)])
        with pytest.raises(TypeError, match="num_envs must be an int"):
            Batched(CountingEnv, "2")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="at least 1"):
            Batched(CountingEnv, 0)
