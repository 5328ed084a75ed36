"""The grid: cells, each varied from a common base along one axis, and the figures that are promised for them.

All combinations would take days. The base is bare CartPole without a learner; each axis changes one thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from benchmarks.stack.grid import Axis
from vecenvs.bench.workloads import BadRequest, Synthetic, SyntheticEnv, Workload, workload

ATTR = "position"
PREPROCESSED = "pong:preprocessed"


@dataclass(frozen=True)
class Cell:
    """One situation in which the candidates are measured.

    `env` is the name of a workload (vecenvs.bench.workloads) or PREPROCESSED. `infos`: each step's info holds four
    numbers. `attr`: an attribute of every env is read after each step. `learner`: the caller computes between steps,
    per row as long as the limit takes for it. `everyone`: slow candidates take part, too. `relative`: rates are
    divided by the best peer's, since the limit of an env that costs nothing says little. `quick`: part of `--quick`.
    """

    key: str
    title: str
    env: str
    num_envs: int
    infos: bool = False
    attr: bool = False
    learner: bool = False
    everyone: bool = False
    relative: bool = False
    quick: bool = False

    def env_fn(self) -> Workload:
        """Return the function that makes one such env. It is sent to all processes, so its cost is the same in each."""
        if self.env == PREPROCESSED:
            return PreprocessedPong()
        made = workload(self.env)
        if not (self.infos or self.attr):
            return made
        if not isinstance(made, Synthetic):
            raise BadRequest(f"{self.key}: infos and attributes are added to synthetic envs only, not to {self.env}")
        return Informative(made, self.infos)


class PreprocessedPong:
    """Pong with no-ops, frame skip, grey 84x84 frames and a stack of 4, by Gymnasium's own wrappers."""

    def __call__(self) -> gym.Env[Any, Any]:
        import ale_py

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        env = gym.make("ALE/Pong-v5", frameskip=1, disable_env_checker=True)
        return FrameStackObservation(AtariPreprocessing(env, frame_skip=4), 4)


@dataclass(frozen=True)
class Informative:
    """A function that makes a synthetic env with an attribute that changes and, with `infos`, infos of numbers."""

    workload: Synthetic
    infos: bool

    def __call__(self) -> gym.Env[Any, Any]:
        return InformativeEnv(self.workload, self.infos)


class InformativeEnv(SyntheticEnv):
    """The env of `Informative`. It is no wrapper: some libraries look for attributes in the innermost env only."""

    def __init__(self, workload: Synthetic, infos: bool) -> None:
        super().__init__(workload)
        self.position = 0.0
        self._infos = infos

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        self.position += 0.5
        if self._infos:
            info = {"x": self.position, "speed": 0.5, "cost": 0.25, "alive": 1.0}
        return obs, reward, terminated, truncated, info


def _cartpole(num_envs: int, **options: Any) -> Cell:
    title = f"CartPole, {num_envs} env{'s' * (num_envs > 1)}"
    return Cell(f"cartpole-{num_envs}", title, "CartPole-v1", num_envs, **options)


CELLS = [
    _cartpole(8, everyone=True, quick=True),
    _cartpole(64, everyone=True, quick=True),
    Cell("spin100-8", "100 us, 8 envs", "spin:100us", 8, everyone=True, quick=True),
    Cell("rows-64", "84x84x4 bytes, 64 envs", "rows:84x84x4", 64, relative=True, quick=True),
    Cell("learner-spin100-8", "100 us, 8 envs", "spin:100us", 8, learner=True, quick=True),
    Cell("learner-cartpole-64", "CartPole, 64 envs", "CartPole-v1", 64, learner=True),
    Cell("halfcheetah-8", "HalfCheetah, 8 envs", "HalfCheetah-v5", 8),
    Cell("pong-raw-8", "Pong, raw frames, 8 envs", "ALE/Pong-v5", 8),
    Cell("pong-84-8", "Pong, preprocessed, 8 envs", PREPROCESSED, 8),
    Cell("pendulum-8", "Pendulum, 8 envs", "Pendulum-v1", 8),
    Cell("spin10-64", "10 us, 64 envs", "spin:10us", 64),
    _cartpole(1024),
    _cartpole(256),
    _cartpole(1),
    Cell("spin0-8", "0 us, 8 envs", "spin:0us", 8, relative=True),
    Cell("spin10-8", "10 us, 8 envs", "spin:10us", 8),
    Cell("spin1000-8", "1000 us, 8 envs", "spin:1000us", 8),
    Cell("floats-64", "4 floats, 64 envs", "spin:0us", 64, relative=True),
    Cell("rows-8", "84x84x4 bytes, 8 envs", "rows:84x84x4", 8, relative=True),
    Cell("nested-64", "nested dict, 64 envs", "nested:0us", 64, relative=True),
    Cell("infos-64", "infos of 4 numbers", "spin:10us", 64, infos=True),
    Cell("attr-64", "an attribute of each env", "spin:10us", 64, attr=True),
    Cell("resets-rare-64", "every 1000 steps", "spin:10us,episode=1000", 64),
    Cell("resets-often-64", "every 10 steps", "spin:10us,episode=10", 64),
]

