"""The agents of a group as the envs of a VecEnv: `flat()`, below wrappers and other libraries' learners."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from vecenvs import (
    Batched,
    DummyVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTorch,
    VecVideoRecorder,
    as_gymnasium,
    make_multi_agent,
)
from vecenvs.errors import EnvError
from vecenvs.testing.envs.teams import Teams, TeamsByTurns

OF_VEC_ENVS = {"TimeLimit.truncated", "episode_start", "resetting", "terminal_observation", "absent"}
CATS = functools.partial(Teams, cats=4, dogs=0)


def flat(num_envs: int = 3, backend: str = "dummy", make: Any = CATS, **kwargs: Any) -> Any:
    fns = [functools.partial(make, tag) for tag in range(num_envs)]
    return make_multi_agent(fns, backend=backend, **kwargs).flat()


def whole_episodes(make: Any, num_envs: int, steps: int) -> list[tuple[int, str, float, int]]:
    """Return the episodes of the agents of bare envs that do the action 0: env, agent, return, length."""
    found = []
    for tag in range(num_envs):
        env = make(tag)
        env.reset(seed=tag)
        sums: dict[str, list[float]] = {agent: [] for agent in env.agents}
        for _ in range(steps):
            _, rewards, dead, cut, _ = env.step(dict.fromkeys(env.agents, 0))
            for agent, reward in rewards.items():
                sums[agent].append(reward)
                if dead[agent] or cut[agent]:
                    found.append((tag, agent, sum(sums[agent]), len(sums.pop(agent))))
            if not env.agents:
                env.reset()
            for agent in env.agents:
                sums.setdefault(agent, [])
    return found


@pytest.mark.parametrize("backend", ["dummy", "subproc"])
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_episodes_of_agents_are_counted_once(backend: str, mode: str) -> None:
    with VecMonitor(flat(backend=backend, seed=0, autoreset=mode)) as vec:
        vec.reset()
        found = []
        over = np.zeros(3, bool)
        steps = np.zeros(3, int)
        while steps.min() < 60:
            _, _, dones, infos = vec.step(np.zeros(12, np.int64))
            steps += 1 if mode == "same_step" else ~over
            over = vec.venv.multi.vec.terminated | vec.venv.multi.vec.truncated
            for row in np.flatnonzero(dones).tolist():
                env, agent = divmod(row, 4)
                episode = infos[row]["episode"]
                if steps[env] <= 60:
                    found.append((env, f"cat_{agent}", episode["r"], episode["l"]))
            assert all("episode" not in info for info, done in zip(infos, dones, strict=True) if not done)
    assert sorted(found) == sorted(whole_episodes(CATS, 3, 60))


def test_rows_of_absent_agents() -> None:
    """They are zeros, not active, and say so; a row is done once, with the agent's last observation."""
    with flat(seed=0) as vec:
        vec.reset()
        done_before = np.zeros(12, bool)
        ends = 0
        for _ in range(60):
            obs, rewards, dones, infos = vec.step(np.ones(12, np.int64))
            present = vec.multi.present["agents"].ravel()
            absent = ~present & ~dones
            assert not obs[~present].any()
            assert not rewards[absent].any()
            assert not vec.active[absent].any()
            assert not (dones & done_before & ~vec.active).any()
            for row, info in enumerate(infos):
                assert info.get("resetting", False) == bool(absent[row])
                assert ("terminal_observation" in info) == bool(dones[row])
                if dones[row]:
                    ends += 1
                    assert info["terminal_observation"][2] == row % 4
                    if info.get("absent") and present[row]:
                        np.testing.assert_array_equal(info["terminal_observation"], obs[row])
            done_before = dones
        assert ends > 20


