"""VecNormalize: observations of mean 0 and variance 1, rewards divided by the spread of their returns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd
from numpy.typing import NDArray

from vecenvs.arguments import check_names, parse_number, parse_path
from vecenvs.batch.columns import Columns
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import VecEnvError
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.wrappers import vec_normalize_file
from vecenvs.wrappers.dict_space import dict_space
from vecenvs.wrappers.vec_rows import REPEAT, TERMINAL, VecRowsWrapper, check_last, flagged
from vecenvs.wrappers.vec_statistics import Merger, Statistics


class VecNormalize(VecRowsWrapper):
    """Normalizes what `venv` gives by running statistics (names, arguments and formulas: baselines' and SB3's).

    Observations become float32: minus the mean, divided by sqrt(variance + `epsilon`), clipped to +-`clip_obs`; so does
    "terminal_observation". `observation_space` says so. Of Dict observations all entries, or `norm_obs_keys`, which
    must be Boxes (ValueError). Rewards are divided by sqrt(variance + `epsilon`) of the discounted returns
    (`gamma`) that the envs have in their episodes, and clipped to +-`clip_reward`; their mean is not subtracted.

    While `training` (an attribute, to be set freely) statistics go on. Every observation from which an action is
    chosen counts once, whatever the autoreset mode: neither the last one of an episode nor a repeated row does.
    Returns take in transitions alone (`active`).

    `norm_obs` and `norm_reward` may be set, too. While `norm_obs` is False observations are as `venv` gives them, and
    do not count; `observation_space` stays as it was made. Made with `norm_obs=False` there are no statistics of
    observations, and setting it is a ValueError.

    `merge`, such as `MergeOverRanks(MPI.COMM_WORLD)`, makes the statistics those of all MPI ranks: at each `step` and
    each `reset` of all envs, which every rank must then call equally often and with the same `training`. Rows that
    come by `recv`, or a reset of some envs, are merged with the next of these, or by `flush`.
    """

    def __init__(
        self,
        venv: VecEnv,
        training: bool = True,
        norm_obs: bool = True,
        norm_reward: bool = True,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
        norm_obs_keys: Sequence[str] | None = None,
        *,
        merge: Merger | None = None,
    ) -> None:
        for name, value in (("clip_obs", clip_obs), ("clip_reward", clip_reward), ("epsilon", epsilon)):
            if not parse_number(name, value) > 0:  # NaN is not either
                raise ValueError(f"{name} must be more than 0, not {value!r}")
        if not 0 <= parse_number("gamma", gamma) <= 1:
            raise ValueError(f"gamma must be from 0 to 1, not {gamma!r}")
        if merge is not None and not callable(getattr(merge, "merge", None)):
            raise TypeError(f"merge must have a method merge(mean, var, count), like MergeOverRanks, unlike {merge!r}")
        if norm_obs_keys is not None:
            check_names("norm_obs_keys", norm_obs_keys, "keys")
        super().__init__(venv)
        self.training = training
        self._norm_obs, self.norm_reward = bool(norm_obs), bool(norm_reward)
        self.clip_obs, self.clip_reward = float(clip_obs), float(clip_reward)
        self.gamma, self.epsilon = float(gamma), float(epsilon)
        boxes = _boxes(venv.observation_space, norm_obs_keys) if norm_obs else {}
        self.norm_obs_keys = None if None in boxes or not norm_obs else [key for key in boxes if key is not None]
        self._obs = {key: Statistics(box.shape, merge) for key, box in boxes.items()}
        self._returns = Statistics((), merge)
        self.returns: NDArray[np.float64] = np.zeros(self.num_envs)
        self._rewards = np.zeros(self.num_envs, np.float32)
        self._normalized: NDArray[np.float64] = np.zeros(self.num_envs)
        self._layout = SpaceLayout(venv.observation_space)
        self._original = Columns(self._layout, self.num_envs, np.zeros)
        self._begun = False
        self.observation_space = _normalized_space(venv.observation_space, boxes, self.clip_obs)

    @property
    def norm_obs(self) -> bool:
        """Whether observations are normalized now."""
        return self._norm_obs

    @norm_obs.setter
    def norm_obs(self, value: bool) -> None:
        if value and not (self._norm_obs or self._obs):
            raise ValueError("made with norm_obs=False, it has no statistics of observations: make a new VecNormalize")
        self._norm_obs = bool(value)

    @property
    def obs_rms(self) -> RunningMeanStd | dict[str, RunningMeanStd]:
        """The statistics of observations (`mean`, `var`, `count`), or those of each normalized key.

        To set them, as in `evaluation.obs_rms = vec.obs_rms`, makes both have the same ones from then on; see
        `copy_statistics`. ValueError for those of other observations.
        """
        if None in self._obs:
            return self._obs[None].rms
        return {key: statistics.rms for key, statistics in self._obs.items() if key is not None}

    @obs_rms.setter
    def obs_rms(self, value: RunningMeanStd | dict[str, RunningMeanStd]) -> None:
        given: dict[Any, Any] = dict(value) if isinstance(value, Mapping) else {None: value}
        if given.keys() != self._obs.keys():
            names = ", ".join(f"obs_rms[{key!r}]" if key is not None else "obs_rms" for key in self._obs)
            raise ValueError(
                f"obs_rms is set to the statistics of other observations: those here are {names or 'none'}"
            )
        for key, statistics in self._obs.items():
            statistics.check(given[key])
        for key, statistics in self._obs.items():
            statistics.share(given[key])

    @property
    def ret_rms(self) -> RunningMeanStd:
        """The statistics of discounted returns, to be set like `obs_rms`."""
        return self._returns.rms

    @ret_rms.setter
    def ret_rms(self, value: RunningMeanStd) -> None:
        self._returns.share(value)

    @property
    def rewards64(self) -> NDArray[np.float64]:
        """The normalized rewards of the last step before rounding; not normalized ones as `venv` has them."""
        return self._normalized.copy() if self.norm_reward else self.venv.rewards64

    # Rows

    def _on_rows(self, batch: Batch, exact: NDArray[np.float64], lock_step: bool) -> None:
        slots, over = batch.indices, batch.dones
        self._original.assign(self._layout.flatten(batch.obs), slots)
        self._rewards[slots] = batch.rewards
        self._begun = True
        if self.training:
            # The row that ends an episode holds the next one's first observation in same_step mode only.
            fresh = ~flagged(batch, REPEAT) & (~over if self.autoreset != "same_step" else np.ones(len(slots), bool))
            for key, statistics in self._in_use.items():
                statistics.add((batch.obs if key is None else batch.obs[key])[fresh])
            self._follow_returns(batch)
            if lock_step:
                self.flush()
        self.returns[slots[over | ~batch.active]] = 0.0
        batch.obs = self._normalize_all(batch.obs)
        self._normalize_terminals([batch.infos[j] for j in np.flatnonzero(over)])
        if self.norm_reward:
            # From the rounded rewards, which are the same by `step` and by `recv`.
            normalized = self._scaled(batch.rewards)
            self._normalized[slots] = normalized
            batch.rewards = normalized.astype(np.float32)

    def _follow_returns(self, batch: Batch) -> None:
        slots = batch.indices[batch.active]
        self.returns[slots] = self.returns[slots] * self.gamma + batch.rewards[batch.active]
        self._returns.add(self.returns[slots])

    def _scaled(self, rewards: NDArray[Any]) -> NDArray[np.float64]:
        scaled = rewards.astype(np.float64) / np.sqrt(self._returns.rms.var + self.epsilon)
        clipped: NDArray[np.float64] = np.clip(scaled, -self.clip_reward, self.clip_reward)
        return clipped

    @property
    def _in_use(self) -> dict[str | None, Statistics]:
        return self._obs if self._norm_obs else {}

    def _normalize_all(self, obs: Any) -> Any:
        by_key = self._in_use
        if None in by_key:
            return self._normalize(obs, by_key[None].rms)
        if not by_key:
            return obs
        return {k: self._normalize(v, by_key[k].rms) if k in by_key else v for k, v in obs.items()}

    def _normalize_terminals(self, infos: list[dict[str, Any]]) -> None:
        if self._in_use:
            check_last(infos, self.venv.observation_space)
        for key, statistics in self._in_use.items() if infos else ():
            if key is None:
                values = self._normalize(np.stack([info[TERMINAL] for info in infos]), statistics.rms)
            else:
                values = self._normalize(np.stack([info[TERMINAL][key] for info in infos]), statistics.rms)
            for info, value in zip(infos, values, strict=True):
                info[TERMINAL] = value if key is None else {**info[TERMINAL], key: value}

    def _normalize(self, obs: Any, rms: RunningMeanStd) -> NDArray[np.float32]:
        scaled = np.clip((obs - rms.mean) / np.sqrt(rms.var + self.epsilon), -self.clip_obs, self.clip_obs)
        return np.asarray(scaled, np.float32)

    # For callers

    def normalize_obs(self, obs: Any) -> Any:
        """Normalize one observation or a batch by the present statistics, which do not change."""
        self._check_keys(obs)
        return self._normalize_all(obs)

    def unnormalize_obs(self, obs: Any) -> Any:
        """Undo `normalize_obs`, except for clipping: float64 where it was normalized."""
        self._check_keys(obs)
        by_key = self._in_use
        if None in by_key:
            return _unscaled(obs, by_key[None].rms, self.epsilon)
        if not by_key:
            return obs
        return {k: _unscaled(v, by_key[k].rms, self.epsilon) if k in by_key else v for k, v in obs.items()}

    def _check_keys(self, obs: Any) -> None:
        """Refuse, by TypeError, an array in place of Dict observations, or a dict in place of others."""
        space = self.venv.observation_space
        if isinstance(obs, Mapping) != isinstance(space, spaces.Dict):
            raise TypeError(f"obs must be an observation of {space}, or a batch of them, not a {type(obs).__name__}")

    def normalize_reward(self, reward: Any) -> NDArray[np.float32]:
        """Normalize rewards by the present statistics, which do not change."""
        rewards = np.asarray(reward)
        return np.asarray(self._scaled(rewards) if self.norm_reward else rewards, np.float32)

    def unnormalize_reward(self, reward: Any) -> NDArray[Any]:
        """Undo `normalize_reward`, except for clipping."""
        rewards = np.asarray(reward)
        return rewards * np.sqrt(self._returns.rms.var + self.epsilon) if self.norm_reward else rewards

    def get_original_obs(self) -> Any:
        """Give the last observation of every env (the caller's own) as it was before. VecEnvError if there is none."""
        if not self._begun:
            raise VecEnvError("get_original_obs before any observation: reset() first")
        return self._original.copies()

    def get_original_reward(self) -> NDArray[np.float32]:
        """Give the last reward of every env as it was before: float32 (num_envs,)."""
        return self._rewards.copy()

    def flush(self) -> None:
        """Merge what waits with the other ranks' (`merge`). Every rank must call it; without `merge` nothing waits."""
        for statistics in (*self._obs.values(), self._returns):
            statistics.flush()

    def copy_statistics(self, source: VecNormalize) -> None:
        """Take over the statistics of another one: what an evaluation's VecNormalize needs (SB3's `sync_envs_...`)."""
        if not isinstance(source, VecNormalize):
            raise TypeError(f"source must be a VecNormalize, not {source!r}")
        self._take(source._arrays())

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write statistics and settings to one `.npz` file of plain arrays, in one go: nothing in it is pickled."""
        settings = {name: getattr(self, name) for name in vec_normalize_file.SETTINGS}
        vec_normalize_file.write(parse_path("path", path), settings, self._arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str], venv: VecEnv, *, merge: Merger | None = None) -> VecNormalize:
        """Wrap `venv` with the statistics and settings of a file that `save` wrote; `training` is True.

        ValueError if it is no such file (one that SB3 pickled, say) or is about other observations.
        """
        settings, arrays = vec_normalize_file.read(parse_path("path", path))
        norm_obs = settings.pop("norm_obs")
        # It may have been set to False while there were statistics: then they are to be there again.
        observed = any(name.startswith("obs/") for name in arrays)
        try:
            loaded = cls(venv, merge=merge, **cls._arguments({**settings, "norm_obs": norm_obs or observed}))
            loaded._take(arrays)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)!r} is about other observations: {error}") from None
        loaded.norm_obs = norm_obs
        return loaded

    @classmethod
    def _arguments(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Give a file's settings by the names that the constructor has for them."""
        return settings

    def _arrays(self) -> dict[str, NDArray[np.float64]]:
        return {f"{name}/{part}": a for name, s in self._named().items() for part, a in s.as_arrays().items()}

    def _take(self, arrays: dict[str, NDArray[np.float64]]) -> None:
        wanted = {f"{name}/{part}" for name in self._named() for part in ("mean", "var", "count")}
        if set(arrays) != wanted:
            raise ValueError(f"there are {sorted(arrays)}, {sorted(wanted)} are needed")
        for name, statistics in self._named().items():
            statistics.take({part: arrays[f"{name}/{part}"] for part in ("mean", "var", "count")})

    def _named(self) -> dict[str, Statistics]:
        observations = {"obs" if key is None else f"obs/{key}": s for key, s in self._obs.items()}
        return {**observations, "returns": self._returns}


def _unscaled(obs: Any, rms: RunningMeanStd, epsilon: float) -> NDArray[np.float64]:
    return np.asarray(obs * np.sqrt(rms.var + epsilon) + rms.mean, np.float64)


def _boxes(space: spaces.Space[Any], keys: Sequence[str] | None) -> dict[str | None, spaces.Box]:
    """Give the Boxes to normalize by their keys, or the one Box by None."""
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


def _normalized_space(space: spaces.Space[Any], boxes: dict[str | None, spaces.Box], clip: float) -> spaces.Space[Any]:
    made = {key: spaces.Box(-clip, clip, box.shape, np.float32) for key, box in boxes.items()}
    if not made or None in made:
        return made.get(None, space)
    assert isinstance(space, spaces.Dict)
    return dict_space({key: made.get(key, sub) for key, sub in space.spaces.items()})
