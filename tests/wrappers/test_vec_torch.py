"""Rows as tensors, actions as tensors. What runs on a GPU only is tested with stand-ins for it."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Configuration
from gymnasium import spaces

from vecenvs import (
    BackendUnavailable,
    Batched,
    DummyVecEnv,
    EnvError,
    VecEnv,
    VecEnvWrapper,
    VecJax,
    VecMonitor,
    VecNormalize,
    VecTorch,
)
from vecenvs.batch.layout import SpaceLayout
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import FailingEnv, SampledEnv, counting_fns
from vecenvs.views import as_gymnasium, as_pfrl

matrix = "fast"


def leaves(value: Any) -> list[Any]:
    if isinstance(value, (dict, tuple)):
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in leaves(part)]
    return [value]


def plain(value: Any) -> Any:
    """Return the same with arrays for tensors."""
    import torch

    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    assert isinstance(value, torch.Tensor)
    return value.numpy()


BOXES = spaces.Dict(
    {"a": spaces.Box(-1, 1, (2, 3), np.float64), "b": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}
)


def test_rows(configuration: Configuration) -> None:
    fns = [functools.partial(SampledEnv, BOXES, BOXES)] * 3
    vec, ours = VecTorch(configuration.make_vec(fns)), configuration.make_vec(fns)
    assert_same(plain(vec.reset(seed=4)), ours.reset(seed=4))
    for _ in range(20):
        actions = [vec.action_space.sample() for _ in range(3)]
        *rows, infos = vec.step(actions)
        *expected, theirs = ours.step(actions)
        assert_same(plain(tuple(rows)), tuple(expected))
        assert_same(list(infos), list(theirs))
    vec.send(actions[:2], [2, 0])
    ours.send(actions[:2], [2, 0])
    batch, same = vec.recv(indices=[2, 0]), ours.recv(indices=[2, 0])
    for name in ("obs", "rewards", "terminated", "truncated", "dones"):
        assert_same(plain(getattr(batch, name)), getattr(same, name))
    assert_same(plain(vec.reset([1])), ours.reset([1]))
    vec.close()
    ours.close()


def test_tensors_share_the_memory_of_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = VecNormalize(DummyVecEnv(counting_fns(4)))
    vec = VecTorch(inner)
    vec.reset()
    given: list[Any] = []
    step_wait = inner.step_wait
    monkeypatch.setattr(inner, "step_wait", lambda timeout=None: given.append(step_wait(timeout)) or given[0])
    *tensors, _ = vec.step([0] * 4)
    assert all(np.shares_memory(tensor.numpy(), array) for tensor, array in zip(tensors, given[0][:3], strict=True))
    vec.close()


def test_actions_and_indices_that_are_tensors(configuration: Configuration) -> None:
    import torch

    vec: VecEnv = configuration.make_vec([functools.partial(SampledEnv, BOXES, BOXES)] * 3)
    vec.reset()
    actions = {
        "a": torch.zeros(3, 2, 3, requires_grad=True),
        "b": (torch.tensor([0, 1, 2]), torch.ones(3, 2, dtype=torch.bool)),
    }
    vec.step(actions)
    vec.send({"a": actions["a"][1:], "b": (actions["b"][0][1:], actions["b"][1][1:])}, [0, 2])
    assert len(vec.recv(min_envs=2)) == 2
    vec.close()
    counting = configuration.make_vec(counting_fns(4))
    counting.reset()
    obs, *_ = counting.step(torch.zeros(4, dtype=torch.int32))
    assert obs[:, 2].tolist() == [1] * 4
    obs, *_ = counting.step(OnDevice(np.zeros(4, np.int64)))
    assert obs[:, 2].tolist() == [2] * 4
    assert counting.reset(OnDevice(np.array([True, False, False, True])))[:, 0].tolist() == [0, 3]
    assert counting.reset(OnDevice(np.array([2, 1])))[:, 0].tolist() == [2, 1]
    with pytest.raises(ValueError, match="actions have shape"):
        counting.step(torch.zeros(3, dtype=torch.int32))
    with pytest.raises(TypeError, match="actions have dtype float32"):
        counting.step(torch.full((4,), 0.5))
    counting.close()


class OnDevice:
    """A tensor on a device, which becomes an array only by `cpu`."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def detach(self) -> OnDevice:
        return self

    def cpu(self) -> Any:
        return self._values


