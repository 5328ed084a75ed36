"""A check of envs: do several of them get along in one process?"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import numpy as np

from vecenvs.backends.subproc import SubprocVecEnv
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs.counting import CountingEnv

_REMEDY = (
    "Workers step several envs each by default. SubprocVecEnv(env_fns, num_workers=len(env_fns)), or "
    'make_vec_env(..., backend="subproc", num_workers=num_envs), gives each env a process of its own'
)


def check_shares_process(env_fn: Callable[[], Any], *, steps: int = 200, seed: int = 0) -> None:
    """Check that several envs of this function can live in one process.

    It plays one env alone, then two by turns, in a worker process, so nothing changes in this one. Found are envs that
    change the current directory, that draw from the global generators of `random` or NumPy, whose second one cannot be
    made beside the first (a simulator that exists once per process), or whose rows change when there is another one.

    Args:
        env_fn: makes a new env each time. It has to be picklable (by cloudpickle), as for any VecEnv with workers.
        steps: how many steps are taken, with random actions.
        seed: of the envs' resets and of the actions.

    Raises:
        AssertionError: what was found, and what to do.
        EnvError: the env alone raises.
    """
    with SubprocVecEnv([CountingEnv], num_workers=1) as vec:
        found = vec.call(_findings, None, env_fn, steps, seed)[0]
    if found:
        raise AssertionError(f"{'; '.join(found)}. {_REMEDY}")


class _Watch:
    """Notes what is changed in the process's state, and when."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._seen = self._state()

    def look(self, doing: str) -> None:
        now = self._state()
        for what, value in now.items():
            if value != self._seen[what]:
                self.found.setdefault(what, f"{doing} {what}")
        self._seen = now

    @staticmethod
    def _state() -> dict[str, str]:
        numpys = np.random.get_state(legacy=False)  # noqa: NPY002
        return {
            "changes the current directory": os.getcwd(),
            "draws from the global generator of `random`": repr(random.getstate()),
            "draws from NumPy's global generator": repr((numpys["state"]["key"].tobytes(), numpys["state"]["pos"])),
        }


def _findings(_: Any, env_fn: Callable[[], Any], steps: int, seed: int) -> list[str]:
    """Return what is wrong, found in this process."""
    home = os.getcwd()
    watch = _Watch()
    with closing(env_fn()) as env:
        watch.look("making it")
        alone = [*_played(env, steps, seed, watch)]
    with closing(env_fn()) as env:
        again = [*_played(env, steps, seed, watch)]
    os.chdir(home)
    found = [*watch.found.values()]
    if _differ(alone, again):  # nothing to compare with
        return found
    try:
        with closing(env_fn()) as env, closing(env_fn()) as other:
            turns = _played(other, steps, seed + 1, watch)
            beside = []
            for row in _played(env, steps, seed, watch):
                beside.append(row)
                next(turns, None)
    except Exception as exc:
        return [*found, f"a second one in the same process raises {type(exc).__name__}: {exc}"]
    return [*found, "its rows change when another one is in the process"] if _differ(alone, beside) else found


def _played(env: Any, steps: int, seed: int, watch: _Watch) -> Iterator[Any]:
    """Play an env; yield its rows."""
    env.action_space.seed(seed)
    yield env.reset(seed=seed)[0]
    watch.look("its reset")
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        watch.look("its step")
        yield obs, reward, terminated, truncated
        if terminated or truncated:
            yield env.reset()[0]
            watch.look("its reset")


def _differ(a: list[Any], b: list[Any]) -> bool:
    with suppress(AssertionError):
        assert_same(a, b, "rows")
        return False
    return True
