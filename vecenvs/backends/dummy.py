"""All envs in the caller's process, one after another: the reference that every other engine must equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vecenvs.backends.in_process import LocalTransport
from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.pool.pool_vec_env import EnvFn, PoolVecEnv
from vecenvs.transport import Transport


class DummyVecEnv(PoolVecEnv):
    """Steps its envs in the calling process. For cheap envs, few envs, and debugging.

    `common` are the arguments that every engine takes: autoreset, info_attrs, copy, step_timeout, on_failure and
    max_restarts (see `PoolVecEnv` in `vecenvs.pool`). The last three have no effect here, where nothing is waited for.
    """

    def __init__(self, env_fns: Iterable[EnvFn], **common: Any) -> None:
        super().__init__(env_fns, 1, **common)

    def _envs_here(self) -> list[Any]:
        if self.closed:
            return []
        self.call(_itself, None)  # which is refused while commands are unanswered
        return self._local.envs()

    def _launch(self, worker: int, shard: range) -> Transport:
        self._local = LocalTransport([self._env_fns[slot] for slot in shard], shard.start, self.autoreset)
        return self._local

    def _lay_out(self) -> BatchColumns:
        space, actions = self.observation_space, self.action_space
        return BatchColumns(space, actions, self.num_envs, Allocator(), self._info_attrs)


def _itself(env: Any) -> Any:
    return env
