"""The wrappers of `baselines.common.vec_env`, with its arguments, over those of `vecenvs.wrappers`.

Programs import these names from `vecenvs.compat.baselines`. The classes in `vecenvs.wrappers` say what they do beyond
baselines' (terminal observations, Dict spaces, parts of a batch, files that load without pickle).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.wrappers.utils import RunningMeanStd
from numpy.typing import NDArray

from vecenvs import wrappers
from vecenvs.arguments import parse_int
from vecenvs.vec_env import VecEnv
from vecenvs.wrappers.vec_extract_dict_obs import VecExtractDictObs
from vecenvs.wrappers.vec_statistics import Merger

__all__ = ["VecExtractDictObs", "VecFrameStack", "VecMonitor", "VecNormalize", "VecVideoRecorder"]


class VecNormalize(wrappers.VecNormalize):
    """Normalize observations and rewards by running statistics: `vecenvs.wrappers.VecNormalize`, whose files it reads.

    Args:
        venv: the VecEnv to wrap.
        ob: whether to normalize observations.
        ret: whether to normalize rewards.
        clipob: the bound of normalized observations.
        cliprew: the bound of normalized rewards.
        gamma: the discount of the returns.
        epsilon: added to variances before the square root.
        use_tf: must be False: the statistics are NumPy's.
        norm_obs_keys: as in `vecenvs.wrappers.VecNormalize`.
        merge: as in `vecenvs.wrappers.VecNormalize`.

    Raises:
        ValueError: `use_tf` is True, or as in `vecenvs.wrappers.VecNormalize`.
    """

    def __init__(
        self, venv: VecEnv, ob: bool = True, ret: bool = True, clipob: float = 10.0, cliprew: float = 10.0,
        gamma: float = 0.99, epsilon: float = 1e-8, use_tf: bool = False,
        *, norm_obs_keys: Sequence[str] | None = None, merge: Merger | None = None,
    ) -> None:  # fmt: skip
        if use_tf:
            raise ValueError("use_tf=True: the statistics are NumPy's; save() and load() keep them in a file")
        super().__init__(venv, True, ob, ret, clipob, cliprew, gamma, epsilon, norm_obs_keys, merge=merge)

    @classmethod
    def _arguments(cls, settings: dict[str, Any]) -> dict[str, Any]:
        names = {"norm_obs": "ob", "norm_reward": "ret", "clip_obs": "clipob", "clip_reward": "cliprew"}
        return {names.get(name, name): value for name, value in settings.items()}

    @property
    def ob_rms(self) -> RunningMeanStd | dict[str, RunningMeanStd] | None:
        """The statistics of observations, set like `obs_rms`. None means that `norm_obs` is False, also if set."""
        return self.obs_rms if self.norm_obs else None

    @ob_rms.setter
    def ob_rms(self, value: RunningMeanStd | dict[str, RunningMeanStd] | None) -> None:
        if value is not None:
            self.obs_rms = value
        self.norm_obs = value is not None

    @property
    def clipob(self) -> float:
        """The bound of normalized observations, `clip_obs`."""
        return self.clip_obs

    @property
    def cliprew(self) -> float:
        """The bound of normalized rewards, `clip_reward`."""
        return self.clip_reward

    @property
    def ret(self) -> NDArray[np.float64]:
        """Each env's discounted return so far in its episode, `returns`, float64 (num_envs,)."""
        return self.returns


class VecFrameStack(wrappers.VecFrameStack):
    """Join the last `nstack` observations along the last axis.

    Args:
        venv: the VecEnv to wrap.
        nstack: the number of observations.
    """

    def __init__(self, venv: VecEnv, nstack: int) -> None:
        super().__init__(venv, nstack, "last")
        self.nstack = self.n_stack


class VecMonitor(wrappers.VecMonitor):
    """Record the episodes of all envs.

    Args:
        venv: the VecEnv to wrap.
        filename: the monitor file, as in `vecenvs.wrappers.Monitor`; None for no file.
        keep_buf: the number of last episodes in `epret_buf` and `eplen_buf`.
        info_keywords: as in `vecenvs.wrappers.VecMonitor`.

    Attributes:
        epret_buf: the returns of the last episodes, a deque.
        eplen_buf: their lengths in steps, a deque.
    """

    def __init__(
        self,
        venv: VecEnv,
        filename: str | os.PathLike[str] | None = None,
        keep_buf: int = 0,
        info_keywords: Sequence[str] = (),
    ) -> None:
        keep_buf = parse_int("keep_buf", keep_buf, 0)
        super().__init__(venv, filename, info_keywords)
        self.keep_buf = keep_buf
        self.epret_buf: deque[float] = deque(maxlen=keep_buf)
        self.eplen_buf: deque[int] = deque(maxlen=keep_buf)

    def _end_episode(self, slot: int, info: dict[str, Any]) -> dict[str, Any]:
        episode = super()._end_episode(slot, info)
        self.epret_buf.append(episode["r"])
        self.eplen_buf.append(episode["l"])
        return episode


class VecVideoRecorder(wrappers.VecVideoRecorder):
    """Record videos of all envs, tiled into one picture.

    Args:
        venv: the VecEnv to wrap; its envs have `render_mode="rgb_array"`.
        directory: the directory for the files.
        record_video_trigger: a function of the number of steps taken, which says whether a video begins.
        video_length: steps per video.
    """

    def __init__(
        self, venv: VecEnv, directory: str | os.PathLike[str], record_video_trigger: Callable[[int], bool],
        video_length: int = 200,
    ) -> None:  # fmt: skip
        super().__init__(venv, directory, record_video_trigger, video_length)
