"""Types of command-line arguments, for argparse."""

from __future__ import annotations

import argparse
import json
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


def seconds(text: str) -> float:
    """Parse a number of seconds above 0."""
    return _above_zero(text, "seconds")


def milliseconds(text: str) -> float:
    """Parse a number of milliseconds above 0."""
    return _above_zero(text, "milliseconds")


def microseconds(text: str) -> float:
    """Parse a number of microseconds of at least 0."""
    return 0.0 if text == "0" else _above_zero(text, "microseconds")


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
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: it is a directory, or its directory is missing")
    return path


def output_ending_in(*suffixes: str) -> Callable[[str], Path]:
    """Return a type for the path of a file that can be written and has one of these suffixes."""

    def parse(text: str) -> Path:
        if Path(text).suffix not in suffixes:
            raise argparse.ArgumentTypeError(f"{text!r} must end in {', '.join(suffixes)}")
        return output(text)

    return parse


def _above_zero(text: str, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit} above 0")
    return value
