"""One learner, its envs on all ranks: the cross-entropy method on CartPole.

    python -m vecenvs.mpi -n 5 examples/mpi_train.py
    mpirun -n 5 python examples/mpi_train.py

Needs: pip install ".[mpi]"
"""

import argparse

import numpy as np

from vecenvs import make_vec_env


def returns_of(vec, policies):
    """Play one episode with each policy (num_envs, 5), all at once."""
    obs = vec.reset()
    total = np.zeros(vec.num_envs)
    playing = np.ones(vec.num_envs, bool)
    while playing.any():
        actions = (np.einsum("no,no->n", obs, policies[:, :4]) + policies[:, 4] > 0).astype(np.int64)
        obs, rewards, dones, _ = vec.step(actions)
        total += rewards * playing
        playing &= ~dones
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=10)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    mean, std = np.zeros(5), np.ones(5)
    with make_vec_env("CartPole-v1", num_env=args.num_envs, seed=0, backend="mpi") as vec:
        for iteration in range(args.iterations):
            policies = rng.normal(mean, std, (vec.num_envs, 5))
            returns = returns_of(vec, policies)
            elite = policies[np.argsort(returns)[-max(2, vec.num_envs // 5) :]]
            mean, std = elite.mean(axis=0), elite.std(axis=0) + 0.05
            print(f"iteration {iteration}: mean return {returns.mean():.1f}, best {returns.max():.0f}", flush=True)


if __name__ == "__main__":
    main()
