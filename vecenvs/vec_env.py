"""The contract: what every VecEnv promises, whichever engine steps its envs.

A VecEnv steps `num_envs` environments at once. Env i has *slot* i of every batch, for as long as the VecEnv exists.

* Observations are batched by the space: an array `(n, *shape)` of the space's dtype for Box, Discrete, MultiDiscrete
  and MultiBinary, a dict or tuple of batches for Dict and Tuple, a numpy object array (n,) for any other space.
* `rewards` are float32 (n,), `dones` bool (n,) = terminated | truncated, `infos` a sequence of n distinct dicts: a
  list, or from batched envs (`Batched`) a sequence that makes each dict when it is first looked at.
* Returned arrays belong to the caller: no later call changes them (unless the VecEnv was made with `copy=False`).
* Trajectories depend on the seed, the env's index and the actions alone, not on the engine or its layout: equal bit
  for bit, also where envs of one process return the same buffers. The last bits of matrix products of some hundred rows
  (NumPy's BLAS) depend on the number of threads besides. Workers have one; where the caller steps envs, too
  (DummyVecEnv, `caller_steps`), set OMP_NUM_THREADS=1 for it.
* Envs must keep to their spaces. It is an EnvError if a reward is not a number (None, "1.5"), if `terminated` or
  `truncated` is neither True nor False (nor 1 nor 0), or if an observation has another shape than its space, or numbers
  that the space's dtype cannot hold. Keys that a Dict space does not have are ignored.
* An autoreset calls `env.reset()`, with `seed` and `options` only if `seed`, `set_options`, `episode_seeds` or `tasks`
  gave some. A reset by `reset` or `reset_async` always passes `seed`, None if there is none.

With `on_error="reset"` what an env raises in `step` ends its episode: the row is truncated, its reward 0, its terminal
observation the episode's last one, and info["env_error"] has the exception as text. The next episode begins as the
mode says; with "renew" in a new env, which its function makes. If `reset` raises, it is tried again, after a pause that
grows, in a new env; from the third try on with another seed, as the env may fail with this one. New envs have a seed
that is derived from the slot's last one, and lack what `set_attr` has set. Each error is logged and counted in
`stats()["errors"]`. After `max_errors` errors of an env in a row, with no episode completed, the next one is an
EnvError. A batched env is one env here: all its rows are truncated, and all its envs begin new episodes; where it is
made anew for the reset of some envs, the next row of each other one is truncated. ResetNeededError, new envs with other
spaces, and rows that the env's spaces do not allow are EnvErrors at once.

With `episode_seeds` every reset is seeded, so that each episode can be played again by itself, in another env object or
process. Episode 0 of a slot has the seed that the slot was given, by `reset`, `seed` or make_vec_env, or else the
number `stats()["root_seed"]`, which is drawn, plus its index: `reset(seed=root_seed)` begins the same run again.
Episode k has `numpy.random.SeedSequence(seed of episode 0, spawn_key=(slot, k)).generate_state(1)[0]`, whichever reset
begins it: an autoreset, one by the caller without a seed, or one after the worker was replaced (the lost episode
counts). A seed that is given later begins with episode 0 anew. The info of each reset has "episode_seed" and
"episode_number".

With `tasks=f` each episode has the seed and the options that f(slot, number, info) returns, a tuple, each may be None.
In mode "disabled" f is asked at the reset, with the info of the last row of the episode before; else for episode k + 1
when the row that begins episode k is returned, with the end of episode k - 1; {} stands for none. The rows on which an
episode begins and ends have its task in info["task"], and so has its reset's info. In mode "same_step" a row that ends
an episode has the task of that one; `reset_infos` has that of the next.
What a task says comes before the arguments of `reset`, `seed` and `set_options`. When f raises StopIteration it is not
asked for that slot any more: info["task"] of later episodes is None; in mode "disabled" the slot rests, so that
`reset_async` leaves it out.

Infos: every row of a step has "TimeLimit.truncated" (truncated and not terminated); the row on which an episode ends
has "terminal_observation"; a row whose observation is the first of an episode has "episode_start": True. The env's own
keys come first, in the env's order, and the attributes in `info_attrs`; then these. The first two are SB3's.
`vecenvs.info_columns(infos)` returns them as one array for each key.

The `autoreset` mode decides what follows the end of an episode:

* "same_step" (as in baselines and SB3): the same row holds the first observation of the new episode.
* "next_step" (as in Gymnasium): the row holds the terminal observation; the next step ignores its action and returns
  the first observation with reward 0.
* "async": the row holds the terminal observation and the reset starts at once. Steps do not wait for it: until it is
  done the slot's row repeats, with info["resetting"]; then comes one row with the first observation, whose action is
  ignored. `active` is False on all of these. `step` waits only if no env can step, until the first reset is done.
* "disabled": the row holds the terminal observation; stepping that env is an EnvError until `reset([i])`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from vecenvs import env_calls
from vecenvs.batch.batch import Batch
from vecenvs.batch.images import tile
from vecenvs.batch.lazy_infos import Infos
from vecenvs.batch.window import Window
from vecenvs.errors import ClosedError, VecEnvError

if TYPE_CHECKING:
    from vecenvs.state.env_state import EnvState

__all__ = ["Batch", "Indices", "NotHere", "Options", "Seeds", "StepReturn", "VecEnv"]

Indices = int | Sequence[int] | NDArray[Any] | None
StepReturn = tuple[Any, NDArray[np.float32], NDArray[np.bool_], Infos]
Seeds = int | Sequence[int | None] | np.random.SeedSequence | None
Options = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None

Self = TypeVar("Self", bound="VecEnv")

# What to use instead of attributes of other libraries' VecEnvs.
_ENVS = "get_attr, set_attr, env_method and call(function, indices) reach its envs, wherever they are"
_WORKERS = "it starts, watches and ends its workers itself; stats() tells of them"
_VIEWER = "render('human') shows images in a window, render() returns them; envs of mode 'human' show themselves"


class NotHere:
    """An attribute of another library's class that this class lacks: AttributeError, with what to use instead.

    Args:
        remedy: what to use instead, for the message.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}: {self._remedy}")


