"""`from_gymnasium`: a gymnasium.vector.VectorEnv, a natively batched one too, as a VecEnv."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import AsyncVectorEnv, VectorEnv

from vecenvs.arguments import check_choice
from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.batched import MODES, Batched
from vecenvs.vec_env import VecEnv, batched_env_hint
from vecenvs.views.gymnasium.view import GymnasiumView
from vecenvs.worker.hosts.batched_host import mode_of


def from_gymnasium(vector_env: VectorEnv[Any, Any, Any], *, autoreset: str | None = None, copy: bool = True) -> VecEnv:
    """Make a VecEnv of a gymnasium.vector.VectorEnv; closing it closes the vector env.

    Args:
        vector_env: a vector env, also a natively batched one, but not an AsyncVectorEnv.
        autoreset: "next_step", "same_step" or "disabled": needed where the metadata has no "autoreset_mode".
        copy: False returns observations without a copy. Use it for a vector env that never writes into observations
            which it has returned.

    Returns:
        A DummyVecEnv of one `Batched`: docs/batched.md says what its envs cannot do one by one. For a view by
        `as_gymnasium` it is the VecEnv that the view shows.

    Raises:
        TypeError: `vector_env` is not a gymnasium.vector.VectorEnv, or an AsyncVectorEnv.
        ValueError: the autoreset mode is unknown, or differs from the one in the metadata.
    """
    check_vector_env(vector_env)
    mode = parse_autoreset(vector_env, autoreset)
    if isinstance(vector_env, GymnasiumView):
        return vector_env.vec
    return DummyVecEnv([Batched(lambda: vector_env, vector_env.num_envs, mode)], autoreset=mode, copy=copy)


def check_vector_env(given: Any) -> None:
    """Raise TypeError, with the remedy, unless `given` is a vector env that can be stepped here."""
    if isinstance(given, VectorEnv):
        if isinstance(given.unwrapped, AsyncVectorEnv):
            way = batched_env_hint(given)
            raise TypeError(f"from_gymnasium takes no AsyncVectorEnv, which has a process for each env: {way}")
        return
    if isinstance(given, VecEnv):
        remedy = batched_env_hint(given)
    elif any(cls.__module__.partition(".")[0] == "envpool" for cls in type(given).__mro__):
        remedy = "envpool.make_gymnasium gives one"
    else:
        remedy = "gym.make_vec makes one of an env's id, DummyVecEnv a VecEnv of functions that make an env each"
    raise TypeError(f"from_gymnasium takes a gymnasium.vector.VectorEnv, not {type(given).__name__}: {remedy}")


def parse_autoreset(vector_env: VectorEnv[Any, Any, Any], given: str | None) -> str:
    """Return the autoreset mode in the metadata, or `given` if they have none; ValueError if the two differ."""
    declared = mode_of(vector_env)
    found = given if declared is None else declared
    if found is None:
        raise ValueError(
            f"the metadata of {vector_env} have no 'autoreset_mode': "
            f"name its mode by autoreset={' or '.join(map(repr, MODES))}"
        )
    check_choice("autoreset", found, MODES)
    if given not in (None, found):
        mode = vector_env.metadata.get("autoreset_mode")
        raise ValueError(f"autoreset={given!r}, but the vector env's metadata have 'autoreset_mode' {mode}")
    return found
