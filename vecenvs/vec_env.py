"""The contract: what every VecEnv promises, whichever engine steps its envs.

A VecEnv steps `num_envs` environments at once. Env i has *slot* i of every batch, from the first to the last call.

* Observations are batched by the space: an array (n, *shape) of the space's dtype for Box, Discrete, MultiDiscrete and
  MultiBinary, a dict or tuple of batches for Dict and Tuple, a numpy object array (n,) for any other space.
* `rewards` are float32 (n,), `dones` bool (n,) = terminated | truncated, `infos` a list of n distinct dicts.
* All arrays returned are the caller's own: no later call changes them (unless constructed with `copy=False`).
* Trajectories depend on the seed, the env's index and the actions alone, not on the engine or its layout.
* What an env gives must be what it says: a reward that is no number (None, "1.5"), a `terminated` or `truncated` that
  is neither True nor False (nor 1 nor 0), an observation of another shape or with numbers that the space's dtype does
  not hold is an EnvError. Keys that a Dict space does not have are ignored.
* An autoreset calls `env.reset()` and names `seed` and `options` only where `seed` or `set_options` gave some. A reset
  that is asked for names `seed`, None if there is none.

Infos: every row of a step has "TimeLimit.truncated" (truncated and not terminated); the row on which an episode ends
has "terminal_observation"; a row whose observation is the first of an episode has "episode_start": True. The env's own
keys come first, in the env's order; then these.

What follows an episode's end is the `autoreset` mode:

* "same_step" (as baselines and SB3): the same row holds the first observation of the new episode.
* "next_step" (as Gymnasium): the row holds the terminal observation; the next step ignores its action and gives the
  first observation with reward 0.
* "async": the row holds the terminal observation and the reset starts at once. Steps do not wait for it: until it is
  done the slot's row repeats, with info["resetting"]; then comes one row with the first observation, its action
  ignored. `active` is False on all of these. Only if no env could step does `step` wait, for the first reset to end.
* "disabled": the row holds the terminal observation; stepping that env is an error until `reset([i])`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from vecenvs import env_calls
from vecenvs.errors import ClosedError, VecEnvError
from vecenvs.images import tile

Indices = int | Sequence[int] | NDArray[Any] | None
StepReturn = tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]
Seeds = int | Sequence[int | None] | np.random.SeedSequence | None
Options = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None

Self = TypeVar("Self", bound="VecEnv")

# What there is here instead of the insides of other libraries' VecEnvs.
_ENVS = "its envs, wherever they are, are asked by get_attr, set_attr, env_method and call(function, indices)"
_WORKERS = "its workers are its own to start, watch and end: stats() tells of them"
_VIEWER = "there is no viewer: envs made with render_mode='human' show themselves, render() gives images of others"


class NotHere:
    """A name that another library's class has and this one has not: AttributeError, with what to use instead."""

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}: {self._remedy}")


@dataclass
class Batch:
    """Rows of some envs, in the order in which they were finished.

    `indices` int64 (k,) are the envs; row j of `obs`, `rewards` (float32), `terminated`, `truncated` (bool) and
    `infos` belongs to env `indices[j]`. `active[j]` is False on a row that is no transition: the first row of an
    episode after a reset, whose reward is 0.
    """

    indices: NDArray[np.int64]
    obs: Any
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: list[dict[str, Any]]
    active: NDArray[np.bool_]

    @property
    def dones(self) -> NDArray[np.bool_]:
        """Terminated | truncated."""
        return self.terminated | self.truncated

    def __len__(self) -> int:
        return len(self.indices)


