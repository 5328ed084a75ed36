"""`as_gymnasium`: any VecEnv as a gymnasium.vector.VectorEnv with the methods of Gymnasium's AsyncVectorEnv.

What comes out equals, value for value, what Gymnasium's own vector envs give in the same autoreset mode: observations
batched as `gymnasium.vector.utils.concatenate` does, float64 rewards, infos as one dict of arrays with `_key` masks.
It differs where AsyncVectorEnv loses something: a timeout loses no rows, an exception in one env leaves the others
usable, and the caller's `options` are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space
from numpy.typing import NDArray

from vecenvs.arguments import check_vec_env, deadline_of
from vecenvs.batch.actions import whole_numbers
from vecenvs.batch.infos import TRUNCATED_KEY
from vecenvs.errors import EnvError, StepTimeout, VecEnvError, describe_indices
from vecenvs.vec_env import Batch, VecEnv
from vecenvs.views.gymnasium.batches import BatchForm
from vecenvs.views.gymnasium.calls import EnvCalls
from vecenvs.views.gymnasium.errors import CallTimeout, raise_as_gymnasium
from vecenvs.views.gymnasium.resets import Reset, parse_reset
from vecenvs.views.gymnasium.vector_infos import without_ours

AUTORESET_MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}

StepResult = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


def as_gymnasium(vec: VecEnv) -> GymnasiumView:
    """Give a gymnasium.vector.VectorEnv over `vec`; closing it closes `vec`.

    ValueError if the autoreset mode of `vec` is "async", which Gymnasium has no word for.
    """
    return GymnasiumView(vec)


class GymnasiumView(EnvCalls, VectorEnv[Any, Any, NDArray[Any]]):  # skrl knows a vector env by its direct base class
    """A VecEnv behind Gymnasium's interface. `vec` is the VecEnv: step and reset it through the view alone."""

    def __init__(self, vec: VecEnv) -> None:
        check_vec_env("as_gymnasium", vec)
        if vec.autoreset not in AUTORESET_MODES:
            raise ValueError(
                f"Gymnasium has no autoreset mode {vec.autoreset!r}: "
                f"make the VecEnv with autoreset={', '.join(map(repr, AUTORESET_MODES))}"
            )
        super().__init__(vec)
        self.num_envs = vec.num_envs
        self.autoreset_mode = AUTORESET_MODES[vec.autoreset]
        self.metadata = {**vec.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = vec.render_mode
        self.single_observation_space, self.single_action_space = vec.observation_space, vec.action_space
        self.observation_space = _batch_space(vec)
        self.action_space = batch_space(vec.action_space, vec.num_envs)
        self._observations = BatchForm(vec.observation_space)
        self._actions = BatchForm(vec.action_space)
        self._wrapped = vec.unwrapped is not vec
        self._reset: Reset | None = None
        # The rows last given out, for those that a masked reset leaves alone. Without autoreset, where such resets are
        # the rule, they are a copy: the caller may write into what it was given, as Gymnasium's own wrappers do.
        self._last: Any = None
        self._keeps = vec.autoreset == "disabled"
        self._ended: NDArray[np.bool_] | None = None  # envs to be reset first; only without autoreset

    # Resetting

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of `options["reset_mask"]`; give the rows of all and the infos of those reset.

        An int s gives env i the seed s + i; a list has one seed for each of the num_envs, reset or not. After
        the VecEnv's `step_timeout` it is a CallTimeout; `reset_wait` then gets the rows.
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
        """Start what `reset` does and return."""
        self._check_free("reset_async")
        reset = parse_reset(self.num_envs, seed, options)
        self._check_maskable(reset)
        try:
            self.vec.reset_async(reset.indices, seed=reset.seed, options=reset.options)
        except VecEnvError as error:
            self._raise(error, "reset")
        self._pending, self._reset = "reset", reset

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Finish the reset. CallTimeout after `timeout` seconds; a later `reset_wait` then gets the same rows."""
        reset = self._reset
        if reset is None:
            self._refuse_wait("reset")
        deadline = deadline_of(timeout)
        try:
            rows = reset.receive(self.vec, deadline)
        except StepTimeout as error:
            raise CallTimeout(error.indices, error.seconds if timeout is None else timeout, "reset") from error
        except VecEnvError as error:
            self._pending = self._reset = None
            for batch in reset.batches:
                self._keep(batch)
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
                "reset all envs once, the rows of all are given"
            )

    def _finish_reset(self, reset: Reset, rows: Any) -> tuple[Any, dict[str, Any]]:
        if len(reset.indices) < self.num_envs:
            rows = self._observations.patched(self._last, reset.indices, rows)
        self._last = self._observations.copied(rows) if self._keeps else rows
        if self._ended is not None:
            self._ended[reset.indices] = False
        infos: dict[str, Any] = {}
        reset_infos = self.vec.reset_infos
        for i in reset.indices:
            infos = self._add_info(infos, without_ours(reset_infos[i]), i)
        return self._observations.to_gymnasium(rows), infos

    # Stepping

    def step(self, actions: Any) -> StepResult:
        """Step every env once: observations, rewards (float64), terminations, truncations, infos."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a step. ResetNeeded, before any env is stepped, if an env's episode is over and nothing resets it."""
        self._check_free("step_async")
        if self._ended is not None and self._ended.any():
            ended = describe_indices(np.flatnonzero(self._ended).tolist())
            raise ResetNeeded(f"the episodes of envs {ended} are over: {self._how_to_reset(ended)}")
        if isinstance(actions, list) and not self._actions.layout.is_flat:
            actions = tuple(actions)  # Gymnasium takes it for the batched structure, not for one action per env
        try:
            self.vec.step_async(whole_numbers(self.single_action_space, actions))
        except VecEnvError as error:
            self._raise(error, "step")
        self._pending = "step"

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """Finish the step. CallTimeout after `timeout` seconds; a later `step_wait` then gets the same rows."""
        if self._pending != "step":
            self._refuse_wait("step")
        vec = self.vec
        try:
            observations, rewards, dones, infos = vec.step_wait(timeout)
        except StepTimeout as error:
            raise_as_gymnasium(error, "step")
        except VecEnvError as error:
            self._pending = None
            self._raise(error, "step")
        except Exception:  # of a wrapper, or of an env below `from_gymnasium`: there are no rows
            self._pending = self._last = None
            raise
        self._pending = None
        self._last = self._observations.copied(observations) if self._keeps else observations
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._ended = dones
        terminated, truncated = vec.terminated, vec.truncated
        if self._wrapped:
            _check_wrapped(dones, terminated | truncated, infos)
        vector_infos: dict[str, Any] = {}
        for i, info in enumerate(infos):
            if len(info) > 1:  # more than what every row has
                vector_infos = self._add_row(vector_infos, info, i, dones)
        return (
            self._observations.to_gymnasium(observations),
            self._float64(rewards),
            terminated,
            truncated,
            vector_infos,
        )

    def _add_row(self, infos: dict[str, Any], info: dict[str, Any], i: int, dones: NDArray[np.bool_]) -> dict[str, Any]:
        """Add a row's info, to the same effect as `_add_info`, which takes its time where there is nothing to add."""
        given = without_ours(info)
        # An env's own info may have the key on any row.
        if "terminal_observation" in info and self.autoreset_mode is AutoresetMode.SAME_STEP and dones[i]:
            if "final_obs" not in infos:
                infos["final_obs"] = np.empty(self.num_envs, dtype=object)  # of None
                infos.setdefault("_final_obs", np.zeros(self.num_envs, dtype=bool))  # an env's info may have this key
            if "final_info" not in infos:
                infos["final_info"] = {}
                infos.setdefault("_final_info", np.zeros(self.num_envs, dtype=bool))
            infos["final_obs"][i] = info["terminal_observation"]
            if given:
                infos["final_info"] = self._add_info(infos["final_info"], given, i)
            infos["_final_obs"][i] = infos["_final_info"][i] = True
            given = without_ours(self.vec.reset_infos[i])
        return self._add_info(infos, given, i) if given else infos

    def _float64(self, rewards: NDArray[np.float32]) -> NDArray[np.float64]:
        exact = self.vec.rewards64
        # A wrapper that changes rewards may know nothing of float64.
        if self._wrapped and not np.array_equal(exact.astype(np.float32), rewards):
            return rewards.astype(np.float64)
        return exact

    def _raise(self, error: VecEnvError, name: str) -> NoReturn:
        """Raise what Gymnasium would, keeping the rows of the envs that did complete the call."""
        if isinstance(error, EnvError):
            error.tell_reset(self._how_to_reset)
            if error.batch is not None:
                self._keep(error.batch)
        raise_as_gymnasium(error, name)

    def _how_to_reset(self, envs: int | str) -> str:
        if self._last is None:  # there are no rows yet for those that a mask leaves alone
            return "call reset() first"
        return f"call reset(options={{'reset_mask': mask}}) first, the mask True for envs {envs}"

    def _keep(self, batch: Batch) -> None:
        if self._last is None:
            return
        self._last = self._observations.patched(self._last, batch.indices, batch.obs)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            if self._ended is None:
                self._ended = np.zeros(self.num_envs, dtype=bool)
            self._ended[batch.indices] = batch.dones


def _batch_space(vec: VecEnv) -> spaces.Space[Any]:
    """Make the space of batches: of the envs' own spaces, where these may differ."""
    bare = vec.unwrapped
    if getattr(bare, "observation_mode", "same") == "same" or vec.observation_space is not bare.observation_space:
        return batch_space(vec.observation_space, vec.num_envs)
    return batch_differing_spaces(vec.get_attr("observation_space"))


def _check_wrapped(dones: NDArray[np.bool_], ended: NDArray[np.bool_], infos: list[dict[str, Any]]) -> None:
    """Refuse dones that are a wrapper's alone; complete infos that are."""
    if not np.array_equal(dones, ended):
        raise VecEnvError(
            "a wrapper changes dones, which Gymnasium does not have: let it have the properties terminated and "
            "truncated of its own as well"
        )
    for info in infos:
        info.setdefault(TRUNCATED_KEY, False)
