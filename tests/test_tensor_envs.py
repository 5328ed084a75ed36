"""Batched envs over tensors, without a class of Gymnasium's: torch's, and those of any library that has DLPack."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import Configuration
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from vecenvs import Batched, DummyVecEnv, EnvError
from vecenvs.batch.info_batches import map_leaves
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv, SampledEnv
from vecenvs.testing.envs.batches import ArrayBatch, batched_fns

matrix = "contract"

NESTED = spaces.Dict(
    {
        "a": spaces.Dict({"b": spaces.Box(-1, 1, (2, 3), np.float32), "c": spaces.MultiBinary(2)}),
        "d": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 255, (4, 4), np.uint8)]),
    }
)


class Rows:
    """An array of a library of which only DLPack is known: no length, no items, no `__array__`."""

    def __init__(self, values: Any) -> None:
        self._values = np.ascontiguousarray(values)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._values.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


def to_torch(values: Any) -> Any:
    """Return a tensor; of floats one that requires a gradient, as those of a differentiable simulator."""
    import torch

    values = np.asarray(values)
    return torch.from_numpy(values.copy()).requires_grad_(values.dtype.kind == "f")


def to_array(values: Any) -> Any:
    """Return an array of a torch tensor; TypeError for anything else."""
    import torch

    if not isinstance(values, torch.Tensor):
        raise TypeError(f"{type(values)} is no tensor")
    return values.numpy()


class TensorBatch(ArrayBatch):
    """An ArrayBatch that gives and takes tensors."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], give: Any, take: Any) -> None:
        super().__init__(env_fns)
        self._give, self._take = functools.partial(map_leaves, give), functools.partial(map_leaves, take)

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = super().reset(seed, options)
        return self._give(obs), self._infos(infos)

    def step(self, actions: Any) -> tuple[Any, ...]:
        obs, rewards, terminated, truncated, infos = super().step(self._take(actions))
        return *(self._give(each) for each in (obs, rewards, terminated, truncated)), self._infos(infos)

    def _infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Leave what holds objects, as "final_obs" of single envs does."""
        return {
            name: self._infos(value)
            if isinstance(value, dict)
            else self._give(value)
            if value.dtype != object
            else value
            for name, value in infos.items()
        }


@pytest.mark.parametrize(("give", "take"), [(to_torch, to_array), (Rows, np.asarray)], ids=["torch", "dlpack"])
@pytest.mark.parametrize("kind", ["counting", "nested"])
def test_rows(configuration: Configuration, kind: str, give: Any, take: Any) -> None:
    fns = [
        functools.partial(CountingEnv, tag, 3 + tag)
        if kind == "counting"
        else functools.partial(SampledEnv, NESTED, NESTED)
        for tag in range(6)
    ]
    hosts = [Batched(functools.partial(TensorBatch, part, give, take), 3) for part in (fns[:3], fns[3:])]
    vec, plain = configuration.make_vec(hosts), DummyVecEnv(fns)
    with vec, plain:
        assert_same(vec.reset(seed=3), plain.reset(seed=3))
        for _ in range(20):
            actions = [vec.action_space.sample() for _ in fns]
            *rows, infos = vec.step(actions)
            *expected, theirs = plain.step(actions)
            assert_same(tuple(rows), tuple(expected))
            for info, other in zip(infos, theirs, strict=True):
                assert info.keys() == other.keys()
                assert_same(info.get("terminal_observation"), other.get("terminal_observation"))


class BrainFloatBatch:
    """A batched env over bfloat16, a dtype that NumPy does not have."""

    num_envs = 2
    observation_space = action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        return to_torch(np.full((2, 1), 0.25)).bfloat16(), {}

    def step(self, actions: Any) -> Any:
        ends = to_torch(np.zeros(2, bool))
        return actions.bfloat16(), actions[:, 0].bfloat16(), ends, ends, {"given": actions.bfloat16()}


def test_bfloat16() -> None:
    import torch

    with DummyVecEnv([Batched(BrainFloatBatch, 2)]) as vec:
        assert_same(vec.reset(), np.full((2, 1), 0.25, np.float32))
        obs, rewards, _, infos = vec.step(torch.tensor([[0.5], [-0.5]]).bfloat16())
        assert_same(obs, np.array([[0.5], [-0.5]], np.float32))
        assert_same(rewards, np.array([0.5, -0.5], np.float32))
        assert_same(infos[1]["given"], np.array([-0.5], np.float32))


def test_options_that_are_tensors() -> None:
    """They have no truth value: each env gets its own."""
    import torch

    each = [{"goal": torch.full((2,), goal)} for goal in (0.0, 1.0, 1.0)]
    with DummyVecEnv(batched_fns([CountingEnv] * 3, (3,), "by_masks")) as vec:
        vec.reset(options=each)
        goals = [options[-1]["goal"].tolist() for options in vec.get_attr("options")]
        assert goals == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]


class Simulator(VectorEnv[Any, Any, Any]):
    """A simulator's own vector env, as ManiSkill has it: over tensors, without an autoreset mode in its metadata.

    Its tensors are the same ones in each step. It resets ended envs, of which infos tell under older names. Episodes of
    env i have 2 + i steps.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as Gymnasium's envs have it
    render_mode = "rgb_array"
    num_envs = 3
    single_observation_space = spaces.Dict({"t": spaces.Box(0, 9, (1,), np.float32)})
    single_action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, rewards_shape: tuple[int, ...] = (3,)) -> None:
        import torch

        self._torch = torch
        self._shape = rewards_shape
        self.elapsed = torch.zeros(3, dtype=torch.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.elapsed[(options or {}).get("env_idx", slice(None))] = 0
        return self._observed(), {"reconfigure": False}

    def step(self, actions: Any) -> Any:
        torch = self._torch
        self.elapsed += 1
        ended = self.elapsed >= torch.arange(3) + 2
        rewards = self.elapsed.float().requires_grad_().reshape(self._shape)
        infos = {"success": ended.clone(), "log": {"mean": self.elapsed.float().mean()}}
        if ended.any():
            last, final_info = self._observed(), infos
            infos = self.reset(options={"env_idx": torch.arange(3)[ended]})[1]
            infos |= {
                "final_observation": last,
                "_final_observation": ended,
                "final_info": final_info,
                "_final_info": ended,
            }
        return self._observed(), rewards, ended, torch.zeros(3, dtype=torch.uint8), infos

    def render(self) -> Any:
        return self._torch.zeros(3, 4, 3, dtype=self._torch.uint8)  # one picture, as high as there are envs

    def _observed(self) -> dict[str, Any]:
        return {"t": self.elapsed[:, None].float()}


def test_a_simulators_vector_env(configuration: Configuration) -> None:
    with pytest.raises(EnvError, match=r"its metadata have no 'autoreset_mode'. Name its mode by Batched\(make"):
        configuration.make_vec([Batched(Simulator, 3)] * 2)
    with configuration.make_vec([Batched(Simulator, 3, "same_step")] * 2, info_attrs=["elapsed"]) as vec:
        assert_same(vec.reset(seed=1)["t"], np.zeros((6, 1), np.float32))
        vec.step(vec.action_space.sample()[None].repeat(6, 0))
        obs, rewards, dones, infos = vec.step(np.zeros((6, 2), np.float32))
        assert_same(obs["t"][:3, 0], np.array([0, 2, 2], np.float32))
        assert rewards.tolist() == [2] * 6
        assert dones.tolist() == [True, False, False] * 2
        assert_same(infos[3]["terminal_observation"], {"t": np.array([2], np.float32)})
        assert infos[3]["success"] is True
        assert [info["elapsed"] for info in infos] == [0, 2, 2] * 2
        assert_same(vec.info_array("elapsed"), np.array([0, 2, 2] * 2))
        assert not any("log" in info or "reconfigure" in info for info in infos)
        before = vec.get_attr("elapsed")
        vec.step(np.zeros((6, 2), np.float32))
        assert_same(before, [np.int64(k) for k in (0, 2, 2)] * 2)
        assert [image.shape for image in vec.get_images()] == [(3, 4, 3)] * 6


def test_what_has_another_shape(configuration: Configuration) -> None:
    wrong = functools.partial(Simulator, (3, 1))
    with configuration.make_vec([Batched(wrong, 3, "same_step")]) as vec:
        vec.reset()
        with pytest.raises(EnvError, match=r"rewards have shape \(3, 1\) and dtype float32: 3 envs need one num"):
            vec.step(np.zeros((3, 2), np.float32))


class SparseBatch(ArrayBatch):
    """Its infos have a tensor that does not become an array."""

    def step(self, actions: Any) -> Any:
        import torch

        return *super().step(actions)[:4], {"touches": torch.eye(self.num_envs).to_sparse()}


def test_infos_that_do_not_become_arrays() -> None:
    with DummyVecEnv([Batched(functools.partial(SparseBatch, [CountingEnv] * 2), 2)]) as vec:
        vec.reset()
        with pytest.raises(EnvError, match=r"infos\['touches'\] does not become an array \(.*\): convert it, or leave"):
            vec.step([0, 0])


class SimulatorOfOneClass(gymnasium.Env[Any, Any]):
    """A simulator whose class is that of single envs, as Isaac Lab's is."""

    num_envs = 3
    observation_space = single_observation_space = action_space = single_action_space = spaces.Box(-1, 1, (2,))


def test_a_simulator_is_no_single_env() -> None:
    with pytest.raises(EnvError, match=r"steps several envs at once, .* vecenvs.Batched\(make, num_envs\) marks its"):
        DummyVecEnv([SimulatorOfOneClass])


class Returns(ArrayBatch):
    """Returns what older interfaces, such as Brax's VectorGymWrapper, return."""

    def __init__(self, which: str) -> None:
        super().__init__([CountingEnv, CountingEnv])
        self.which = which

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        obs, infos = super().reset(seed, options)
        return obs if self.which == "reset" else (obs, infos)

    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, _, infos = super().step(actions)
        return (obs, rewards, terminated, infos) if self.which == "step" else (obs, rewards, terminated, infos, None)


def test_what_is_not_gymnasiums(configuration: Configuration) -> None:
    told = {
        "reset": "Returns.reset returned one ndarray, where Gymnasium's returns 2, the last a dict of infos or a list",
        "step": "Returns.step returned 4 values, where Gymnasium's returns 5, .* whose step returns observations",
        "order": "Returns.step returned 5 values, the last a NoneType, where",
    }
    for which, words in told.items():
        with configuration.make_vec([Batched(functools.partial(Returns, which), 2)] * 2) as vec:
            if which != "reset":
                vec.reset()
            with pytest.raises(EnvError, match=words):
                vec.reset() if which == "reset" else vec.step([0] * 4)


def test_actions_go_to_the_device_of_the_rows() -> None:
    """A stand-in for a GPU: the device that has no values."""
    import torch

    seen: list[Any] = []

    class Away(TensorBatch):
        def reset(self, seed: Any = None, options: Any = None) -> Any:
            obs, infos = ArrayBatch.reset(self, seed, options)
            there = torch.from_numpy(obs).to("meta")
            there.cpu = lambda: torch.from_numpy(obs)  # type: ignore[method-assign]
            there.detach = lambda: there  # type: ignore[method-assign]
            return there, infos

    with DummyVecEnv(
        [
            Batched(
                lambda: Away([CountingEnv], to_torch, lambda given: seen.append(given.device.type) or np.zeros(1, int)),
                1,
            )
        ]
    ) as vec:
        vec.reset()
        vec.step([0])
    assert seen == ["meta"]


def test_the_helpers_of_spmd_programs_take_parameters() -> None:
    """Whose values and gradients torch hands out only where asked for; bfloat16 has no dtype in numpy."""
    import torch

    from vecenvs.mpi.arrays import as_numpy, assign, gradient, of_numbers

    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    assert of_numbers(parameter).tolist() == [1.0, 2.0]
    assign(parameter, np.array([3.0, 4.0], np.float32))
    assert (parameter.tolist(), parameter.requires_grad) == ([3.0, 4.0], True)
    assert as_numpy(gradient(parameter)).tolist() == [0.0, 0.0]
    assert as_numpy(parameter.to(torch.bfloat16)).dtype == np.float32
    with pytest.raises(ValueError, match="copy it"):
        of_numbers(torch.zeros(1).expand(3))
