"""The sides of `benchmarks.agents`: each makes envs of several agents and returns what steps them once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

Steps = Callable[[], int]  # steps all envs once, and returns the number of rows
Side = Callable[[], tuple[Steps, Callable[[], Any]]]


class Toy(ParallelEnv[str, Any, Any]):
    """Eight agents with observations (16,) of a generator."""

    metadata: dict[str, Any] = {"name": "toy"}  # noqa: RUF012
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = [f"agent_{k}" for k in range(8)]
        self.agents: list[str] = []
        self.observation_spaces = dict.fromkeys(self.possible_agents, spaces.Box(-1, 1, (16,), np.float32))
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(5))
        self.t, self.rng = 0, np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.t = self.possible_agents[:], 0
        return {agent: self.rng.random(16, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.t += 1
        agents, over = self.agents, self.t == 200
        obs = {agent: self.rng.random(16, np.float32) for agent in agents}
        rewards = {agent: float(actions[agent] == 1) for agent in agents}
        self.agents = [] if over else agents
        return obs, rewards, dict.fromkeys(agents, False), dict.fromkeys(agents, over), {agent: {} for agent in agents}

    def close(self) -> None:
        pass


def spread() -> Any:
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env()


def game(name: str) -> Any:
    import importlib

    return importlib.import_module(f"pettingzoo.classic.{name}_v3").env()


def bare(make: Callable[[], Any], n: int) -> tuple[Steps, Callable[[], Any]]:
    envs = [make() for _ in range(n)]
    for env in envs:
        env.reset()
    agents = envs[0].agents
    drawn = [dict(zip(agents, row, strict=True)) for row in np.random.default_rng(0).integers(0, 5, (n, len(agents)))]

    def step() -> int:
        for env, actions in zip(envs, drawn, strict=True):
            env.step(actions)
            if not env.agents:
                env.reset()
        return n * len(agents)

    return step, bool


def bare_turns(make: Callable[[], Any], n: int) -> tuple[Steps, Callable[[], Any]]:
    envs = [make() for _ in range(n)]
    for env in envs:
        env.reset()

    def step() -> int:
        for env in envs:
            env.step(int(env.last()[0]["action_mask"].argmax()))
            while env.agents:
                _, _, terminated, truncated, _ = env.last(observe=False)
                if not (terminated or truncated):
                    break
                env.step(None)
            if not env.agents:
                env.reset()
        return n

    return step, bool


def ours(make: Callable[[], Any], n: int, *, form: str = "", **kwargs: Any) -> tuple[Steps, Callable[[], Any]]:
    from vecenvs import make_multi_agent

    vec = make_multi_agent(make, n, **kwargs)
    actions = np.random.default_rng(0).integers(0, 5, (n, len(vec.agents)))
    if form == "turns":
        every = np.arange(n)
        vec.reset()

        def turn() -> int:
            masks: Any = vec.action_mask
            vec.step(masks["agents"][every, vec.acting].argmax(axis=1))
            return n

        return turn, vec.close
    stepped: Any = vec.flat() if form == "flat" else vec.as_dicts() if form == "dicts" else vec
    given: Any = actions.ravel() if form == "flat" else actions
    if form == "dicts":
        given = [dict(zip(vec.agents, row, strict=True)) for row in actions]
    return _stepper(stepped, given, actions.size)


def supersuit(make: Callable[[], Any], n: int, cpus: int) -> tuple[Steps, Callable[[], Any]]:
    import supersuit as ss

    vec = ss.concat_vec_envs_v1(ss.pettingzoo_env_to_vec_env_v1(make()), n, num_cpus=cpus, base_class="gymnasium")
    return _stepper(vec, np.random.default_rng(0).integers(0, 5, vec.num_envs), vec.num_envs)


def pufferlib(make: Callable[[], Any], n: int, workers: int) -> tuple[Steps, Callable[[], Any]]:
    from pufferlib import emulation, vector

    def creator(buf: Any = None, seed: int = 0) -> Any:
        return emulation.PettingZooPufferEnv(env_creator=make, buf=buf, seed=seed)

    more: Any = {"backend": vector.Multiprocessing, "num_workers": workers} if workers else {"backend": vector.Serial}
    rows = n * len(make().possible_agents)
    return _stepper(vector.make(creator, num_envs=n, **more), np.random.default_rng(0).integers(0, 5, rows), rows)


def agilerl(make: Callable[[], Any], n: int) -> tuple[Steps, Callable[[], Any]]:
    from agilerl.vector.pz_async_vec_env import AsyncPettingZooVecEnv

    vec: Any = AsyncPettingZooVecEnv([make] * n)
    drawn = {agent: np.random.default_rng(0).integers(0, 5, n) for agent in vec.possible_agents}
    return _stepper(vec, drawn, n * len(drawn))


def torchrl(make: Callable[[], Any], n: int) -> tuple[Steps, Callable[[], Any]]:
    from torchrl.envs import PettingZooWrapper, SerialEnv

    agents = make().possible_agents
    vec: Any = SerialEnv(n, lambda: PettingZooWrapper(make(), group_map={"agents": agents}))
    state = vec.rand_action(vec.reset())

    def step() -> int:
        vec.step_and_maybe_reset(state)
        return n * len(agents)

    return step, vec.close


def _stepper(vec: Any, actions: Any, rows: int) -> tuple[Steps, Callable[[], Any]]:
    vec.reset()

    def step() -> int:
        vec.step(actions)
        return rows

    return step, vec.close


def at_once(make: Callable[[], Any], n: int, *, many: bool) -> dict[str, Side]:
    side = functools.partial
    found: dict[str, Side] = {
        "bare loop": side(bare, make, n),
        "vecenvs": side(ours, make, n, backend="dummy"),
        "vecenvs, 2 workers": side(ours, make, n, backend="subproc", num_workers=2),
    }
    if many:
        found |= {
            "vecenvs, flat()": side(ours, make, n, form="flat", backend="dummy"),
            "vecenvs, as_dicts()": side(ours, make, n, form="dicts", backend="dummy"),
            "SuperSuit": side(supersuit, make, n, 0),
            "SuperSuit, 2 processes": side(supersuit, make, n, 2),
            "PufferLib": side(pufferlib, make, n, 0),
            "PufferLib, 2 processes": side(pufferlib, make, n, 2),
            "AgileRL": side(agilerl, make, n),
            "TorchRL": side(torchrl, make, n),
        }
    return found


def by_turns(name: str, n: int) -> dict[str, Side]:
    make = functools.partial(game, name)
    return {
        "bare loop": functools.partial(bare_turns, make, n),
        "vecenvs": functools.partial(ours, make, n, form="turns", backend="dummy"),
        "vecenvs, 2 workers": functools.partial(ours, make, n, form="turns", backend="subproc", num_workers=2),
    }


CELLS: dict[str, Callable[[], dict[str, Side]]] = {
    "toy, 64": lambda: at_once(Toy, 64, many=True),
    "toy, 8": lambda: at_once(Toy, 8, many=False),
    "simple_spread, 64": lambda: at_once(spread, 64, many=True),
    "connect_four, 64": lambda: by_turns("connect_four", 64),
    "tictactoe, 64": lambda: by_turns("tictactoe", 64),
}
