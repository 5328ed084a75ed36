"""Write the table of docs/state.md: by which way envs are put into a state, tried. `python docs/state_table.py`."""

from __future__ import annotations

import pickle
import re
import warnings
from functools import partial
from pathlib import Path

import ale_py
import gymnasium
import numpy as np

import vecenvs

PAGE = Path(__file__).parent / "state.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- /table -->)", re.DOTALL)
IDS = [
    "CartPole-v1",
    "FrozenLake-v1",
    "HalfCheetah-v5",
    "Humanoid-v5",
    "ALE/Breakout-v5",
    "LunarLander-v3",
    "BipedalWalker-v3",
]
WAYS = {"state": "exact state", "replay": "replay, with `episode_seeds`", "": "restart only"}


def played(vec: vecenvs.VecEnv, steps: int, seed: int) -> bytes:
    rng, space, rows = np.random.default_rng(seed), vec.action_space, []
    for _ in range(steps):
        discrete = isinstance(space, gymnasium.spaces.Discrete)
        rows.append(vec.step(rng.integers(space.n, size=1) if discrete else rng.uniform(-1, 1, (1, *space.shape)))[:3])
    return pickle.dumps(rows)


def row_of(env_id: str) -> str:
    """Try one kind of env: 200 steps after a snapshot, in another env."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gymnasium.register_envs(ale_py)
        make = partial(vecenvs.DummyVecEnv, [partial(gymnasium.make, env_id)], episode_seeds=True)
        with make() as vec, make() as other:
            vec.reset(seed=1)
            played(vec, 237, 1)
            state = vec.get_state()[0]
            expected = played(vec, 200, 2)
            try:
                other.set_state(state)
                way = state.way if played(other, 200, 2) == expected else ""
            except vecenvs.StateError:
                way = ""
    return f"| {env_id} | {WAYS[way]} |\n"


def table() -> str:
    return "\n| env | class |\n|---|---|\n" + "".join(map(row_of, IDS)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
