"""Play whole episodes of a policy, each with a seed of its own, and tell their returns.

ENV is an id (CartPole-v1, package.module:Env-v0), or a class or function that makes an env (package.module:Class).
POLICY is one of

    random                    samples of the action space (default)
    package.module:function   policy(obs), or policy(obs, indices, started) for one with a state, to a batch of actions;
                              policy:function is in a file policy.py in this directory
    model.zip                 a model that Stable-Baselines3 saved; like any pickle, it can run code when it is loaded

FILE of --normalize was saved by VecNormalize: by this library's, or by Stable-Baselines3's, which is a pickle. Dict
observations are flattened, unless the model or that file was made with Dict observations. An episode of an Atari game
is a whole game. The result does not depend on the number of envs or the backend.
On MPI: python -m vecenvs.mpi -n 5 -m vecenvs evaluate ENV --backend mpi
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vecenvs.cli import UsageError, _envs
from vecenvs.cli._arguments import count, json_object, output, seed

if TYPE_CHECKING:
    from vecenvs.bench.progress import ProgressDisplay
    from vecenvs.evaluation import Evaluation

_SHOW_EVERY = 0.1
_LINE_EVERY = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    _envs.add_arguments(parser)
    parser.add_argument("--policy", metavar="POLICY", default="random", help="default: random")
    parser.add_argument("--algo", metavar="CLASS", help="of a model.zip: PPO, SAC ... or package.module:Class")
    parser.add_argument("--stochastic", action="store_true", help="sample a model's actions, not its most likely ones")
    parser.add_argument("--normalize", metavar="FILE", type=Path, help="statistics that VecNormalize saved")
    parser.add_argument("--episodes", metavar="N", type=count, default=100, help="default: 100")
    parser.add_argument("--seed", metavar="N", type=seed, default=1000, help="of the first episode (default: 1000)")
    parser.add_argument(
        "--wrapper-kwargs", metavar="JSON", type=json_object, default={}, help="for the preprocessing of Atari games"
    )
    parser.add_argument("--json", metavar="FILE", type=output, help="write all episodes to FILE")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Play, then print a summary. Return 1 if an env or a worker failed."""
    from vecenvs.bench.progress import progress
    from vecenvs.cli._policies import load_policy, statistics_in, wants_dicts
    from vecenvs.errors import VecEnvError
    from vecenvs.evaluation.evaluation import play

    try:
        statistics = statistics_in(args.normalize)
        dicts = wants_dicts(args.policy) or (statistics is not None and statistics.dicts)
    except (ImportError, ValueError, OSError) as error:
        raise UsageError(_envs.one_line(error)) from None
    vec = _envs.make_vec(
        args, autoreset="disabled", flatten_dict_observations=not dicts, wrapper_kwargs=_wrapper_kwargs(args)
    )
    try:
        try:
            vec = vec if statistics is None else statistics.applied(vec)
            policy = load_policy(args.policy, vec, args.algo)
        except (ImportError, ValueError, OSError) as error:
            raise UsageError(_envs.one_line(error)) from None
        try:
            with nullcontext(None) if args.quiet else progress(args.episodes, "the first episodes") as display:
                told = _Progress(display, args.episodes)
                found = play(vec, policy, args.episodes, args.seed, not args.stochastic, told)
        except VecEnvError as error:
            print(f"{args.env}: {error}", file=sys.stderr)  # with the env's own traceback
            return 1
        except (ValueError, TypeError) as error:  # it raised, or returned no actions of this env
            raise UsageError(f"policy: {type(error).__name__}: {_envs.one_line(error)}") from error
        except ImportError as error:  # of the progress bar
            raise UsageError(f"{error}, or give --quiet") from error
    finally:
        vec.close()
    if args.json is not None:
        columns = {name: None if each is None else each.tolist() for name, each in _columns(found).items()}
        args.json.write_text(json.dumps({"env": args.env, "policy": args.policy, **columns}) + "\n")
    print(summary(found))
    if args.json is not None:
        print(f"episodes: {args.json}")
    return 0


def summary(found: Evaluation) -> str:
    """Describe the episodes in a line."""
    parts = []
    for name, values in (("return", found.returns), ("length", found.lengths)):
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        parts.append(f"{name} {values.mean():.4g} +- {error:.2g} ({values.min():.4g} to {values.max():.4g})")
    if found.successes is not None:
        parts.append(f"success {found.successes.mean():.1%}")
    if found.errors.any():
        parts.append(f"ended by an error: {found.errors.sum()}")
    return f"{len(found.returns)} episodes, seeds {found.seeds[0]} to {found.seeds[-1]}: {', '.join(parts)}"


def _columns(found: Evaluation) -> dict[str, Any]:
    return {name: each for name, each in found._asdict().items() if name != "surplus"}


def _wrapper_kwargs(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return options of the preprocessing: of Atari games an episode is a whole game."""
    from vecenvs.make.env_types import find_source, get_env_type

    try:
        source = find_source(args.env)
    except Exception:  # said when the VecEnv is made
        return None
    whole = {} if callable(source) or get_env_type(source) != "atari" else {"episode_life": False}
    return {**whole, **args.wrapper_kwargs} or None


class _Progress:
    """Called with each episode's return: it moves the bar, which costs as much as many short episodes."""

    def __init__(self, display: ProgressDisplay | None, total: int) -> None:
        self._display, self._total = display, total
        self._done = self._waiting = 0
        self._sum = 0.0
        self._shown = self._line = time.perf_counter()

    def __call__(self, value: float) -> None:
        self._done += 1
        self._waiting += 1
        self._sum += value
        now = time.perf_counter()
        if self._display is None or (now < self._shown + _SHOW_EVERY and self._done < self._total):
            return
        text, line = f"mean return {self._sum / self._done:.4g}", ""
        if now >= self._line + _LINE_EVERY:
            self._line, line = now, f"{self._done} of {self._total} episodes, {text}"
        self._display.advance(text, line, self._waiting)
        self._shown, self._waiting = now, 0
