"""One learner with envs on all ranks: the cross-entropy method on CartPole.

    python -m vecenvs.mpi -n 5 examples/mpi_train.py
    mpirun -n 5 python examples/mpi_train.py    # Open MPI's refuses root, and more ranks than cores

Needs: pip install ".[mpi]"
"""

import argparse

import numpy as np

from vecenvs import make_vec_env


def play(vec, policies):
    """Play one episode with each policy, a row of `policies`, all at once.

    Return the returns (num_envs,), and how many steps all envs have taken together.
    """
    obs, steps = vec.reset(), 0
    total = np.zeros(vec.num_envs)
    playing = np.ones(vec.num_envs, bool)
    while playing.any():
        actions = (np.einsum("no,no->n", obs, policies[:, :-1]) + policies[:, -1] > 0).astype(np.int64)
        obs, rewards, dones, _ = vec.step(actions)
        total += rewards * playing
        playing &= ~dones
        steps += vec.num_envs
    return total, steps


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1", help="an env with vectors as observations and two actions")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--total-timesteps", type=int, default=100_000, help="steps of all envs together")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    with make_vec_env(args.env_id, num_envs=args.num_envs, seed=args.seed, backend="mpi") as vec:
        size = vec.observation_space.shape[0] + 1
        mean, std = np.zeros(size), np.ones(size)
        done = 0
        while done < args.total_timesteps:
            policies = rng.normal(mean, std, (vec.num_envs, size))
            returns, steps = play(vec, policies)
            done += steps
            elite = policies[np.argsort(returns)[-max(2, vec.num_envs // 5) :]]
            mean, std = elite.mean(axis=0), elite.std(axis=0) + 0.05
            print(f"step {done}: mean return {returns.mean():.1f}, best {returns.max():.0f}", flush=True)


if __name__ == "__main__":
    main()
