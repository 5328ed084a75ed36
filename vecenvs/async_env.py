"""The base of envs whose methods are coroutines, for `concurrency="asyncio"`."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
from gymnasium.core import ActType, ObsType


class AsyncEnv(gymnasium.Env[ObsType, ActType]):
    """An env whose `reset`, `step` and `close` are coroutines: while one waits, the others of its worker go on.

    It has spaces and the rest of `gymnasium.Env`. VecEnvs take it with `concurrency="asyncio"`, as they do any env
    whose methods return something to be awaited; this base tells type checkers so, and seeds `np_random`.
    """

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Begin an episode. An env's own begins with `await super().reset(seed=seed)`, and returns something.

        Args:
            seed: seeds `np_random`, unless it is None.
            options: what the env makes of it.

        Returns:
            The first observation, of the observation space, and the info.
        """
        super().reset(seed=seed, options=options)
        return None, {}  # type: ignore[return-value]

    async def step(  # type: ignore[override]
        self, action: ActType
    ) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the env.

        Args:
            action: the action, of the action space.

        Returns:
            The observation, reward, terminated, truncated and the info.

        Raises:
            NotImplementedError: unless an env overrides it.
        """
        raise NotImplementedError

    async def close(self) -> None:  # type: ignore[override]
        """Free what the env holds. By default there is nothing."""
