"""RLlib's old classes RemoteVectorEnv and RemoteBaseEnv, without RLlib and over any backend.

    from vecenvs.compat.remote_vector_env import RemoteVectorEnv

    env = RemoteVectorEnv(make_env, num_envs=8, multiagent=False, remote_env_batch_wait_ms=5)
    while training:
        obs, rewards, dones, infos, _ = env.poll()  # of the envs that are ready: env id -> agent id -> value
        over = [i for i in dones if dones[i]["__all__"]]
        for i in over:
            env.try_reset(i)  # its first row comes by a later poll
        env.send_actions({i: policy(obs[i]) for i in obs if i not in over})
    env.stop()

The meaning of the dicts is that of Ray's rllib/env/remote_vector_env.py and of its successor remote_base_env.py.
"""

from __future__ import annotations

from typing import Any

from vecenvs.compat.multi_agent import dones, infos_of_dones
from vecenvs.compat.remote_envs import ASYNC_RESET_RETURN, RemoteEnvs

__all__ = ["ASYNC_RESET_RETURN", "RemoteBaseEnv", "RemoteVectorEnv"]

MultiEnvDict = dict[int, dict[Any, Any]]
FiveDicts = tuple[MultiEnvDict, MultiEnvDict, MultiEnvDict, MultiEnvDict, MultiEnvDict]
SixDicts = tuple[MultiEnvDict, MultiEnvDict, MultiEnvDict, MultiEnvDict, MultiEnvDict, MultiEnvDict]


class RemoteVectorEnv(RemoteEnvs):
    """RLlib's older class, for Gymnasium envs: `poll` returns five dicts. `RemoteEnvs` has its arguments."""

    def poll(self) -> FiveDicts:
        """Return the rows that are ready.

        Waits for the first row, and for more until `remote_env_batch_wait_ms` after the call, or until all are there.

        Returns:
            Observations, rewards, dones, infos and off-policy actions (always empty), each a dict env id -> agent id ->
            value. dones = terminated or truncated; a truncated agent has info["TimeLimit.truncated"] True.

        Raises:
            NotSteppingError: no env has a command.
            EnvError: an env raised, after the rows before it were returned. It needs `try_reset`; the others do not.
            WorkerDied: a worker ended, after the rows before that were returned.
        """
        return self._poll(
            lambda rows: (
                {env_id: rows[env_id].obs for env_id in rows},
                {env_id: rows[env_id].row["rewards"] for env_id in rows},
                {env_id: dones(rows[env_id].row) for env_id in rows},
                {env_id: infos_of_dones(rows[env_id].row) for env_id in rows},
                {},
            )
        )


class RemoteBaseEnv(RemoteEnvs):
    """RLlib's later class, in its form for Gymnasium: `poll` returns six dicts. `RemoteEnvs` has its arguments."""

    def poll(self) -> SixDicts:
        """Return the rows that are ready, as `RemoteVectorEnv.poll` does.

        Returns:
            Observations, rewards, terminateds, truncateds, infos and off-policy actions (always empty), each a dict env
            id -> agent id -> value.
        """
        return self._poll(
            lambda rows: (
                {env_id: rows[env_id].obs for env_id in rows},
                {env_id: rows[env_id].row["rewards"] for env_id in rows},
                {env_id: rows[env_id].row["terminateds"] for env_id in rows},
                {env_id: rows[env_id].row["truncateds"] for env_id in rows},
                {env_id: rows[env_id].row["infos"] for env_id in rows},
                {},
            )
        )
