"""VecNormalize: normalize observations to mean 0 and variance 1, and divide rewards by the spread of returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd
from numpy.typing import NDArray

from vecenvs._native.twin import as_float32
from vecenvs.arguments import check_names, parse_number, parse_path
from vecenvs.batch.columns import SpaceColumns
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import ClosedError, VecEnvError
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.wrappers import vec_statistics
from vecenvs.wrappers.vec_rows import VecRowsWrapper, begins, check_last, last_infos, lost, repeats, shows_next
from vecenvs.wrappers.vec_statistics import Merger, Statistics, boxes_of, normalized_space


class VecNormalize(VecRowsWrapper):
    """Normalize observations and rewards by running statistics (names and formulas of baselines and SB3).

    Observations, also "terminal_observation", become float32: the mean is subtracted, the rest divided by
    sqrt(variance + `epsilon`) and clipped to +-`clip_obs`. `observation_space` has these bounds. Rewards are divided by
    sqrt(variance + `epsilon`) of the envs' discounted returns, and clipped to +-`clip_reward`.

    While `training` is True, every observation from which an action is chosen counts once in the statistics, in every
    autoreset mode. The last observation of an episode does not count, nor does a repeated row. Returns are those of
    transitions alone.

    Args:
        venv: a VecEnv with Box or Dict observations, or with any others and `norm_obs=False`.
        training: whether rows change the statistics; an attribute that may be set at any time.
        norm_obs: whether to normalize observations; may be set later, unless it was False here. While it is False
            observations do not count, and `observation_space` stays as it is.
        norm_reward: whether to normalize rewards; may be set later.
        clip_obs: the bound of normalized observations.
        clip_reward: the bound of normalized rewards.
        gamma: the discount of the returns, from 0 to 1.
        epsilon: added to variances before the square root.
        norm_obs_keys: the entries of Dict observations to normalize, Boxes; None for all.
        merge: merges the statistics of several processes, such as `MergeOverRanks(MPI.COMM_WORLD)`: at each `step` and
            each `reset` of all envs, which every rank must then call equally often and with the same `training`. Rows
            of `recv`, or of a reset of some envs, are merged by the next of these calls, or by `flush`.

    Attributes:
        returns: each env's discounted return so far in its episode, float64 (num_envs,).

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: a number is out of its range, or observations to normalize are not Boxes.
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
            if not parse_number(name, value) > 0:  # so that NaN is refused, too
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
        boxes = boxes_of(venv.observation_space, norm_obs_keys) if norm_obs else {}
        self.norm_obs_keys = None if None in boxes or not norm_obs else [key for key in boxes if key is not None]
        self._statistics = vec_statistics.RowStatistics(boxes, merge)
        self.returns: NDArray[np.float64] = np.zeros(self.num_envs)
        self._rewards = np.zeros(self.num_envs, np.float32)
        self._normalized: NDArray[np.float64] = np.zeros(self.num_envs)
        self._layout = SpaceLayout(venv.observation_space)
        self._original: SpaceColumns | None = None  # the last rows of `venv`
        self.observation_space = normalized_space(venv.observation_space, boxes, self.clip_obs)

    @property
    def norm_obs(self) -> bool:
        """Whether observations are normalized. ValueError if set after `norm_obs=False` in the constructor."""
        return self._norm_obs

    @norm_obs.setter
    def norm_obs(self, value: bool) -> None:
        if value and not (self._norm_obs or self._statistics.obs):
            raise ValueError("made with norm_obs=False, it has no statistics of observations: make a new VecNormalize")
        self._norm_obs = bool(value)

    @property
    def obs_rms(self) -> RunningMeanStd | dict[str, RunningMeanStd]:
        """The statistics of observations (`mean`, `var`, `count`), or a dict of those of each normalized key.

        After `evaluation.obs_rms = vec.obs_rms` both share the same statistics; `copy_statistics` copies them. Setting
        statistics of other observations is a ValueError.
        """
        by_key = {key: statistics.rms for key, statistics in self._statistics.obs.items()}
        return by_key[None] if None in by_key else {key: rms for key, rms in by_key.items() if key is not None}

    @obs_rms.setter
    def obs_rms(self, value: RunningMeanStd | dict[str, RunningMeanStd]) -> None:
        self._statistics.share_obs(value)

    @property
    def ret_rms(self) -> RunningMeanStd:
        """The statistics of discounted returns. They can be set, like `obs_rms`."""
        return self._statistics.returns.rms

    @ret_rms.setter
    def ret_rms(self, value: RunningMeanStd) -> None:
        self._statistics.returns.share(value)

    @property
    def rewards64(self) -> NDArray[np.float64]:
        """The normalized rewards of the last step before rounding; those of `venv` if `norm_reward` is False."""
        return self._normalized.copy() if self.norm_reward else self.venv.rewards64

    # Rows

    def _on_rows(self, batch: Batch, exact: NDArray[np.float64], lock_step: bool) -> None:
        slots, over = batch.indices, batch.dones
        if self._original is None:
            self._original = SpaceColumns(self._layout, self.num_envs, np.zeros)
        rows: Any = slice(None) if lock_step and len(slots) == self.num_envs else slots  # a slice is copied faster
        self._original.assign(self._layout.flatten(batch.obs), rows)
        self._rewards[rows] = batch.rewards
        if self.training:
            # The row that ends an episode holds the next one's first observation in same_step mode only.
            fresh = ~repeats(batch) & (~over | shows_next(batch, self.autoreset))
            for key, statistics in self._in_use.items():
                part = batch.obs if key is None else batch.obs[key]
                statistics.add(part if fresh.all() else part[fresh])
            stepped = batch.active & ~lost(batch) if over.any() else batch.active
            real = slots[stepped]
            self.returns[real] = self.returns[real] * self.gamma + batch.rewards[stepped]
            self._statistics.returns.add(self.returns[real])
            if lock_step:
                self.flush()
        self.returns[slots[over | begins(batch)]] = 0.0
        batch.obs = self._normalized_obs(batch.obs, scratch=True)
        if self._in_use:
            ended = last_infos(batch)
            check_last(ended, self.venv.observation_space)
            vec_statistics.normalize_last(ended, self._in_use, self.epsilon, self.clip_obs)
        if self.norm_reward:
            # From the rounded rewards, so that `step` and `recv` give the same.
            self._normalized[rows] = normalized = self._scaled(batch.rewards)
            batch.rewards = as_float32(normalized)

    def _scaled(self, rewards: NDArray[Any]) -> NDArray[np.float64]:
        scaled = rewards.astype(np.float64) / self._statistics.returns.spread(self.epsilon)
        return np.asarray(np.clip(scaled, -self.clip_reward, self.clip_reward))

    @property
    def _in_use(self) -> dict[str | None, Statistics]:
        return self._statistics.obs if self._norm_obs else {}

    def _normalized_obs(self, obs: Any, *, scratch: bool = False) -> Any:
        def normalize(statistics: Statistics, part: Any) -> Any:
            memory = statistics.scratch(len(part)) if scratch else None
            return statistics.normalize(part, self.epsilon, self.clip_obs, memory)

        return self._converted(obs, normalize)

    def _converted(self, obs: Any, convert: Callable[[Statistics, Any], Any]) -> Any:
        """Return one observation or a batch, with converted parts where there are statistics."""
        by_key = self._in_use
        if None in by_key or not by_key:
            return convert(by_key[None], obs) if by_key else obs
        return {key: convert(by_key[key], part) if key in by_key else part for key, part in obs.items()}

    def _check_obs(self, obs: Any) -> None:
        space = self.venv.observation_space
        if isinstance(obs, Mapping) != isinstance(space, spaces.Dict):
            raise TypeError(f"obs must be an observation of {space}, or a batch of them, not a {type(obs).__name__}")

    # For callers

    def normalize_obs(self, obs: Any) -> Any:
        """Normalize observations by the present statistics, without changing these.

        Args:
            obs: one observation of `venv`, or a batch of them.

        Returns:
            The same structure; normalized parts are float32.

        Raises:
            TypeError: `obs` is an array in the place of Dict observations, or the reverse.
        """
        self._check_obs(obs)
        return self._normalized_obs(obs)

    def unnormalize_obs(self, obs: Any) -> Any:
        """Undo `normalize_obs`, except for clipping.

        Args:
            obs: one normalized observation, or a batch of them.

        Returns:
            The same structure; parts that were normalized are float64.

        Raises:
            TypeError: `obs` is an array in the place of Dict observations, or the reverse.
        """
        self._check_obs(obs)
        return self._converted(obs, lambda statistics, part: statistics.unnormalize(part, self.epsilon))

    def normalize_reward(self, reward: Any) -> NDArray[np.float32]:
        """Normalize rewards by the present statistics, without changing these.

        Args:
            reward: one reward, or an array of them.

        Returns:
            The rewards, float32, in the same shape.
        """
        rewards = np.asarray(reward)
        return as_float32(self._scaled(rewards) if self.norm_reward else rewards)

    def unnormalize_reward(self, reward: Any) -> NDArray[Any]:
        """Undo `normalize_reward`, except for clipping.

        Args:
            reward: one normalized reward, or an array of them.

        Returns:
            The rewards in the same shape.
        """
        rewards = np.asarray(reward)
        return rewards * self._statistics.returns.spread(self.epsilon) if self.norm_reward else rewards

    def get_original_obs(self) -> Any:
        """Return the last observation of every env before normalization.

        Returns:
            A batch of num_envs observations, a copy.

        Raises:
            VecEnvError: there was no observation yet.
            ClosedError: this is closed.
        """
        if self.closed:
            raise ClosedError("get_original_obs")
        if self._original is None:
            raise VecEnvError("get_original_obs before any observation: reset() first")
        return self._original.copy_all()

    def get_original_reward(self) -> NDArray[np.float32]:
        """Return the last reward of every env before normalization, float32 (num_envs,), a copy."""
        return self._rewards.copy()

    def flush(self) -> None:
        """Merge the rows that wait on all ranks (`merge`). Every rank must call it. Without `merge` no rows wait."""
        for statistics in self._statistics.named.values():
            statistics.flush()

    def copy_statistics(self, source: VecNormalize) -> None:
        """Copy the statistics of another VecNormalize, for an evaluation, as SB3's `sync_envs_normalization`.

        Args:
            source: a VecNormalize over the same observations.

        Raises:
            TypeError: `source` is not a VecNormalize.
            ValueError: its statistics are of other observations.
        """
        if not isinstance(source, VecNormalize):
            raise TypeError(f"source must be a VecNormalize, not {source!r}")
        self._statistics.take(dict(source._statistics.arrays()))

    def close(self) -> None:
        super().close()
        self._original = None  # a closed VecEnv, which may be kept, holds no rows

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write statistics and settings to one `.npz` file of plain arrays. Nothing in it is pickled.

        Args:
            path: the file. An old one is replaced only when the new one is complete.
        """
        settings = {name: getattr(self, name) for name in vec_statistics.SETTINGS}
        vec_statistics.write(parse_path("path", path), settings, self._statistics)

    @classmethod
    def load(cls, path: str | os.PathLike[str], venv: VecEnv, *, merge: Merger | None = None) -> VecNormalize:
        """Wrap a VecEnv with the statistics and settings of a file that `save` wrote.

        Args:
            path: the file.
            venv: the VecEnv.
            merge: as in the constructor.

        Returns:
            The VecNormalize, with `training` True.

        Raises:
            ValueError: the file was not written by `save` (SB3 pickles its own), or is about other observations.
        """
        settings, arrays = vec_statistics.read(parse_path("path", path))
        norm_obs = settings["norm_obs"]
        # `norm_obs` may have been set to False while there were statistics: then load them all the same.
        settings["norm_obs"] = norm_obs or any(name.startswith("obs/") for name in arrays)
        try:
            loaded = cls(venv, merge=merge, **cls._arguments(settings))
            loaded._statistics.take(arrays)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)!r} is about other observations: {error}") from None
        loaded.norm_obs = norm_obs
        return loaded

    @classmethod
    def _arguments(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Return a file's settings under the names of the constructor's arguments."""
        return settings
