"""Run an env in many copies, with random actions or a policy, and watch the returns.

ENV is an id (CartPole-v1, package.module:Env-v0). POLICY is one of

    random                    samples of the action space (default)
    package.module:function   a function from a batch of observations to a batch of actions; policy:function is in a
                              file policy.py in this directory
    model.zip                 a model that Stable-Baselines3 saved; like any pickle, it can run code when it is loaded

Dict observations are flattened, unless the model or the --normalize file was made with Dict observations.
The run goes on for --steps or --episodes of all envs together, or until Ctrl-C. Meanwhile a terminal shows steps/s,
episodes, returns, workers that were replaced (--restart), and the load of each worker (--load). Without a terminal
it is a line every ten seconds. On MPI: python -m vecenvs.mpi -n 5 -m vecenvs run ENV --backend mpi
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vecenvs.cli import INTERRUPTED, UsageError
from vecenvs.cli._arguments import count, json_object, seed

if TYPE_CHECKING:
    from vecenvs.vec_env import VecEnv


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("env", metavar="ENV", help="env id")
    parser.add_argument("--policy", metavar="POLICY", default="random", help="default: random")
    parser.add_argument("--algo", metavar="CLASS", help="of a model.zip: PPO, SAC ... or package.module:Class")
    parser.add_argument("--stochastic", action="store_true", help="sample a model's actions, not its most likely ones")
    parser.add_argument("--normalize", metavar="FILE", type=Path, help="statistics that VecNormalize saved")
    parser.add_argument("--backend", metavar="BACKEND", help="dummy, subproc (default for several), mpi, ray, auto")
    parser.add_argument("--num-envs", metavar="N", type=count, default=8, help="default: 8")
    parser.add_argument("--num-workers", metavar="N", type=count, help="default: one per core")
    parser.add_argument("--restart", action="store_true", help="replace workers that die, at most ten")
    parser.add_argument("--env-kwargs", metavar="JSON", type=json_object, default={}, help="for gym.make")
    parser.add_argument("--seed", metavar="N", type=seed, help="of env 0 and of random actions (default: none)")
    parser.add_argument("--steps", metavar="N", type=count, help="stop after this many steps of all envs together")
    parser.add_argument("--episodes", metavar="N", type=count, help="stop after this many episodes")
    parser.add_argument("--monitor-dir", metavar="DIR", type=Path, help="write monitor files there (see plot)")
    parser.add_argument("--load", action="store_true", help="show how much of a core each worker uses")
    parser.add_argument("--quiet", action="store_true", help="no live progress")


def run(args: argparse.Namespace) -> int:
    """Run, then print a summary. Return 1 if an env or a worker failed, 130 after Ctrl-C."""
    from vecenvs.cli._play import Play, Tally
    from vecenvs.errors import VecEnvError

    vec = _make_vec(args)
    tally = Tally(vec.num_envs)
    interrupted = False
    try:
        play = _make_play(args, vec, tally, Play)
        try:
            play.run(steps=args.steps, episodes=args.episodes)
        except KeyboardInterrupt:
            interrupted = True
        except VecEnvError as error:
            print(f"{args.env}: {error}", file=sys.stderr)  # with the env's own traceback
            return 1
    finally:
        vec.close()
    restarts = vec.stats().get("restarts", 0)
    print(tally.summary() + (f"; workers replaced: {restarts}" if restarts else ""))
    if args.monitor_dir is not None:
        print(f"monitor files: {args.monitor_dir}")
    if interrupted:
        print("interrupted", file=sys.stderr)
    return INTERRUPTED if interrupted else 0


def _make_vec(args: argparse.Namespace) -> VecEnv:
    """Make the envs. Raise UsageError if an argument is wrong."""
    from vecenvs.make.make_vec_env import make_vec_env
    from vecenvs.wrappers import VecNormalize

    try:
        as_dicts = _needs_dicts(args)
        vec = make_vec_env(
            args.env,
            num_env=args.num_envs,
            seed=args.seed,
            env_kwargs=args.env_kwargs,
            backend=args.backend,
            num_workers=args.num_workers,
            monitor_dir=args.monitor_dir,
            flatten_dict_observations=not as_dicts,
            on_failure="restart" if args.restart else "raise",
        )
    except Exception as error:  # an unknown env or backend, or a keyword that the env does not take
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


def _needs_dicts(args: argparse.Namespace) -> bool:
    """Return whether the policy or the statistics were made with Dict observations."""
    from vecenvs.cli._policies import wants_dicts
    from vecenvs.wrappers import vec_statistics

    if wants_dicts(args.policy):
        return True
    return args.normalize is not None and vec_statistics.read(args.normalize)[0]["norm_obs_keys"] is not None


def _make_play(args: argparse.Namespace, vec: VecEnv, tally: Any, play: type[Any]) -> Any:
    """Load the policy."""
    from vecenvs.cli._policies import load_policy

    try:
        policy = load_policy(args.policy, vec, seed=args.seed, algo=args.algo, deterministic=not args.stochastic)
        return play(vec, policy, tally, live=not args.quiet, load=args.load, title=_title(args, vec))
    except (ImportError, ValueError, OSError) as error:
        raise UsageError(_line(error)) from None


def _title(args: argparse.Namespace, vec: VecEnv) -> str:
    backend = str(vec.stats()["backend"])
    return f"{args.env}: {vec.num_envs} env{'s' * (vec.num_envs > 1)}, {backend}, policy {args.policy}"


def _line(error: BaseException) -> str:
    """Return an error in one line, without the traceback at the end of an EnvError's text."""
    return " ".join(str(error).partition("\n\nTraceback")[0].split()) or type(error).__name__
