"""Check and translate arguments for the vector env behind `from_gymnasium`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium.vector import AutoresetMode, VectorEnv

from vecenvs.arguments import check_choice
from vecenvs.errors import VecEnvError
from vecenvs.vec_env import VecEnv
from vecenvs.views.gymnasium.single_envs import AnyVectorEnv
from vecenvs.views.gymnasium.view import AUTORESET_MODES


def check_vector_env(given: Any) -> None:
    """Raise TypeError, with the remedy, unless `given` is a vector env."""
    if isinstance(given, VectorEnv):
        return
    if isinstance(given, VecEnv):
        remedy = "it is a VecEnv already, to be used as it is"
    elif any(cls.__module__.partition(".")[0] == "envpool" for cls in type(given).__mro__):
        remedy = "envpool.make_gymnasium gives one"
    else:
        remedy = "gym.make_vec makes one of an env's id, DummyVecEnv a VecEnv of functions that make an env each"
    raise TypeError(f"from_gymnasium takes a gymnasium.vector.VectorEnv, not {type(given).__name__}: {remedy}")


def parse_autoreset(vector_env: AnyVectorEnv, given: str | None) -> str:
    """Return the autoreset mode in the metadata, or `given` if they have none; ValueError if the two differ."""
    declared = vector_env.metadata.get("autoreset_mode")
    names = {mode: name for name, mode in AUTORESET_MODES.items()}
    found = given if declared is None else names[AutoresetMode(declared)]
    if found is None:
        raise ValueError(
            f"the metadata of {vector_env} have no 'autoreset_mode': "
            f"name its mode by autoreset={' or '.join(map(repr, AUTORESET_MODES))}"
        )
    check_choice("autoreset", found, AUTORESET_MODES)
    if given not in (None, found):
        raise ValueError(f"autoreset={given!r}, but the vector env's metadata have 'autoreset_mode' {declared}")
    return found


def common_seed(seeds: list[int | None], slots: Sequence[int]) -> int | list[int | None] | None:
    """Return one int s if s + i is the seed of every env i in `slots`, as in Gymnasium; else the list.

    Natively batched envs take no list.
    """
    firsts = {None if (seed := seeds[slot]) is None else seed - slot for slot in slots}
    first = firsts.pop()
    return seeds if firsts or (first is not None and first < 0) else first


def common_options(options: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return a copy of the options that all envs share; VecEnvError if they differ."""
    first = options[0]
    if any(other is not first and other != first for other in options):
        raise VecEnvError("a Gymnasium vector env takes the same options for all envs that are reset in one call")
    return None if first is None else dict(first)
