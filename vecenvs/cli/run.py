"""Run an env in many copies, with random actions or a policy, and watch how it goes.

ENV is an id (CartPole-v1, package.module:Env-v0). POLICY is one of

    random                    samples of the action space (default)
    package.module:function   a function from a batch of observations to a batch of actions; a file policy.py in this
                              directory is policy:function
    model.zip                 a model that Stable-Baselines3 saved; like any pickle, it can run code when it is loaded

Dict observations are flattened, unless the model or the --normalize file was made with Dict observations.
The run goes on for --steps or --episodes of all envs together, or until Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vecenvs.cli import UsageError
from vecenvs.cli._arguments import json_object, output

if TYPE_CHECKING:
    from vecenvs.vec_env import VecEnv

_INTERRUPTED = 130
_VIDEOS = (".mp4", ".mkv", ".mov", ".avi")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("env", metavar="ENV", help="env id")
    parser.add_argument("--policy", metavar="POLICY", default="random", help="default: random")
    parser.add_argument("--algo", metavar="CLASS", help="of a model.zip: PPO, SAC ... or package.module:Class")
    parser.add_argument("--stochastic", action="store_true", help="sample a model's actions, not its most likely ones")
    parser.add_argument("--normalize", metavar="FILE", type=Path, help="statistics that VecNormalize saved")
    parser.add_argument("--backend", metavar="BACKEND", help="dummy, subproc (default for several), mpi, ray, auto")
    parser.add_argument("--num-envs", metavar="N", type=_count, default=8, help="default: 8")
    parser.add_argument("--num-workers", metavar="N", type=_count, help="default: one per core")
    parser.add_argument("--env-kwargs", metavar="JSON", type=json_object, default={}, help="for gym.make")
    parser.add_argument("--seed", metavar="N", type=_whole, help="of env 0 and of random actions (default: none)")
    parser.add_argument("--steps", metavar="N", type=_count, help="stop after so many steps of all envs together")
    parser.add_argument("--episodes", metavar="N", type=_count, help="stop after so many episodes")
    parser.add_argument("--monitor-dir", metavar="DIR", type=Path, help="write monitor files there (see plot)")
    parser.add_argument("--video", metavar="FILE", type=_video, help="film all envs, tiled")
    parser.add_argument("--video-steps", metavar="N", type=_count, default=500, help="length (default: 500)")
    parser.add_argument("--quiet", action="store_true", help="no live progress")


def run(args: argparse.Namespace) -> int:
    """Run, then say what came of it. 1 if an env or a worker failed, 130 after Ctrl-C."""
    from vecenvs.cli._play import Play, Tally
    from vecenvs.errors import VecEnvError

    vec = _made(args)
    tally = Tally(vec.num_envs)
    interrupted = False
    try:
        play = _prepared(args, vec, tally, Play)
        try:
            play.run(steps=args.steps, episodes=args.episodes)
        except KeyboardInterrupt:
            interrupted = True
        except VecEnvError as error:
            print(f"{args.env}: {error}", file=sys.stderr)  # with the env's own traceback
            return 1
        finally:
            play.close()
    finally:
        vec.close()
    files = {"monitor files": args.monitor_dir, "video": args.video}
    print(tally.summary(), *(f"{name}: {path}" for name, path in files.items() if path is not None), sep="\n")
    if interrupted:
        print("interrupted", file=sys.stderr)
    return _INTERRUPTED if interrupted else 0


def _made(args: argparse.Namespace) -> VecEnv:
    """Make the envs; whatever is wrong with the arguments shows here."""
    from vecenvs.make.make_vec_env import make_vec_env
    from vecenvs.wrappers import VecNormalize

    env_kwargs = {**args.env_kwargs, **({"render_mode": "rgb_array"} if args.video is not None else {})}
    try:
        as_dicts = _made_of_dicts(args)
        vec = make_vec_env(
            args.env,
            num_env=args.num_envs,
            seed=args.seed,
            env_kwargs=env_kwargs,
            backend=args.backend,
            num_workers=args.num_workers,
            monitor_dir=args.monitor_dir,
            flatten_dict_observations=not as_dicts,
        )
    except Exception as error:  # an unknown env or backend, a keyword that the env does not take: all of them input
        raise UsageError(_line(error)) from None
    if args.normalize is None:
        return vec
    try:
        normalized = VecNormalize.load(args.normalize, vec)
    except (ValueError, OSError) as error:
        vec.close()
        raise UsageError(_line(error)) from None
    normalized.training = False
    return normalized


def _made_of_dicts(args: argparse.Namespace) -> bool:
    """Tell whether what is to play, or the statistics, were made with Dict observations."""
    from vecenvs.cli._policies import wants_dicts
    from vecenvs.wrappers import vec_normalize_file

    if wants_dicts(args.policy):
        return True
    return args.normalize is not None and vec_normalize_file.read(args.normalize)[0]["norm_obs_keys"] is not None


def _prepared(args: argparse.Namespace, vec: VecEnv, tally: Any, play: type[Any]) -> Any:
    """Load the policy and open the video."""
    from vecenvs.cli._policies import load_policy
    from vecenvs.wrappers.vec_video_writer import VideoWriter

    try:
        policy = load_policy(args.policy, vec, seed=args.seed, algo=args.algo, deterministic=not args.stochastic)
        writer = None
        if args.video is not None:
            if vec.render_mode != "rgb_array":
                raise UsageError(f"{args.env} gives no images: leave --video out")
            writer = VideoWriter(args.video, (vec.metadata or {}).get("render_fps") or 30)
        return play(vec, policy, tally, writer, args.video_steps, live=not args.quiet, title=_title(args, vec))
    except (ImportError, ValueError, OSError) as error:
        raise UsageError(_line(error)) from None


def _title(args: argparse.Namespace, vec: VecEnv) -> str:
    backend = str(vec.stats()["backend"])
    return f"{args.env}: {vec.num_envs} env{'s' * (vec.num_envs > 1)}, {backend}, policy {args.policy}"


def _line(error: BaseException) -> str:
    """Write an error in one line: without the traceback that an EnvError's text ends with."""
    return " ".join(str(error).partition("\n\nTraceback")[0].split()) or type(error).__name__


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _video(text: str) -> Path:
    path = Path(text)
    if path.suffix not in _VIDEOS:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(_VIDEOS)}")
    return output(text)