def test_wrappers_leave_out_absent_agents() -> None:
    """VecNormalize counts observations from which an agent acts, and nothing else."""
    with VecNormalize(flat(seed=0), norm_reward=False) as vec:
        vec.reset()
        seen = [vec.get_original_obs()[vec.venv.multi.acts["agents"].ravel()]]
        for _ in range(40):
            vec.step(np.zeros(12, np.int64))
            seen.append(vec.get_original_obs()[vec.venv.multi.acts["agents"].ravel()])
        rows = np.concatenate(seen)
        np.testing.assert_allclose(vec.obs_rms.mean, rows.mean(axis=0), rtol=1e-3, atol=1e-2)


def test_frames_of_an_agent_begin_with_its_part() -> None:
    with VecFrameStack(flat(seed=0), 3) as vec:
        vec.reset()
        for _ in range(50):
            obs, _, _, _ = vec.step(np.zeros(12, np.int64))
            started = vec.venv.multi.started["agents"].ravel()
            assert not obs[started, :8].any()
            assert obs[started, 8:].any(axis=1).all()


def test_tensors() -> None:
    import torch

    with VecTorch(flat(seed=0)) as vec:
        assert isinstance(vec.reset(), torch.Tensor)
        assert vec.step(torch.zeros(12, dtype=torch.int64))[1].shape == (12,)


def test_gymnasium_view() -> None:
    view = as_gymnasium(flat(seed=0, autoreset="next_step"))
    obs, _ = view.reset(seed=3)
    assert obs.shape == (12, 4)
    for _ in range(20):
        obs, rewards, terminated, truncated, _ = view.step(np.zeros(12, np.int64))
        assert rewards.shape == terminated.shape == truncated.shape == (12,)
    view.close()


def test_whole_envs() -> None:
    """Commands for some agents of an env alone are refused; seeds are the envs'."""
    with flat(backend="subproc") as vec:
        assert vec.seed(5) == [5] * 4 + [6] * 4 + [7] * 4
        vec.reset()
        with pytest.raises(ValueError, match="whole envs"):
            vec.send([0, 0], [0, 1])
        vec.send(np.zeros(4, int), range(4, 8))
        assert vec.recv().indices.tolist() == [4, 5, 6, 7]
        assert vec.reset([0, 1, 2, 3], seed=9).shape == (4, 4)
        assert vec.get_attr("tag", [0, 5, 11]) == [0, 1, 2]
    with make_multi_agent(Teams, 2, backend="dummy") as two, pytest.raises(ValueError, match="one group"):
        two.flat()


def test_turns_of_agents_are_one_episode() -> None:
    """An agent that waits for its turn goes on with its episode."""
    make = functools.partial(TeamsByTurns, turnover=0.0)
    with VecMonitor(flat(2, make=make, seed=0)) as vec:
        vec.reset()
        episodes = []
        for _ in range(66):
            _, _, dones, infos = vec.step(np.zeros(6, np.int64))
            episodes += [infos[row]["episode"] for row in np.flatnonzero(dones)]
        assert len(episodes) == 2 * 6 * 3  # eleven turns are an episode of each of three agents
        assert {episode["l"] for episode in episodes} == {3, 4}


class Fails(Teams):
    """Env 1 fails in its third step."""

    def step(self, actions: Any) -> Any:
        if self.tag == 1 and self.t == 2:
            raise RuntimeError("no")
        return super().step(actions)


def test_an_env_that_fails() -> None:
    with flat(make=functools.partial(Fails, cats=2, dogs=0, turnover=0.0)) as vec:
        vec.reset()
        vec.step(np.zeros(6, int))
        vec.step(np.zeros(6, int))
        with pytest.raises(EnvError, match="env 1") as caught:
            vec.step(np.zeros(6, int))
        assert caught.value.batch is not None
        assert caught.value.batch.indices.tolist() == [0, 1, 4, 5]
        assert caught.value.batch.rewards.shape == (4,)
        vec.reset([2, 3])
        vec.step(np.zeros(6, int))


