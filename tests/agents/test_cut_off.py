"""Calls of envs of several agents that Ctrl-C cuts off at any bytecode: a reset makes everything right."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bytecodes import interrupted

import vecenvs
from vecenvs import AlreadySteppingError, EnvError, NotSteppingError, make_multi_agent
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs.teams import Teams

FILES = {str(path) for path in (Path(vecenvs.__file__).parent / "agents").glob("*.py")}
ZEROS = np.zeros((2, 4), np.int64)


def rows(vec: Any, steps: int) -> list[Any]:
    """Begin the episodes of seed 5, and return what a few steps show."""
    vec.set_attr("episode", 0)
    shown: list[Any] = [vec.reset(seed=5)["agents"].copy()]
    for _ in range(steps):
        obs, rewards, dones, infos = vec.step(ZEROS)
        masks = (vec.present, vec.acts, vec.started, vec.terminated, vec.truncated, vec.moved)
        shown.append((obs["agents"].copy(), rewards["agents"], dones, [*infos], [mask["agents"] for mask in masks]))
    return shown


def receive_all(vec: Any) -> None:
    with contextlib.suppress(NotSteppingError):
        while True:
            with contextlib.suppress(EnvError):  # that an env was cut off
                vec.recv(timeout=20.0)


def send_and_receive(vec: Any) -> None:
    vec.send(ZEROS)
    vec.recv(1)
    vec.recv(1)


CALLS: dict[str, Callable[[Any], Any]] = {
    "step": lambda vec: vec.step(ZEROS),
    "recv": send_and_receive,
    "reset": lambda vec: vec.reset([1]),
    "flat": lambda vec: vec.flat().step(ZEROS.ravel()),
}
LONG = ("recv", "reset", "flat")


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
@pytest.mark.parametrize("call", ["step", *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_calls_that_are_cut_off(call: str, mode: str) -> None:
    stride = 17  # from a random one on, so that all have their turn
    with make_multi_agent(
        [functools.partial(Teams, tag, cats=4, dogs=0, turnover=0.4) for tag in range(2)],
        backend="dummy",
        autoreset=mode,
    ) as vec:
        expected = rows(vec, 6)
        bytecodes, more = random.randrange(stride), True
        while more:
            rows(vec, random.randrange(4))
            more = interrupted(lambda: CALLS[call](vec), bytecodes, FILES)
            try:
                vec.reset()
            except AlreadySteppingError:
                if call in ("step", "flat"):
                    with contextlib.suppress(EnvError):
                        vec.step_wait(timeout=20.0)
                else:
                    receive_all(vec)
            assert_same(rows(vec, 6), expected)
            bytecodes += stride
        assert bytecodes > 2 * stride
