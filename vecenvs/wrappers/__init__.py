"""Wrappers of one env, wrappers of a VecEnv (named Vec...), and readers of the files that they write.

Wrappers of one env that Gymnasium has are not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vecenvs._lazy import at_first_use

if TYPE_CHECKING:  # the names below for type checkers and editors
    from vecenvs.wrappers.atari import EpisodicLife, FireReset
    from vecenvs.wrappers.monitor import Monitor
    from vecenvs.wrappers.results import LoadMonitorResultsError, MonitorResults, get_monitor_files, load_results
    from vecenvs.wrappers.results_writer import ResultsWriter
    from vecenvs.wrappers.reward import clip_action, clip_reward, scale_reward
    from vecenvs.wrappers.vec_check_nan import VecCheckNan
    from vecenvs.wrappers.vec_extract_dict_obs import VecExtractDictObs
    from vecenvs.wrappers.vec_frame_stack import VecFrameStack
    from vecenvs.wrappers.vec_monitor import VecMonitor
    from vecenvs.wrappers.vec_normalize import VecNormalize
    from vecenvs.wrappers.vec_recorder import VecRecorder
    from vecenvs.wrappers.vec_rows import VecRowsWrapper
    from vecenvs.wrappers.vec_statistics import MergeOverRanks
    from vecenvs.wrappers.vec_torch import VecJax, VecTorch
    from vecenvs.wrappers.vec_transpose_image import VecTransposeImage
    from vecenvs.wrappers.vec_video_recorder import VecVideoRecorder

__all__ = [
    "EpisodicLife",
    "FireReset",
    "LoadMonitorResultsError",
    "MergeOverRanks",
    "Monitor",
    "MonitorResults",
    "ResultsWriter",
    "VecCheckNan",
    "VecExtractDictObs",
    "VecFrameStack",
    "VecJax",
    "VecMonitor",
    "VecNormalize",
    "VecRecorder",
    "VecRowsWrapper",
    "VecTorch",
    "VecTransposeImage",
    "VecVideoRecorder",
    "clip_action",
    "clip_reward",
    "get_monitor_files",
    "load_results",
    "scale_reward",
]

__getattr__, __dir__ = at_first_use(
    __name__,
    {
        "vecenvs.wrappers.atari": "EpisodicLife FireReset",
        "vecenvs.wrappers.monitor": "Monitor",
        "vecenvs.wrappers.results": "LoadMonitorResultsError MonitorResults get_monitor_files load_results",
        "vecenvs.wrappers.results_writer": "ResultsWriter",
        "vecenvs.wrappers.reward": "clip_action clip_reward scale_reward",
        "vecenvs.wrappers.vec_check_nan": "VecCheckNan",
        "vecenvs.wrappers.vec_extract_dict_obs": "VecExtractDictObs",
        "vecenvs.wrappers.vec_frame_stack": "VecFrameStack",
        "vecenvs.wrappers.vec_monitor": "VecMonitor",
        "vecenvs.wrappers.vec_normalize": "VecNormalize",
        "vecenvs.wrappers.vec_recorder": "VecRecorder",
        "vecenvs.wrappers.vec_rows": "VecRowsWrapper",
        "vecenvs.wrappers.vec_statistics": "MergeOverRanks",
        "vecenvs.wrappers.vec_torch": "VecJax VecTorch",
        "vecenvs.wrappers.vec_transpose_image": "VecTransposeImage",
        "vecenvs.wrappers.vec_video_recorder": "VecVideoRecorder",
    },
)
