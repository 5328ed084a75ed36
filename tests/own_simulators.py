"""What the tests of examples/own_simulators.py on several engines share."""

from __future__ import annotations

import random
import re
import socket


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that nobody has."""
    for _ in range(100):
        first = random.randrange(20_000, 30_000)
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def assert_own_simulators(printed: str, num_workers: int = 2) -> None:
    """Check what the example says of its four envs."""
    found = re.findall(r"env (\d): port (\d+), display :(\d+), GPU (\d)", printed)
    assert [int(env) for env, *_ in found] == [0, 1, 2, 3], printed
    ports = [int(port) for _, port, *_ in found]
    assert ports == [*range(ports[0], ports[0] + 4)]
    numbers = [int(display) - 10 for *_, display, _ in found]  # of their workers on the node, in any order
    assert sorted(numbers[:: 4 // num_workers]) == [*range(num_workers)]
    assert numbers == [each for each in numbers[:: 4 // num_workers] for _ in range(4 // num_workers)]
    assert [int(gpu) for *_, gpu in found] == numbers
    assert re.search(r"\d+ steps, \d+/s, \d+ episodes", printed)
