"""A VecEnv as Stable-Baselines3's `VecEnv`. Importing this module imports Stable-Baselines3, and with it torch."""

from __future__ import annotations

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
from vecenvs.wrappers.base import VecEnvWrapper
from vecenvs.wrappers.monitor import Monitor
from vecenvs.wrappers.vec_monitor import VecMonitor

try:
    from stable_baselines3.common.monitor import Monitor as SB3Monitor
    from stable_baselines3.common.vec_env import VecEnv as SB3VecEnv
except ImportError as missing:
    raise BackendUnavailable(f"as_sb3 needs Stable-Baselines3 ({missing}): pip install stable-baselines3") from missing

SB3Indices = int | Iterable[int] | None


# Where Stable-Baselines3 is not installed, its classes are Any to mypy, which reports [misc].
class SB3View(SB3VecEnv):  # type: ignore[misc, unused-ignore]
    """The VecEnv `vec` behind Stable-Baselines3's interface.

    Rewards are float32 (n,), dones bool (n,), infos a list of n dicts. They belong to the caller: SB3 keeps them from
    one step to the next, and adds to rewards in place. As in SB3, seeds and options set by `seed` and `set_options`
    apply to the next `reset()`, not to autoresets before it. Infos have one key more than in SB3: "episode_start" on a
    reset, and on a row whose observation begins an episode.

    An exception in an env is raised as an `EnvError` that names the env; a missing attribute as an AttributeError, as
    SB3 expects.

    Arguments named `indices` are an int, an iterable of ints or None for all envs, as in SB3. A negative int counts
    from the end, and an env may be named twice. IndexError for an env that does not exist. See `vecenvs.views.as_sb3`.
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self.vec!r}>"

    def reset(self) -> Any:
        """Reset all envs with the seeds and options of `seed` and `set_options`. `reset_infos` has the infos.

        Returns:
            The first observations, a batch of num_envs rows.

        Raises:
            EnvError: envs raised. The others have been reset; the seeds and options stay for the next reset.
        """
        obs = self.vec.reset(seed=self._seeds, options=[options or None for options in self._options])
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = self.vec.reset_infos
        return obs

    def step_async(self, actions: Any) -> None:
        """Start a step of every env and return at once.

        Args:
            actions: as `VecEnv.step_async` takes them. Floats that are whole numbers are accepted for integer actions.

        Raises:
            TypeError: the actions have another structure or dtype than the space's. No env was touched.
            ValueError: their number or shape is wrong. No env was touched.
            AlreadySteppingError: an env has an unanswered command. Nothing was sent.
        """
        try:
            if not self._begun:
                self._begin()
            self.vec.step_async(whole_numbers(self.action_space, actions))
        except EnvError as error:
            error.tell_reset(_how_to_reset)
            raise

    def _begin(self) -> None:
        """Allow steps of envs that were never reset, as in SB3; the env itself may still refuse them."""
        never = [i for i, info in enumerate(self.vec.reset_infos) if not info]
        if never:
            self.vec.call(env_calls.mark_as_reset, never)  # batched envs refuse the step later
        self._begun = True

    def step_wait(self) -> StepReturn:  # type: ignore[override, unused-ignore]
        """Wait for the rows of the step that `step_async` started.

        Returns:
            Observations (a batch of num_envs rows), rewards float32 (num_envs,), dones bool (num_envs,), and infos, a
            list of num_envs dicts.

        Raises:
            NotSteppingError: no step was started.
            EnvError: envs raised, or need `reset` first.
        """
        try:
            obs, rewards, dones, infos = self.vec.step_wait()
        except EnvError as error:
            error.tell_reset(_how_to_reset)
            raise
        self.reset_infos = self.vec.reset_infos
        return obs, rewards, dones, infos if isinstance(infos, list) else list(infos)  # SB3 reads them all anyway

    def close(self) -> None:
        """Close the VecEnv. May be called again."""
        self.vec.close()

    @property
    def envs(self) -> list[Any]:
        """The env objects, as in SB3's DummyVecEnv; AttributeError if they are in other processes."""
        return self.vec.envs

    @envs.setter
    def envs(self, envs: list[Any]) -> None:
        self.vec.envs = envs

    def has_attr(self, attr_name: str) -> bool:
        """Tell whether every env has an attribute.

        Args:
            attr_name: the attribute; dots are followed.

        Returns:
            True if `get_attr` finds it in every env.
        """
        return self.vec.has_attr(attr_name)

    def get_attr(self, attr_name: str, indices: SB3Indices = None) -> list[Any]:
        """Read an attribute of each env, from its outermost wrapper that has it.

        Args:
            attr_name: the attribute; dots are followed.
            indices: the envs.

        Returns:
            One value per env, in the order of `indices`.

        Raises:
            AttributeError: an env has no such attribute.
            EnvError: the attribute is a property that raised.
        """
        slots = self._slots(indices)
        unique = list(dict.fromkeys(slots))
        try:
            found = dict(zip(unique, self.vec.get_attr(attr_name, unique), strict=True))
        except EnvError as error:
            raise _as_upstream(error) from error
        return [found[slot] for slot in slots]

    def set_attr(self, attr_name: str, value: Any, indices: SB3Indices = None) -> None:
        """Write an attribute of each env where `get_attr` finds it. SB3 always writes it on the outermost wrapper.

        Args:
            attr_name: the attribute. If no layer of an env has it, the outermost wrapper gets it.
            value: the new value, picklable.
            indices: the envs.
        """
        env_calls.check_name(attr_name)
        self.vec.call(env_calls.set_attr, list(dict.fromkeys(self._slots(indices))), attr_name, value, True)

    def env_method(
        self, method_name: str, *method_args: Any, indices: SB3Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each env, of its outermost wrapper that has it.

        Args:
            method_name: the method.
            *method_args: its arguments, picklable.
            indices: the envs. An env that is named twice is called twice.
            **method_kwargs: its keyword arguments, picklable.

        Returns:
            What each call returned, in the order of `indices`.

        Raises:
            AttributeError: an env has no such method, or the method raised an AttributeError.
            EnvError: a method raised another exception.
        """
        slots = self._slots(indices)
        # An env that is named twice is called twice, and `vec.env_method` takes each env once.
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
        """Tell of each env whether one of its wrappers is an instance of a class.

        For SB3's Monitor, this library's Monitor and VecMonitor count as well: SB3's evaluation and VecMonitor ask this
        to find out whether info["episode"] exists, which is the same in all three. Envs of a batched env without single
        envs count as not wrapped.

        Args:
            wrapper_class: the class; workers compare its module and name, and need not import it.
            indices: the envs.

        Returns:
            One bool per env, in the order of `indices`.
        """
        slots = self._slots(indices)
        unique = list(dict.fromkeys(slots))
        if wrapper_class is SB3Monitor and _has_vec_monitor(self.vec):
            return [True] * len(slots)
        classes = (SB3Monitor, Monitor) if wrapper_class is SB3Monitor else (wrapper_class,)
        wrapped = [self.vec.env_is_wrapped(cls, unique) for cls in classes]
        found = {slot: any(by_class) for slot, *by_class in zip(unique, *wrapped, strict=True)}
        return [found[slot] for slot in slots]

    def get_images(self) -> list[NDArray[np.uint8] | None]:
        """Render all envs.

        Returns:
            One rgb array per env, uint8 (h, w, 3). In another render mode than "rgb_array" a warning and, as in SB3,
            None for each env.
        """
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"envs with render_mode={self.render_mode!r} make no images: make them with render_mode='rgb_array'",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self.vec.get_images()

    def _slots(self, indices: SB3Indices) -> list[int]:
        """Return env indices for None (all envs), an int or an iterable of ints; negative ones count from the end."""
        if indices is None:
            return list(range(self.num_envs))
        slots = []
        for index in indices if isinstance(indices, Iterable) else [indices]:
            if isinstance(index, (bool, np.bool_)) or not isinstance(index, (int, np.integer)):
                raise TypeError(f"indices must be an int, ints or None, not {indices!r}")
            if not -self.num_envs <= index < self.num_envs:
                raise IndexError(f"no env {index}: there are {self.num_envs} envs")
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
    """Return the AttributeError that SB3 expects if the env lacks the attribute; else `error`."""
    if isinstance(error.__cause__, AttributeError):
        return AttributeError(f"env {error.index}: {error.__cause__}")
    return error
