"""The leader of a node by itself: commands that come twice change nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gymnasium import spaces

from vecenvs.transport.leader import Leader
from vecenvs.transport.memory import new_name
from vecenvs.transport.node_link import LeaderSpec
from vecenvs.transport.shared import Names
from vecenvs.transport.spinning import NEVER
from vecenvs.transport.tcp import Invitation


@pytest.fixture
def leader() -> Iterator[Leader]:
    space = spaces.Discrete(3)
    found = Leader(LeaderSpec(Invitation("", 0, b""), space, space, 4, (), new_name(), 2))
    yield found
    found.close()


def test_a_worker_that_is_opened_twice(leader: Leader) -> None:
    """The caller sends what it may not have sent yet: after an exception, everything once more."""
    names = Names.new("")
    for _ in range(2):
        leader._on_open(1, range(2), names, NEVER)
    first = leader._members[1]
    leader._on_open(2, range(2, 4), Names.new(""), NEVER)
    assert leader._members[1] is first
    assert [entry[0] for entry in leader._replies] == [1, 2]


def test_a_worker_that_is_removed_twice(leader: Leader) -> None:
    leader._on_open(1, range(2), Names.new(""), NEVER)
    for _ in range(2):
        leader._on_remove(1)
        leader._on_opened(1)
    assert not leader._members
