"""Run an env in many copies with random actions, and watch its speed, returns, and the load of the workers.

ENV is an id (CartPole-v1, package.module:Env-v0), or a class or function that makes an env (package.module:Class).
The run goes on for --steps of all envs together, or until Ctrl-C. Meanwhile a terminal shows steps/s, episodes,
returns, how much of their time workers step and their memory, also of each (--load), workers that were replaced and
errors of envs. Without a terminal it is a line every ten seconds. `evaluate` plays the episodes of a policy.
On MPI: python -m vecenvs.mpi -n 5 -m vecenvs run ENV --backend mpi
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from vecenvs.cli import INTERRUPTED, _envs
from vecenvs.cli._arguments import count, seed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    _envs.add_arguments(parser)
    parser.add_argument("--seed", metavar="N", type=seed, help="of env 0 and of random actions (default: none)")
    parser.add_argument("--steps", metavar="N", type=count, help="stop after this many steps of all envs together")
    parser.add_argument("--monitor-dir", metavar="DIR", type=Path, help="write monitor files there (see plot)")
    parser.add_argument("--load", action="store_true", help="show how busy each worker is, and its memory")
    parser.add_argument("--quiet", action="store_true", help="no live progress")


def run(args: argparse.Namespace) -> int:
    """Run, then print a summary. Return 1 if an env or a worker failed, 130 after Ctrl-C."""
    from vecenvs.cli._play import Play, shown
    from vecenvs.errors import VecEnvError

    vec = _envs.make_vec(args, seed=args.seed, monitor_dir=args.monitor_dir)
    interrupted = False
    try:
        play = Play(vec, args.seed, load=args.load)
        title = f"{args.env}: {vec.num_envs} env{'s' * (vec.num_envs > 1)}, {vec.stats()['backend']}"
        try:
            with nullcontext(None) if args.quiet else shown(title) as show:
                play.run(show, steps=args.steps)
        except KeyboardInterrupt:
            interrupted = True
        except VecEnvError as error:
            print(f"{args.env}: {error}", file=sys.stderr)  # with the env's own traceback
            return 1
    finally:
        vec.close()
    print(play.summary())
    if args.monitor_dir is not None:
        print(f"monitor files: {args.monitor_dir}")
    if interrupted:
        print("interrupted", file=sys.stderr)
    return INTERRUPTED if interrupted else 0
