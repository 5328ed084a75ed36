"""Envs that come batched, for the bare loops of `bench --vectorization native`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from vecenvs.bench.workloads import BadRequest, GymEnv, Workload


@dataclass(frozen=True)
class NativeEnv:
    """A function that makes one env of `num_envs` envs, by the `vector_entry_point` of an id."""

    spec: EnvSpec
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_envs: int = 1

    def __call__(self) -> Any:
        return gym.make_vec(
            self.spec, num_envs=self.num_envs, vectorization_mode="vector_entry_point", **dict(self.kwargs)
        )

    def of(self, num_envs: int) -> NativeEnv:
        """Return the function for another number of envs."""
        return replace(self, num_envs=num_envs)


def native(workload: Workload, name: str) -> NativeEnv:
    """Return the batched env of a workload. Raise BadRequest if it has none."""
    if not isinstance(workload, GymEnv) or workload.spec.vector_entry_point is None:
        raise BadRequest(f"{name} has no vector_entry_point: leave out --vectorization")
    return NativeEnv(workload.spec, workload.kwargs)
