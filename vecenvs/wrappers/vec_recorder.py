"""`VecRecorder`: write the episodes of a VecEnv into a Minari dataset."""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.arguments import parse_indices
from vecenvs.batch.actions import parse_actions
from vecenvs.batch.batch import Batch
from vecenvs.batch.columns import SpaceColumns
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import BackendUnavailable
from vecenvs.transport.reset_arguments import SEED
from vecenvs.vec_env import Indices, VecEnv
from vecenvs.worker.process import HeldSignals
from vecenvs.wrappers.vec_rows import TERMINAL, VecRowsWrapper, begins, lost, shows_next

_BYTES = 64 << 20  # of finished episodes that are kept until they are written


class VecRecorder(VecRowsWrapper):
    """Record all transitions into a Minari dataset, which `minari.load_dataset(dataset_id)` reads.

    Observations and rewards are those that `venv` returns, and actions those that it gets, so wrap what the dataset is
    to have. Each episode has its own last observation in every autoreset mode. One that a reset or `close` cuts short
    is truncated at its last step, and so is one that a worker's death or an env's error has ended. With `episode_seeds`
    episodes have their seeds. The dataset is made at once, without episodes; finished ones are written now and then,
    and all others by `close`. A Ctrl-C leaves it whole.

    Args:
        venv: the VecEnv to wrap.
        dataset_id: the name of the new dataset, such as "cartpole/random-v0". It lies below MINARI_DATASETS_PATH, by
            default ~/.minari/datasets.
        **metadata: further arguments of `minari.create_dataset_from_buffers`: `env` (for `recover_environment`),
            `algorithm_name`, `author`, `description`, and so on. Images are stored as they are unless `jpeg_encoding`
            is True.

    Attributes:
        episodes: how many episodes were written.

    Raises:
        BackendUnavailable: Minari is missing.
        TypeError: observations or actions have parts without a fixed shape, or an argument is unknown to Minari.
        ValueError: `dataset_id` has no version or is one of a dataset that exists, or Minari refuses an argument.
    """

    def __init__(self, venv: VecEnv, dataset_id: str, **metadata: Any) -> None:
        try:
            minari: Any = importlib.import_module("minari")
            importlib.import_module("h5py" if metadata.get("data_format", "hdf5") == "hdf5" else "pyarrow")
        except ImportError as exc:
            raise BackendUnavailable(f"VecRecorder needs Minari ({exc}): pip install 'vecenvs[minari]'") from exc
        super().__init__(venv)
        self._observations, actions = SpaceLayout(venv.observation_space), SpaceLayout(venv.action_space)
        if self._observations.has_objects or actions.has_objects:
            raise TypeError(
                "VecRecorder writes observations and actions whose parts have fixed shapes, not "
                f"{venv.observation_space} and {venv.action_space}"
            )
        self._actions = SpaceColumns(actions, self.num_envs, np.zeros)
        self._minari = minari
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        with HeldSignals():
            self._storage = self._new_dataset(dataset_id, {**spaces, "jpeg_encoding": False, **metadata})
        self._running: list[_Episode | None] = [None] * self.num_envs
        self._done: list[Any] = []  # Minari's EpisodeBuffers
        self._bytes = 0
        self.episodes = 0

    def _new_dataset(self, dataset_id: str, arguments: dict[str, Any]) -> Any:
        """Make a dataset without episodes, so that what is wrong with the arguments is said before the first step."""
        if not re.search(r"-v\d+$", dataset_id):
            raise ValueError(
                f"dataset_id must be a name with a version, such as 'cartpole/random-v0', not {dataset_id!r}"
            )
        folder = Path(self._minari.storage.get_dataset_path(dataset_id))
        if folder.exists():
            raise ValueError(
                f"there is a dataset {dataset_id!r} already, in {folder}: delete it, or take another version"
            )
        try:
            return self._minari.create_dataset_from_buffers(dataset_id, [], **arguments).storage
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def step_async(self, actions: Any) -> None:
        parts = parse_actions(self._actions.layout, actions, self.num_envs)
        with HeldSignals():  # an interrupted call leaves the actions that the envs get
            super().step_async(actions)
            self._actions.assign(parts)

    def send(self, actions: Any, indices: Indices = None) -> None:
        slots = parse_indices(indices, self.num_envs)
        parts = parse_actions(self._actions.layout, actions, len(slots))
        with HeldSignals():
            super().send(actions, indices)
            self._actions.assign(parts, np.array(slots, np.int64))

    def _on_rows(self, batch: Batch, exact: NDArray[np.float64], lock_step: bool) -> None:
        with HeldSignals():  # a second Ctrl-C, too
            self._record(batch, exact)

    def _record(self, batch: Batch, exact: NDArray[np.float64]) -> None:
        gone, following = lost(batch), shows_next(batch, self.autoreset)
        begun = begins(batch) | following
        leaves = self._observations.flatten(batch.obs)
        for j, slot in enumerate(batch.indices.tolist()):
            row = [leaf[j] for leaf in leaves]
            episode = self._running[slot]
            if batch.active[j] and episode is not None:
                last = row
                if batch.dones[j] and TERMINAL in batch.infos[j]:
                    last = self._observations.flatten(batch.infos[j][TERMINAL])
                elif following[j]:
                    gone[j] = True  # a batched env that keeps no last observations: a step without one is none
                if not gone[j]:
                    episode.add(self._actions.parts(slot), last, exact[j], batch.terminated[j], batch.truncated[j])
                if batch.dones[j]:
                    self._end(slot)
            if begun[j]:
                self._end(slot)
                self._running[slot] = _Episode(row, self.reset_infos[slot].get(SEED))
        if self._bytes > _BYTES:
            self._write()

    def _end(self, slot: int) -> None:
        """Make an episode one to be written, unless it has no step."""
        episode, self._running[slot] = self._running[slot], None
        if episode is None or not episode.rewards:
            return
        ended = episode.terminations[-1] or episode.truncations[-1]
        episode.truncations[-1] = episode.truncations[-1] or not ended
        stacked = [[np.stack(parts) for parts in zip(*rows, strict=True)] for rows in (episode.rows, episode.actions)]
        self._bytes += sum(part.nbytes for parts in stacked for part in parts)
        self._done.append(
            self._minari.data_collector.EpisodeBuffer(
                seed=episode.seed,
                observations=self._observations.unflatten(stacked[0]),
                actions=self._actions.layout.unflatten(stacked[1]),
                rewards=episode.rewards,
                terminations=episode.terminations,
                truncations=episode.truncations,
                infos={},
            )
        )

    def _write(self) -> None:
        done, self._done, self._bytes = self._done, [], 0
        if done:
            self._storage.update_episodes(done)
        self.episodes += len(done)

    def close(self) -> None:
        """Close the envs, and write what is left."""
        try:
            super().close()
        finally:
            with HeldSignals():
                for slot in range(self.num_envs):
                    self._end(slot)
                self._write()


class _Episode:
    """An episode under way: its observations, leaf by leaf, one more than the rest."""

    def __init__(self, first: list[Any], seed: int | None) -> None:
        self.seed = seed
        self.rows, self.actions = [[np.array(part) for part in first]], list[list[Any]]()
        self.rewards: list[float] = []
        self.terminations: list[bool] = []
        self.truncations: list[bool] = []

    def add(self, action: list[Any], obs: list[Any], reward: Any, terminated: Any, truncated: Any) -> None:
        """Add a step."""
        self.actions.append(action)
        self.rows.append([np.array(part) for part in obs])
        self.rewards.append(float(reward))
        self.terminations.append(bool(terminated))
        self.truncations.append(bool(truncated))