class VecEnv(abc.ABC):
    """Many environments behind one interface. See the module's text for what every method's batches look like.

    `copy` tells whether the arrays that `step` returns are the caller's own for good.

    `observation_space` and `action_space` are those of one env. `reset_infos[i]` is the info of env i's last reset,
    autoresets included. Indices are an int, a list of ints without repetition, or a bool mask of length num_envs;
    None means all envs. Errors are those of `vecenvs.errors`: ClosedError after `close`, AlreadySteppingError for an
    env whose last command is unanswered, EnvError for what an env raised, WorkerDied, StepTimeout.
    """

    num_envs: int
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    spec: Any
    metadata: dict[str, Any]
    render_mode: str | None
    closed: bool
    reset_infos: list[dict[str, Any]]
    autoreset: str
    copy: bool

    # Lock-step

    @abc.abstractmethod
    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        """Reset the envs of `indices`; give their first observations, one row each in that order.

        `seed` and `options` are applied as `seed()` and `set_options()` describe, to this reset.
        """

    def step(self, actions: Any) -> StepReturn:
        """Step every env once: obs, rewards, dones, infos. Same as `step_async` and `step_wait`."""
        self.step_async(actions)
        return self.step_wait()

    @abc.abstractmethod
    def step_async(self, actions: Any) -> None:
        """Start a step of every env and return.

        A list of actions has one per env; an array, dict or tuple is the batched structure. TypeError or ValueError
        for a wrong number, shape or dtype, before any env is touched.
        """

    @abc.abstractmethod
    def step_wait(self, timeout: float | None = None) -> StepReturn:
        """Finish the step. StepTimeout after `timeout` seconds; a later `step_wait` then gets the same rows.

        If envs raised, an EnvError is raised once all have answered; its `batch` has the other envs' rows.
        """

    # Any subset, first ready first

    @abc.abstractmethod
    def send(self, actions: Any, indices: Indices = None) -> None:
        """Start a step of the envs of `indices`; `actions` has one row for each, in that order.

        AlreadySteppingError, before anything is sent, if one of them has an unanswered command.
        """

    @abc.abstractmethod
    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        """Start a reset of the envs of `indices`. `recv` gives their rows, with reward 0 and `episode_start`."""

    @abc.abstractmethod
    def recv(self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None) -> Batch:
        """Wait until `min_envs` rows are there, and give what is there, up to `max_envs`, first ready first.

        StepTimeout after `timeout` seconds; nothing is lost by it. NotSteppingError if nothing is pending, ValueError
        if `min_envs` is more than what is. An env that raised counts as a row: if it is the first in turn, its EnvError
        is raised; else the rows before it are given, which may be fewer than `min_envs`, and the next `recv` raises.
        """

    @property
    @abc.abstractmethod
    def active(self) -> NDArray[np.bool_]:
        """Which rows of the last step are transitions, bool (num_envs,); the others repeat or begin an episode."""

    @property
    @abc.abstractmethod
    def terminated(self) -> NDArray[np.bool_]:
        """Which rows of the last step ended by the task's own rule, bool (num_envs,)."""

    @property
    @abc.abstractmethod
    def truncated(self) -> NDArray[np.bool_]:
        """Which rows of the last step ended by a limit from outside the task, bool (num_envs,)."""

    @property
    @abc.abstractmethod
    def rewards64(self) -> NDArray[np.float64]:
        """The rewards of the last step as the envs gave them, float64 (num_envs,), before rounding to float32.

        To be read before the next call.
        """

    @abc.abstractmethod
    def info_array(self, name: str) -> NDArray[Any]:
        """The last rows' values of an attribute in `info_attrs`, one per env: (num_envs, ...) if numeric, else objects.

        On a row that ended an episode it is the ended episode's value, as in its info.
        """

    # Seeds and options

    @abc.abstractmethod
    def seed(self, seed: Seeds = None) -> list[int | None]:
        """Seed each env's next reset, whatever causes it; give the seeds.

        An int s gives env i the seed s + i, a list gives one each, a numpy SeedSequence independent streams.
        """

    @abc.abstractmethod
    def set_options(self, options: Options = None) -> None:
        """Give each env's next reset its options: one mapping for all, or a list of one each."""

    # The envs behind it

    # What VecEnvs of baselines, Stable-Baselines3 and Gymnasium have of their workers.
    remotes, work_remotes, parent_pipes = (NotHere(_ENVS) for _ in range(3))
    processes, ps, waiting = (NotHere(_WORKERS) for _ in range(3))
    viewer, get_viewer = NotHere(_VIEWER), NotHere(_VIEWER)
    state = NotHere("what its envs have is read by get_attr('state')")

    @property
    def envs(self) -> list[Any]:
        """The envs themselves, where they live in the caller's process (DummyVecEnv); AttributeError elsewhere.

        To be looked at and changed, as baselines, SB3 and Gymnasium's SyncVectorEnv let one, but not to be stepped. An
        env that is put in another's place (`envs[i] = ...`, or all by `vec.envs = [...]`), and a `step` that is
        patched, acts from the next step on. For that, once this was read, every step looks up each env's own `step`.
        """
        return self._envs_here()

    @envs.setter
    def envs(self, envs: list[Any]) -> None:
        here, given = self.envs, list(envs)
        if len(given) != len(here):
            raise ValueError(f"{len(given)} envs in the place of {len(here)}: give one for each slot")
        here[:] = given

    def _envs_here(self) -> list[Any]:
        """Return the list of the envs itself, not a copy."""
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute 'envs': its envs are in other processes, to be asked by "
            "get_attr, set_attr and env_method"
        )

    @abc.abstractmethod
    def call(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> list[Any]:
        """Run `function(env, *args, **kwargs)` on each env, where it lives; give what it returns, picklable.

        The function itself is sent to the workers: by name if it can be imported there, else by value.
        """

    @abc.abstractmethod
    def call_async(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> None:
        """Start a `call` and return. Until its `call_wait` every other command raises AlreadySteppingError."""

    @abc.abstractmethod
    def call_wait(self, timeout: float | None = None) -> list[Any]:
        """Finish the `call_async`. StepTimeout after `timeout` seconds; a later `call_wait` gets the results."""

    def get_attr(self, name: str, indices: Indices = None) -> list[Any]:
        """Read an attribute of each env, from its outermost wrapper that has it. Dotted names are followed."""
        env_calls.check_name(name)
        return self.call(env_calls.get_attr, indices, name)

    def set_attr(self, name: str, value: Any, indices: Indices = None) -> None:
        """Write an attribute of each env, where `get_attr` finds it; the bare env gets it if nothing has it."""
        env_calls.check_name(name)
        self.call(env_calls.set_attr, indices, name, value)

    def has_attr(self, name: str) -> bool:
        """Tell whether every env has the attribute."""
        env_calls.check_name(name)
        return all(self.call(env_calls.has_attr, None, name))

    def env_method(self, name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Call a method of each env, of its outermost wrapper that has it; give what they return.

        `env_method("reset")` counts as a reset: an env that needed one can be stepped. No row or info tells of it.
        """
        env_calls.check_name(name)
        return self.call(env_calls.env_method, indices, name, *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """Tell of each env whether one of its layers is an instance of the class, by the class's name."""
        if not isinstance(wrapper_class, type):
            raise TypeError(f"wrapper_class must be a class, not {wrapper_class!r}")
        return self.call(env_calls.env_is_wrapped, indices, [env_calls.name_of(wrapper_class)])

    def get_images(self, indices: Indices = None) -> list[Any]:
        """Render each env of `indices`: a list of rgb arrays (h, w, 3), or of None for envs in mode "human".

        VecEnvError if the envs were made with no render_mode, or one that gives no images.
        """
        if self.closed:
            raise ClosedError("get_images")
        if self.render_mode not in ("rgb_array", "human"):
            raise VecEnvError(
                f"envs with render_mode={self.render_mode!r} give no images: make them with render_mode='rgb_array'"
            )
        return self.call(env_calls.render, indices)

    def render(self, mode: str | None = None) -> NDArray[np.uint8] | None:
        """Render all envs: one tiled rgb array (H, W, 3), or None if they draw by themselves ("human").

        `mode`, which baselines and SB3 give here, must be the one that the envs were made with (VecEnvError): Gymnasium
        fixes it then.
        """
        asked: Any = mode
        if asked is not None and not (isinstance(asked, str) and asked == self.render_mode):
            raise VecEnvError(
                f"render(mode={mode!r}) of envs made with render_mode={self.render_mode!r}: "
                f"make them with gymnasium.make(..., render_mode={mode!r})"
            )
        images = self.get_images()
        return tile(images) if self.render_mode == "rgb_array" else None

    # The end

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """Say what this is (backend, num_envs, num_workers, autoreset, and what the engine adds) and count.

        Since construction: `steps` of all envs in lock-step, `received` rows handed out by recv and reset, `resets` of
        envs asked for (not autoresets), `restarts` of workers.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close every env and end the workers, within a bounded time and whatever has happened. Repeatable."""

    @property
    def unwrapped(self) -> VecEnv:
        """The VecEnv inside all wrappers."""
        return self

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_envs
