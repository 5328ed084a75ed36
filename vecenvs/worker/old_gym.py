"""Remedies for envs of other interfaces, Gym's before 0.26 above all, to be added to the errors that these cause."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import gymnasium as gym

PACKAGE = "envs of the old gym package need shimmy's GymV26CompatibilityV0, or GymV21CompatibilityV0, around them"
_WRITE = "Gymnasium's envs have {}: write it so, or put shimmy's GymV21CompatibilityV0 around an env of the old gym"
_RESET = "reset(self, *, seed=None, options=None) -> (obs, info)"
_STEP = "step(self, action) -> (obs, reward, terminated, truncated, info)"
_SEED = (
    "Gymnasium's envs are seeded by reset(seed=...): leave env.seed out, and give the seed to the VecEnv, by seed() "
    "or reset(seed=...), or to make_vec_env"
)
_OBJECTIVES = (
    "rewards of several objectives, as of MO-Gymnasium's envs, become numbers by its LinearReward(env, weight)"
)
_COROUTINE = (
    "Envs whose reset and step are coroutines need concurrency='asyncio', where all of a worker wait at the same time"
)


def remedy(env: Any, exc: BaseException) -> str:
    """Return how to change `env` if its interface is the cause of `exc`; "" if that cannot be told."""
    if not issubclass(type(exc), (TypeError, ValueError)):
        return ""
    try:
        text = str(exc)
        if "keyword argument" in text and any(map(_takes_no_seed, _layers(env))):
            return _WRITE.format(_RESET)
        if "coroutine" in text:
            return _COROUTINE
        if "reward must be a number" in text or "array of size 1" in text or "only 0-dimensional arrays" in text:
            return _OBJECTIVES
        if "unpack" in text and not _is_in_env(exc, [*_layers(env)][-1]):
            return _WRITE.format(_STEP if "expected 5" in text else _RESET)
    except Exception:  # from a foreign __str__ or __getattr__
        return ""
    return ""


def seed_remedy(exc: BaseException) -> str:
    """Return how to seed if `exc` comes from `env.seed(...)`, which env functions used to call; else ""."""
    if type(exc) is AttributeError and exc.name == "seed" and isinstance(exc.obj, gym.Env):
        return _SEED
    return ""


def _layers(env: Any) -> Iterator[Any]:
    """Yield the env's wrappers from the outermost on, then the bare env."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _takes_no_seed(layer: Any) -> bool:
    parameters = inspect.signature(layer.reset).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return False
    return not {"seed", "options"} <= parameters.keys()


def _is_in_env(exc: BaseException, bare: Any) -> bool:
    """Tell whether the env's own code raised this, which may have unpacked anything, rather than code that calls it."""
    trace = exc.__traceback__
    while trace is not None:
        if trace.tb_frame.f_locals.get("self") is bare:
            return True
        trace = trace.tb_next
    return False
