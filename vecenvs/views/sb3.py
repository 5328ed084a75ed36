"""A VecEnv as Stable-Baselines3's own `VecEnv`. Importing this module imports Stable-Baselines3, and so torch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vecenvs import env_calls
from vecenvs.arguments import check_vec_env
from vecenvs.batch.actions import whole_numbers
from vecenvs.errors import BackendUnavailable, EnvError
from vecenvs.vec_env import StepReturn, VecEnv
from vecenvs.views.gymnasium.errors import OutOfReachError
from vecenvs.wrappers.base import VecEnvWrapper
from vecenvs.wrappers.monitor import Monitor
from vecenvs.wrappers.vec_monitor import VecMonitor

try:
    from stable_baselines3.common.monitor import Monitor as SB3Monitor
    from stable_baselines3.common.vec_env import VecEnv as SB3VecEnv
except ImportError as missing:
    raise BackendUnavailable(f"as_sb3 needs Stable-Baselines3 ({missing}): pip install stable-baselines3") from missing

SB3Indices = int | Iterable[int] | None


def as_sb3(vec: VecEnv) -> SB3View:
    """View `vec`, which must be in "same_step" mode, as a `stable_baselines3.common.vec_env.VecEnv`.

    Closing the view closes `vec`; use one of them at a time. ValueError for another autoreset mode, BackendUnavailable
    if Stable-Baselines3 is not installed.
    """
    return SB3View(vec)


# Without Stable-Baselines3 its classes are Any to the type checker: then the first code is what is ignored.
class SB3View(SB3VecEnv):  # type: ignore[misc, unused-ignore]
    """What Stable-Baselines3 sees of `vec`.

    Rewards are float32 (n,), dones bool (n,), infos a list of dicts, all of them the caller's own: what SB3 keeps from
    one step to the next or adds to in place stays its own. As in SB3's own classes seeds and options given by `seed`
    and `set_options` are used by the next `reset()`, and by no autoreset before it. Beyond SB3's keys, the info of a
    row whose observation begins an episode, and that of a reset, has "episode_start".

    An exception in an env is an `EnvError` naming the env, but a missing attribute an AttributeError, as SB3 expects.
    """

    def __init__(self, vec: VecEnv) -> None:
        check_vec_env("as_sb3", vec)
        if vec.autoreset != "same_step":
            raise ValueError(
                "Stable-Baselines3 takes an episode's first observation from the row on which the last one ended, but "
                f"this VecEnv has autoreset={vec.autoreset!r}: make it with autoreset='same_step'"
            )
        if not vec.copy:
            raise ValueError("Stable-Baselines3 keeps the last step's arrays: make the VecEnv with copy=True")
        self.vec = vec
        super().__init__(vec.num_envs, vec.observation_space, vec.action_space)
        self.metadata = dict(vec.metadata)
        self.spec = vec.spec
        self.reset_infos = vec.reset_infos
        self._begun = False

    def reset(self) -> Any:
        obs = self.vec.reset(seed=self._seeds, options=[options or None for options in self._options])
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = self.vec.reset_infos
        return obs

    def step_async(self, actions: Any) -> None:
        try:
            if not self._begun:
                self._begin()
            self.vec.step_async(whole_numbers(self.action_space, actions))
        except EnvError as error:
            error.tell_reset(_how_to_reset)
            raise

    def _begin(self) -> None:
        """Let envs be stepped which were never reset, if they allow it: SB3 asks for no reset."""
        never = [i for i, info in enumerate(self.vec.reset_infos) if not info]
        if never:
            with contextlib.suppress(OutOfReachError):  # of Gymnasium's AsyncVectorEnv, say: then the step is refused
                self.vec.call(env_calls.as_it_is, never)
        self._begun = True

    def step_wait(self) -> StepReturn:  # type: ignore[override, unused-ignore]
        try:
            result = self.vec.step_wait()
        except EnvError as error:
            error.tell_reset(_how_to_reset)
            raise
        self.reset_infos = self.vec.reset_infos
        return result

    def close(self) -> None:
        self.vec.close()

    @property
    def envs(self) -> list[Any]:
        """The envs themselves, as SB3's DummyVecEnv has them; AttributeError where they are in other processes."""
        return self.vec.envs

    @envs.setter
    def envs(self, envs: list[Any]) -> None:
        self.vec.envs = envs

    def has_attr(self, attr_name: str) -> bool:
        return self.vec.has_attr(attr_name)

    def get_attr(self, attr_name: str, indices: SB3Indices = None) -> list[Any]:
        slots = self._slots(indices)
        unique = list(dict.fromkeys(slots))
        try:
            found = dict(zip(unique, self.vec.get_attr(attr_name, unique), strict=True))
        except EnvError as error:
            raise _as_upstream(error) from error
        except OutOfReachError:
            if attr_name != "render_mode":
                raise
            return [self.vec.render_mode] * len(slots)  # SB3's own __init__ asks for it
        return [found[slot] for slot in slots]

    def set_attr(self, attr_name: str, value: Any, indices: SB3Indices = None) -> None:
        """Write an attribute where `get_attr` finds it. (SB3's own classes write it on the outermost wrapper.)"""
        self.vec.set_attr(attr_name, value, list(dict.fromkeys(self._slots(indices))))

    def env_method(
        self, method_name: str, *method_args: Any, indices: SB3Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        slots = self._slots(indices)
        # An env named twice is called twice: one round of calls has each env once.
        rounds = [slots] if len(set(slots)) == len(slots) else [[slot] for slot in slots]
        try:
            return [
                result
                for part in rounds
                for result in self.vec.env_method(method_name, *method_args, indices=part, **method_kwargs)
            ]
        except EnvError as error:
            raise _as_upstream(error) from error

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: SB3Indices = None
    ) -> list[bool]:
        """Tell of each env whether it is wrapped in the class; classes are compared by module and name.

        Asked for SB3's Monitor, ours counts as well, and so does our VecMonitor around all envs: their info["episode"]
        is the same, and by this question SB3's evaluation and VecMonitor find out whether there is one. Envs that
        cannot be asked (those of Gymnasium's AsyncVectorEnv) count as not wrapped.
        """
        slots = self._slots(indices)
        unique = list(dict.fromkeys(slots))
        if wrapper_class is SB3Monitor and _has_vec_monitor(self.vec):
            return [True] * len(slots)
        classes = (SB3Monitor, Monitor) if wrapper_class is SB3Monitor else (wrapper_class,)
        try:
            answers = [self.vec.env_is_wrapped(cls, unique) for cls in classes]
        except OutOfReachError:
            return [False] * len(slots)
        found = {slot: any(said) for slot, *said in zip(unique, *answers, strict=True)}
        return [found[slot] for slot in slots]

    def get_images(self) -> list[NDArray[np.uint8] | None]:
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"get_images gives images with render_mode 'rgb_array' only; these envs have {self.render_mode!r}",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self.vec.get_images()

    def _slots(self, indices: SB3Indices) -> list[int]:
        """Resolve SB3's ways of naming envs: None for all, an int, any iterable of ints; negative ones from the end."""
        if indices is None:
            return list(range(self.num_envs))
        slots = []
        for index in indices if isinstance(indices, Iterable) else [indices]:
            if isinstance(index, (bool, np.bool_)) or not isinstance(index, (int, np.integer)):
                raise TypeError(f"indices must be an int, ints or None, not {indices!r}")
            if not -self.num_envs <= index < self.num_envs:
                raise IndexError(f"no env {index}: there are {self.num_envs}")
            slots.append(int(index) % self.num_envs)
        return slots


def _how_to_reset(_: int) -> str:
    return "call reset() first, which resets all envs"


def _has_vec_monitor(vec: VecEnv) -> bool:
    while isinstance(vec, VecEnvWrapper):
        if isinstance(vec, VecMonitor):
            return True
        vec = vec.venv
    return False


def _as_upstream(error: EnvError) -> Exception:
    """Turn the error of an env without the attribute into the AttributeError that SB3 looks for."""
    if isinstance(error.__cause__, AttributeError):
        return AttributeError(f"env {error.index}: {error.__cause__}")
    return error
