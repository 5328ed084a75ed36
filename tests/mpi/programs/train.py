"""A user's script: envs defined here, a train and an eval VecEnv; unequal shards; checked against DummyVecEnv."""

import sys

import gymnasium
import numpy as np

from vecenvs import DummyVecEnv
from vecenvs.backends.mpi import MpiVecEnv

print("one more rank runs this script", flush=True)


class Walk(gymnasium.Env):
    """Defined in `__main__`, with random observations from its seed."""

    observation_space = gymnasium.spaces.Box(-99.0, 99.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(0), {}

    def step(self, action):
        self.t += 1
        return self._obs(action), float(action), self.t >= 7, False, {"t": self.t}

    def _obs(self, action):
        return self.np_random.normal(action, size=3).astype(np.float32)


class Outer(gymnasium.Wrapper):
    """Another class that only this script has."""


def trace(vec, steps):
    rows = [vec.reset(seed=3)]
    for t in range(steps):
        obs, rewards, dones, infos = vec.step(np.full(vec.num_envs, t % 3))
        rows += [obs, rewards, dones, np.array([info["t"] for info in infos])]
    return rows


def main():
    options = {"transport": "messages" if "messages" in sys.argv else "auto"}
    plain = DummyVecEnv([Walk] * 7)
    expected = trace(plain, 40)
    plain.close()
    train = MpiVecEnv([Walk] * 7, **options)
    evaluation = MpiVecEnv([lambda: Outer(Walk())] * 2, **options)
    for _ in range(2):
        assert all(np.array_equal(a, b) for a, b in zip(expected, trace(train, 40), strict=True))
        trace(evaluation, 5)
    assert evaluation.env_is_wrapped(Outer) == [True, True]
    assert train.env_is_wrapped(Outer) == [False] * 7
    evaluation.close()
    if "fail" in sys.argv:
        raise ZeroDivisionError("the script's own mistake")
    used = train._places.used.values()
    print(
        "all is equal",
        train.stats()["num_workers"],
        sorted({peer.shares for peer in used}),
        {peer.host for peer in used},
        sorted(train.stats()["transports"]),
    )


if __name__ == "__main__":
    main()
