"""A learner with envs of its own on every rank: REINFORCE on CartPole with averaged gradients, as in baselines.

    python -m vecenvs.mpi --spmd -n 4 examples/mpi_spmd.py
    mpirun -n 4 python examples/mpi_spmd.py    # Open MPI's refuses root, and more ranks than cores

Needs: pip install ".[mpi]"
"""

import argparse

import numpy as np
from mpi4py import MPI

from vecenvs import make_vec_env
from vecenvs.mpi import RunningMeanStd, assert_synced, average_gradients, mean_of_dicts, rank_seed, sync_from_root


def rollout(vec, weights, normal, rng, steps, gamma):
    """Step the local envs; return observations, network inputs, actions, their probabilities and returns, and episodes.

    All but the number of episodes are arrays of shape (steps, num_envs, ...). The returns are discounted, up to the end
    of the episode or of the rollout.
    """
    obs = vec.reset()
    rows = []
    for _ in range(steps):
        x = np.hstack([(obs - normal.mean) / (normal.std + 1e-8), np.ones((vec.num_envs, 1))])
        p = 1 / (1 + np.exp(-x @ weights))
        actions = (rng.random(vec.num_envs) < p).astype(np.int64)
        raw = obs
        obs, rewards, dones, _ = vec.step(actions)
        rows.append((raw, x, actions, p, rewards, dones))
    to_go, returns = np.zeros(vec.num_envs), []
    for *_, rewards, dones in reversed(rows):
        to_go = rewards + gamma * to_go * ~dones
        returns.append(to_go)
    raw, x, actions, p, _, dones = (np.array(column) for column in zip(*rows, strict=True))
    return raw, x, actions, p, np.array(returns[::-1]), int(dones.sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1", help="an env with vectors as observations and two actions")
    parser.add_argument("--num-envs", type=int, default=8, help="per rank")
    parser.add_argument("--num-steps", type=int, default=200, help="steps of each env between updates")
    parser.add_argument("--total-timesteps", type=int, default=128_000, help="steps of all envs of all ranks together")
    parser.add_argument("--learning-rate", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--monitor-dir", default=None)
    args = parser.parse_args()
    rng = np.random.default_rng(rank_seed(args.seed))
    # make_vec_env adds the rank to seeds and to the names of monitor files.
    with make_vec_env(
        args.env_id, num_envs=args.num_envs, seed=args.seed, backend="dummy", monitor_dir=args.monitor_dir
    ) as vec:
        size = vec.observation_space.shape[0]
        weights = rng.normal(size=size + 1) * 0.1
        sync_from_root([weights])
        normal = RunningMeanStd((size,))
        done = 0
        while done < args.total_timesteps:
            found = rollout(vec, weights, normal, rng, args.num_steps, args.gamma)
            raw, x, actions, p, returns, episodes = found
            advantage = (returns - returns.mean()) / (returns.std() + 1e-8)
            gradient = np.einsum("tn,tnk->k", (actions - p) * advantage, x) / actions.size
            average_gradients([gradient], weight=actions.size)
            weights += args.learning_rate * gradient
            normal.update(raw.reshape(-1, size))
            done += MPI.COMM_WORLD.size * actions.size
            length = mean_of_dicts({"length": (actions.size / max(episodes, 1), episodes)}).get("length", np.nan)
            if MPI.COMM_WORLD.rank == 0:
                print(f"step {done}: mean episode length {length:.1f}", flush=True)
        assert_synced([weights, normal.mean, normal.var])


if __name__ == "__main__":
    main()
