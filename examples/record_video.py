"""Film envs, all in one picture, while random actions or a model of Stable-Baselines3 play them.

    python examples/record_video.py                              # videos/CartPole-v1-step-0-to-step-200.mp4
    python examples/record_video.py --env-id Acrobot-v1 --num-envs 9
    python examples/record_video.py --model ppo.zip              # a model that PPO has saved

Needs: pip install ".[video]", and for --model stable-baselines3
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from vecenvs import VecEnv, VecVideoRecorder, make_vec_env


def policy_of(args: argparse.Namespace, vec: VecEnv) -> Callable[[Any], Any]:
    """Return a function from a batch of observations to a batch of actions."""
    if args.model is None:
        vec.action_space.seed(args.seed)
        return lambda obs: [vec.action_space.sample() for _ in range(vec.num_envs)]
    from stable_baselines3 import PPO

    model = PPO.load(args.model, device="cpu")
    return lambda obs: model.predict(obs, deterministic=True)[0]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--total-timesteps", type=int, default=800, help="of all envs together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", help="a file that PPO.save has written (default: random actions)")
    parser.add_argument("--video-folder", default="videos")
    args = parser.parse_args(argv)

    length = args.total_timesteps // args.num_envs
    vec = make_vec_env(
        args.env_id, num_envs=args.num_envs, seed=args.seed, env_kwargs={"render_mode": "rgb_array"}, backend="dummy"
    )
    with VecVideoRecorder(vec, args.video_folder, lambda step: step == 0, length, name_prefix=args.env_id) as film:
        policy, obs = policy_of(args, film), film.reset()
        for _ in range(length):
            obs, _, dones, infos = film.step(policy(obs))
            for env in dones.nonzero()[0]:
                print(f"env {env}: return {infos[env]['episode']['r']:g}", flush=True)
    print(f"the film is in {args.video_folder}/", flush=True)


if __name__ == "__main__":
    main()
