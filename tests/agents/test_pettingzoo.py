"""Envs of PettingZoo and MPE2: rows equal those of a loop over the bare env, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vecenvs import as_sb3, make_multi_agent
from vecenvs.testing.compare import assert_same


def spread() -> Any:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env()


def tag() -> Any:
    from mpe2 import simple_tag_v3

    return simple_tag_v3.parallel_env(continuous_actions=True)


def tictactoe() -> Any:
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.env()


def connect_four() -> Any:
    from pettingzoo.classic import connect_four_v3

    return connect_four_v3.env()


@pytest.mark.parametrize("backend", ["dummy", pytest.param("subproc", marks=pytest.mark.long)])
@pytest.mark.parametrize("make", [spread, tag])
def test_agents_at_once(make: Any, backend: str) -> None:
    bare, rng = [make() for _ in range(3)], np.random.default_rng(0)
    with make_multi_agent(make, 3, backend=backend) as vec:
        obs = vec.reset(seed=7)
        firsts = [env.reset(seed=7 + i)[0] for i, env in enumerate(bare)]
        for _ in range(60):
            for agent, (name, k) in vec.roster.places.items():
                assert_same(obs[name][:, k], np.stack([first[agent] for first in firsts]), agent)
            actions = {}
            for name, members in vec.groups.items():
                space = vec.action_spaces[name]
                shape = (3, len(members), *space.shape)
                actions[name] = rng.integers(5, size=shape) if not space.shape else rng.random(shape, np.float32)
            obs, rewards, dones, _ = vec.step(actions)
            firsts = []
            for i, env in enumerate(bare):
                given = {agent: actions[name][i, k] for agent, (name, k) in vec.roster.places.items()}
                seen, own, _, _, _ = env.step(given)
                assert all(rewards[name][i, k] == np.float32(own[a]) for a, (name, k) in vec.roster.places.items())
                assert dones[i] == (not env.agents)
                firsts.append(seen if env.agents else env.reset()[0])


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
@pytest.mark.parametrize("make", [tictactoe, connect_four])
def test_turns(make: Any) -> None:
    bare, rng = make(), np.random.default_rng(0)
    with make_multi_agent(make, 1, backend="dummy") as vec:
        obs = vec.reset(seed=3)
        bare.reset(seed=3)
        games = 0
        for _ in range(80):
            agent = bare.agent_selection
            k = int(vec.acting[0])
            assert vec.agents[k] == agent
            seen = bare.last()[0]
            assert_same(obs["agents"][0, k], seen["observation"], "obs")
            masks = vec.action_mask
            assert masks is not None
            assert_same(masks["agents"][0, k], seen["action_mask"], "mask")
            action = int(rng.choice(np.flatnonzero(seen["action_mask"])))
            obs, rewards, dones, _ = vec.step(np.array([action]))
            bare.step(action)
            ended: dict[str, float] = {}
            while bare.agents and (bare.terminations[bare.agent_selection] or bare.truncations[bare.agent_selection]):
                ended[bare.agent_selection] = bare.last()[1]
                bare.step(None)
            assert dones[0] == (not bare.agents)
            if not bare.agents:
                games += 1
                assert {a: rewards["agents"][0, i] for i, a in enumerate(vec.agents)} == ended
                bare.reset()
        assert games > 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ppo_with_shared_parameters() -> None:
    """SB3 learns on the agents' rows."""
    from stable_baselines3 import PPO

    from vecenvs import VecMonitor

    vec = VecMonitor(make_multi_agent(spread, 8, backend="dummy", seed=0).flat())
    model = PPO("MlpPolicy", as_sb3(vec), n_steps=64, batch_size=256, seed=0)
    model.learn(3 * 64 * vec.num_envs)
    assert len(model.ep_info_buffer) > 0
    vec.close()
