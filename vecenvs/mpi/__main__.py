"""Run a script as rank 0 of an MPI job, the other ranks serving its VecEnvs.

`python -m vecenvs.mpi -n 5 train.py` starts mpirun itself, with the right settings;
`mpirun -n 5 python -m vecenvs.mpi train.py` is started by mpirun, or by srun.
"""

from __future__ import annotations

import argparse
import math
import os
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from vecenvs.backends.mpi import status_file
from vecenvs.backends.mpi.abort import abort
from vecenvs.backends.mpi.job import abort_on_exception, worker_ranks
from vecenvs.backends.mpi.library import load_mpi
from vecenvs.errors import BackendUnavailable
from vecenvs.mpi import launch
from vecenvs.mpi.supervise import GRACE, Supervisor


def main(argv: Sequence[str] | None = None) -> None:
    """Start mpirun (`-n`), or be one of its ranks."""
    argv = sys.argv[1:] if argv is None else list(argv)
    options = _parser().parse_args(argv)
    _check(options)
    kind, program = _program(options)
    try:
        if options.ranks is not None:
            _launch(options, [*kind, *program])
        if options.status is not None:
            status_file.begin(options.status)
        if options.spmd:
            abort_on_exception(load_mpi())
        else:
            worker_ranks()  # the worker ranks never return from here
    except BackendUnavailable as exc:
        sys.exit(f"vecenvs.mpi: {exc}")
    code: object = 0
    try:
        _run(kind, program)
    except SystemExit as exc:
        code = exc.code
        if options.spmd and code not in (None, 0):  # the other ranks may wait for this one
            _abort(code)
        raise
    except BaseException:
        code = 1
        raise
    finally:
        status_file.script_ends(code if isinstance(code, int) else int(code is not None))
        if options.spmd:  # else the worker ranks are to end first: see `job`
            status_file.end()


def _abort(code: object) -> NoReturn:
    """End all ranks with the exit code of this one, or with its message, as Python shows it."""
    if not isinstance(code, int):
        print(code, file=sys.stderr)  # noqa: T201
    status_file.script_ends(code if isinstance(code, int) else 1)
    status_file.end()
    abort(load_mpi().COMM_WORLD, code if isinstance(code, int) else 1)


def _launch(options: argparse.Namespace, program: list[str]) -> NoReturn:
    """Run mpirun, and end with the script's exit code."""
    mpi, mpirun_args = load_mpi(initialize=False), shlex.split(options.mpirun_args)
    supervisor = Supervisor(alone=not options.spmd, grace=options.grace)
    again = ["-m", "vecenvs.mpi", *(["--spmd"] if options.spmd else []), "--status", supervisor.status]
    line, environ = launch.command(
        mpi, options.ranks, [*again, *program], mpirun_args, fault_tolerant=options.fault_tolerant,
        one_node=not launch.names_hosts(mpirun_args),
    )  # fmt: skip
    sys.exit(supervisor.run(line, environ))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vecenvs.mpi", description=__doc__)
    parser.add_argument("-n", type=int, dest="ranks", metavar="RANKS", help="start mpirun with that many ranks")
    parser.add_argument("--spmd", action="store_true", help="run the script on every rank; an exception ends them all")
    parser.add_argument("--fault-tolerant", action="store_true", help="survive the loss of ranks (Open MPI, with -n)")
    parser.add_argument("--mpirun-args", default="", metavar="ARGS", help="more for mpirun: '--hostfile nodes'")
    parser.add_argument(
        "--grace", type=float, default=GRACE, metavar="SECONDS",
        help="how long the script may go on after SIGTERM, to save a checkpoint (%(default)g; with -n)",
    )  # fmt: skip
    parser.add_argument("--status", help=argparse.SUPPRESS)  # which -n gives to the ranks
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    parser.add_argument("-c", dest="code", nargs=argparse.REMAINDER, help="run a piece of code, as python -c does")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="the script and its arguments")
    return parser


def _check(options: argparse.Namespace) -> None:
    if options.ranks is not None and options.ranks < 1:
        _parser().error(f"-n {options.ranks}: give the number of ranks, from 1 on")
    if options.ranks is None and (options.fault_tolerant or options.mpirun_args):
        _parser().error("--fault-tolerant and --mpirun-args are for mpirun, which only -n starts")
    if not 0 <= options.grace < math.inf:
        _parser().error(f"--grace {options.grace:g}: give seconds, from 0 on")


def _program(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return ["-m"], ["-c"] or [], and the program with its arguments."""
    for kind, program in (("-m", options.module), ("-c", options.code)):
        if program:
            return [kind], program
    if options.script[:1] == ["--"]:
        del options.script[0]
    if not options.script:
        _parser().error("which script? python -m vecenvs.mpi -n 5 train.py")
    return [], options.script


def _run(kind: list[str], program: list[str]) -> None:
    """Run it as Python itself would have."""
    sys.argv = [*kind, *program[1:]] if kind == ["-c"] else list(program)
    if kind == ["-m"]:
        sys.path[0] = os.getcwd()
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    elif kind == ["-c"]:
        sys.path[0] = ""
        exec(compile(program[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  what -c is for
    else:
        sys.path[0] = str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
