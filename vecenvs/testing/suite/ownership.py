"""Arrays belong to their holder: returned arrays never change later, arguments are never modified."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation

from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import (
    NESTED,
    SHARED,
    ActionKeepingEnv,
    BufferReusingEnv,
    CountingEnv,
    GatedEnv,
    SampledEnv,
    SharedBufferEnv,
)
from vecenvs.testing.handed_out import ATTRIBUTES, MutableEnv, check_handed_out
from vecenvs.testing.lockstep import Lockstep
from vecenvs.testing.suite.base import Conformance, Make

OPEN = Path("/")  # a gate that is open
LARGE = spaces.Box(0, 255, (40, 40, 3), np.uint8)
OBJECTS = spaces.Dict(text=spaces.Text(9), path=spaces.Sequence(spaces.Box(-1.0, 1.0, (2,), np.float64)))
KINDS = ("box", "large", "nested", "objects")


class StoryEnv(GatedEnv):
    """A CountingEnv with arrays in its infos, which waits for a gate in its second reset."""

    def __init__(self, tag: int, length: int = 2, gate: Path = OPEN) -> None:
        super().__init__(tag, gate, "reset", 2, length)
        self.observation_space: Any = spaces.Sequence(spaces.Box(0, 99, (2,), np.float32))
        self.state = np.zeros(2)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        obs, _ = super().reset(**given)
        return obs, {"goal": np.ones(2), "path": [1]}

    def _observe(self) -> Any:
        self.state = np.full(2, float(self.t))
        return (np.full(2, self.t, np.float32),)


class InfoRefillingEnv(CountingEnv):
    """Keeps one info, which is empty until a reset fills it: so in the first step of each episode, the only one."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag, 1)
        self.info: dict[str, Any] = {}

    def reset(self, **given: Any) -> Any:
        obs, _ = super().reset(**given)
        self.info["began"] = self.episode
        return obs, self.info

    def step(self, action: Any) -> Any:
        self.info.clear()
        return *super().step(action)[:4], self.info


def exact(space: spaces.Space[Any], obs: Any) -> Any:
    """Return an observation with the dtypes of its space."""
    if isinstance(space, spaces.Dict):
        return {key: exact(part, obs[key]) for key, part in space.spaces.items()}
    return np.asarray(obs, space.dtype)[()] if isinstance(space, (spaces.Box, spaces.Discrete)) else obs


