"""Messages longer than any buffer between a caller and an env."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

from gymnasium.spaces import Text

from vecenvs.testing.envs import CountingEnv, GatedEnv, counting_fns
from vecenvs.testing.envs.counting import pid_of
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


class HearingEnv(GatedEnv):
    """Takes text as its action, and tells in its info what it has heard. Env 0 waits for the gate at its first step."""

    def __init__(self, tag: int, gate: Path) -> None:
        super().__init__(tag, gate, where="nowhere" if tag else "step")
        self.action_space: Any = Text(LONG, charset="0123456789. ")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, _, _, _ = super().step(0)
        return obs, 0.0, False, False, {"heard": action}


class SlowHearingEnv(HearingEnv):
    """The same, but each step takes longer than rows are held back for others."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.003)
        return super().step(action)


def texts(turn: int) -> list[str]:
    """Return an action for each of six envs: short ones and some that no buffer holds, one after another."""
    return [f"{tag}.{turn} " * (1 if tag % 3 == turn % 3 else LONG // 8) for tag in range(6)]


class OrderConformance(Conformance):
    """Commands for a worker that is busy wait in the caller, in their order."""

    @PROMPT
    def test_commands_that_have_to_wait(self, make: Make, tmp_path: Path) -> None:
        vec = make([functools.partial(HearingEnv, tag, tmp_path / "gate") for tag in range(6)])
        vec.reset()
        for turn in range(3):
            said = texts(turn)
            for tag in range(6):
                vec.send([said[tag]], [tag])
            (tmp_path / "gate").touch()
            batch = vec.recv(6)
            heard = dict(zip(batch.indices.tolist(), (info["heard"] for info in batch.infos), strict=True))
            assert heard == dict(enumerate(said))

    @PROMPT
    def test_short_commands_overtake_no_long_ones(self, make: Make, tmp_path: Path) -> None:
        vec = make([functools.partial(HearingEnv, tag, tmp_path / "gate") for tag in range(9)])
        vec.reset()
        much = "1. " * (4 * LONG)
        vec.send(["0"], [0])
        vec.send([much], [1])
        vec.reset_async([2])
        (tmp_path / "gate").touch()
        batch = vec.recv(indices=[0, 1, 2])
        assert [info.get("heard") for info in batch.infos] == ["0", much, None]

    @PROMPT
    def test_a_worker_that_dies_before_it_has_read_them(self, make: Make, tmp_path: Path) -> None:
        """Other workers get theirs, and its replacement gets the later ones."""
        fns = [functools.partial(HearingEnv, tag, tmp_path / "gate") for tag in range(6)]
        vec = make(fns, on_failure="restart")
        vec.reset()
        pids = vec.call(pid_of, None)
        said = texts(0)
        for tag in range(6):
            vec.send([said[tag]], [tag])
        os.kill(pids[0], signal.SIGKILL)
        (tmp_path / "gate").touch()
        batch = vec.recv(6)
        for tag, info in zip(batch.indices.tolist(), batch.infos, strict=True):
            assert info.get("worker_restarted", False) == (pids[tag] == pids[0])
            assert info.get("heard") == (None if pids[tag] == pids[0] else said[tag])
        said = texts(1)
        assert [info["heard"] for info in vec.step(said)[3]] == said


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

    def test_actions_of_slow_envs(self, make: Make, tmp_path: Path) -> None:
        """Rows of slow envs come one by one, and each env gets its own action."""
        vec = make([functools.partial(SlowHearingEnv, tag, tmp_path) for tag in range(1, 7)])
        vec.reset()
        for turn in range(3):
            said = texts(turn)
            vec.send(said)
            heard: dict[int, str] = {}
            while len(heard) < 6:
                batch = vec.recv()
                heard.update(zip(batch.indices.tolist(), (info["heard"] for info in batch.infos), strict=True))
            assert heard == dict(enumerate(said))
