"""The commands of `python -m vecenvs`, one module each: a module added here is a command of its name.

Such a module has a docstring, whose first line is the command's help, and two functions:

    add_arguments(parser: argparse.ArgumentParser) -> None
    run(args: argparse.Namespace) -> int        the exit code

It imports whatever is heavy or optional inside `run`. For bad input `run` raises `UsageError` (exit code 2). It
writes to stdout and stderr as if somebody read them: `_output` sees to those that nobody does.
"""


class UsageError(Exception):
    """The command line asks for what cannot be done. The message is one line and names the remedy."""
