"""Types of command-line arguments, for argparse."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

PICTURES = (".png", ".svg", ".pdf")


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def seed(text: str) -> int:
    """Parse a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def number_of(unit: str, *, or_zero: bool = False) -> Callable[[str], float]:
    """Return a type for a number of this unit above 0, or also 0."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not (0 < value < float("inf") or (or_zero and value == 0)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit} above 0")
        return value

    return parse


SECONDS = number_of("seconds")


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object such as '{{\"frameskip\": 1}}'")
    return value


def output(text: str) -> Path:
    """Parse the path of a file that can be written."""
    path = Path(os.path.realpath(text))  # a link stays one
    try:
        if not path.exists():
            path.touch()
            path.unlink()
        elif path.is_file() or path.is_dir():  # what else there is may be waited for
            path.open("ab").close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from None
    return Path(text)


def output_ending_in(*suffixes: str) -> Callable[[str], Path]:
    """Return a type for the path of a file that can be written and has one of these suffixes."""

    def parse(text: str) -> Path:
        if Path(text).suffix not in suffixes:
            raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(suffixes)}")
        return output(text)

    return parse
