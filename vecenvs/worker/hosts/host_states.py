"""The states of the envs of a batched env which has `get_state(indices)` and `set_state(states, indices)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vecenvs._native.forks import run
from vecenvs.batch.batch_columns import BatchColumns
from vecenvs.batch.info_arrays import columns_of_dicts
from vecenvs.batch.info_batches import Columns
from vecenvs.errors import StateError
from vecenvs.state.adapters import qualified
from vecenvs.state.encoding import Decoder, Encoder, EncodingError
from vecenvs.state.env_state import EnvState
from vecenvs.worker.hosts.batched_host import BatchedHost
from vecenvs.worker.hosts.host_resets import HostResets
from vecenvs.worker.rules import Rules

PAIR = "get_state(indices), which returns a state for each, and set_state(states, indices)"


class HostStates:
    """Reads and sets the states of one host's envs, whose first slot is `first`."""

    def __init__(self, first: int, batch: BatchColumns, rules: Rules, resets: HostResets) -> None:
        self._first, self._batch, self._rules, self._resets = first, batch, rules, resets

    def _kind(self, host: BatchedHost) -> dict[str, str]:
        return {
            "class": qualified(type(host.env)),
            "state_version": str(getattr(type(host.env), "state_version", None)),
            "observation space": str(host.observation_space),
            "action space": str(host.action_space),
            "autoreset": self._rules.autoreset,
            "episode_seeds": str(self._rules.root is not None),
        }

    def read(self, host: BatchedHost, env: int, phase: str) -> EnvState:
        """Return the state of an env, which is in this phase."""
        slot, kind = self._first + env, type(host.env).__name__
        if not (hasattr(host.env, "get_state") and hasattr(host.env, "set_state")):
            raise StateError(slot, f"env {slot} is part of a {kind}, which has no state of single envs: give it {PAIR}")
        (own,) = run(host.env.get_state, [env])
        held, stream = self._resets.comes_next(env)
        episode = {"phase": phase, "held": held, "obs": self._batch.observations.row(slot), "action": None}
        try:
            data, episode = Encoder(None).encode(own), Encoder(None).encode(episode)
        except EncodingError as exc:
            raise StateError(slot, f"env {slot}: what {kind}.get_state has returned: {exc}") from exc
        return EnvState(self._kind(host), "state", data, episode, stream)

    def write(self, host: BatchedHost, states: Mapping[int, EnvState]) -> tuple[dict[int, str], Columns]:
        """Put envs into states; return the phase of each, and the infos with which their episodes began."""
        found: dict[int, Any] = {}
        for env, state in states.items():
            try:
                state.check(self._kind(host))
                decode = Decoder(None, trusted=state.trusted).decode
                found[env] = decode(state.data), decode(state.episode), decode(state.info) or {}
            except EncodingError as exc:
                raise StateError(self._first + env, f"env {self._first + env}: {exc}") from exc
        if not host.begun:  # as many a batched env needs it
            run(host.reset, None, [None] * host.num_envs, None)
        run(host.env.set_state, [own for own, _, _ in found.values()], [*found])
        for env, (_, episode, _) in found.items():
            self._batch.observations.store_row(self._first + env, episode["obs"])
            self._resets.put_next(env, episode["held"], states[env].stream)
        phases = {env: episode["phase"] for env, (_, episode, _) in found.items()}
        return phases, columns_of_dicts([info for _, _, info in found.values()], np.array([*found]))
