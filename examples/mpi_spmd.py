"""Every rank a learner with envs of its own: REINFORCE on CartPole with averaged gradients, as baselines did it.

    python -m vecenvs.mpi --spmd -n 4 examples/mpi_spmd.py
    mpirun -n 4 python examples/mpi_spmd.py

Needs: pip install ".[mpi]"
"""

import argparse

import numpy as np
from mpi4py import MPI

from vecenvs import make_vec_env
from vecenvs.mpi import RunningMeanStd, assert_synced, average_gradients, mean_of_dicts, rank_seed, sync_from_root


def rollout(vec, weights, normal, rng, steps):
    """Step the local envs; give observations, actions, probabilities of action 1, and returns to go until the end."""
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
        to_go = rewards + 0.99 * to_go * ~dones
        returns.append(to_go)
    raw, x, actions, p, _, dones = (np.array(column) for column in zip(*rows, strict=True))
    return raw, x, actions, p, np.array(returns[::-1]), int(dones.sum())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-envs", type=int, default=8, help="per rank")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--monitor-dir", default=None)
    args = parser.parse_args()
    seed = rank_seed(0)
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=5) * 0.1
    sync_from_root([weights])
    normal = RunningMeanStd((4,))
    # make_vec_env adds the rank to seeds and monitor files by itself.
    with make_vec_env(
        "CartPole-v1", num_env=args.num_envs, seed=0, backend="dummy", monitor_dir=args.monitor_dir
    ) as vec:
        for iteration in range(args.iterations):
            raw, x, actions, p, returns, episodes = rollout(vec, weights, normal, rng, 200)
            advantage = (returns - returns.mean()) / (returns.std() + 1e-8)
            gradient = np.einsum("tn,tnk->k", (actions - p) * advantage, x) / actions.size
            average_gradients([gradient], weight=actions.size)
            weights += 1.0 * gradient
            normal.update(raw.reshape(-1, 4))
            length = mean_of_dicts({"length": (actions.size / max(episodes, 1), episodes)}).get("length", np.nan)
            if MPI.COMM_WORLD.rank == 0:
                print(f"iteration {iteration}: mean episode length {length:.1f}", flush=True)
        assert_synced([weights, normal.mean, normal.var])


if __name__ == "__main__":
    main()
