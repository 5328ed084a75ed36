"""The names of OpenAI baselines: `from vecenvs.compat.baselines import SubprocVecEnv, make_vec_env`.

These are the names that programs import from its `common.vec_env`, `common.cmd_util`, `bench` and
`common.atari_wrappers`, with the same arguments, for Gymnasium envs; docs/migrating.md has the imports line by line.
What differs: infos have the keys of every VecEnv of this library, `reset` takes seeds, and `render` needs envs made
with `render_mode="rgb_array"`, which `render("human")` shows in a window. Wrappers do not forward attributes of the
wrapped VecEnv: `env.ob_rms` of an inner wrapper is `env.venv.ob_rms`.

Your own wrappers work as they are. Your own VecEnv that is not a wrapper, but steps a batch by itself, is best written
as a `gymnasium.vector.VectorEnv` and passed to `vecenvs.views.from_gymnasium`.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs.arguments import arguments_of, check_arguments, check_env_fns, listed, parse_int
from vecenvs.backends import dummy, subproc
from vecenvs.batch.columns import SpaceColumns
from vecenvs.batch.layout import SpaceLayout
from vecenvs.batch.space_equality import same_space
from vecenvs.compat.baselines_envs import Monitor, make_atari, make_env, set_global_seeds, wrap_deepmind
from vecenvs.compat.baselines_wrappers import (
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
)
from vecenvs.errors import AlreadySteppingError, NotSteppingError, SpaceMismatch
from vecenvs.make.make_vec_env import make_vec_env
from vecenvs.pool.pool_vec_env import EnvFn
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.wrappers import LoadMonitorResultsError, ResultsWriter, get_monitor_files, load_results
from vecenvs.wrappers.base import VecEnvWrapper
from vecenvs.wrappers.vec_rows import TERMINAL, VecRowsWrapper, last_infos

__all__ = [
    "AlreadySteppingError",
    "DummyVecEnv",
    "LoadMonitorResultsError",
    "Monitor",
    "NotSteppingError",
    "ResultsWriter",
    "ShmemVecEnv",
    "SubprocVecEnv",
    "VecEnv",
    "VecEnvObservationWrapper",
    "VecEnvWrapper",
    "VecExtractDictObs",
    "VecFrameStack",
    "VecMonitor",
    "VecNormalize",
    "VecVideoRecorder",
    "get_monitor_files",
    "load_results",
    "make_atari",
    "make_env",
    "make_vec_env",
    "set_global_seeds",
    "wrap_deepmind",
]

SpacePair = tuple[spaces.Space[Any], spaces.Space[Any]]


class DummyVecEnv(dummy.DummyVecEnv):
    """Envs in the caller's process.

    Args:
        env_fns: functions that make an env each.
        **common: the other arguments of `vecenvs.DummyVecEnv`.
    """

    def step_async(self, actions: Any) -> None:
        """Do what `VecEnv.step_async` does. The action of a single env need not be in a list, as in baselines."""
        super().step_async(_listified(actions) if self.num_envs == 1 else actions)


class SubprocVecEnv(subproc.SubprocVecEnv):
    """Envs in processes.

    Args:
        env_fns: functions that make an env each.
        spaces: the envs' observation and action space; None if they need not be checked.
        context: the start method of the processes, "spawn", "fork" or "forkserver".
        in_series: the number of envs per process.
        **common: the other arguments of `vecenvs.SubprocVecEnv`.

    Raises:
        ValueError: the number of envs is not a multiple of `in_series`.
        SpaceMismatch: the envs have other spaces than `spaces`.
    """

    def __init__(
        self,
        env_fns: Iterable[EnvFn],
        spaces: SpacePair | None = None,
        context: str = "spawn",
        in_series: int = 1,
        **common: Any,
    ) -> None:
        known = [name for name in arguments_of(SubprocVecEnv) if name not in ("num_workers", "start_method")]
        check_arguments(type(self).__name__, common, known)
        fns: list[EnvFn] = listed(env_fns)
        check_env_fns(fns)
        num_workers, rest = divmod(len(fns), parse_int("in_series", in_series, 1))
        if rest:
            raise ValueError(f"{len(fns)} envs cannot be divided into processes of in_series={in_series}")
        super().__init__(fns, num_workers, start_method=context, **common)
        _check_spaces(self, spaces)


class ShmemVecEnv(SubprocVecEnv):
    """Envs in processes, one in each. The processes of SubprocVecEnv share memory with the caller just as well."""


class VecEnvObservationWrapper(VecRowsWrapper):
    """Change observations, also the last ones of episodes ("terminal_observation"). Subclasses define `process`.

    Args:
        venv: the VecEnv to wrap.
        observation_space: the space of one processed observation; None for that of `venv`.
        action_space: the space of one env's actions; None for that of `venv`.
    """

    @abc.abstractmethod
    def process(self, obs: Any) -> Any:
        """Return changed observations.

        Args:
            obs: a batch of any number of rows: those of a step, or the last ones of episodes.

        Returns:
            A batch of as many rows, by the wrapper's observation space.
        """

    def _on_rows(self, batch: Batch, exact: NDArray[np.float64], lock_step: bool) -> None:
        batch.obs = self.process(batch.obs)
        ended = last_infos(batch)
        if ended:
            last = SpaceColumns(SpaceLayout(self.venv.observation_space), len(ended), np.empty)
            for row, info in enumerate(ended):
                last.store_row(row, info[TERMINAL])
            layout = SpaceLayout(self.observation_space)
            processed = zip(*layout.flatten(self.process(last.copy_all())), strict=True)
            for info, parts in zip(ended, processed, strict=True):
                info[TERMINAL] = layout.unflatten(parts)


def _listified(actions: Any) -> Any:
    """Put the action of one env into a list, unless it has length 1, as in baselines, or is a dict or tuple."""
    if isinstance(actions, (dict, tuple)):
        return actions
    try:
        single = len(actions) != 1
    except TypeError:
        single = True
    return [actions] if single else actions


def _check_spaces(vec: VecEnv, given: SpacePair | None) -> None:
    """Close `vec` and raise SpaceMismatch if its spaces are not the given ones."""
    found = vec.observation_space, vec.action_space
    pairs = zip(("observation_space", "action_space"), given or (), found, strict=False)
    for which, theirs, ours in pairs:
        if not same_space(theirs, ours):
            vec.close()
            raise SpaceMismatch(0, which, ours, f"{theirs} according to the argument `spaces`")
