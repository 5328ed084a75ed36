"""Wrappers around one env, and what reads their files. Those that Gymnasium has are Gymnasium's."""

from vecenvs.wrappers.atari import EpisodicLife, FireReset
from vecenvs.wrappers.monitor import Monitor, ResultsWriter
from vecenvs.wrappers.results import LoadMonitorResultsError, MonitorResults, get_monitor_files, load_results
from vecenvs.wrappers.reward import clip_action, clip_reward, scale_reward

__all__ = [
    "EpisodicLife",
    "FireReset",
    "LoadMonitorResultsError",
    "Monitor",
    "MonitorResults",
    "ResultsWriter",
    "clip_action",
    "clip_reward",
    "get_monitor_files",
    "load_results",
    "scale_reward",
]