class OwnershipConformance(Conformance):
    """No array is shared between caller, VecEnv and envs."""

    @pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
    @pytest.mark.parametrize("space", [spaces.Box(-1.0, 1.0, (3,), np.float32), LARGE, NESTED, OBJECTS], ids=KINDS)
    def test_nothing_that_was_handed_out_is_shared(self, make: Make, space: spaces.Space[Any], autoreset: str) -> None:
        """Rows, infos, errors' rows, and all that can be asked for: no later call changes them, no change spreads."""
        fns = [functools.partial(MutableEnv, space)] * 3
        check_handed_out(lambda: make(fns, autoreset=autoreset, info_attrs=ATTRIBUTES), [[0, 2], [1]])

    @pytest.mark.parametrize("side", [5, 80])
    def test_envs_that_reuse_their_buffers(self, make: Make, side: int) -> None:
        """Small or large: each row and terminal observation is as it was when returned."""
        for mode in ("same_step", "next_step"):
            both = Lockstep(make, [functools.partial(BufferReusingEnv, side=side)] * 4, autoreset=mode)
            both.reset(seed=0)
            both.run(15)
            assert both.vec.get_attr("tampered") == [False] * 4

    @pytest.mark.parametrize("shared", SHARED)
    def test_envs_that_share_their_buffers(self, make: Make, shared: str) -> None:
        """Rows, infos and rewards are those of the env that returned them, whoever was stepped next in its process."""
        for mode in ("same_step", "next_step"):
            both = Lockstep(make, [functools.partial(SharedBufferEnv, shared, tag, 2 + tag % 2) for tag in range(4)],
                            autoreset=mode)  # fmt: skip
            both.plain.envs = [TransformObservation(env, functools.partial(exact, env.observation_space), None)
                               for env in both.plain.envs]  # fmt: skip
            both.reset(seed=0)
            both.run(7)
            both.reset([3, 0, 1])
            for some in ([3, 1, 0], [0, 1, 2, 3]):
                both.vec.send([0] * len(some), some)
                rows = both.plain.step([0] * len(some), some)
                batch = both.vec.recv(indices=some)
                both.check_obs(batch.obs, [row.obs for row in rows])
                assert batch.rewards.tolist() == [row.reward for row in rows]
                assert_same(list(batch.infos), [row.info for row in rows])

    def test_an_info_that_the_reset_fills(self, make: Make) -> None:
        """An empty info of a row that ends an episode stays so."""
        for mode in ("same_step", "next_step"):
            both = Lockstep(make, [functools.partial(InfoRefillingEnv, tag) for tag in range(3)], autoreset=mode)
            both.reset(seed=0)
            both.run(5)

    def test_the_caller_may_write_into_what_it_got(self, make: Make) -> None:
        both = Lockstep(make, [BufferReusingEnv] * 4)
        for part in both.reset(seed=0).values():
            part[...] = 77
        for _ in range(10):
            obs, rewards, dones, infos = both.step()
            for array in (*obs.values(), rewards, dones, infos[0]["array"], infos[0]["nested"]["array"]):
                array[...] = 55
            for part in infos[0].get("terminal_observation", {}).values():
                part[...] = 66
            infos[1].clear()
        assert both.vec.get_attr("tampered") == [False] * 4

    def test_views_hold_until_the_next_call(self, make: Make) -> None:
        """With copy=False rows are right when they are returned, and actions are still copied."""
        both = Lockstep(make, [functools.partial(SampledEnv, NESTED)] * 4, copy=False)
        both.reset(seed=0)
        both.run(15)

    def test_actions_are_never_aliased(self, make: Make) -> None:
        """An env may keep its action and write into it; the caller may write into its array after step_async."""
        vec = make([ActionKeepingEnv] * 4)
        vec.reset()
        actions = np.zeros((4, 2), np.float32)
        for step in range(5):
            actions[...] = step / 8
            vec.step_async(actions)
            actions[...] = -1.0
            obs, *_ = vec.step_wait()
            assert (obs == step / 8).all()
            assert (actions == -1.0).all()
        assert vec.get_attr("changed") == [False] * 4

    def test_rows_that_repeat_are_the_callers_own(self, make: Make, tmp_path: Path) -> None:
        """Infos belong to the caller, too: changes to one do not appear in the next."""
        gate = tmp_path / "gate"
        fns = [functools.partial(StoryEnv, 0, gate=gate), functools.partial(StoryEnv, 1, 99)]
        vec = make(fns, autoreset="async", info_attrs=("state",))
        vec.reset()
        vec.step([0] * 2)
        vec.step([0] * 2)
        for _ in range(2):
            obs, _, _, infos = vec.step([0] * 2)
            assert infos[0]["resetting"]
            assert obs[0][0].tolist() == infos[0]["state"].tolist() == vec.info_array("state")[0].tolist() == [2.0, 2.0]
            obs[0][0][:] = infos[0]["state"][:] = -1
        gate.touch()

    @pytest.mark.parametrize("autoreset", ["next_step", "async"])
    def test_infos_of_first_rows_are_the_callers_own(self, make: Make, autoreset: str) -> None:
        """Changes to them do not appear in `reset_infos`."""
        vec = make([functools.partial(StoryEnv, tag) for tag in range(2)], autoreset=autoreset)
        vec.reset_async()
        batches = [vec.recv(2).infos]
        steps = 0
        while len(batches) < 2 or "goal" not in batches[-1][0]:
            batches.append(vec.step([0] * 2)[3])
            steps += 1
            assert steps < 10_000
        for infos in (batches[0], batches[-1]):
            infos[0]["goal"][:] = 0
            infos[0]["path"].append("mine")
        assert vec.reset_infos[0]["goal"].tolist() == [1.0, 1.0]
        assert vec.reset_infos[0]["path"] == [1]