def test_rows_of_an_error() -> None:
    import torch

    with VecTorch(DummyVecEnv([functools.partial(FailingEnv, 0, "step", 1), *counting_fns(2)[1:]])) as vec:
        vec.reset()
        with pytest.raises(EnvError) as raised:
            vec.step([0, 0])
        assert raised.value.batch is not None
        assert isinstance(raised.value.batch.obs, torch.Tensor)
        assert raised.value.batch.rewards.dtype == torch.float32


def test_another_device() -> None:
    with VecTorch(DummyVecEnv(counting_fns(2)), device="meta") as vec:
        obs, *_ = vec.reset(), None
        assert (obs.device.type, obs.shape) == ("meta", (2, 3))


class OwnRows:
    """A batched env over two sets of rows, arrays or tensors, which it writes by turns: `given` is the last one."""

    def __init__(self, num_envs: int, observation_space: spaces.Space[Any], give: Any) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, spaces.Discrete(2)
        layout = SpaceLayout(observation_space)
        zeros = [[np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in layout.leaves] for _ in range(2)]
        self._written, self._waiting = ([give(part) for part in parts] for parts in zeros)
        self._structured = layout.unflatten
        self._flags = np.zeros(num_envs, bool)

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._structured(self._written), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self._written, self._waiting = self._waiting, self._written
        self.given = self._written
        for part in self.given:
            part += 1
        return self._structured(self.given), np.ones(self.num_envs), self._flags, self._flags, {}


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_rows_of_a_batched_env_here_are_not_copied(tensors: bool, nested: bool) -> None:
    """With copy=False tensors share the memory of the env's own rows, once the first step has been made."""
    import torch

    rng = np.random.default_rng()
    n, shape = int(rng.integers(1, 300)), tuple(rng.integers(1, 40, rng.integers(0, 3)).tolist())
    space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, shape, rng.choice([np.float32, np.float64]))
    if nested:
        space = spaces.Dict({"a": space, "b": spaces.Tuple([spaces.Box(0, 255, (5,), np.uint8), space])})
    env = OwnRows(n, space, torch.from_numpy if tensors else np.asarray)
    with VecTorch(DummyVecEnv([Batched(lambda: env, n)], copy=False)) as vec:
        vec.reset()
        for k in range(6):
            obs = leaves(vec.step(np.zeros(n, np.int64))[0])
            for seen, own in zip(obs, env.given, strict=True):
                assert torch.equal(seen, torch.as_tensor(own)), (n, space)
                assert k == 0 or seen.data_ptr() == torch.as_tensor(own).data_ptr(), (n, space)


def test_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for JAX, which the tests do not install."""
    with DummyVecEnv(counting_fns(2), copy=False) as inner:
        monkeypatch.setitem(sys.modules, "jax", None)
        with pytest.raises(BackendUnavailable, match="pip install jax"):
            VecJax(inner)
        placed: list[Any] = []
        monkeypatch.setitem(
            sys.modules, "jax", SimpleNamespace(device_put=lambda arrays, device: placed.append(device) or arrays)
        )
        vec = VecJax(inner, device="gpu0")
        first = vec.reset()
        second, rewards, dones, _ = vec.step([0, 0])
        third, *_ = vec.step([0, 0])
        assert [row[:, 2].tolist() for row in (first, second, third)] == [[0, 0], [1, 1], [2, 2]]  # not overwritten
        assert (rewards.dtype, dones.dtype) == (np.float32, np.bool_)
        assert placed == ["gpu0"] * 3


def test_what_has_no_tensors() -> None:
    space = spaces.Dict({"a": spaces.Discrete(2), "words": spaces.Text(3)})
    with (
        DummyVecEnv([functools.partial(SampledEnv, space)]) as inner,
        pytest.raises(TypeError, match=r"observations\['words'\] of Dict"),
    ):
        VecTorch(inner)


def test_what_takes_no_tensors() -> None:
    """Wrappers and views that compute with arrays refuse a VecTorch at once, also below other wrappers."""
    tensors = VecTorch(DummyVecEnv(counting_fns(2)))
    around = VecEnvWrapper(tensors)
    assert around.reset().shape == (2, 3)
    for taker in (VecNormalize, VecMonitor, VecTorch, as_gymnasium, as_pfrl):
        with pytest.raises(TypeError, match=r"those of VecTorch are tensors: put VecTorch around all other wrappers"):
            taker(around)
    with pytest.raises(EnvError, match="Batched takes rows that are arrays"):
        DummyVecEnv([Batched(lambda: around, 2)])
    around.close()
