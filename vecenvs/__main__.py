"""Run `python -m vecenvs COMMAND ...`: find the command's module in `vecenvs.cli` and call it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules
from typing import NoReturn

from vecenvs import cli
from vecenvs._version import __version__

PROGRAM = "python -m vecenvs"


class Parser(argparse.ArgumentParser):
    """An argparse parser whose error messages are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message to stderr and exit with 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def commands() -> list[str]:
    """Return the names of all commands."""
    return sorted(module.name for module in iter_modules(cli.__path__) if not module.name.startswith("_"))


def overview() -> str:
    """Return the list of commands, each with the first line of its module's docstring."""
    lines = [f"usage: {PROGRAM} COMMAND ...", ""]
    for name in commands():
        summary = (import_module(f"vecenvs.cli.{name}").__doc__ or "").partition("\n")[0]
        lines.append(f"  {name:<10}{summary}")
    closing = [f"{PROGRAM} COMMAND --help shows the arguments of a command.", f"{PROGRAM} --version shows the version."]
    return "\n".join([*lines, "", *closing])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 2 for bad usage, 130 after Ctrl-C, 141 once nobody reads its output."""
    try:
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # as with `| head`
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):  # which the interpreter flushes once more, and would fail
            os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return cli.UNREAD


def _main(arguments: list[str]) -> int:
    if arguments[:1] == ["--version"]:
        print(f"vecenvs {__version__}")
        return 0
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0 if arguments else 2
    name = arguments[0]
    if name not in commands():
        close = get_close_matches(name, commands(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(commands())}"
        print(f"{PROGRAM}: error: no command {name!r}: {hint}", file=sys.stderr)
        return 2
    module = import_module(f"vecenvs.cli.{name}")
    parser = Parser(prog=f"{PROGRAM} {name}", description=module.__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    try:
        return int(module.run(parser.parse_args(arguments[1:])))
    except cli.UsageError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return cli.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
