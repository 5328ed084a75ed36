"""Train one policy for three agents that have to cover three places (simple_spread of MPE2), with PPO of SB3.

    python examples/agents_sb3.py                             # some minutes
    python examples/agents_sb3.py --num-envs 32 --total-timesteps 1000000

Needs: pip install ".[sb3,agents]" mpe2
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3 import PPO

from vecenvs import VecMonitor, as_sb3, make_multi_agent


def mean_return(vec: VecMonitor, policy: Any, episodes: int) -> float:
    """Return the mean return of the next episodes of agents under a policy."""
    returns: list[float] = []
    obs = vec.reset()
    while len(returns) < episodes:
        obs, _, dones, infos = vec.step(policy(obs))
        returns += [infos[row]["episode"]["r"] for row in np.flatnonzero(dones)]
    return float(np.mean(returns[:episodes]))


def main(argv: Sequence[str] | None = None) -> tuple[float, float]:
    """Train; return the mean return of an agent's episode by random actions, and after training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="simple_spread_v3", help="a module of mpe2 whose agents have equal spaces")
    parser.add_argument("--backend", default="dummy")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--total-timesteps", type=int, default=300_000, help="steps of agents")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    make = importlib.import_module(f"mpe2.{args.env_id}").parallel_env
    agents = make_multi_agent(make, args.num_envs, backend=args.backend, seed=args.seed)
    with VecMonitor(agents.flat()) as vec:
        rng = np.random.default_rng(args.seed)
        before = mean_return(vec, lambda obs: rng.integers(5, size=len(obs)), 300)
        print(f"random actions: mean return {before:.1f}", flush=True)
        model = PPO("MlpPolicy", as_sb3(vec), n_steps=100, batch_size=1200, n_epochs=5, seed=args.seed,
                    learning_rate=args.learning_rate, device="cpu")  # fmt: skip
        model.learn(args.total_timesteps)
        after = mean_return(vec, lambda obs: model.predict(obs)[0], 300)
        print(f"after {model.num_timesteps} steps: mean return {after:.1f}", flush=True)
    return before, after


if __name__ == "__main__":
    main()
