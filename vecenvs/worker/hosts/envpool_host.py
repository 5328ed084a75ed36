"""EnvPool as a host: resets of some envs, and checks of the threads and seeds that it was made with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.info_batches import Columns, columns_of
from vecenvs.cpus import worker_cores
from vecenvs.errors import VecEnvError
from vecenvs.worker.hosts.batched_host import MASK, BatchedHost, spread_rows

_SEED = 42  # of its first env, if an EnvPool is given none


def is_envpool(env: Any) -> bool:
    """Tell whether an env is an EnvPool."""
    return any(kind.__module__.partition(".")[0] == "envpool" for kind in type(env).__mro__)


class EnvPoolHost(BatchedHost):
    """An EnvPool of its gymnasium interface, whose first env is `first`."""

    def __init__(self, env: Any, num_envs: int, first: int) -> None:
        super().__init__(env, num_envs)
        self.spec = None  # EnvPool's own, which cannot be pickled
        self.takes_masks = True
        config = env.config
        if config["batch_size"] not in (0, num_envs):
            raise VecEnvError(
                f"an EnvPool with batch_size={config['batch_size']} steps some of its {num_envs} envs at a time, where "
                "all of them are needed: leave batch_size out"
            )
        cores = worker_cores()
        threads = min(num_envs, os.cpu_count() or 1)
        if not config["num_threads"] and threads > cores:
            raise VecEnvError(
                f"the EnvPool has {threads} threads, as it does without num_threads, but this worker may use "
                f"{cores} of the cores: pass num_threads=vecenvs.worker_cores() in the function that makes it"
            )
        if first and config["seed"] == _SEED and not config["env_seed"]:
            raise VecEnvError(
                f"the EnvPool of envs {first}-{first + num_envs - 1} has the seed {_SEED}, as it does without one, and "
                f"would repeat the rows of the first batch: pass another seed to the function that makes it, such as "
                f"seed={_SEED} + {first}"
            )

    def reset(self, mask: NDArray[np.bool_] | None, seeds: Sequence[int | None], options: Any) -> tuple[Any, Columns]:
        if any(seed is not None for seed in seeds):
            raise VecEnvError(
                "EnvPool takes seeds only where it is made: leave out reset's, and pass seed= to the function that "
                "makes it (its env i gets seed + i, or item i of a list)"
            )
        if mask is None:
            return super().reset(mask, seeds, options)
        obs, infos = self._reset(options={**(options or {}), MASK: mask})  # of these envs alone
        return spread_rows(obs, mask), columns_of(spread_rows(infos, mask), self.num_envs)

    def render_all(self) -> Sequence[Any]:
        return self.env.render(list(range(self.num_envs)))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the EnvPool's threads, which end with the object. A fork that came later would hang in freeing it."""
        super().close()
        self.env = None
