"""Measure VecTorch and VecJax on a GPU, beside what programs do without them.

    python benchmarks/gpu.py                    about two minutes, on a machine with a GPU, torch and JAX
    python benchmarks/gpu.py --docs             measures nothing: writes the section of docs/benchmarks.md

A batched env in process returns rows that were drawn before, so that the loop's time is that of rows, actions and a
small policy on the GPU. "Beside kernels" some matrix products are under way whenever rows come, as those of an update.
Sides take turns in rounds, after a check of all values. `Pinned` is what VecTorch could do instead: pinned memory of
its own, and a stream of its own beside that which computes.
"""

from __future__ import annotations

import abc
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from shared import DOCS, RESULTS, about, load, parser, spread, table, write, write_sections

from vecenvs import Batched, DummyVecEnv, VecJax, VecTorch
from vecenvs.bench.report import Spread

FILE = RESULTS / "gpu.json"
WORKLOADS: dict[str, tuple[int, tuple[int, ...], Any]] = {
    "64 x (4,) float32": (64, (4,), np.float32),
    "4096 x (48,) float32": (4096, (48,), np.float32),
    "64 x (84, 84, 4) uint8": (64, (84, 84, 4), np.uint8),
    "256 x (84, 84, 4) uint8": (256, (84, 84, 4), np.uint8),
}
LOOPS = ("acting", "beside kernels")
SIDES = ("blocking", "VecTorch", "pinned", "pinned, own stream", "jnp.asarray", "VecJax")
BESIDE = {side: "jnp.asarray" if side in SIDES[4:] else "blocking" for side in SIDES}
"""The side that the rates of another one are shares of."""


class Rows:
    """A batched env of no cost."""

    def __init__(self, num_envs: int, shape: tuple[int, ...], dtype: Any) -> None:
        self.num_envs, self.action_space = num_envs, spaces.Discrete(4)
        low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        self.observation_space = spaces.Box(low, high, shape, dtype)
        rng = np.random.default_rng(0)
        self._obs = [rng.integers(0, 255, (num_envs, *shape)).astype(dtype) for _ in range(4)]
        self._rewards = [rng.standard_normal(num_envs).astype(np.float32) for _ in range(4)]
        self._ends = np.zeros(num_envs, bool)
        self._step = 0

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return self._obs[0], {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self._step += 1
        return self._obs[self._step % 4], self._rewards[self._step % 4], self._ends, self._ends, {}


class Pinned:
    """Two sets of pinned buffers, since one copy may be under way; copies on a stream of their own, if there is one."""

    def __init__(self, torch: Any, *, own_stream: bool) -> None:
        self._torch = torch
        self._stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
        self._buffers: list[dict[int, list[Any]]] = [{}, {}]
        self._events = [torch.cuda.Event(), torch.cuda.Event()]
        self._turn = 0

    def __call__(self, arrays: list[NDArray[Any]]) -> list[Any]:
        """Return copies on the GPU."""
        torch, self._turn = self._torch, self._turn ^ 1
        event = self._events[self._turn]
        event.synchronize()
        tensors = [torch.from_numpy(array) for array in arrays]
        buffers = self._buffers[self._turn].setdefault(len(tensors), [])  # of a reset, and of a step
        if not buffers:
            buffers.extend(torch.empty_like(tensor, pin_memory=True) for tensor in tensors)
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor)
        with torch.cuda.stream(self._stream):
            copies = [buffer.to("cuda", non_blocking=True) for buffer in buffers]
            event.record()
        now = torch.cuda.current_stream()
        if now != self._stream:
            now.wait_event(event)
            for copy in copies:
                copy.record_stream(now)
        return copies


class Side(abc.ABC):
    """A loop: `convert` makes tensors of obs, rewards and dones; None where the VecEnv gives them."""

    def __init__(self, vec: Any, convert: Callable[[list[Any]], list[Any]] | None) -> None:
        self._vec, self._convert = vec, convert

    def begin(self) -> Any:
        obs = self._vec.reset()
        return obs if self._convert is None else self._convert([obs])[0]

    def step(self, actions: Any) -> list[Any]:
        *rows, _ = self._vec.step(actions)
        return rows if self._convert is None else self._convert(rows)

    def close(self) -> None:
        self._vec.close()

    @abc.abstractmethod
    def act(self, obs: Any) -> Any:
        """Return actions, in the memory of the CPU."""

    @abc.abstractmethod
    def compute(self) -> None:
        """Have kernels under way."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait for them."""

    @abc.abstractmethod
    def array(self, tensor: Any) -> NDArray[Any]:
        """Return the values of a tensor."""


