"""Dict spaces with their keys in a given order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from gymnasium import spaces


def dict_space(subspaces: Mapping[str, spaces.Space[Any]]) -> spaces.Dict:
    """Make a Dict space whose keys stay in the order of `subspaces`, the order in which a batch has its entries."""
    # Gymnasium sorts the keys of any other mapping.
    return spaces.Dict(OrderedDict(subspaces))
