"""VecTorch and VecJax: rows as tensors, for learners that need them."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs.batch.info_batches import map_leaves
from vecenvs.batch.layout import SpaceLayout
from vecenvs.errors import BackendUnavailable
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.wrappers.vec_rows import StepRows, VecBatchWrapper


class VecTensors(VecBatchWrapper):
    """The base of `VecTorch` and `VecJax`: they say what becomes of an array."""

    _takes_arrays = gives_tensors = True

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        space = venv.observation_space
        objects = [leaf for leaf in SpaceLayout(space).leaves if leaf.is_object]
        if objects:
            raise TypeError(f"{type(self).__name__}: observations{objects[0]} of {space} are no numbers")

    @abc.abstractmethod
    def _converted(self, arrays: list[NDArray[Any]]) -> list[Any]:
        """Return tensors with the values of arrays."""

    def _tensors(self, values: Any) -> Any:
        arrays: list[NDArray[Any]] = []
        map_leaves(arrays.append, values)
        tensors = iter(self._converted(arrays))
        return map_leaves(lambda _: next(tensors), values)

    def _on_batch(self, batch: Batch, call: str, *, lock_step: bool) -> None:
        names = ["obs", "rewards", "terminated", "truncated", *["dones"] * isinstance(batch, StepRows)]
        tensors = self._tensors({name: getattr(batch, name) for name in names})
        for name in names:
            setattr(batch, name, tensors[name])


class VecTorch(VecTensors):
    """Return observations, rewards and dones as torch tensors; actions may be tensors on any device.

    It goes around all other wrappers, which compute with arrays. Infos, with "terminal_observation" in them, and
    attributes such as `active` and `terminated` stay NumPy's. On the CPU the tensors share the memory of the arrays.
    For a CUDA device rows are copied to pinned memory and from there asynchronously: the tensors are ready for whatever
    runs on the present stream.

    Args:
        venv: the VecEnv to wrap. Its observations are numbers, in Dicts and Tuples of any depth.
        device: a torch device, or its name.

    Raises:
        BackendUnavailable: torch is missing.
        TypeError: the observations have parts that are no numbers.
    """

    def __init__(self, venv: VecEnv, device: Any = "cpu") -> None:
        super().__init__(venv)
        try:
            import torch
        except ImportError as exc:
            raise BackendUnavailable(f"VecTorch needs torch ({exc}): pip install torch") from exc
        self._torch = torch
        self.device = torch.device(device)
        self._staging = Staging(torch, self.device) if self.device.type == "cuda" else None

    def close(self) -> None:
        super().close()
        self._staging = None  # a closed VecEnv, which may be kept, holds no buffers

    def _converted(self, arrays: list[NDArray[Any]]) -> list[Any]:
        tensors = [self._torch.from_numpy(array) for array in arrays]
        if self._staging is not None:
            return self._staging.copy_all(tensors, self.num_envs)
        return tensors if self.device.type == "cpu" else [tensor.to(self.device) for tensor in tensors]


class Staging:
    """Copies tensors to a CUDA device by way of pinned memory, in two sets of buffers: one copy may be under way."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._turn = 0
        self._buffers: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        self._events: list[Any] = [None, None]

    def copy_all(self, tensors: list[Any], most: int) -> list[Any]:
        """Return copies on the device. `most` is the largest number of rows that will ever come."""
        self._turn ^= 1
        if self._events[self._turn] is not None:
            self._events[self._turn].synchronize()  # its buffers are read until then
        buffers, copies = self._buffers[self._turn], []
        for place, tensor in enumerate(tensors):
            key = place, tensor.dtype, tuple(tensor.shape[1:])
            if key not in buffers:
                buffers[key] = self._torch.empty((most, *key[2]), dtype=tensor.dtype, pin_memory=True)
            rows = buffers[key][: len(tensor)]
            rows.copy_(tensor)
            copies.append(rows.to(self._device, non_blocking=True))
        self._events[self._turn] = event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._device))
        return copies


class VecJax(VecTensors):
    """Return observations, rewards and dones as JAX arrays; actions may be JAX arrays.

    It goes around all other wrappers, which compute with arrays. Infos, with "terminal_observation" in them, and
    attributes such as `active` and `terminated` stay NumPy's. JAX arrays never change, so the rows are copied
    (`jax.device_put`), and float64 becomes float32 unless JAX is told otherwise (`jax_enable_x64`).

    Args:
        venv: the VecEnv to wrap. Its observations are numbers, in Dicts and Tuples of any depth.
        device: a JAX device; None for JAX's default.

    Raises:
        BackendUnavailable: JAX is missing.
        TypeError: the observations have parts that are no numbers.
    """

    def __init__(self, venv: VecEnv, device: Any = None) -> None:
        super().__init__(venv)
        try:
            import jax
        except ImportError as exc:
            raise BackendUnavailable(f"VecJax needs JAX ({exc}): pip install jax") from exc
        self._jax = jax
        self.device = device

    def _converted(self, arrays: list[NDArray[Any]]) -> list[Any]:
        if not self.copy:  # a device_put may share the memory, which the next step overwrites
            arrays = [np.copy(array) for array in arrays]
        placed: list[Any] = self._jax.device_put(arrays, self.device)
        return placed
