"""Run an episode again that a VecEnv with `record` has written.

FILE was written by a VecEnv with record=..., and is named by the error. The env is made in this process, reset with the
same seed and options, and stepped with the same actions. It ends where the env raises, where the episode ended, or at
the first row that differs.

An env that make_vec_env made of a registered id is made again without anything in FILE being executed. For another one,
--trusted unpickles its function from FILE, which can run any code; --env names one instead.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import pickle
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from vecenvs.cli import UsageError
from vecenvs.cli._envs import one_line

if TYPE_CHECKING:
    from vecenvs.state.episode_file import Record
    from vecenvs.state.rerun import Rerun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("file", metavar="FILE", help="the record")
    parser.add_argument("--env", metavar="ENV", help="env id, or package.module:name of a class or function")
    parser.add_argument("--trusted", action="store_true", help="unpickle the env function in FILE")
    parser.add_argument("--pdb", action="store_true", help="a debugger where the env raises")


def run(args: argparse.Namespace) -> int:
    """Run it, and tell how it went. Return 1 if it raised or differed."""
    from vecenvs.errors import VecEnvError
    from vecenvs.state.episode_file import read_record
    from vecenvs.state.rerun import run_again

    try:
        record = read_record(args.file)
        make = _function(record, args)
    except (VecEnvError, OSError, ImportError) as error:
        raise UsageError(one_line(error)) from None
    print(_told(record))
    with contextlib.suppress(OSError, ValueError):  # stderr may be no file
        faulthandler.enable()  # what has killed a worker may kill this process
    try:
        env = make()
    except Exception as error:
        raise UsageError(f"its env cannot be made: {type(error).__name__}: {one_line(error)}") from None
    try:
        found = run_again(record, env, partial(_tell, record, debug=args.pdb))
    except VecEnvError as error:
        raise UsageError(one_line(error)) from None
    return int(found.exception is not None or bool(found.differs))


def _function(record: Record, args: argparse.Namespace) -> Callable[[], Any]:
    """Return what makes the env. UsageError if nothing in the file may be used for that."""
    import gymnasium

    from vecenvs.make.env_fn import described
    from vecenvs.make.env_types import find_source

    try:
        if args.env is not None:
            source: Any = find_source(args.env)
            return source if callable(source) else lambda: gymnasium.make(source, disable_env_checker=True)
        if record.env is not None:
            return described(record.env)
    except Exception as error:  # a file may have anything in it
        raise UsageError(f"its env cannot be made: {type(error).__name__}: {one_line(error)}") from None
    if not record.function:
        raise UsageError("its env function could not be pickled: name another one by --env package.module:name")
    if not args.trusted:
        raise UsageError(
            "its env function is pickled: give --trusted if you trust the file, which can run any code then, or --env"
        )
    try:
        found: Callable[[], Any] = pickle.loads(record.function)
    except Exception as error:
        raise UsageError(f"its env function cannot be unpickled: {type(error).__name__}: {one_line(error)}") from None
    return found


def _told(record: Record) -> str:
    steps = max([len(record.objects), *(len(each) for each in record.actions if each is not None)])
    how = {"raised": f"raised: {record.told}", "died": f"was lost: {record.told}"}.get(record.outcome, "ended")
    return (
        f"env {record.slot}, episode {record.number}, seed {record.seed}, {steps} steps: it {one_line(Exception(how))}"
    )


def _tell(record: Record, found: Rerun, *, debug: bool) -> None:
    """Print how the episode went again."""
    if found.differs:
        print(f"differs in {found.doing}{f' {found.steps}' * (found.doing == 'step')}: {found.differs}")
    elif found.exception is not None:
        print(f"raises in {found.doing}, after {found.steps} equal steps:")
    else:
        print(f"{found.steps} steps: the same rows, and no exception")
    changed = [name for _, name, given in record.calls if given is None]
    if changed and (found.differs or found.exception is None) and record.outcome != "ended":
        print(f"calls on the env were not repeated, and may be the cause: {', '.join(dict.fromkeys(changed))}")
    sys.stdout.flush()
    if found.exception is not None:
        traceback.print_exception(type(found.exception), found.exception, found.exception.__traceback__)
        if debug:
            import pdb  # noqa: T100

            pdb.post_mortem(found.exception.__traceback__)
