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
        names = ["obs", "rewards", *(["dones"] if isinstance(batch, StepRows) else ["terminated", "truncated"])]
        tensors = self._tensors({name: getattr(batch, name) for name in names})
        for name in names:
            setattr(batch, name, tensors[name])


class VecTorch(VecTensors):
    """Return observations, rewards and dones as torch tensors; actions may be tensors on any device.

    It goes around all other wrappers, which compute with arrays. Infos, with "terminal_observation" in them, and
    attributes such as `active` and `terminated` stay NumPy's. On the CPU the tensors share the memory of the arrays.
    To a CUDA device rows are copied without waiting for what it computes. They are ready for the present stream, and no
    later step changes them: before the call returns the driver has read the arrays, unless an env has its own in pinned
    memory, whose copies are waited for (CUDA Runtime API, "API synchronization behavior").

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

    def _converted(self, arrays: list[NDArray[Any]]) -> list[Any]:
        tensors = [self._torch.from_numpy(array) for array in arrays]
        return [tensor.to(self.device, non_blocking=self._may_go_on(tensor)) for tensor in tensors]

    def _may_go_on(self, tensor: Any) -> bool:
        """Tell whether a copy need not be waited for. Out of pinned memory, which an env may have, CUDA reads later."""
        return self.device.type == "cuda" and (self.copy or not tensor.is_pinned())


class VecJax(VecTensors):
    """Return observations, rewards and dones as JAX arrays; actions may be JAX arrays.

    It goes around all other wrappers, which compute with arrays. Infos, with "terminal_observation" in them, and
    attributes such as `active` and `terminated` stay NumPy's. JAX arrays never change, so the rows are copied
    (`jax.device_put`), and numbers of 64 bits get 32 unless JAX is told otherwise (`jax_enable_x64`).

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