class TorchSide(Side):
    """A loop of torch."""

    def __init__(self, vec: Any, convert: Callable[[list[Any]], list[Any]] | None, shape: tuple[int, ...]) -> None:
        super().__init__(vec, convert)
        import torch

        self._torch = torch
        torch.manual_seed(0)
        self._kernels = torch.randn(4096, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda") * 0.03
        linear = torch.nn.Linear
        self._policy = torch.nn.Sequential(linear(int(np.prod(shape)), 64), torch.nn.Tanh(), linear(64, 4)).to("cuda")

    def act(self, obs: Any) -> Any:
        with self._torch.no_grad():
            return self._policy(obs.reshape(len(obs), -1).float()).argmax(1).cpu()

    def compute(self) -> None:
        values, weights = self._kernels
        for _ in range(6):
            values = self._torch.tanh(values @ weights)

    def wait(self) -> None:
        self._torch.cuda.synchronize()

    def array(self, tensor: Any) -> NDArray[Any]:
        found: NDArray[Any] = tensor.cpu().numpy()
        return found


class JaxSide(Side):
    """A loop of JAX."""

    def __init__(self, vec: Any, convert: Callable[[list[Any]], list[Any]] | None, shape: tuple[int, ...]) -> None:
        super().__init__(vec, convert)
        import jax

        self._jax = jax
        keys = jax.random.split(jax.random.key(0), 4)
        weights = [jax.random.normal(keys[0], (int(np.prod(shape)), 64)), jax.random.normal(keys[1], (64, 4))]
        values, wide = jax.random.normal(keys[2], (4096, 1024)), jax.random.normal(keys[3], (1024, 1024)) * 0.03

        def act(obs: Any) -> Any:
            flat = obs.reshape(len(obs), -1).astype("float32")
            return (jax.numpy.tanh(flat @ weights[0]) @ weights[1]).argmax(1)

        def compute() -> Any:
            found = values
            for _ in range(6):
                found = jax.numpy.tanh(found @ wide)
            return found

        self._act, self._compute = jax.jit(act), jax.jit(compute)

    def act(self, obs: Any) -> Any:
        return np.asarray(self._act(obs))

    def compute(self) -> None:
        self._last = self._compute()

    def wait(self) -> None:
        self._jax.block_until_ready(self._last)

    def array(self, tensor: Any) -> NDArray[Any]:
        return np.asarray(tensor)


def side(name: str, num_envs: int, shape: tuple[int, ...], dtype: Any) -> Side:
    """Return a side of this name."""
    vec = DummyVecEnv([Batched(functools.partial(Rows, num_envs, shape, dtype), num_envs)])
    if name == "VecJax":
        return JaxSide(VecJax(vec), None, shape)
    if name == "jnp.asarray":
        import jax

        return JaxSide(vec, lambda rows: [jax.numpy.asarray(row) for row in rows], shape)
    import torch

    if name == "VecTorch":
        return TorchSide(VecTorch(vec, "cuda"), None, shape)
    if name == "blocking":
        return TorchSide(vec, lambda rows: [torch.as_tensor(row, device="cuda") for row in rows], shape)
    return TorchSide(vec, Pinned(torch, own_stream=name != "pinned"), shape)


def check(each: Side, workload: tuple[int, tuple[int, ...], Any]) -> None:
    """Compare rows with those of the env: all are kept until the last one has come, and kernels are under way."""
    env = Rows(*workload)
    each.begin()
    each.compute()
    rows = [each.step(np.zeros(env.num_envs, np.int64)) for _ in range(6)]
    for found in rows:
        expected = env.step(None)[:3]
        for tensor, array in zip(found, expected, strict=True):
            np.testing.assert_array_equal(each.array(tensor), array)


def rate(each: Side, loop: str, seconds: float) -> float:
    """Return iterations per second."""
    obs, count = each.begin(), 0
    each.compute()
    each.wait()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        actions = each.act(obs)
        if loop != "acting":
            each.compute()
        obs, *_ = each.step(actions)
        count += 1
    each.wait()
    return count / (time.perf_counter() - start)


def measure(seconds: float, repeats: int) -> dict[str, Any]:
    """Return the rates of all sides, by workload and loop, round by round."""
    found: dict[str, Any] = {}
    for name, workload in WORKLOADS.items():
        sides = {each: side(each, *workload) for each in SIDES}
        for each in sides.values():
            check(each, workload)
            rate(each, "acting", seconds / 2)
        for loop in LOOPS:
            rounds: list[dict[str, float]] = []
            for turn in range(repeats):
                order = SIDES if turn % 2 == 0 else SIDES[::-1]
                rounds.append({each: rate(sides[each], loop, seconds) for each in order})
            found[f"{name}, {loop}"] = rounds
        for each in sides.values():
            each.close()
    return found


def section(record: dict[str, Any]) -> str:
    """Return the section of docs/benchmarks.md."""
    columns = [each for each in SIDES if each not in BESIDE.values()]
    rows = [
        [name, *(spread(Spread.of([one[each] / one[BESIDE[each]] for one in rounds])) for each in columns)]
        for name, rounds in record["rates"].items()
    ]
    repeats = len(next(iter(record["rates"].values())))
    return f"""## On a GPU

`{record["command"]}` on one {record["gpu"]} and {record["machine"]["cores"]} cores. Rates of a loop
of a small policy on the GPU over envs that cost nothing, {repeats} rounds by turns: of the first three columns as a
share of blocking copies (`torch.as_tensor(row, device="cuda")` of observations, rewards and dones); of VecJax as a
share of `jnp.asarray` of each. Pinned memory and a stream of its own are what VecTorch does not use: it lets the
driver copy (`non_blocking=True`). Readings are in [gpu.json](../benchmarks/results/gpu.json).

{table(["", *columns], rows)}"""


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, or write the section."""
    options = parser(__doc__, [], seconds=0.3, repeats=5)
    options.add_argument("--docs", action="store_true", help="write the section of docs/benchmarks.md from the file")
    given = options.parse_args(argv)
    if not given.docs:
        import torch

        command = f"python benchmarks/gpu.py --seconds {given.seconds} --repeats {given.repeats}"
        record = {**about(command, "torch", "jax"), "gpu": torch.cuda.get_device_name()}
        record["rates"] = measure(given.seconds, given.repeats)
        write(FILE, record)
        print(section(record))
        return
    write_sections(DOCS / "benchmarks.md", {"gpu": section(load(FILE))})


if __name__ == "__main__":
    main()
