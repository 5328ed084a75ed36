"""The commands of `python -m vecenvs`: each module here without a leading underscore is a command of its name.

Such a module has a docstring, whose first line is the command's help, and two functions:

    add_arguments(parser: argparse.ArgumentParser) -> None
    run(args: argparse.Namespace) -> int        the exit code

It imports heavy or optional libraries inside `run`. For bad input `run` raises `UsageError` (exit code 2). Where nobody
reads its output any more (`| head -1`) a command ends, so it writes its files before it prints.
"""

# The exit codes that a shell reports for a command which SIGINT or SIGPIPE has ended.
INTERRUPTED = 130
UNREAD = 141


class UsageError(Exception):
    """The command cannot do what its arguments ask for. The message is one line and names the remedy."""
