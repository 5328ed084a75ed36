"""Train PPO of Stable-Baselines3 so that a killed run goes on as if nothing had happened: the weights are the same.

    python examples/sb3_resume.py run.npz                 # kill it whenever you like, and start it again
    python examples/sb3_resume.py run.npz --backend dummy # or go on with other engines

After each update it saves the envs, the wrappers, the model and all random generators in one file. PPO.load unpickles
the model: load no file that others could have written. Needs: pip install 'vecenvs[sb3]'
"""

from __future__ import annotations

import argparse
import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from vecenvs import VecNormalize, as_sb3, make_vec_env
from vecenvs.state import load, save


class SaveRollouts(BaseCallback):
    """Save the run before each rollout but the first: then the update of the one before is done.

    Args:
        vec: the VecEnv.
        path: the file.
    """

    def __init__(self, vec: VecNormalize, path: str) -> None:
        super().__init__()
        self.vec, self.path = vec, path

    def _on_rollout_start(self) -> None:
        if self.model.num_timesteps:
            model = io.BytesIO()
            self.model.save(model)
            rows = self.model._last_obs, self.model._last_episode_starts
            generators = random.getstate(), np.random.get_state(), torch.get_rng_state().numpy()  # noqa: NPY002
            save(self.vec, self.path, extra=(model.getvalue(), rows, generators))
            print(f"{self.model.num_timesteps} steps are saved", flush=True)

    def _on_step(self) -> bool:
        return True


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train, or go on; return the weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="the file of the run")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="subproc")
    parser.add_argument("--total-timesteps", type=int, default=40_000)
    args = parser.parse_args(argv)
    with VecNormalize(make_vec_env(args.env_id, num_envs=args.num_envs, backend=args.backend, seed=args.seed)) as vec:
        if Path(args.path).exists():
            data, rows, (python, numpy, generator) = load(vec, args.path)
            model = PPO.load(io.BytesIO(data), env=as_sb3(vec), force_reset=False, device="cpu")
            model._last_obs, model._last_episode_starts = rows
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            torch.set_rng_state(torch.as_tensor(generator))
        else:
            model = PPO("MlpPolicy", as_sb3(vec), n_steps=64, batch_size=128, n_epochs=4, seed=args.seed, device="cpu")
        left = args.total_timesteps - model.num_timesteps
        model.learn(left, callback=SaveRollouts(vec, args.path), reset_num_timesteps=not model.num_timesteps)
    return dict(model.policy.state_dict())


if __name__ == "__main__":
    main()
