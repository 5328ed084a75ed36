"""VecCheckNan: find NaN and infinity in actions, observations and rewards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.arguments import parse_indices
from vecenvs.batch.actions import parse_actions
from vecenvs.batch.layout import SpaceLayout
from vecenvs.vec_env import Batch, Indices, VecEnv
from vecenvs.wrappers.vec_rows import START, TERMINAL, VecRowsWrapper

_REWARD = SpaceLayout(spaces.Box(-np.inf, np.inf, (), np.float32))


class VecCheckNan(VecRowsWrapper):
    """Warn of, or raise for, NaN and infinity in actions, observations and rewards, as SB3's VecCheckNan.

    The message names the env, the part of the space, and the last action. Actions are checked before they are sent.
    After an exception about a row of `step` or `recv` the other rows of that call are lost.

    Args:
        venv: the VecEnv to wrap.
        raise_exception: raise ValueError instead of a UserWarning.
        warn_once: warn only of the first values found.
        check_inf: look for infinity, too.

    Raises:
        ValueError: with `raise_exception`, by any method that sends actions or returns rows.
    """

    def __init__(
        self, venv: VecEnv, raise_exception: bool = False, warn_once: bool = True, check_inf: bool = True
    ) -> None:
        super().__init__(venv)
        self.raise_exception = raise_exception
        self.warn_once = warn_once
        self.check_inf = check_inf
        self._warned = False
        self._observations = SpaceLayout(venv.observation_space)
        self._actions = SpaceLayout(venv.action_space)
        self._actions_sent: list[Any] = [None] * self.num_envs

    def step_async(self, actions: Any) -> None:
        self._check_actions(actions, range(self.num_envs))
        super().step_async(actions)

    def send(self, actions: Any, indices: Indices = None) -> None:
        self._check_actions(actions, parse_indices(indices, self.num_envs))
        super().send(actions, indices)

    def _check_actions(self, actions: Any, slots: Sequence[int]) -> None:
        if self._silent:
            return
        parts = [np.copy(part) for part in parse_actions(self._actions, actions, len(slots))]  # callers reuse arrays
        self._report(f"{what}, which the agent gave" for what in self._search(self._actions, parts, slots, "action"))
        for k, slot in enumerate(slots):
            self._actions_sent[slot] = self._actions.unflatten([part[k] for part in parts])

    def _on_rows(self, batch: Batch, exact: NDArray[np.float64], lock_step: bool) -> None:
        if not self._silent:
            self._report(self._search_rows(batch))

    def _search_rows(self, batch: Batch) -> Iterator[str]:
        slots = [int(slot) for slot in batch.indices]

        def moment(j: int) -> str:
            return self._last(slots[j], batch.infos[j])

        layout = self._observations
        yield from self._search(layout, layout.flatten(batch.obs), slots, "observation", moment)
        for slot, info, done in zip(slots, batch.infos, batch.dones, strict=True):
            if done and TERMINAL in info:
                parts = [[part] for part in layout.flatten(info[TERMINAL])]
                yield from self._search(layout, parts, [slot], "terminal_observation", partial(self._last_action, slot))
        yield from self._search(_REWARD, [batch.rewards], slots, "reward", moment)

    def _last(self, slot: int, info: dict[str, Any]) -> str:
        if info.get(START) and TERMINAL not in info:
            return ", at its reset"
        return self._last_action(slot)

    def _last_action(self, slot: int, _: int = 0) -> str:
        return f", after action {self._actions_sent[slot]}"

    def _search(
        self,
        layout: SpaceLayout,
        parts: Sequence[Any],
        slots: Sequence[int],
        what: str,
        moment: Callable[[int], str] | None = None,
    ) -> Iterator[str]:
        for leaf, part in zip(layout.leaves, parts, strict=True):
            if leaf.dtype.kind not in "fc":
                continue
            array = np.asarray(part)
            for kind, found in (("nan", np.isnan(array)), ("inf", np.isinf(array))):
                if kind == "inf" and not self.check_inf:
                    continue
                for j in np.flatnonzero(found.reshape(len(slots), -1).any(axis=1)).tolist() if found.any() else ():
                    yield f"{kind} in the {what}{leaf} of env {slots[j]}{moment(j) if moment else ''}"

    def _report(self, found: Iterator[str]) -> None:
        messages = list(found)
        if not messages:
            return
        self._warned = True
        text = "; ".join(messages)
        if self.raise_exception:
            raise ValueError(text)
        warnings.warn(text, UserWarning, stacklevel=4)

    @property
    def _silent(self) -> bool:
        return self._warned and self.warn_once and not self.raise_exception
