"""What is long on its way between a caller and an env: longer than any buffer between them."""

from __future__ import annotations

import functools
from typing import Any

from vecenvs.testing.envs import CountingEnv, counting_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT

LONG = 300_000  # bytes


def tell_at_length(env: Any) -> bytes:
    return bytes([env.t]) * LONG


class WordyEnv(CountingEnv):
    """A CountingEnv that has much to say of each step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"much": tell_at_length(self)}


class MessageConformance(Conformance):
    """Long messages come whole, and keep nobody from getting on."""

    @PROMPT
    def test_long_answers(self, make: Make) -> None:
        """One after another, each by itself."""
        vec = make(counting_fns(4))
        vec.reset()
        for t in (1, 2, 3):
            vec.step([0] * 4)
            assert vec.call(tell_at_length, None) == [bytes([t]) * LONG] * 4

    @PROMPT
    def test_long_messages_both_ways_at_once(self, make: Make) -> None:
        """A worker that waits to be heard, while it is told something, does not wait for ever."""
        vec = make([functools.partial(WordyEnv, tag) for tag in range(4)])
        vec.reset()
        vec.send([0, 0], [0, 2])
        vec.reset_async([1, 3], options={"much": bytes(LONG)})
        batch = vec.recv(4)
        rows = dict(zip(batch.indices.tolist(), batch.infos, strict=True))
        assert [len(rows[slot].get("much", b"")) for slot in range(4)] == [LONG, 0, LONG, 0]
