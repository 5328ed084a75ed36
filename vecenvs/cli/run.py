"""Run an env in many copies, with random actions or a policy, and watch the returns.

ENV is an id (CartPole-v1, package.module:Env-v0), or a class or function that makes an env (package.module:Class).
POLICY is one of

    random                    samples of the action space (default)
    package.module:function   a function from a batch of observations to a batch of actions; policy:function is in a
                              file policy.py in this directory
    model.zip                 a model that Stable-Baselines3 saved; like any pickle, it can run code when it is loaded

Dict observations are flattened, unless the model or the --normalize file was made with Dict observations.
The run goes on for --steps or --episodes of all envs together, or until Ctrl-C. Meanwhile a terminal shows steps/s,
episodes, returns, workers that were replaced, and the load of each worker (--load). Without a terminal it is a line
every ten seconds. On MPI: python -m vecenvs.mpi -n 5 -m vecenvs run ENV --backend mpi
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from vecenvs.cli import INTERRUPTED, UsageError
from vecenvs.cli._arguments import count, json_object, seed

if TYPE_CHECKING:
    from vecenvs.vec_env import VecEnv


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("env", metavar="ENV", help="env id, or package.module:name of a class or function")
    parser.add_argument("--policy", metavar="POLICY", default="random", help="default: random")
    parser.add_argument("--algo", metavar="CLASS", help="of a model.zip: PPO, SAC ... or package.module:Class")
    parser.add_argument("--stochastic", action="store_true", help="sample a model's actions, not its most likely ones")
    parser.add_argument("--normalize", metavar="FILE", type=Path, help="statistics that VecNormalize saved")
    parser.add_argument(
        "--backend",
        metavar="BACKEND",
        help="dummy, subproc, mpi, ray or auto (default: as in make_vec_env, dummy for one env, for up to 16 of "
        "Gymnasium's cheapest and on one core; else subproc, where this process steps a share)",
    )
    parser.add_argument("--num-envs", metavar="N", type=count, default=8, help="default: 8")
    parser.add_argument("--num-workers", metavar="N", type=count, help="default: one per core; dummy has none")
    parser.add_argument(
        "--on-failure",
        choices=("raise", "restart"),
        default="raise",
        help="what follows when a worker dies: the end (default), or another one in its place, at most ten times",
    )
    parser.add_argument("--env-kwargs", metavar="JSON", type=json_object, default={}, help="for the env's constructor")
    parser.add_argument("--seed", metavar="N", type=seed, help="of env 0 and of random actions (default: none)")
    parser.add_argument("--steps", metavar="N", type=count, help="stop after this many steps of all envs together")
    parser.add_argument("--episodes", metavar="N", type=count, help="stop after this many episodes")
    parser.add_argument("--monitor-dir", metavar="DIR", type=Path, help="write monitor files there (see plot)")
    parser.add_argument("--load", action="store_true", help="show how much of a core each worker uses")
    parser.add_argument("--quiet", action="store_true", help="no live progress")


def run(args: argparse.Namespace) -> int:
    """Run, then print a summary. Return 1 if an env or a worker failed, 130 after Ctrl-C."""
    from vecenvs.cli._play import Play, shown
    from vecenvs.cli._policies import load_policy, normalized, wants_dicts
    from vecenvs.errors import VecEnvError

    try:
        vec = _make_vec(args, flatten=not wants_dicts(args.policy, args.normalize))
    except Exception as error:  # an unknown env or backend, or a keyword that the env does not take
        raise UsageError(_line(error)) from None
    interrupted = False
    try:
        try:
            vec = normalized(vec, args.normalize)
            policy = load_policy(args.policy, vec, seed=args.seed, algo=args.algo, deterministic=not args.stochastic)
        except (ImportError, ValueError, OSError) as error:
            raise UsageError(_line(error)) from None
        play = Play(vec, policy, load=args.load)
        envs = f"{vec.num_envs} env{'s' * (vec.num_envs > 1)}"
        title = f"{args.env}: {envs}, {vec.stats()['backend']}, policy {args.policy}"
        try:
            with nullcontext(None) if args.quiet else shown(title) as show:
                play.run(show, steps=args.steps, episodes=args.episodes)
        except KeyboardInterrupt:
            interrupted = True
        except VecEnvError as error:
            print(f"{args.env}: {error}", file=sys.stderr)  # with the env's own traceback
            return 1
    finally:
        vec.close()
    restarts = vec.stats().get("restarts", 0)
    print(play.summary() + (f"; workers replaced: {restarts}" if restarts else ""))
    if args.monitor_dir is not None:
        print(f"monitor files: {args.monitor_dir}")
    if interrupted:
        print("interrupted", file=sys.stderr)
    return INTERRUPTED if interrupted else 0


def _make_vec(args: argparse.Namespace, *, flatten: bool) -> VecEnv:
    from vecenvs.make.env_types import find_source
    from vecenvs.make.make_vec_env import make_vec_env

    source = find_source(args.env)
    return make_vec_env(
        source if callable(source) else args.env,
        num_envs=args.num_envs,
        seed=args.seed,
        env_kwargs=args.env_kwargs,
        backend=args.backend,
        num_workers=args.num_workers,
        monitor_dir=args.monitor_dir,
        flatten_dict_observations=flatten,
        on_failure=args.on_failure,
    )


def _line(error: BaseException) -> str:
    """Return an error in one line, without the traceback at the end of an EnvError's text."""
    return " ".join(str(error).partition("\n\nTraceback")[0].split()) or type(error).__name__
