"""One policy plays tic-tac-toe against itself, by turns, with masks of the possible moves; then it meets random moves.

    python examples/agents_self_play.py
    python examples/agents_self_play.py --num-envs 64 --total-timesteps 300000

Needs: pip install ".[agents]" torch
"""

from __future__ import annotations

import argparse
import functools
import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from vecenvs import MultiAgentVecEnv, make_multi_agent


def make_game(env_id: str) -> Any:
    """Make a game, without PettingZoo's advice on the way of making one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(f"pettingzoo.classic.{env_id}").env()


def policy_of(net: nn.Module, vec: MultiAgentVecEnv, obs: Any) -> tuple[Categorical, torch.Tensor]:
    """Return the policy of the agent that acts in each env, and what it sees."""
    envs, acting = np.arange(vec.num_envs), vec.acting
    seen = torch.as_tensor(obs["agents"][envs, acting].reshape(vec.num_envs, -1), dtype=torch.float32)
    masks = vec.action_mask
    assert masks is not None
    possible = torch.as_tensor(masks["agents"][envs, acting]).bool()
    return Categorical(logits=net(seen).masked_fill(~possible, -1e9)), seen


def play(net: nn.Module, vec: MultiAgentVecEnv, games: int) -> float:
    """Return the mean result of games of the policy, which moves first, against random moves."""
    results: list[float] = []
    obs = vec.reset()
    while len(results) < games:
        policy, _ = policy_of(net, vec, obs)
        mine = policy.probs.argmax(dim=1).numpy()
        others = Categorical(probs=(policy.probs > 0).float()).sample().numpy()
        obs, rewards, dones, _ = vec.step(np.where(vec.acting == 0, mine, others))
        results += rewards["agents"][dones, 0].tolist()
    return float(np.mean(results[:games]))


def main(argv: Sequence[str] | None = None) -> tuple[float, float]:
    """Train; return the mean results of 200 games against random moves, before and after (1 won, -1 lost)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env-id", default="tictactoe_v3", help="a module of pettingzoo.classic with two players")
    parser.add_argument("--backend", default="dummy")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--total-timesteps", type=int, default=90_000, help="moves")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    make = functools.partial(make_game, args.env_id)
    with make_multi_agent(make, args.num_envs, backend=args.backend, seed=args.seed) as vec:
        size = int(np.prod(vec.observation_spaces["agents"].shape))
        net = nn.Sequential(nn.Linear(size, 128), nn.Tanh(), nn.Linear(128, int(vec.action_spaces["agents"].n)))
        optimizer = torch.optim.Adam(net.parameters(), lr=args.learning_rate)
        before = play(net, vec, 200)
        print(f"before: mean result {before:+.2f}", flush=True)
        obs = vec.reset()
        # The moves of each agent in the game under way, until its result is known.
        moves: list[list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = [[] for _ in range(2 * vec.num_envs)]
        for _ in range(args.total_timesteps // (9 * args.num_envs)):
            done: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]] = []
            for _ in range(9):
                policy, seen = policy_of(net, vec, obs)
                actions, acting, logits = policy.sample(), vec.acting, policy.logits.detach()
                for i in range(vec.num_envs):
                    moves[2 * i + acting[i]].append((seen[i], actions[i], logits[i]))
                obs, rewards, dones, _ = vec.step(actions.numpy())
                for i in np.flatnonzero(dones):
                    for agent in range(2):
                        result = float(rewards["agents"][i, agent])
                        done += [(*move, result) for move in moves[2 * i + agent]]
                        moves[2 * i + agent] = []
            seen, actions, before_logits = (torch.stack([row[k] for row in done]) for k in range(3))  # type: ignore[misc]
            results = torch.tensor([row[3] for row in done])
            learned = Categorical(logits=net(seen).masked_fill(before_logits < -1e6, -1e9))
            loss = -(learned.log_prob(actions) * (results - results.mean())).mean() - 0.02 * learned.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after = play(net, vec, 200)
        print(f"after {args.total_timesteps} moves: mean result {after:+.2f}", flush=True)
    return before, after


if __name__ == "__main__":
    main()
