"""Play a number of whole episodes, and return what they gave."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vecenvs.agents.flat import FlatVecEnv
from vecenvs.arguments import check_vec_env, parse_flag, parse_int
from vecenvs.evaluation.episode_pool import EpisodePool
from vecenvs.evaluation.policies import chooser
from vecenvs.vec_env import VecEnv
from vecenvs.wrappers import VecNormalize


class Evaluation(NamedTuple):
    """The episodes of `evaluate`, in the order of their seeds. Arrays have one item per episode.

    Attributes:
        returns: the sum of its rewards, float64.
        lengths: its steps, int64.
        seeds: its seed, int64.
        slots: the env that has played it, int64.
        successes: whether its last info has a true "is_success" or "success", bool; None if no episode's has either.
        errors: whether an exception of the env ended it, in a VecEnv with `on_error`, bool.
        surplus: how many steps of envs that had no episode left were made and dropped; 0 unless envs are batched.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    seeds: NDArray[np.int64]
    slots: NDArray[np.int64]
    successes: NDArray[np.bool_] | None
    errors: NDArray[np.bool_]
    surplus: int


def evaluate(vec: VecEnv, policy: Any, episodes: int = 100, seed: int = 1000, deterministic: bool = True) -> Evaluation:
    """Play `episodes` whole episodes of a policy: episode k with the seed `seed` + k, on the next env that is free.

    The result does not depend on the number of envs, the engine, the autoreset mode or the envs' speed, as long as all
    envs are alike, an episode depends on its seed and its actions alone, and the policy treats each row by itself. No
    episode is left out because it is long, and none is stepped that does not count (but see Batched envs).

    Returns and lengths are those of the envs' Monitors (raw rewards, as `make_vec_env` has them), or of a VecMonitor;
    without these the sums of the rewards of `vec`. Meanwhile each VecNormalize has `training` and `norm_reward` False.

    In mode "disabled", "next_step" and "async" each env goes on by itself, and resets run beside the other envs' steps:
    "disabled" resets least. In "same_step", as `as_sb3` needs it, all that play are stepped together; the next
    episode's seed is held before an env's episode ends, so that its autoreset begins it.

    With `on_failure="restart"` an episode that its worker's death has ended is played again. With `on_error` an episode
    that an exception has ended counts as it is, and `errors` tells which.

    Batched envs (`Batched`) need to take resets of some envs, and a seed for each. They are stepped together, and rows
    of envs without an episode are dropped.

    Afterwards, whatever happened, no command is due (but of envs that do not answer within 5 seconds), no seeds or
    options are held, and each VecNormalize is as before. The envs are anywhere in an episode: `reset` them before you
    step them. So a VecEnv in training is not evaluated between two steps of its learner: make another one.

    Args:
        vec: the VecEnv, with any wrappers that have `recv`.
        policy: a function `policy(obs)` of a batch of observations, one row for each env that is to act, to a batch of
            actions; or `policy(obs, indices, started)` for one with a state, with the envs, int64 (k,), and whether
            the row is the first one of an episode, bool (k,). Or an object with `predict(obs, deterministic=...)`, such
            as a model of Stable-Baselines3. Or "random": samples of the action space, which follow from the seeds.
        episodes: how many, at least 1.
        seed: the seed of the first one.
        deterministic: whether a policy with `predict` takes its most likely actions.

    Returns:
        The episodes.

    Raises:
        TypeError: `vec` is not a VecEnv, or `policy` no policy.
        ValueError: a number is out of its range; `deterministic=False` with a function, which chooses itself; a model
            has a state; or the VecEnv has `tasks`.
        AlreadySteppingError: an env has an unanswered command.
        VecEnvError: the envs' Monitors have other episodes than `vec`, as if these were lives of a game; or as from
            `recv`.
    """
    return play(vec, policy, episodes, seed, deterministic, lambda _: None)


def play(
    vec: VecEnv, policy: Any, episodes: int, seed: int, deterministic: bool, finished: Callable[[float], None]
) -> Evaluation:
    """Do what `evaluate` does; call `finished` with each episode's return as it ends."""
    check_vec_env("evaluate", vec)
    if isinstance(vec.unwrapped, FlatVecEnv):
        raise TypeError("evaluate plays envs of one agent each, not the agents of flat(): step these yourself")
    if vec.stats().get("tasks"):
        raise ValueError("evaluate gives each episode its seed, as tasks= of this VecEnv does: make one without tasks")
    choose = chooser(policy, vec.action_space, parse_flag("deterministic", deterministic))
    count, first = parse_int("episodes", episodes, 1), parse_int("seed", seed, 0)
    with _frozen(vec):
        pool = EpisodePool(vec, choose, count, first, finished)
        pool.play()
    told = pool.successes >= 0
    return Evaluation(
        pool.returns,
        pool.lengths,
        np.arange(first, first + count),
        pool.slots,
        pool.successes > 0 if told.any() else None,
        pool.errors,
        pool.surplus,
    )


@contextlib.contextmanager
def _frozen(vec: Any) -> Iterator[None]:
    """Let no VecNormalize change its statistics, or rewards."""
    layers = []
    while vec is not None:
        if isinstance(vec, VecNormalize):
            layers.append((vec, vec.training, vec.norm_reward))
        vec = getattr(vec, "venv", None)
    try:
        for layer, _, _ in layers:
            layer.training = layer.norm_reward = False
        yield
    finally:
        for layer, training, norm_reward in layers:
            layer.training, layer.norm_reward = training, norm_reward
