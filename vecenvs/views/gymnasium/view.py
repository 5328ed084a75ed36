"""`as_gymnasium`: any VecEnv as a gymnasium.vector.VectorEnv with the methods of Gymnasium's AsyncVectorEnv.

All values equal the ones from Gymnasium's own vector envs in the same autoreset mode: observations batched as by
`gymnasium.vector.utils.concatenate`, float64 rewards, infos as one dict of arrays with `_key` masks. Unlike with
AsyncVectorEnv, a timeout loses no rows, an exception in one env leaves the others usable, and the caller's `options`
are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from vecenvs._native.twin import unrounded
from vecenvs.agents.flat import FlatVecEnv
from vecenvs.arguments import check_vec_env, parse_timeout
from vecenvs.batch.actions import whole_numbers
from vecenvs.batch.lazy_infos import check_wrapped
from vecenvs.errors import EnvError, StepTimeout, VecEnvError, describe_indices
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.views.gymnasium.batches import BatchConverter, observation_batch_space
from vecenvs.views.gymnasium.calls import GymnasiumCalls
from vecenvs.views.gymnasium.errors import raise_as_gymnasium
from vecenvs.views.gymnasium.resets import Reset, parse_reset
from vecenvs.views.gymnasium.vector_infos import VectorInfos

AUTORESET_MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}

StepResult = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


def as_gymnasium(vec: VecEnv) -> GymnasiumView:
    """View a VecEnv as a gymnasium.vector.VectorEnv; closing the view closes `vec`.

    Args:
        vec: a VecEnv in autoreset mode "next_step", "same_step" or "disabled". Step and reset it through the view
            alone.

    Returns:
        A vector env with the methods of Gymnasium's AsyncVectorEnv.

    Raises:
        TypeError: `vec` is not a VecEnv.
        ValueError: the autoreset mode is "async", which Gymnasium does not have.
    """
    return GymnasiumView(vec)


class GymnasiumView(GymnasiumCalls, VectorEnv[Any, Any, NDArray[Any]]):  # skrl looks at the direct base classes
    """The VecEnv `vec` behind Gymnasium's interface: see `as_gymnasium`."""

    def __init__(self, vec: VecEnv) -> None:
        check_vec_env("as_gymnasium", vec)
        if vec.autoreset not in AUTORESET_MODES:
            raise ValueError(
                f"Gymnasium has no autoreset mode {vec.autoreset!r}: "
                f"make the VecEnv with autoreset={' or '.join(map(repr, AUTORESET_MODES))}"
            )
        super().__init__(vec)
        self.num_envs = vec.num_envs
        self.autoreset_mode = AUTORESET_MODES[vec.autoreset]
        self.metadata = {**vec.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = vec.render_mode
        self.single_observation_space, self.single_action_space = vec.observation_space, vec.action_space
        self.observation_space = observation_batch_space(vec)
        self.action_space = batch_space(vec.action_space, vec.num_envs)
        self._observations = BatchConverter(vec.observation_space)
        self._actions = BatchConverter(vec.action_space)
        self._infos = VectorInfos(vec, self._add_info)
        self._wrapped = vec.unwrapped is not vec
        self._reset: Reset | None = None
        # The last observations, of which a masked reset returns the rows of all other envs: a copy, as in Gymnasium's
        # vector envs, because callers write into what they are given, Gymnasium's own wrappers among them.
        self._last: Any = None
        self._ended: NDArray[np.bool_] | None = None  # envs that need a reset; only without autoreset

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        super().close_extras(timeout, terminate)
        self._last = None  # a closed vector env, which may be kept, holds no rows

    # Resetting

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or the envs in `options["reset_mask"]`.

        Args:
            seed: an int s seeds env i with s + i. A list has one seed for each of the num_envs, reset or not.
            options: options for the envs, with an optional bool array "reset_mask" (num_envs,). It is not changed.

        Returns:
            The observations of all envs, a batch of num_envs rows, and the infos of the envs that were reset, as one
            dict of arrays with `_key` masks.

        Raises:
            ResetNeeded: a `reset_mask` before the first reset of all envs.
            CallTimeout: the VecEnv's `step_timeout` has passed; `reset_wait` then returns the rows.
        """
        self._check_free("reset")
        reset = parse_reset(self.num_envs, seed, options)
        self._check_maskable(reset)
        try:
            rows = self.vec.reset(reset.indices, seed=reset.seed, options=reset.options)
        except StepTimeout as error:  # of the VecEnv's own step_timeout
            self._pending, self._reset = "reset", reset
            raise_as_gymnasium(error, "reset")
        except VecEnvError as error:
            self._raise(error, "reset")
        return self._finish_reset(reset, rows)

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Start a `reset`, with its arguments; `reset_wait` returns its rows.

        Raises:
            AlreadyPendingCallError: a step, reset or call has not been waited for.
        """
        self._check_free("reset_async")
        reset = parse_reset(self.num_envs, seed, options)
        self._check_maskable(reset)
        try:
            self.vec.reset_async(reset.indices, seed=reset.seed, options=reset.options)
        except VecEnvError as error:
            self._raise(error, "reset")
        self._pending, self._reset = "reset", reset

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the rows of `reset_async`, and return what `reset` returns.

        Args:
            timeout: seconds to wait, or None for no limit.

        Returns:
            The observations of all envs, and the infos of the envs that were reset.

        Raises:
            CallTimeout: the rows are not complete in time; a later `reset_wait` returns them.
            NoAsyncCallError: there is no `reset_async` to wait for.
        """
        reset = self._reset
        if reset is None:
            self._refuse_wait("reset")
        seconds = parse_timeout(timeout)
        try:
            rows = self.vec.recv(timeout=seconds, indices=reset.indices).obs
        except StepTimeout as error:
            raise_as_gymnasium(error, "reset")
        except VecEnvError as error:
            self._pending = self._reset = None
            self._raise(error, "reset")
        except Exception:  # of a wrapper
            self._pending = self._reset = self._last = None
            raise
        self._pending = self._reset = None
        return self._finish_reset(reset, rows)

    def _check_maskable(self, reset: Reset) -> None:
        if self._last is None and len(reset.indices) < self.num_envs:
            raise ResetNeeded(
                "a reset_mask before the first reset, or after a call whose rows were lost with an exception: "
                "reset all envs once, since the rows of all envs are returned"
            )

    def _finish_reset(self, reset: Reset, rows: Any) -> tuple[Any, dict[str, Any]]:
        if len(reset.indices) < self.num_envs:
            rows = self._observations.replace_rows(self._last, reset.indices, rows)
        self._last = self._observations.copy_all(rows)
        if self._ended is not None:
            self._ended[reset.indices] = False
        return self._observations.to_gymnasium(rows), self._infos.of_reset(reset.indices)

    # Stepping

    def step(self, actions: Any) -> StepResult:
        """Step every env once.

        Args:
            actions: a batch of the action space: an array (num_envs, ...), or a dict or tuple of these. Floats that
                are whole numbers are accepted for integer actions.

        Returns:
            The observations, a batch of num_envs rows; rewards float64 (num_envs,); terminations and truncations bool
            (num_envs,); the infos as one dict of arrays with `_key` masks.

        Raises:
            ResetNeeded: an env's episode is over and nothing resets it. No env is stepped.
            CallTimeout: the VecEnv's `step_timeout` has passed; `step_wait` then returns the rows.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a `step` with these actions; `step_wait` returns its rows.

        Raises:
            TypeError: the actions have another structure or dtype than the space's. No env is stepped.
            ValueError: their number or shape is wrong. No env is stepped.
            AlreadyPendingCallError: a step, reset or call has not been waited for.
        """
        self._check_free("step_async")
        if self._ended is not None and self._ended.any():
            ended = describe_indices(np.flatnonzero(self._ended).tolist())
            raise ResetNeeded(f"the episodes of envs {ended} are over: {self._how_to_reset(ended)}")
        if isinstance(actions, list) and not self._actions.layout.is_flat:
            actions = tuple(actions)  # in Gymnasium a list is the batched structure, not one action per env
        try:
            self.vec.step_async(whole_numbers(self.single_action_space, actions))
        except VecEnvError as error:
            self._raise(error, "step")
        self._pending = "step"

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """Wait for the rows of `step_async`, and return what `step` returns.

        Args:
            timeout: seconds to wait, or None for no limit.

        Returns:
            Observations, rewards, terminations, truncations and infos.

        Raises:
            CallTimeout: the rows are not complete in time; a later `step_wait` returns them.
            NoAsyncCallError: there is no `step_async` to wait for.
        """
        if self._pending not in ("step", None):  # None: there are rows of a step if `on_episode` has raised
            self._refuse_wait("step")
        vec = self.vec
        try:
            observations, rewards, dones, infos = vec.step_wait(timeout)
        except StepTimeout as error:
            raise_as_gymnasium(error, "step")
        except VecEnvError as error:
            self._pending = None
            self._raise(error, "step")
        except Exception:  # of a wrapper, of an env below `from_gymnasium`, or of `on_episode`
            self._pending = self._last = None
            raise
        self._pending = None
        self._last = self._observations.copy_all(observations)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._ended = self._over(dones)
        terminated, truncated, exact = vec.terminated, vec.truncated, vec.rewards64
        if self._wrapped:
            check_wrapped(dones, terminated | truncated, infos)
            exact = unrounded(exact, rewards)
        return (
            self._observations.to_gymnasium(observations),
            exact,
            terminated,
            truncated,
            self._infos.of_step(infos, dones),
        )

    def _raise(self, error: VecEnvError, name: str) -> NoReturn:
        """Raise Gymnasium's error, and store the rows of the envs that have completed the call."""
        if isinstance(error, EnvError):
            error.tell_reset(self._how_to_reset)
            if error.batch is not None:
                self._keep(error.batch)
        raise_as_gymnasium(error, name)

    def _how_to_reset(self, envs: int | str) -> str:
        if self._last is None:  # a masked reset is refused
            return "call reset() first"
        return f"call reset(options={{'reset_mask': mask}}) first, the mask True for envs {envs}"

    def _keep(self, batch: Batch) -> None:
        if self._last is None:
            return
        self._last = self._observations.replace_rows(self._last, batch.indices, batch.obs)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            if self._ended is None:
                self._ended = np.zeros(self.num_envs, dtype=bool)
            self._ended[batch.indices] = self._over(batch.dones, batch.indices)

    def _over(self, dones: NDArray[np.bool_], indices: Any = slice(None)) -> NDArray[np.bool_]:
        """Return which rows need a reset: agents may be done in an episode that goes on."""
        inner = self.vec.unwrapped
        return inner.over[indices] if isinstance(inner, FlatVecEnv) else dones
