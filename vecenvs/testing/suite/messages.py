"""Messages longer than any buffer between a caller and an env."""

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
    """A CountingEnv with long infos."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"much": tell_at_length(self)}


class MessageConformance(Conformance):
    """Long messages arrive complete and block neither side."""

    @PROMPT
    def test_long_answers(self, make: Make) -> None:
        """Each of several long answers arrives complete."""
        vec = make(counting_fns(4))
        vec.reset()
        for t in (1, 2, 3):
            vec.step([0] * 4)
            assert vec.call(tell_at_length, None) == [bytes([t]) * LONG] * 4

    @PROMPT
    def test_long_messages_both_ways_at_once(self, make: Make) -> None:
        """A worker that sends a long message while it is sent one does not block for ever."""
        vec = make([functools.partial(WordyEnv, tag) for tag in range(4)])
        vec.reset()
        vec.send([0, 0], [0, 2])
        vec.reset_async([1, 3], options={"much": bytes(LONG)})
        batch = vec.recv(4)
        rows = dict(zip(batch.indices.tolist(), batch.infos, strict=True))
        assert [len(rows[slot].get("much", b"")) for slot in range(4)] == [LONG, 0, LONG, 0]
