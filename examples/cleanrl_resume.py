"""Train CleanRL's PPO so that a killed run goes on as if nothing had happened: the weights are the same.

    python examples/cleanrl_resume.py run.npz                 # kill it whenever you like, and start it again
    python examples/cleanrl_resume.py run.npz --backend dummy # or go on with other engines

After each update it saves the envs, the weights, the optimizer and all random generators in one file, which
has no pickles. Needs: pip install torch
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ppo_cleanrl_style import Agent, advantages, parse, update

from vecenvs import as_gymnasium, make_vec_env
from vecenvs.state import load, save


def arrays(state: Any) -> Any:
    """Return a state_dict with arrays in place of tensors."""
    if isinstance(state, dict):
        return {key: arrays(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [arrays(value) for value in state]
    return state.numpy().copy() if isinstance(state, torch.Tensor) else state


def tensors(state: Any) -> Any:
    """Return a state_dict again."""
    if isinstance(state, dict):
        return {key: tensors(value) for key, value in state.items()}
    if isinstance(state, list):
        return [tensors(value) for value in state]
    return torch.as_tensor(state) if isinstance(state, np.ndarray) else state


def train(path: str, args: argparse.Namespace, stop_after: int | None = None) -> dict[str, torch.Tensor]:
    """Train, or go on; return the weights. `stop_after` so many updates in all it ends without a word, as if killed."""
    torch.manual_seed(args.seed)
    vec = make_vec_env(args.env_id, num_envs=args.num_envs, backend=args.backend, seed=args.seed)
    envs = as_gymnasium(vec)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    updates = max(1, args.total_timesteps // (args.num_steps * args.num_envs))
    first, given = 0, envs.reset(seed=args.seed)[0]
    if Path(path).exists():
        first, given, weights, optimized, python, generator = load(vec, path)
        agent.load_state_dict(tensors(weights))
        optimizer.load_state_dict(tensors(optimized))
        random.setstate(python)
        torch.set_rng_state(torch.as_tensor(generator))
        print(f"goes on after {first} updates", flush=True)
    rows = (args.num_steps, args.num_envs)
    for iteration in range(first, updates):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - iteration / updates)
        obs = torch.zeros((*rows, *envs.single_observation_space.shape))
        actions, log_probs = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows)
        rewards, dones, values = torch.zeros(rows), torch.zeros(rows), torch.zeros(rows)
        for t in range(args.num_steps):
            obs[t] = torch.as_tensor(given, dtype=torch.float32)
            with torch.no_grad():
                policy = agent.policy(obs[t])
                actions[t] = policy.sample()
                log_probs[t] = policy.log_prob(actions[t])
                values[t] = agent.value(obs[t])
            given, reward, terminated, truncated, _ = envs.step(actions[t].numpy())
            rewards[t], dones[t] = torch.as_tensor(reward), torch.as_tensor(np.logical_or(terminated, truncated))
        with torch.no_grad():
            advantage = advantages(
                args, rewards, dones, values, agent.value(torch.as_tensor(given, dtype=torch.float32))
            )
        batch = {"obs": obs, "actions": actions, "log_probs": log_probs, "advantages": advantage}
        batch["returns"] = advantage + values
        update(args, agent, optimizer, {name: value.flatten(0, 1) for name, value in batch.items()})
        if iteration + 1 == stop_after:
            break  # after the update that is not saved
        learned = arrays(agent.state_dict()), arrays(optimizer.state_dict())
        generators = random.getstate(), torch.get_rng_state().numpy()
        save(vec, path, extra=(iteration + 1, given, *learned, *generators))
    envs.close()
    return dict(agent.state_dict())


def main(argv: Sequence[str] | None = None, stop_after: int | None = None) -> dict[str, torch.Tensor]:
    """Train, or go on; return the weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="the file of the run")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--backend", default="subproc")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    return train(args.path, argparse.Namespace(**{**vars(parse([])), **vars(args)}), stop_after)


if __name__ == "__main__":
    main()
