"""VecTorch and VecJax on a GPU. Without one, the head of the run says that this is not tested."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from conftest import DUMMY, Configuration, subproc
from gymnasium import spaces

from vecenvs import Batched, DummyVecEnv, VecJax, VecTorch
from vecenvs.batch.info_batches import map_leaves
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import SampledEnv

PAIR = spaces.Tuple([spaces.MultiDiscrete([3, 4], dtype=np.int32), spaces.MultiBinary(2)])
BOXES = spaces.Dict({"a": spaces.Box(-1, 1, (2, 3), np.float32), "b": PAIR})
LIBRARIES = ["torch", *["jax"] * bool(importlib.util.find_spec("jax"))]
# Bytes of an observation, around what the driver treats otherwise (64 KiB), up to what does not fit its own buffers.
SIZES = [1, 1000, 1 << 15, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 1 << 20, 16 << 20]


class Overwritten:
    """A batched env of one env and two rows, which it writes by turns: all bytes are the step's number.

    With copy=False these rows themselves are handed out.
    """

    num_envs = 1
    single_action_space = spaces.Discrete(2)

    def __init__(self, size: int, *, pinned: bool) -> None:
        self.single_observation_space = spaces.Box(0, 255, (size,), np.uint8)
        self.rows, self._ends = [np.zeros((1, size), np.uint8) for _ in range(2)], np.zeros(1, bool)
        if pinned:
            import torch

            self.rows = [torch.zeros((1, size), dtype=torch.uint8, pin_memory=True).numpy() for _ in range(2)]
        self._steps = 0

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.rows[0], {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self._steps += 1
        row = self.rows[self._steps % 2]
        row[:] = self._steps
        return row, np.full(1, self._steps, np.float32), self._ends, self._ends, {}


def in_a_process(check: Callable[..., None], *args: Any) -> None:
    """Where a process has used CUDA or JAX, its forks are not as before. JAX leaves torch some of the GPU's memory."""
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        patch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        pool.submit(check, *args).result()


def arrays(value: Any, kind: Any) -> Any:
    """Return the same with arrays for tensors of a kind, which are all on the GPU."""
    if isinstance(value, dict):
        return {key: arrays(part, kind) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(arrays(part, kind) for part in value)
    assert isinstance(value, kind)
    if kind.__module__.startswith("torch"):
        assert value.device.type == "cuda"
        return value.cpu().numpy()
    assert {device.platform for device in value.devices()} == {"gpu"}
    return np.asarray(value)


def rows_that_are_overwritten(library: str, size: int, pinned: bool) -> None:
    module = importlib.import_module(library)
    inner = DummyVecEnv([Batched(functools.partial(Overwritten, size, pinned=pinned), 1)], copy=False)
    with VecJax(inner) if library == "jax" else VecTorch(inner, "cuda") as vec:
        vec.reset()
        values = module.ones((4096, 4096), device="cuda") if library == "torch" else module.numpy.ones((4096, 4096))
        rows = []
        for _ in range(10):
            for _ in range(4):
                values = values @ values / 4096  # 0.1 ms or more each
            rows.append(vec.step(np.zeros(1, np.int64))[:2])
        kind = module.Tensor if library == "torch" else module.Array
        for step, (obs, rewards) in enumerate(rows, 1):
            assert (arrays(obs, kind) == step).all()
            assert arrays(rewards, kind).tolist() == [step]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("library", LIBRARIES)
def test_rows_that_are_overwritten_while_kernels_run(library: str, pinned: bool, size: int) -> None:
    in_a_process(rows_that_are_overwritten, library, size, pinned)


def rows_and_actions(library: str, engine: Configuration) -> None:
    module = importlib.import_module(library)
    plain = functools.partial(arrays, kind=module.Tensor if library == "torch" else module.Array)
    fns = [functools.partial(SampledEnv, BOXES, BOXES)] * 3
    inner, ours = engine.make_vec(fns), engine.make_vec(fns)
    with ours, VecJax(inner) if library == "jax" else VecTorch(inner, "cuda") as vec:
        assert_same(plain(vec.reset(seed=4)), ours.reset(seed=4))
        for _ in range(20):
            actions = [vec.action_space.sample() for _ in range(3)]
            *rows, _ = vec.step(actions)
            *expected, _ = ours.step(actions)
            assert_same(plain(tuple(rows)), tuple(expected))
        given = {"a": np.ones((2, 2, 3), np.float32), "b": (np.ones((2, 2), np.int32), np.ones((2, 2), np.int8))}
        to_gpu = functools.partial(module.as_tensor, device="cuda") if library == "torch" else module.numpy.asarray
        vec.send(map_leaves(to_gpu, given), [2, 0])
        ours.send(given, [2, 0])
        batch, same = vec.recv(indices=[2, 0]), ours.recv(indices=[2, 0])
        assert_same(plain((batch.obs, batch.rewards, batch.dones)), (same.obs, same.rewards, same.dones))


@pytest.mark.parametrize("engine", [*DUMMY, subproc("forkserver", 2)], ids=lambda each: each.name)
@pytest.mark.parametrize("library", LIBRARIES)
def test_rows_and_actions(library: str, engine: Configuration) -> None:
    in_a_process(rows_and_actions, library, engine)
