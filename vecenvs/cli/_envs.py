"""The arguments of `run` and `evaluate` that say which envs are made, and where they live."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from vecenvs.cli import UsageError
from vecenvs.cli._arguments import count, json_object

if TYPE_CHECKING:
    from vecenvs.vec_env import VecEnv


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument("env", metavar="ENV", help="env id, or package.module:name of a class or function")
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
    parser.add_argument(
        "--on-error",
        choices=("raise", "reset", "renew"),
        default="raise",
        help="what follows when an env raises: the end (default), or its episode ends and it is reset or made anew",
    )
    parser.add_argument("--env-kwargs", metavar="JSON", type=json_object, default={}, help="for the env's constructor")


def make_vec(args: argparse.Namespace, **arguments: Any) -> VecEnv:
    """Make the VecEnv. UsageError for an unknown env or backend, or a keyword that the env does not take."""
    from vecenvs.make.env_types import find_source
    from vecenvs.make.make_vec_env import make_vec_env

    try:
        source = find_source(args.env)
        return make_vec_env(
            source if callable(source) else args.env,
            num_envs=args.num_envs,
            env_kwargs=args.env_kwargs,
            backend=args.backend,
            num_workers=args.num_workers,
            on_failure=args.on_failure,
            on_error=args.on_error,
            **arguments,
        )
    except Exception as error:
        raise UsageError(one_line(error)) from None


def one_line(error: BaseException) -> str:
    """Return an error in one line, without the traceback at the end of an EnvError's text."""
    return " ".join(str(error).partition("\n\nTraceback")[0].split()) or type(error).__name__
