"""The shortest way to do what an env's `step` does: past wrappers of whose steps all is known.

`gym.make` puts TimeLimit and OrderEnforcing around every env. Three calls of Python functions per step, which take 8 %
of a bare CartPole loop, come to one comparison of numbers. Other wrappers are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from vecenvs.worker.stepping import StepResult

Step = Callable[[Any], StepResult]


def direct_step(env: Any) -> Step:
    """Give what does just as `env.step` would from a reset of `env` until the next one.

    Wrappers keep their state, in their own attributes. One that is taken out, or gets another `step`, in mid-episode is
    noticed at the next reset, or after a `call` on the env; the first env inside that is no known wrapper may change
    its own `step` at any time. See also `EnvShard.show_envs`.
    """
    return shortened(env) or env.step


def shortened(env: Any) -> Step | None:
    """Give a shorter way than `env.step`, if there is one."""
    shorten = SHORTER.get(getattr(type(env), "step", None))
    return None if shorten is None or "step" in vars(env) else shorten(env)


def _inside(env: Any) -> Any:
    """Give the first env, from this one on inwards, whose step does something."""
    while True:
        step = getattr(type(env), "step", None)
        if not (step is _WRAPPER or (step is _ORDER and env.has_reset)) or "step" in vars(env):
            return env
        env = env.env


def _plain(wrapper: Any) -> Step | None:
    env = _inside(wrapper)
    return None if env is wrapper else shortened(env) or (lambda action: env.step(action))


def _limited(limit: Any) -> Step | None:
    shown = vars(limit)
    if "_elapsed_steps" not in shown or "_max_episode_steps" not in shown:  # Gymnasium may call them otherwise one day
        return None
    env = _inside(limit.env)

    def step(action: Any) -> StepResult:
        row: StepResult = env.step(action)
        limit._elapsed_steps = elapsed = limit._elapsed_steps + 1  # noqa: SLF001
        if elapsed < limit._max_episode_steps:  # noqa: SLF001
            return row
        obs, reward, terminated, _, info = row
        return obs, reward, terminated, True, info

    return step


_WRAPPER, _ORDER = gym.Wrapper.step, OrderEnforcing.step

# What makes a shorter way, if it finds one, by the `step` of the wrapper's class (as it was when this was imported).
# Monitor adds its own.
SHORTER: dict[Any, Callable[[Any], Step | None]] = {_WRAPPER: _plain, _ORDER: _plain, TimeLimit.step: _limited}
