"""A VecEnv behind the interface of tianshou's vector envs (`tianshou.env.BaseVectorEnv`, tianshou 2.0).

tianshou need not be installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs import env_calls
from vecenvs._native.twin import unrounded
from vecenvs.arguments import check_vec_env, parse_indices
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import EnvError
from vecenvs.vec_env import VecEnv
from vecenvs.views.gymnasium.vector_infos import without_vec_env_keys

Array = NDArray[Any]
Ids = int | Sequence[int] | Array | None


def as_tianshou(vec: VecEnv) -> TianshouView:
    """View a VecEnv as a vector env of tianshou, for its `Collector`; closing the view closes `vec`.

    All values equal those of tianshou's own `DummyVectorEnv` of the same envs. Where an env returns rewards of another
    type than Python's floats, they are float64 here.

    Args:
        vec: a VecEnv with autoreset="disabled", since a Collector resets the envs whose episodes have ended.

    Returns:
        An object with the methods of tianshou's vector envs. It steps in lock-step (`is_async` is False).

    Raises:
        TypeError: `vec` is not a VecEnv, or its observations are a Tuple, which tianshou does not take.
        ValueError: `vec` has another autoreset mode.
    """
    return TianshouView(vec)


def _of_each(name: str) -> Any:
    return property(lambda view: view.get_env_attr(name), doc=f"The `{name}` of each env, a list.")


class TianshouView:
    """The VecEnv `vec` behind tianshou's interface.

    Arguments named `id` are an int, a sequence of ints in any order, or None for all envs. See `as_tianshou`.
    """

    is_async = False

    def __init__(self, vec: VecEnv) -> None:
        check_vec_env("as_tianshou", vec)
        if vec.autoreset != "disabled":
            raise ValueError(
                f"tianshou's Collector resets envs itself, but this VecEnv has autoreset={vec.autoreset!r}: make it "
                "with autoreset='disabled'"
            )
        if isinstance(vec.observation_space, spaces.Tuple):
            raise TypeError(f"tianshou takes no Tuple observations, and these are {vec.observation_space}")
        self.vec = vec
        self.env_num = vec.num_envs
        self._layout = SpaceLayout(vec.observation_space)

    def __len__(self) -> int:
        """Return the number of envs."""
        return self.env_num

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self.vec!r}>"

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self.vec.closed

    action_space = _of_each("action_space")
    observation_space = _of_each("observation_space")
    metadata = _of_each("metadata")
    spec = _of_each("spec")

    def reset(self, env_id: Ids = None, **kwargs: Any) -> tuple[Array, Array]:
        """Reset envs.

        Args:
            env_id: the envs.
            **kwargs: `seed`, one int for each of these envs alike, and `options`.

        Returns:
            The first observations, one row for each env in the order of `env_id`: an array, of Dict observations an
            array of dicts. And an array of infos.

        Raises:
            EnvError: envs raised. The others have been reset.
        """
        ids = self._ids(env_id)
        seed = kwargs.pop("seed", None)
        obs = self.vec.reset(ids, seed=None if seed is None else [seed] * len(ids), **kwargs)
        infos = self.vec.reset_infos
        return self._rows(obs), _objects([without_vec_env_keys(infos[slot]) for slot in ids])

    def step(self, action: Any, id: Ids = None) -> tuple[Array, Array, Array, Array, Array]:  # noqa: A002  their name
        """Step envs.

        Args:
            action: one action for each of these envs, in their order.
            id: the envs.

        Returns:
            Observations as from `reset`; rewards float64 (k,); terminated and truncated bool (k,); an array of infos,
            each with its "env_id". One row for each env in the order of `id`.

        Raises:
            ValueError: there is not one action for each env.
            EnvError: envs raised, or have ended their episodes and need `reset`.
        """
        ids = self._ids(id)
        if len(action) != len(ids):
            raise ValueError(f"{len(action)} actions for {len(ids)} envs: give one each")
        try:
            self.vec.send(action, ids)
            batch = self.vec.recv(indices=ids)
        except EnvError as error:
            error.tell_reset(lambda slot: f"reset([{slot}]) it first")
            raise
        rewards = unrounded(self.vec.rewards64[ids], batch.rewards)
        infos = [{**without_vec_env_keys(info), "env_id": slot} for slot, info in zip(ids, batch.infos, strict=True)]
        return self._rows(batch.obs), rewards, batch.terminated, batch.truncated, _objects(infos)

    def seed(self, seed: int | Sequence[int | None] | None = None) -> list[list[int | None]]:
        """Seed every env by a reset, as tianshou does: the next `reset` goes on from there.

        Args:
            seed: env i gets `seed` + i; a list has one for each env; with None each gets one from the system.

        Returns:
            A list with the seed of each env, in a list of its own.
        """
        given = self.vec.seed(np.random.SeedSequence() if seed is None else seed)
        self.vec.reset()
        return [[one] for one in given]

    def get_env_attr(self, key: str, id: Ids = None) -> list[Any]:  # noqa: A002
        """Read an attribute of each env.

        Args:
            key: the attribute.
            id: the envs.

        Returns:
            A list of values, in the order of `id`.
        """
        return self.vec.get_attr(f"unwrapped.{key}", self._ids(id))

    def set_env_attr(self, key: str, value: Any, id: Ids = None) -> None:  # noqa: A002
        """Write an attribute of each env.

        Args:
            key: the attribute.
            value: the value for all of them.
            id: the envs.
        """
        self.vec.set_attr(f"unwrapped.{key}", value, self._ids(id))

    def render(self, **kwargs: Any) -> list[Any]:
        """Render every env.

        Args:
            **kwargs: no effect; tianshou's arguments.

        Returns:
            A list of what each env's `render` returns.
        """
        return self.vec.call(env_calls.render, None)

    def close(self) -> None:
        """Close the envs. Later calls do nothing."""
        self.vec.close()

    def _ids(self, given: Ids) -> list[int]:
        return parse_indices(given, self.env_num)

    def _rows(self, batch: Any) -> Array:
        """Return observations as tianshou stacks them."""
        if self._layout.is_flat:
            return np.asarray(batch) if not self._layout.has_objects else np.stack(batch)
        rows = zip(*self._layout.flatten(batch), strict=True)
        return _objects([self._layout.unflatten(row) for row in rows])


def _objects(values: list[Any]) -> Array:
    found = np.empty(len(values), object)
    found[:] = values
    return found
