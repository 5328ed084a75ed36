"""What a reset is given: the seed and the options of each env, checked and in one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vecenvs.batch.values import copy_containers, shown
from vecenvs.state.env_state import EnvState
from vecenvs.transport.reset_arguments import ResetArguments
from vecenvs.vec_env import Options, Seeds


def parse_seeds(seed: Seeds, indices: Sequence[int]) -> dict[int, int | None]:
    """Return the seed of each env of `indices`.

    From a SeedSequence env i takes 32 bits of child i (a size that every generator in use takes), so that its seed
    depends on its index alone. The sequence itself is not advanced.
    """
    if seed is None:
        return dict.fromkeys(indices)
    if isinstance(seed, np.random.SeedSequence):
        return {i: _child_seed(seed, i) for i in indices}
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        _check_seed(seed)
        return {i: int(seed) + i for i in indices}
    given: Any = seed
    if isinstance(given, np.ndarray) and given.ndim == 1:
        given = list(given)
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        if len(given) != len(indices):
            raise ValueError(f"{len(given)} seeds for {len(indices)} envs: give one each, or one int")
        for item in given:
            if item is not None:
                _check_seed(item)
        return {i: None if item is None else int(item) for i, item in zip(indices, given, strict=True)}
    raise TypeError(f"seed must be an int, a list of ints, a numpy SeedSequence or None, not {seed!r}")


def parse_reset(seed: Seeds, options: Options, indices: Sequence[int]) -> ResetArguments:
    """Return the seeds and options of a reset of the envs `indices`; see `parse_seeds` and `parse_options`."""
    seeds: Any = None
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        _check_seed(seed)
        seeds = int(seed)
    elif seed is not None:
        seeds = parse_seeds(seed, indices)
    if options is None or isinstance(options, Mapping):
        return ResetArguments(seeds, _copied(options))
    return ResetArguments(seeds, parse_options(options, indices), True)


def parse_options(options: Options, indices: Sequence[int]) -> dict[int, dict[str, Any] | None]:
    """Return the options of each env of `indices`, copied."""
    if options is None or isinstance(options, Mapping):
        return {i: _copied(options) for i in indices}
    if isinstance(options, (list, tuple)):
        if len(options) != len(indices):
            raise ValueError(f"{len(options)} options for {len(indices)} envs: give one mapping each, or one for all")
        for k, item in enumerate(options):
            if item is not None and not isinstance(item, Mapping):
                raise TypeError(f"options[{k}] must be a mapping or None, not {item!r}")
        return {i: _copied(item) for i, item in zip(indices, options, strict=True)}
    raise TypeError(f"options must be a mapping, a list of mappings or None, not {options!r}")


def _copied(options: Mapping[str, Any] | None) -> Any:
    return None if options is None else copy_containers(dict(options))


def parse_states(states: EnvState | Sequence[EnvState], indices: Sequence[int]) -> dict[int, EnvState]:
    """Return the state that each env of `indices` is to be put into: one for all of them, or one each."""
    given: list[Any] = [states] * len(indices) if isinstance(states, EnvState) else list(states)
    if not all(isinstance(each, EnvState) for each in given):
        wrong = next(each for each in given if not isinstance(each, EnvState))
        raise TypeError(f"set_state takes what get_state has returned, not {shown(wrong)}")
    if len(given) != len(indices):
        raise ValueError(f"{len(given)} states for {len(indices)} envs: give one each, or one for all")
    return dict(zip(indices, given, strict=True))


def _check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"a seed must be an int, not {seed!r}")
    if seed < 0:
        raise ValueError(f"a seed must not be negative, as {seed} is")


def _child_seed(sequence: np.random.SeedSequence, index: int) -> int:
    child = np.random.SeedSequence(sequence.entropy, spawn_key=(*sequence.spawn_key, index))
    return int(child.generate_state(1)[0])
