"""The observations of VecNormalize: which parts it normalizes, by which formulas, and what their spaces are then.

`by_key` has the statistics of each normalized entry of Dict observations, or under None those of Box observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.wrappers.dict_space import dict_space
from vecenvs.wrappers.vec_rows import TERMINAL
from vecenvs.wrappers.vec_statistics import Statistics

ByKey = Mapping[str | None, Statistics]


def boxes_of(space: spaces.Space[Any], keys: Sequence[str] | None) -> dict[str | None, spaces.Box]:
    """Return the Boxes to normalize by their keys; the one Box of observations that are no Dict has the key None."""
    if isinstance(space, spaces.Box):
        if keys is not None:
            raise ValueError("norm_obs_keys is for Dict observations; these are a Box: leave it out")
        return {None: space}
    if not isinstance(space, spaces.Dict):
        raise ValueError(f"VecNormalize normalizes Box and Dict observations, not {space}: give norm_obs=False")
    boxes: dict[str | None, spaces.Box] = {}
    for key in space.spaces if keys is None else keys:
        if key not in space.spaces:
            raise ValueError(f"the observations have no key {key!r}: there are {', '.join(map(str, space.spaces))}")
        sub = space.spaces[key]
        if not isinstance(sub, spaces.Box):
            raise ValueError(f"the observation {key!r} is {sub}, no Box: name those to normalize in norm_obs_keys")
        boxes[key] = sub
    return boxes


def normalized_space(space: spaces.Space[Any], boxes: dict[str | None, spaces.Box], clip: float) -> spaces.Space[Any]:
    """Return `space` with Boxes from -clip to clip in the place of `boxes`."""
    made = {key: spaces.Box(-clip, clip, box.shape, np.float32) for key, box in boxes.items()}
    if not made or None in made:
        return made.get(None, space)
    assert isinstance(space, spaces.Dict)
    return dict_space({key: made.get(key, sub) for key, sub in space.spaces.items()})


def normalize(obs: Any, by_key: ByKey, epsilon: float, clip: float) -> Any:
    """Return one observation or a batch, with the normalized parts as float32."""
    if None in by_key:
        return _scaled(obs, by_key[None], epsilon, clip)
    if not by_key:
        return obs
    return {k: _scaled(v, by_key[k], epsilon, clip) if k in by_key else v for k, v in obs.items()}


def unnormalize(obs: Any, by_key: ByKey, epsilon: float) -> Any:
    """Return one normalized observation or a batch, with the normalized parts as float64 before normalization."""
    if None in by_key:
        return _unscaled(obs, by_key[None], epsilon)
    if not by_key:
        return obs
    return {k: _unscaled(v, by_key[k], epsilon) if k in by_key else v for k, v in obs.items()}


def normalize_terminals(infos: Sequence[dict[str, Any]], by_key: ByKey, epsilon: float, clip: float) -> None:
    """Normalize the "terminal_observation" of infos."""
    for key, statistics in by_key.items() if infos else ():
        given = [info[TERMINAL] if key is None else info[TERMINAL][key] for info in infos]
        for info, value in zip(infos, _scaled(np.stack(given), statistics, epsilon, clip), strict=True):
            info[TERMINAL] = value if key is None else {**info[TERMINAL], key: value}


def check_keys(obs: Any, space: spaces.Space[Any]) -> None:
    """Raise TypeError for an array in the place of Dict observations, or a dict in the place of others."""
    if isinstance(obs, Mapping) != isinstance(space, spaces.Dict):
        raise TypeError(f"obs must be an observation of {space}, or a batch of them, not a {type(obs).__name__}")


def share_statistics(by_key: ByKey, rms: Any) -> None:
    """Use `rms`, one RunningMeanStd or a dict of them, from now on; ValueError if it is of other observations."""
    given: dict[Any, Any] = dict(rms) if isinstance(rms, Mapping) else {None: rms}
    if given.keys() != by_key.keys():
        names = ", ".join(f"obs_rms[{key!r}]" if key is not None else "obs_rms" for key in by_key)
        raise ValueError(f"obs_rms is set to the statistics of other observations: those here are {names or 'none'}")
    for key, statistics in by_key.items():
        statistics.check(given[key])
    for key, statistics in by_key.items():
        statistics.share(given[key])


def _scaled(obs: Any, statistics: Statistics, epsilon: float, clip: float) -> NDArray[np.float32]:
    rms = statistics.rms
    return np.asarray(np.clip((obs - rms.mean) / np.sqrt(rms.var + epsilon), -clip, clip), np.float32)


def _unscaled(obs: Any, statistics: Statistics, epsilon: float) -> NDArray[np.float64]:
    return np.asarray(obs * np.sqrt(statistics.rms.var + epsilon) + statistics.rms.mean, np.float64)
