"""Dict spaces with their keys in a given order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from gymnasium import spaces


def dict_space(subspaces: Mapping[str, spaces.Space[Any]]) -> spaces.Dict:
    """Return a Dict space with its keys in the order of `subspaces`, which is the order of a batch's entries."""
    # Gymnasium sorts the keys of any other mapping.
    return spaces.Dict(OrderedDict(subspaces))
