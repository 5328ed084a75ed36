"""What `evaluate` takes as a policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.batch.actions import whole_numbers

Choose = Callable[[Any, NDArray[Any], NDArray[Any], NDArray[Any]], Any]  # (obs, indices, started, seeds) -> actions

_FORMS = (
    "a policy is a function policy(obs) or policy(obs, indices, started), has predict(obs, deterministic=...), "
    "or is 'random'"
)


class RandomActions:
    """Samples of the action space: of each episode by a generator whose seed follows from the episode's."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._space = space
        self._spaces: dict[int, spaces.Space[Any]] = {}

    def __call__(self, obs: Any, indices: NDArray[Any], started: NDArray[Any], seeds: NDArray[Any]) -> list[Any]:
        """Return one action for each of `indices`."""
        for slot, seed in zip(indices[started].tolist(), seeds[started].tolist(), strict=True):
            own = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1)[0]  # not the env's own numbers
            self._spaces.setdefault(slot, deepcopy(self._space)).seed(int(own))
        return [self._spaces[slot].sample() for slot in indices.tolist()]


def chooser(policy: Any, space: spaces.Space[Any], deterministic: bool) -> Choose:
    """Return a policy of any form as a function of observations, envs, and whether episodes have begun."""
    if isinstance(policy, str) and policy == "random":
        return RandomActions(space)
    predict = getattr(policy, "predict", None)
    if callable(predict):

        def predicted(obs: Any, *_: Any) -> Any:
            actions, state = predict(obs, deterministic=deterministic)
            if state is not None:
                raise ValueError(
                    f"{type(policy).__name__} has a state, which it needs again at the env's next step: give a "
                    "function policy(obs, indices, started) that keeps one for each env"
                )
            return whole_numbers(space, actions)

        return predicted
    if not callable(policy):
        raise TypeError(f"{_FORMS}, unlike {policy!r}")
    if not deterministic:
        raise ValueError("deterministic=False is for a policy with predict: a function chooses actions as it likes")
    function: Callable[..., Any] = policy
    try:
        parameters = inspect.signature(policy).parameters.values()
    except ValueError:  # compiled code without a signature
        return lambda obs, *_: function(obs)
    needed = [each for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD and each.default is each.empty]
    if len(needed) == 3:
        return lambda obs, indices, started, _: function(obs, indices, started)
    if len(needed) > 1:
        raise TypeError(f"{_FORMS}, but this function takes {', '.join(each.name for each in needed)}")
    return lambda obs, *_: function(obs)
