"""What a VecEnv hands out belongs to the caller: no later call changes it, and changes to it reach nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs.sampled import SampledEnv
from vecenvs.vec_env import VecEnv

ATTRIBUTES = ("state", "path")
_RAISES = 3  # the action after which an env raises

Extras = Callable[[Any], dict[str, Any]]


class MutableEnv(SampledEnv):
    """An env whose infos and attributes have arrays and lists, which it goes on writing into.

    Args:
        space: the space of its observations.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__(space, end=0.4)
        self.state = np.zeros(3)
        self.path: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        self.path[:] = [["begun"]]
        return obs, {**info, "goal": self.state, "log": self.path}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == _RAISES:
            raise ValueError("as asked")
        *row, info = super().step(action)
        self.state += self.np_random.random(3)
        self.path.append([self._t])
        return *row, {**info, "own": {"state": self.state, "path": self.path}}


def check_handed_out(
    make: Callable[[], VecEnv], groups: Sequence[Sequence[int]], extras: Extras | None = None, rounds: int = 3
) -> None:
    """Make the same calls on two VecEnvs; compare what they hand out, of which one caller changes everything at once.

    Args:
        make: makes a VecEnv of MutableEnvs in mode "same_step" or "next_step".
        groups: the envs, in groups that `send` takes.
        extras: returns what a wrapper hands out besides, by name.
        rounds: how often to make all calls.

    Raises:
        AssertionError: a value has changed after it was handed out, or a change to one has reached another.
    """
    with make() as vec:
        kept = list(_calls(vec, groups, extras, rounds))
    with make() as vec:
        for (name, value), (_, before) in zip(_calls(vec, groups, extras, rounds), kept, strict=True):
            assert_same(copy.deepcopy(before), copy.deepcopy(value), name)
            spoil(value)


def _calls(
    vec: VecEnv, groups: Sequence[Sequence[int]], extras: Extras | None, rounds: int
) -> Iterator[tuple[str, Any]]:
    def told(name: str, *values: Any) -> Iterator[tuple[str, Any]]:
        yield name, [vars_of(value) for value in values]
        state: dict[str, Any] = {"rewards64": vec.rewards64, "terminated": vec.terminated, "truncated": vec.truncated}
        state.update({f"info_array {each}": vec.info_array(each) for each in ATTRIBUTES})
        # The list of the infos of resets is the VecEnv's own, but changes to infos of rows do not appear in it.
        state.update(reset_infos=copy.deepcopy(list(vec.reset_infos)))
        state.update(active=vec.active, attributes=[vec.get_attr(each) for each in ATTRIBUTES])
        yield f"{name}: what there is besides", {**state, **(extras(vec) if extras is not None else {})}

    n, action = vec.num_envs, 0
    orders = [np.array(group)[::-1].copy() for group in groups]  # arrays that come again
    yield "seed", vec.seed([5] * n)
    yield from told("reset", vec.reset())
    for _ in range(rounds):
        action = (action + 1) % _RAISES
        yield from told("step", *vec.step([action] * n))
        for order in orders:
            vec.send([action] * len(order), order)
            yield from told("recv", vec.recv(indices=order))
        yield from told("reset some", vec.reset(groups[0]))
        vec.reset_async(groups[-1])
        yield from told("recv of a reset", vec.recv(indices=groups[-1]))
        try:
            vec.step([_RAISES, *[action] * (n - 1)])
        except EnvError as error:
            yield from told("step that raises", error.batch)
            vec.reset([each.index for each in error.errors])
        yield "groups", vec.groups(len(groups))


def vars_of(value: Any) -> Any:
    """Return a Batch as a dict of what two runs have in common, all but its latency; other values as they are."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in fields(value) if each.name != "latency"}
    return value


def spoil(value: Any) -> None:
    """Overwrite all arrays and containers in a value.

    Args:
        value: what a call has returned.
    """
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            spoil(value.tolist())
        value[...] = None if value.dtype == object else 1
    elif isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value.clear()
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            spoil(item)
        if isinstance(value, list):
            value.clear()