AXES = [
    Axis(
        "envs",
        "Envs",
        "Eight bare envs of each kind.",
        ("cartpole-8", "pendulum-8", "halfcheetah-8", "pong-raw-8", "pong-84-8"),
    ),
    Axis(
        "number",
        "Number of envs",
        "CartPole.",
        ("cartpole-1", "cartpole-8", "cartpole-64", "cartpole-256", "cartpole-1024"),
    ),
    Axis(
        "cost",
        "Cost of a step",
        "Synthetic envs that use this much CPU per step and return 4 floats; with 0 us relative to the best peer.",
        ("spin0-8", "spin10-8", "spin100-8", "spin1000-8", "spin10-64"),
    ),
    Axis(
        "obs",
        "Observations",
        "Envs that cost nothing, so that only moving the rows counts. Rows per second, relative to the best peer.",
        ("floats-64", "rows-8", "rows-64", "nested-64"),
    ),
    Axis(
        "infos",
        "Infos and attributes",
        "Envs of 10 us, 64 of them: with empty infos; with four numbers in every info; with an attribute of every env "
        "read after each step (info_attrs here, the library's get_attr elsewhere).",
        ("spin10-64", "infos-64", "attr-64"),
    ),
    Axis(
        "resets",
        "Resets",
        "Envs of 10 us, 64 of them, whose episodes never end, end after 1000 and after 10 steps.",
        ("spin10-64", "resets-rare-64", "resets-often-64"),
    ),
    Axis(
        "learner",
        "A learner between the steps",
        "The caller computes after each batch, for as long as the limit takes to step it. In lock-step the envs are "
        "stepped half of the time at best, so half of the limit is the most that can be reached. A library that steps "
        "one half of the envs while the caller computes on the other can pass that.",
        ("learner-spin100-8", "learner-cartpole-64"),
    ),
]


def cell(key: str) -> Cell:
    """Return the cell of this key."""
    return next(found for found in CELLS if found.key == key)


@dataclass(frozen=True)
class Promise:
    """A figure of a cell that is promised to be at least `bound`.

    The unit "limit" is the share of the limit of our best candidate, or of the one named; "peer" is our best over the
    best Python peer. `key` None stands for the lowest figure of all measured cells.
    """

    what: str
    key: str | None
    bound: float
    unit: str = "limit"
    candidate: str | None = None


PROMISES = [
    Promise("CartPole, 1 env: over the best peer", "cartpole-1", 1.15, "peer"),
    Promise("CartPole, 8 envs, dummy", "cartpole-8", 0.50, candidate="dummy"),
    Promise("CartPole, 64 envs, subproc by default", "cartpole-64", 0.68, candidate="subproc"),
    Promise("CartPole, 8 envs", "cartpole-8", 0.58),
    Promise("CartPole, 64 envs", "cartpole-64", 0.75),
    Promise("CartPole, 1024 envs", "cartpole-1024", 0.92),
    Promise("CartPole, 64 envs, dummy", "cartpole-64", 0.47, candidate="dummy"),
    Promise("10 us, 64 envs", "spin10-64", 0.90),
    Promise("100 us, 8 envs", "spin100-8", 0.95),
    Promise("HalfCheetah, 8 envs", "halfcheetah-8", 0.80),
    Promise("Pong, raw frames, 8 envs", "pong-raw-8", 0.83),
    Promise("84x84x4 bytes at no cost, 8 envs: over the best peer", "rows-8", 1.8, "peer"),
    Promise("84x84x4 bytes at no cost, 64 envs: over the best peer", "rows-64", 1.8, "peer"),
    Promise("learner, 100 us, 8 envs: over the best peer", "learner-spin100-8", 1.2, "peer"),
    Promise("learner, CartPole, 64 envs: over the best peer", "learner-cartpole-64", 1.2, "peer"),
    Promise("the least of all cells: over the best peer", None, 1.0, "peer"),
]