class VecEnv(abc.ABC):
    """Many environments behind one interface. The module's docstring says what every batch looks like.

    Arguments named `indices` are an int, a list of ints without repetition, or a bool mask of length num_envs; None
    means all envs. IndexError for an env that does not exist, ValueError for one named twice.

    Any method that needs the envs raises ClosedError after `close`, EnvError for what an env raised, WorkerDied if the
    process that steps the envs has ended, and StepTimeout if they take longer than the VecEnv's `step_timeout` or
    `reset_timeout`. A method that sends a command raises AlreadySteppingError if an env has not answered its last one.

    Attributes:
        num_envs: the number of envs.
        observation_space: the space of one env's observations.
        action_space: the space of one env's actions.
        spec: the EnvSpec of the envs, or None.
        metadata: the `metadata` of the envs.
        render_mode: the render mode that the envs were made with.
        closed: whether `close` was called.
        reset_infos: the info of each env's last reset, autoresets included.
        autoreset: the autoreset mode.
        copy: whether returned arrays belong to the caller.
    """

    num_envs: int
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    spec: Any
    metadata: dict[str, Any]
    render_mode: str | None
    closed: bool
    reset_infos: Infos
    autoreset: str
    copy: bool
    _window: Window | None = None  # of render("human")

    # All envs in lock-step

    @abc.abstractmethod
    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        """Reset envs and return their first observations alone, as in baselines and SB3. `reset_infos` has the infos.

        Args:
            indices: the envs to reset.
            seed: the seeds of this reset, as in `seed`; a list has one for each of `indices`.
            options: the options of this reset, as in `set_options`; a list has one for each of `indices`.

        Returns:
            A batch of observations, one row for each of `indices`, in their order.

        Raises:
            AlreadySteppingError: one of the envs has an unanswered command, other than a `reset` that an exception has
                ended. Nothing was sent.
            EnvError: envs raised. The others have been reset, and its `batch` has their rows.
        """

    def step(self, actions: Any) -> StepReturn:
        """Step every env once, by `step_async` and `step_wait`.

        Args:
            actions: see `step_async`.

        Returns:
            Observations, rewards, dones and infos, as in baselines and SB3: see `step_wait`.

        Raises:
            EnvError: envs raised; see `step_wait`.
        """
        self.step_async(actions)
        return self.step_wait()

    @abc.abstractmethod
    def step_async(self, actions: Any) -> None:
        """Start a step of every env and return at once.

        Args:
            actions: a list with one action per env, or the batched structure: an array, dict or tuple.

        Raises:
            TypeError: the actions have another structure or dtype than the space's. No env was touched.
            ValueError: their number or shape is wrong. No env was touched.
            AlreadySteppingError: an env has an unanswered command. Nothing was sent.
        """

    @abc.abstractmethod
    def step_wait(self, timeout: float | None = None) -> StepReturn:
        """Wait for the rows of the step that `step_async` started.

        Args:
            timeout: the longest wait in seconds; None for no limit.

        Returns:
            Observations (a batch of num_envs rows), rewards float32 (num_envs,), dones bool (num_envs,), and infos, a
            sequence of num_envs dicts.

        Raises:
            NotSteppingError: no step was started.
            StepTimeout: the rows did not come in time. Nothing is lost: a later `step_wait` returns them.
            EnvError: envs raised. It comes after all envs have answered, and its `batch` has the other envs' rows.
        """

    # Any subset of the envs, the first ready first

    @abc.abstractmethod
    def send(self, actions: Any, indices: Indices = None) -> None:
        """Start a step of some envs and return at once. `recv` returns their rows.

        Args:
            actions: one row for each of `indices`, in their order, otherwise as in `step_async`.
            indices: the envs to step.

        Raises:
            AlreadySteppingError: one of the envs has an unanswered command. Nothing was sent.
        """

    @abc.abstractmethod
    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        """Start a reset of some envs and return at once. `recv` returns their rows, with reward 0 and "episode_start".

        Args:
            indices: the envs to reset.
            seed: as in `reset`.
            options: as in `reset`.

        Raises:
            AlreadySteppingError: one of the envs has an unanswered command. Nothing was sent.
        """

    @abc.abstractmethod
    def recv(
        self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None, indices: Indices = None
    ) -> Batch:
        """Wait for rows and return those that are ready, the first ready first.

        An env that raised counts as a row. If it is the first in turn, its EnvError is raised. Otherwise the rows
        before it are returned, perhaps fewer than `min_envs`, and the next `recv` raises.

        Args:
            min_envs: the number of rows to wait for.
            max_envs: the largest number of rows to return; None for no limit.
            timeout: the longest wait in seconds; None for no limit.
            indices: envs that have a command, in place of `min_envs` and `max_envs`: wait for all of their rows, and
                return these alone, in this order.

        Returns:
            The rows, at most one per env.

        Raises:
            NotSteppingError: no env has a command, or one of `indices` has none.
            ValueError: `min_envs` is more than the number of envs that have a command, or `indices` has no env.
            StepTimeout: the rows did not come in time. Nothing is lost: a later `recv` returns them.
            EnvError: the env in turn raised. With `indices`, envs raised, and its `batch` has the rows of the others.
        """

    @abc.abstractmethod
    async def await_rows(self, min_envs: int = 1, timeout: float | None = None, indices: Indices = None) -> None:
        """Wait until `recv` with these arguments has nothing to wait for, in a coroutine: for those who write `arecv`.

        Envs that the caller itself steps, one after another, are left to `recv`, which then steps them.
        """

    async def arecv(
        self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None, indices: Indices = None
    ) -> Batch:
        """Do what `recv` does, in a coroutine: while it waits, the other coroutines of its event loop go on.

        If it is cancelled, nothing is lost: a later `recv` or `arecv` returns the rows. That takes up to 0.2 s.

        Args:
            min_envs: see `recv`.
            max_envs: see `recv`.
            timeout: see `recv`.
            indices: see `recv`.

        Returns:
            The rows, at most one per env.

        Raises:
            AlreadySteppingError: another coroutine waits in `arecv`. So does, until that ends, every other method that
                needs the envs or their rows, but `close`.
            VecEnvError: see `recv`.
        """
        await self.await_rows(min_envs, timeout, indices)
        return self.recv(min_envs, max_envs, timeout, indices)

    def groups(self, count: int) -> list[NDArray[np.int64]]:
        """Divide the envs into groups that take turns: one computes actions for a group while the others are stepped.

        Every group has envs of every worker, so that all workers have something to do while a group is left out.

        Args:
            count: the number of groups.

        Returns:
            The envs of each group, int64, ascending. Their sizes differ by one at most.

        Raises:
            ValueError: there are fewer envs than groups, or `count` is less than 1.
        """
        return grouped([range(self.num_envs)], count)

    @property
    @abc.abstractmethod
    def active(self) -> NDArray[np.bool_]:
        """Whether each row of the last step is a transition, bool (num_envs,). Others repeat or begin an episode."""

    @property
    @abc.abstractmethod
    def terminated(self) -> NDArray[np.bool_]:
        """Whether the task's own rule ended the episode on each row of the last step, bool (num_envs,)."""

    @property
    @abc.abstractmethod
    def truncated(self) -> NDArray[np.bool_]:
        """Whether a limit from outside the task ended the episode on each row of the last step, bool (num_envs,)."""

    @property
    @abc.abstractmethod
    def rewards64(self) -> NDArray[np.float64]:
        """The rewards of the last step before rounding to float32, float64 (num_envs,). The next call changes them."""

    @abc.abstractmethod
    def info_array(self, name: str) -> NDArray[Any]:
        """Return the values that an attribute in `info_attrs` has on the last rows.

        Args:
            name: the attribute.

        Returns:
            One value per env: (num_envs, ...) if they are numbers or arrays of one shape, else objects (num_envs,). On
            a row that ended an episode it is the value at the end of that episode, as in its info.

        Raises:
            AlreadySteppingError: rows are due, those of async autoresets aside: their infos have the values.
            VecEnvError: `name` is not in `info_attrs`, or an env has not been reset yet.
        """

    # States

    def get_state(self, indices: Indices = None, *, verify: bool = False) -> list[EnvState]:
        """Read where envs are, to go on from there later, in any VecEnv of the same envs: see docs/state.md.

        Args:
            indices: the envs. They must be in an episode, or have ended one; none may have an unanswered command.
            verify: whether to check the state of the first env of each kind in a worker: during its next 20 steps
                another env, put into this state, gets the same actions. Where it returns other rows, a step raises
                StateError. For workers that keep the envs' functions: in process, by fork, or with on_error="renew".

        Returns:
            One state for each of `indices`, in their order. They can be pickled.

        Raises:
            StateError: the state of an env cannot be read; the message names the layer and the attribute.
        """
        return self._refuse_states()

    def set_state(self, states: EnvState | Sequence[EnvState], indices: Indices = None) -> Any:
        """Put envs into states, in the place of a reset: they go on from there bit for bit. `reset_infos` is set, too.

        Args:
            states: one for each of `indices`, in their order, or one for all of them.
            indices: the envs.

        Returns:
            A batch of the observations that were the last ones, one row for each of `indices`, in their order.

        Raises:
            StateError: a state is one of another kind of env, or of another autoreset mode, or does not fit. The env
                needs a reset.
        """
        return self._refuse_states()

    def _refuse_states(self) -> NoReturn:
        raise VecEnvError(f"a {type(self).__name__} has no states of envs: ask the VecEnv that it is made of")

    # Seeds and options

    @abc.abstractmethod
    def seed(self, seed: Seeds = None) -> list[int | None]:
        """Seed the next reset of each env, whatever causes it. As in SB3 the seed holds for that reset only.

        The env's action space gets the seed, too, for envs that sample from it.

        Args:
            seed: an int s gives env i the seed s + i; a list has one seed, or None, for each env; a
                numpy.random.SeedSequence gives independent seeds; None gives no seeds, and takes back those that
                were set before, as it does for each env in a list.

        Returns:
            The seed of each env.
        """

    @abc.abstractmethod
    def set_options(self, options: Options = None) -> None:
        """Set the options of the next reset of each env, whatever causes it.

        Args:
            options: one mapping for all envs, or a list with a mapping, or None, for each; None for no options, which
                takes back those that were set before.
        """

    # The envs behind it

    remotes, work_remotes, parent_pipes = (NotHere(_ENVS) for _ in range(3))
    processes, ps, waiting = (NotHere(_WORKERS) for _ in range(3))
    viewer, get_viewer = NotHere(_VIEWER), NotHere(_VIEWER)
    state = NotHere("what its envs have is read by get_attr('state')")

    @property
    def envs(self) -> list[Any]:
        """The envs themselves, where they live in the caller's process (DummyVecEnv); AttributeError elsewhere.

        Read them and change them, as with baselines, SB3 and Gymnasium's SyncVectorEnv, but do not step them. An env
        put in another's place (`envs[i] = ...`, or all by `vec.envs = [...]`), and a replaced `step`, take effect at
        the next step. For that, once this property was read, every step looks up each env's own `step`.
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
        """Run `function(env, *args, **kwargs)` on each env, where the env lives.

        Args:
            function: it is sent to the workers, by name if they can import it, else by value.
            indices: the envs.
            *args: arguments of the function, picklable.
            **kwargs: keyword arguments of the function, picklable.

        Returns:
            What the function returned for each env, which must be picklable, in the order of `indices`.

        Raises:
            EnvError: the function raised.
        """

    @abc.abstractmethod
    def call_async(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> None:
        """Start a `call` and return at once. Until `call_wait` every other command raises AlreadySteppingError.

        Args:
            function: as in `call`.
            indices: as in `call`.
            *args: as in `call`.
            **kwargs: as in `call`.
        """

    @abc.abstractmethod
    def call_wait(self, timeout: float | None = None) -> list[Any]:
        """Wait for the results of `call_async`.

        Args:
            timeout: the longest wait in seconds; None for no limit.

        Returns:
            As `call`.

        Raises:
            NotSteppingError: no call was started.
            StepTimeout: the results did not come in time. A later `call_wait` returns them.
            EnvError: the function raised.
            WorkerDied: a worker has died. If the call needs none of its envs, a later `call_wait` returns the results.
        """

    def get_attr(self, name: str, indices: Indices = None) -> list[Any]:
        """Read an attribute of each env, from its outermost wrapper that has it.

        Args:
            name: the attribute; dots are followed, as in "unwrapped.state".
            indices: the envs.

        Returns:
            One value per env, in the order of `indices`.

        Raises:
            EnvError: an env has no such attribute; its `__cause__` is the AttributeError.
        """
        env_calls.check_name(name)
        return self.call(env_calls.get_attr, indices, name)

    def set_attr(self, name: str, value: Any, indices: Indices = None) -> None:
        """Write an attribute of each env where `get_attr` finds it. SB3 writes it on the outermost wrapper instead.

        Args:
            name: the attribute. If no layer of an env has it, the env without its wrappers gets it.
            value: the new value, picklable.
            indices: the envs.
        """
        env_calls.check_name(name)
        self.call(env_calls.set_attr, indices, name, value)

    def has_attr(self, name: str) -> bool:
        """Tell whether every env has the attribute.

        Args:
            name: the attribute; dots are followed.

        Returns:
            True if `get_attr` finds it in every env.
        """
        env_calls.check_name(name)
        return all(self.call(env_calls.has_attr, None, name))

    def env_method(self, name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Call a method of each env, of its outermost wrapper that has it.

        `env_method("reset")` counts as a reset: an env that needed one can be stepped after it. It makes no row, and
        `reset_infos` does not have its info.

        Args:
            name: the method.
            *args: its arguments, picklable.
            indices: the envs.
            **kwargs: its keyword arguments, picklable.

        Returns:
            What each method returned, in the order of `indices`.

        Raises:
            EnvError: a method raised, or an env has none of this name.
        """
        env_calls.check_name(name)
        return self.call(env_calls.env_method, indices, name, *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """Tell of each env whether one of its layers is an instance of a class.

        Args:
            wrapper_class: the class; workers compare its module and name, and need not import it.
            indices: the envs.

        Returns:
            One bool per env, in the order of `indices`.

        Raises:
            TypeError: `wrapper_class` is not a class.
        """
        if not isinstance(wrapper_class, type):
            raise TypeError(f"wrapper_class must be a class, not {wrapper_class!r}")
        return self.call(env_calls.env_is_wrapped, indices, [env_calls.class_name(wrapper_class)])

    def get_images(self, indices: Indices = None) -> list[Any]:
        """Render envs.

        Args:
            indices: the envs.

        Returns:
            One rgb array per env, uint8 (h, w, 3), in the order of `indices`, or None for envs in mode "human".

        Raises:
            VecEnvError: the envs were made without a render_mode, or with one that makes no images.
        """
        if self.closed:
            raise ClosedError("get_images")
        if self.render_mode not in ("rgb_array", "human"):
            raise VecEnvError(
                f"envs with render_mode={self.render_mode!r} make no images: make them with render_mode='rgb_array'"
            )
        return self.call(env_calls.render, indices)

    def render(self, mode: str | None = None) -> NDArray[np.uint8] | None:
        """Render all envs into one picture.

        Args:
            mode: the argument of baselines and SB3. In Gymnasium the mode is fixed when an env is made, so it must be
                the envs' own, or None. "human" also works for envs of mode "rgb_array": a window shows the picture.

        Returns:
            One tiled rgb array, uint8 (H, W, 3), or None if a window or the envs themselves show it ("human").

        Raises:
            VecEnvError: `mode` is another one than the envs', or they make no images, or there is no display.
            BackendUnavailable: a window needs pygame, which is not installed.
        """
        asked: Any = mode
        if isinstance(asked, str) and (asked, self.render_mode) == ("human", "rgb_array"):
            picture = tile(self.get_images())
            if self._window is None:
                self._window = Window(repr(self))
            self._window.show(picture)
            return None
        if asked is not None and not (isinstance(asked, str) and asked == self.render_mode):
            raise VecEnvError(
                f"render(mode={mode!r}) of envs made with render_mode={self.render_mode!r}: "
                f"make them with gymnasium.make(..., render_mode={mode!r})"
            )
        images = self.get_images()
        return tile(images) if self.render_mode == "rgb_array" else None

    def _close_window(self) -> None:
        if self._window is not None:
            self._window.close()
            self._window = None

    # The VecEnv itself

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """Describe this VecEnv and count what it has done.

        Returns:
            "backend", "num_envs", how many of them are "batched", "num_workers", "autoreset" and what the engine adds.
            Counted since construction: "steps" of all envs in lock-step, "received" rows that recv and reset returned,
            "resets" of envs that were asked for (no autoresets), "restarts" of workers, and the sums of what is counted
            by worker. "workers" is a list with a dict for each worker: "slots", the indices of its envs; "pid" and
            "host", the id of its process and the name of that one's machine (None while it is being replaced);
            "restarts", how often it was replaced; "errors" of its envs, with `on_error`, and late steps and resets
            that did not end it, with `concurrency`; "transitions", the rows that
            were returned and are `active`, and "episodes", those that end one; the "seconds_waiting" for commands and
            "seconds_stepping" within them, and "rss_bytes", the memory of its process; "transport", by which its rows
            come: "in process", "shared" memory or "messages"; and what the engine adds. "transports" counts these ways.
            No worker is asked: each tells its seconds and its memory as a command comes, at most once a second. They
            are None before, the seconds always with `concurrency`.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close every env and end the workers, within a bounded time, also after an error. May be called again."""

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


def described(vec: VecEnv, num_workers: int | None = None) -> str:
    """Return the text of `print(vec)`: the class, the envs and their id, the workers and the autoreset mode.

    Args:
        vec: the VecEnv.
        num_workers: the number of its workers; None for a VecEnv that has none.

    Returns:
        The text, as in "<SubprocVecEnv: 8 envs of CartPole-v1, 2 workers, autoreset='same_step'>".
    """
    parts = [f"{vec.num_envs} env{'s' * (vec.num_envs != 1)}" + (f" of {vec.spec.id}" if vec.spec is not None else "")]
    if num_workers is not None:
        parts.append(f"{num_workers} worker{'s' * (num_workers != 1)}")
    parts.append(f"autoreset={vec.autoreset!r}")
    return f"<{type(vec).__name__}: {', '.join(parts)}{', closed' * vec.closed}>"


def grouped(shards: Sequence[range], count: int) -> list[NDArray[np.int64]]:
    """Divide shards of envs into groups whose sizes differ by one at most, each with a part of each shard."""
    num_envs = sum(map(len, shards))
    if type(count) is not int:
        raise TypeError(f"groups takes the number of groups, an int, not {count!r}")
    if not 1 <= count <= num_envs:
        raise ValueError(f"{count} groups of {num_envs} envs: give 1 to {num_envs}")
    groups: list[list[int]] = [[] for _ in range(count)]
    larger = 0  # the group that is next to get one env more
    for shard in shards:
        size, rest = divmod(len(shard), count)
        first = shard.start
        for k in range(count):
            last = first + size + ((k - larger) % count < rest)
            groups[k].extend(range(first, last))
            first = last
        larger = (larger + rest) % count
    return [np.array(group, dtype=np.int64) for group in groups]


def batched_env_hint(env: Any) -> str:
    """Return how to use an object that steps several envs by itself; "" if `env` is not one."""
    if isinstance(getattr(env, "unwrapped", None), AsyncVectorEnv):
        return "give vecenvs.SubprocVecEnv the functions that make its single envs"
    if isinstance(env, VectorEnv):
        return "vecenvs.Batched(make, num_envs) marks its function, vecenvs.views.from_gymnasium makes a VecEnv of it"
    if isinstance(env, VecEnv):
        return "it is a VecEnv already, to be used as it is"
    if hasattr(env, "num_envs") and hasattr(env, "step_async"):  # Stable-Baselines3's and baselines'
        return "give the functions that make its single envs (vecenvs.views.as_sb3 shows their VecEnv to such programs)"
    if hasattr(env, "single_action_space") and getattr(env, "num_envs", 1) != 1:  # a simulator's
        return "vecenvs.Batched(make, num_envs) marks its function"
    return ""
