"""The caller's end of a worker on any machine, by itself."""

from __future__ import annotations

from typing import Any

import pytest
from one_node import NodeProcess

from vecenvs.errors import VecEnvError
from vecenvs.transport.shared import Names


class Unconnected(NodeProcess):
    """A process that ends, or that answers why it cannot connect."""

    def __init__(self, answer: str | None) -> None:
        super(NodeProcess, self).__init__(range(2), Names.new(""), "messages", 0)
        self.answer = answer

    def boot_send(self, data: bytes) -> None:
        if self.answer is None:
            raise BrokenPipeError("the worker is gone")

    def boot_get(self, timeout: float | None) -> bytes:
        return str(self.answer).encode()


def test_a_worker_that_is_gone_is_no_port_to_open() -> None:
    spec: Any = repr
    with pytest.raises(BrokenPipeError):
        Unconnected(None).connect(spec)
    with pytest.raises(VecEnvError, match="no route.*Open the TCP ports of 127.0.0.1"):
        Unconnected("no route").connect(spec)
