"""`from_gymnasium`: any gymnasium.vector.VectorEnv, natively batched ones too, as a VecEnv."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import Error
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from numpy.typing import NDArray

from vecenvs.arguments import parse_indices, parse_options, parse_seeds, parse_timeout
from vecenvs.batch.actions import parse_actions
from vecenvs.batch.infos import TRUNCATED_KEY, blank_info, copies
from vecenvs.errors import (
    AlreadySteppingError,
    ClosedError,
    EnvError,
    NotSteppingError,
    ResetNeededError,
    VecEnvError,
    describe_indices,
)
from vecenvs.vec_env import Indices, Options, Seeds, StepReturn, VecEnv
from vecenvs.views.gymnasium.batches import BatchConverter
from vecenvs.views.gymnasium.send_recv import SendRecv
from vecenvs.views.gymnasium.single_envs import AnyVectorEnv
from vecenvs.views.gymnasium.vector_env_arguments import check_vector_env, common_options, common_seed, parse_autoreset
from vecenvs.views.gymnasium.vector_infos import episode_statistics_keys, infos_to_list

CLOSE_GRACE = 5.0  # seconds for an AsyncVectorEnv to finish a step before it is closed


def from_gymnasium(vector_env: AnyVectorEnv, *, autoreset: str | None = None, copy: bool = True) -> VecEnv:
    """Make a VecEnv of a gymnasium.vector.VectorEnv; closing it closes the vector env.

    Args:
        vector_env: any vector env, also a natively batched one.
        autoreset: "next_step", "same_step" or "disabled": needed where the metadata has no "autoreset_mode".
        copy: False returns observations without a copy. Use it for a vector env that never writes into observations
            which it has returned.

    Returns:
        A VecEnv. It steps all its envs at once, and raises VecEnvError for what a vector env cannot do:
        docs/gymnasium.md has a table.

    Raises:
        TypeError: `vector_env` is not a gymnasium.vector.VectorEnv.
        ValueError: the autoreset mode is unknown, or differs from the one in the metadata.
    """
    return GymnasiumVecEnv(vector_env, autoreset=autoreset, copy=copy)


class GymnasiumVecEnv(SendRecv):
    """A Gymnasium vector env as a VecEnv.

    The vector env steps all its envs at once, which limits the VecEnv:

    * `send` takes all envs; a subset raises VecEnvError. `recv` returns any number of rows.
    * `reset` of some envs needs a vector env which supports `options["reset_mask"]`: Sync- and AsyncVectorEnv, views by
      `as_gymnasium`, and vector envs without autoreset. Others raise VecEnvError.
    * Seeds apply to resets by the caller, not to the vector env's autoresets. A natively batched env takes one int.
    * An env's exception is raised as the vector env raises it, not as an EnvError. An AsyncVectorEnv then ends the
      env's worker, after which it can only be closed: other calls raise a VecEnvError that says so.
    * Over an AsyncVectorEnv a timeout raises VecEnvError, because Gymnasium drops a step that timed out. A vector env
      without `step_async` has finished its step before `step_wait` is called.

    Args:
        vector_env: as in `vecenvs.views.from_gymnasium`.
        autoreset: as in `vecenvs.views.from_gymnasium`.
        copy: as in `vecenvs.views.from_gymnasium`.
    """

    def __init__(self, vector_env: AnyVectorEnv, *, autoreset: str | None = None, copy: bool = True) -> None:
        check_vector_env(vector_env)
        self.closed = False
        self.vector_env = vector_env
        self.autoreset = parse_autoreset(vector_env, autoreset)
        self.num_envs = n = vector_env.num_envs
        self.observation_space, self.action_space = vector_env.single_observation_space, vector_env.single_action_space
        self.spec, self.render_mode = vector_env.spec, vector_env.render_mode
        self.metadata = {key: value for key, value in vector_env.metadata.items() if key != "autoreset_mode"}
        self.reset_infos = [{} for _ in range(n)]
        self._observations, self._actions = BatchConverter(self.observation_space), BatchConverter(self.action_space)
        # With `copy` these two return arrays which they do not write into later.
        own = isinstance(vector_env, (SyncVectorEnv, AsyncVectorEnv)) and vector_env.copy
        self._copy, self.copy = copy and not own, copy or own
        self._steps_async = hasattr(vector_env, "step_async") and hasattr(vector_env, "step_wait")
        self._takes_masks = self.autoreset == "disabled" or self._has_single_envs
        self._stepping = False
        self._sent = False
        self._result: Any = None
        self._ready = None
        self._ended = np.ones(n, dtype=bool)  # envs without an episode: it has ended, or not begun
        self._never_reset = set(range(n))
        self._terminated = np.zeros(n, dtype=bool)
        self._truncated = np.zeros(n, dtype=bool)
        self._active = np.ones(n, dtype=bool)
        self._rewards = np.zeros(n)
        self._seeds: dict[int, int | None] = {}
        self._options: dict[int, dict[str, Any] | None] = {}
        self._counters = dict.fromkeys(("steps", "rows", "resets"), 0)

    # Lock-step

    def step_async(self, actions: Any) -> None:
        self._check_idle("step_async")
        self._start(parse_actions(self._actions.layout, actions, self.num_envs))

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        self._check_open("step_wait")
        if not self._stepping or self._sent:
            raise NotSteppingError("step_wait without a step_async before it")
        obs, infos = self._finish(timeout)
        return obs, self._rewards.astype(np.float32), self._terminated | self._truncated, infos

    def _start(self, parts: list[NDArray[Any]]) -> None:
        if self._never_reset or (self.autoreset == "disabled" and self._ended.any()):
            over = np.flatnonzero(self._ended).tolist()
            needed = ResetNeededError(f"envs {describe_indices(over)} have no episode to step", f"reset({over}) first")
            raise EnvError(over[0], str(needed)) from needed
        actions = self._actions.to_gymnasium(self._actions.layout.unflatten(parts))
        try:
            if self._steps_async:
                self.vector_env.step_async(actions)  # type: ignore[attr-defined]
            else:
                self._result = self.vector_env.step(actions)
        except BaseException as exc:
            self._reraise(exc)
        self._stepping = True

    def _finish(self, timeout: float | None) -> tuple[Any, list[dict[str, Any]]]:
        """Wait for the started step; return its observations and infos."""
        if timeout is not None:
            parse_timeout(timeout)
            if isinstance(self.vector_env, AsyncVectorEnv):
                raise VecEnvError("an AsyncVectorEnv forgets a step that times out: call step_wait without a timeout")
        if self._steps_async and self._result is None:
            try:
                self._result = self.vector_env.step_wait(timeout)  # type: ignore[attr-defined]
            except TimeoutError:
                raise
            except BaseException as exc:
                self._stepping = self._sent = False
                self._reraise(exc)
        result, self._result = self._result, None
        self._stepping = self._sent = False
        obs = self._observations.from_gymnasium(result[0], copy=self._copy)
        self._rewards = np.asarray(result[1], dtype=np.float64)
        # Copies: the vector env may write into its own at its next reset.
        self._terminated, self._truncated = np.array(result[2], dtype=bool), np.array(result[3], dtype=bool)
        infos = self._infos_per_env(result[4])
        self._complete_infos(infos, obs)
        self._counters["steps"] += 1
        self._counters["rows"] += self.num_envs
        return obs, infos

    def _infos_per_env(self, batched: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one info per env: the env's own keys, and the keys of every row, which override the env's."""
        if not batched:
            return copies(blank_info(), self.num_envs)
        infos = infos_to_list(batched, [{} for _ in range(self.num_envs)])
        for info in infos:
            info[TRUNCATED_KEY] = False
        return infos

    def _complete_infos(self, infos: list[dict[str, Any]], obs: Any) -> None:
        """Add a VecEnv's keys to the infos, and move the entries that Gymnasium puts elsewhere."""
        dones = self._terminated | self._truncated
        began: list[int] = self._ended.nonzero()[0].tolist() if self.autoreset == "next_step" else []
        self._active = ~self._ended if began else np.ones(self.num_envs, dtype=bool)
        for i in began:
            info = infos[i]
            info["episode_start"] = True
            self.reset_infos[i] = {"episode_start": True}
            if len(info) > 2:
                self.reset_infos[i].update((key, info[key]) for key in info if key != TRUNCATED_KEY)
        ended: list[int] = dones.nonzero()[0].tolist()
        if self.autoreset == "same_step":
            for i in ended:
                infos[i] = self._split_final_info(i, infos[i])
        else:
            for i, last in zip(ended, self._observations.values(obs, ended), strict=True):
                infos[i]["terminal_observation"] = last
        if self._truncated.any():
            for i in np.flatnonzero(self._truncated & ~self._terminated).tolist():
                infos[i][TRUNCATED_KEY] = True
        self._ended = dones

    def _split_final_info(self, i: int, info: dict[str, Any]) -> dict[str, Any]:
        if "final_obs" not in info:
            raise VecEnvError(f"env {i} has ended its episode, but the vector env's infos have no 'final_obs' for it")
        del info[TRUNCATED_KEY]
        last: dict[str, Any] = {**info.pop("final_info", {})}
        last.update((key, info.pop(key)) for key in episode_statistics_keys(info))
        last[TRUNCATED_KEY] = False
        last["terminal_observation"] = self._observations.layout.copied(info.pop("final_obs"))
        last["episode_start"] = info["episode_start"] = True
        self.reset_infos[i] = info
        return last

    # Resets

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        self._check_idle("reset")
        return self._reset(parse_indices(indices, self.num_envs), seed, options)

    def _reset(self, slots: list[int], seed: Seeds, options: Options) -> Any:
        if not slots:
            return self._observations.empty()
        seeds = {slot: self._seeds.get(slot) if s is None else s for slot, s in parse_seeds(seed, slots).items()}
        given = {slot: self._options.get(slot) if o is None else o for slot, o in parse_options(options, slots).items()}
        mapping = common_options(list(given.values()))
        if len(slots) < self.num_envs:
            if not self._takes_masks:
                kind = type(self.vector_env.unwrapped).__name__
                raise VecEnvError(f"{kind} resets all its envs at once: call reset() without indices")
            if isinstance(self.vector_env.unwrapped, SyncVectorEnv) and not self._never_reset <= set(slots):
                raise VecEnvError("a SyncVectorEnv resets some of its envs only once all have been: call reset() first")
            mask = np.zeros(self.num_envs, dtype=bool)
            mask[slots] = True
            mapping = {**(mapping or {}), "reset_mask": mask}
        ordered = [seeds.get(slot) for slot in range(self.num_envs)]
        rows, infos = self._reset_all(common_seed(ordered, slots), mapping)
        return self._finish_reset(slots, rows, infos_to_list(infos, [{} for _ in range(self.num_envs)]))

    def _reset_all(self, seed: Any, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Reset the vector env. Its type allows an int alone as seed; some take a list, with one entry per env."""
        if not isinstance(seed, list) or self._has_single_envs:
            rows: tuple[Any, dict[str, Any]] = self._call_vector_env(self.vector_env.reset, seed=seed, options=options)
            return rows
        try:
            return self.vector_env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        except (Error, TypeError, ValueError) as exc:
            kind = type(self.vector_env.unwrapped).__name__
            raise VecEnvError(f"{kind} takes no list of seeds ({exc}): give one int for all its envs") from exc

    def _finish_reset(self, slots: list[int], rows: Any, infos: list[dict[str, Any]]) -> Any:
        for slot in slots:
            self.reset_infos[slot] = {**infos[slot], "episode_start": True}
            self._seeds.pop(slot, None)
            self._options.pop(slot, None)
        self._ended[slots] = False
        self._never_reset.difference_update(slots)
        self._counters["resets"] += len(slots)
        obs = self._observations.from_gymnasium(rows, copy=self._copy)
        return obs if slots == list(range(self.num_envs)) else self._observations.rows(obs, slots)

    def seed(self, seed: Seeds = None) -> list[int | None]:
        self._check_idle("seed")
        seeds = parse_seeds(seed, range(self.num_envs))
        self._seeds.update({slot: s for slot, s in seeds.items() if s is not None})
        return [seeds[slot] for slot in range(self.num_envs)]

    def set_options(self, options: Options = None) -> None:
        self._check_idle("set_options")
        given = parse_options(options, range(self.num_envs))
        self._options.update({slot: o for slot, o in given.items() if o is not None})

    # State

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedError(what)
        if self._broken is not None:
            raise self._broken

    def _check_idle(self, what: str) -> None:
        self._check_open(what)
        if self._call_results is not None:
            raise AlreadySteppingError(f"{what} after a call_async: call_wait first")
        if self._stepping and not self._sent:
            raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
        if self._stepping or self._ready is not None:
            raise AlreadySteppingError(f"{what} while rows are still to be received: recv first")

    def _check_free(self, what: str, slots: Sequence[int]) -> None:
        """Allow access, during a partly received step, to the envs whose rows have been received."""
        self._check_open(what)
        waiting = set() if self._ready is None else {int(slot) for slot in self._ready.indices}
        if self._call_results is not None or self._stepping or not waiting.isdisjoint(slots):
            self._check_idle(what)

    @property
    def active(self) -> NDArray[np.bool_]:
        return self._active.copy()

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return self._terminated.copy()

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return self._truncated.copy()

    @property
    def rewards64(self) -> NDArray[np.float64]:
        return self._rewards.copy()

    def stats(self) -> dict[str, Any]:
        kind = type(self.vector_env.unwrapped)
        return {
            "backend": kind.__name__,
            "num_envs": self.num_envs,
            "num_workers": self.num_envs if issubclass(kind, AsyncVectorEnv) else 1,
            "autoreset": self.autoreset,
            **self._counters,
        }

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._close_window()
        if isinstance(self.vector_env, AsyncVectorEnv):
            self.vector_env.close(terminate=self._must_terminate or (self._stepping and not self._step_finished()))
        else:
            self.vector_env.close()

    def _step_finished(self) -> bool:
        """Wait for an unfinished step; without that, closing an AsyncVectorEnv warns or never returns."""
        try:
            self.vector_env.step_wait(CLOSE_GRACE)  # type: ignore[attr-defined]
        except multiprocessing.TimeoutError:
            return False
        except Exception:  # of an env: there is no caller to raise it for
            return True
        return True