class Leaving:
    """A ParallelEnv of two agents: the first leaves in step 2, the other in step 5. Resets have infos, and an image."""

    metadata: ClassVar[dict[str, Any]] = {}
    render_mode = "rgb_array"
    possible_agents: ClassVar[list[str]] = ["a_0", "a_1"]

    def observation_space(self, _: str) -> Any:
        return spaces.Box(0, 99, (1,), np.float32)

    def action_space(self, _: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.t = [*self.possible_agents], 0
        return self._by_agent(np.zeros(1, np.float32)), self._by_agent({"born": 7})

    def step(self, actions: Any) -> Any:
        self.t += 1
        dead = {agent: self.t == (2 if agent == "a_0" else 5) for agent in self.agents}
        found = tuple(map(self._by_agent, (np.full(1, self.t, np.float32), 1.0)))
        infos, over = self._by_agent({"t": self.t}), self._by_agent(False)
        self.agents = [agent for agent in self.agents if not dead[agent]]
        return *found, dead, over, infos

    def _by_agent(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.agents, value)

    def render(self) -> Any:
        return np.full((4, 4, 3), self.t, np.uint8)


def test_gymnasium_steps_envs_whose_agents_have_left() -> None:
    """Without autoresets until the env's episode is over; with them each agent's first row has its reset's info."""
    view = as_gymnasium(make_multi_agent(Leaving, 2, backend="dummy", autoreset="disabled").flat())
    for _ in range(2):
        view.reset()
        ends = [view.step(np.zeros(4, np.int64))[2].tolist() for _ in range(5)]
        assert ends == [[False] * 4, [True, False] * 2, [False] * 4, [False] * 4, [False, True] * 2]
        with pytest.raises(ResetNeeded):
            view.step(np.zeros(4, np.int64))
    view = as_gymnasium(make_multi_agent(Leaving, 2, backend="dummy").flat())
    view.reset()
    rows = [view.step(np.zeros(4, np.int64))[4] for _ in range(6)]
    born = [infos["_born"].tolist() if "born" in infos else None for infos in rows]
    assert born == [None, None, None, None, [True] * 4, None]
    assert [infos["_final_obs"].tolist() for infos in rows if "final_obs" in infos] == [
        [True, False] * 2,
        [False, True] * 2,
    ]


def test_videos_of_some_envs(tmp_path: Path) -> None:
    """Each env has an image, whichever envs step."""
    vec = VecVideoRecorder(make_multi_agent(Leaving, 2, backend="dummy").flat(), tmp_path, lambda _: True, 50)
    with vec:
        vec.reset()
        vec.step([0] * 4)
        vec.send([0] * 2, [2, 3])
        assert vec.recv(2).obs.tolist() == [[2], [2]]
        assert [int(image[0, 0, 0]) for image in vec._images] == [1, 2]
        vec.reset([0, 1])


class Telling(TeamsByTurns):
    """Its infos tell the turn."""

    def last(self) -> Any:
        *row, _ = super().last()
        return *row, {"turn": self.t}


def test_gymnasium_infos_of_agents_by_turns() -> None:
    """An agent's first turn is no reset: its info is its own."""
    view = as_gymnasium(flat(1, make=functools.partial(Telling, count=2, turnover=0.0)))
    plain = flat(1, make=functools.partial(Telling, count=2, turnover=0.0))
    view.reset(seed=3)
    plain.reset(seed=3)
    compared = 0
    for _ in range(6):
        found = view.step(np.zeros(2, np.int64))[4]
        _, _, dones, infos = plain.step(np.zeros(2, np.int64))
        if not dones.any():
            for row, info in enumerate(infos):
                own = {key: value for key, value in info.items() if key not in OF_VEC_ENVS}
                assert {key: found[key][row] for key in own} == own
                compared += len(own)
    assert compared >= 6


def test_as_a_batched_env() -> None:
    """Its rows that are no transitions would become some."""
    for make in (flat, lambda: VecMonitor(flat()), lambda: as_gymnasium(flat())):
        with pytest.raises(EnvError, match="of agents' rows, some of which are no transitions"):
            DummyVecEnv([Batched(make, 12)])
