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
from vecenvs.views.gymnasium.batches import BatchForm
from vecenvs.views.gymnasium.send_recv import Portions
from vecenvs.views.gymnasium.single_envs import AnyVectorEnv
from vecenvs.views.gymnasium.vector_env_arguments import autoreset_of, check_vector_env, one_mapping, one_seed
from vecenvs.views.gymnasium.vector_infos import statistics_keys, to_list

CLOSE_GRACE = 5.0  # seconds for an AsyncVectorEnv with a step under way


def from_gymnasium(vector_env: AnyVectorEnv, *, autoreset: str | None = None, copy: bool = True) -> VecEnv:
    """Give a VecEnv over a gymnasium.vector.VectorEnv; closing it closes that.

    `autoreset` says what the vector env does where its metadata does not: "next_step", "same_step" or "disabled".
    `copy=False` skips the copy of observations, for a vector env which never writes into those it has given out.
    """
    return GymnasiumVecEnv(vector_env, autoreset=autoreset, copy=copy)


class GymnasiumVecEnv(Portions):
    """A Gymnasium vector env behind this project's contract. It steps all its envs at once, which sets its limits.

    * `send` takes all envs; a subset raises VecEnvError. `recv` hands their rows out in any portions.
    * `reset` of some envs needs a vector env that knows `options["reset_mask"]`: Sync- and AsyncVectorEnv,
      `as_gymnasium` and those without autoreset. Others raise VecEnvError rather than reset them all.
    * Seeds go to resets that are asked for, not to those that the vector env makes by itself. A natively batched env
      takes one seed for all: give an int.
    * What an env raises comes as the vector env raises it, not as an EnvError. An AsyncVectorEnv ends that env's
      worker: all that can be done after that is `close`, anything else is a VecEnvError that says so.
    * A timeout is for vector envs whose steps run aside and survive it; over an AsyncVectorEnv it raises VecEnvError,
      since that forgets a step that timed out. In-process vector envs are done before any timeout counts.
    """

    def __init__(self, vector_env: AnyVectorEnv, *, autoreset: str | None = None, copy: bool = True) -> None:
        check_vector_env(vector_env)
        self.closed = False
        self.vector_env = vector_env
        self.autoreset = autoreset_of(vector_env, autoreset)
        self.num_envs = n = vector_env.num_envs
        self.observation_space, self.action_space = vector_env.single_observation_space, vector_env.single_action_space
        self.spec, self.render_mode = vector_env.spec, vector_env.render_mode
        self.metadata = {key: value for key, value in vector_env.metadata.items() if key != "autoreset_mode"}
        self.reset_infos = [{} for _ in range(n)]
        self._observations, self._actions = BatchForm(self.observation_space), BatchForm(self.action_space)
        # These two say by `copy` whether what they give out is the caller's.
        own = isinstance(vector_env, (SyncVectorEnv, AsyncVectorEnv)) and vector_env.copy
        self._copy = copy and not own
        self.copy = copy or own
        self._aside = hasattr(vector_env, "step_async") and hasattr(vector_env, "step_wait")
        self._masks = self.autoreset == "disabled" or self._has_single_envs
        self._stepping = False
        self._sent = False
        self._result: Any = None
        self._ready = None
        self._ended = np.ones(n, dtype=bool)  # episodes that are over, or have not begun
        self._fresh = set(range(n))  # envs that were never reset
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
        if self._fresh or (self.autoreset == "disabled" and self._ended.any()):
            over = np.flatnonzero(self._ended).tolist()
            needed = ResetNeededError(f"envs {describe_indices(over)} have no episode to step", f"reset({over}) first")
            raise EnvError(over[0], str(needed)) from needed
        actions = self._actions.to_gymnasium(self._actions.layout.unflatten(parts))
        try:
            if self._aside:
                self.vector_env.step_async(actions)  # type: ignore[attr-defined]
            else:
                self._result = self.vector_env.step(actions)
        except BaseException as exc:
            self._raise(exc)
        self._stepping = True

    def _finish(self, timeout: float | None) -> tuple[Any, list[dict[str, Any]]]:
        """Take the results of the step that was started."""
        if timeout is not None:
            parse_timeout(timeout)
            if isinstance(self.vector_env, AsyncVectorEnv):
                raise VecEnvError("an AsyncVectorEnv forgets a step that times out: call step_wait without a timeout")
        if self._aside and self._result is None:
            try:
                self._result = self.vector_env.step_wait(timeout)  # type: ignore[attr-defined]
            except TimeoutError:
                raise
            except BaseException as exc:
                self._stepping = self._sent = False
                self._raise(exc)
        result, self._result = self._result, None
        self._stepping = self._sent = False
        obs = self._observations.from_gymnasium(result[0], copy=self._copy)
        self._rewards = np.asarray(result[1], dtype=np.float64)
        # Copies: the vector env may write into its own at its next reset.
        self._terminated, self._truncated = np.array(result[2], dtype=bool), np.array(result[3], dtype=bool)
        infos = self._listed(result[4])
        self._complete(infos, obs)
        self._counters["steps"] += 1
        self._counters["rows"] += self.num_envs
        return obs, infos

    def _listed(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        """Give one info per env: its own keys, then what every row has, whatever the env says of that."""
        if not told:
            return copies(blank_info(), self.num_envs)
        infos = to_list(told, [{} for _ in range(self.num_envs)])
        for info in infos:
            info[TRUNCATED_KEY] = False
        return infos

    def _complete(self, infos: list[dict[str, Any]], obs: Any) -> None:
        """Add what this project's infos have, and move what Gymnasium puts elsewhere."""
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
                infos[i] = self._split(i, infos[i])
        else:
            for i, last in zip(ended, self._observations.values(obs, ended), strict=True):
                infos[i]["terminal_observation"] = last
        if self._truncated.any():
            for i in np.flatnonzero(self._truncated & ~self._terminated).tolist():
                infos[i][TRUNCATED_KEY] = True
        self._ended = dones

    def _split(self, i: int, info: dict[str, Any]) -> dict[str, Any]:
        if "final_obs" not in info:
            raise VecEnvError(f"env {i} has ended its episode, but the vector env gives no info 'final_obs' of it")
        del info[TRUNCATED_KEY]
        last: dict[str, Any] = {**info.pop("final_info", {})}
        last.update((key, info.pop(key)) for key in statistics_keys(info))
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
        mapping = one_mapping(list(given.values()))
        if len(slots) < self.num_envs:
            if not self._masks:
                kind = type(self.vector_env.unwrapped).__name__
                raise VecEnvError(f"{kind} resets all its envs at once: call reset() without indices")
            if isinstance(self.vector_env.unwrapped, SyncVectorEnv) and not self._fresh <= set(slots):
                raise VecEnvError("a SyncVectorEnv resets some of its envs only once all have been: call reset() first")
            mask = np.zeros(self.num_envs, dtype=bool)
            mask[slots] = True
            mapping = {**(mapping or {}), "reset_mask": mask}
        ordered = [seeds.get(slot) for slot in range(self.num_envs)]
        rows, infos = self._reset_all(one_seed(ordered, slots), mapping)
        return self._began(slots, rows, to_list(infos, [{} for _ in range(self.num_envs)]))

    def _reset_all(self, seed: Any, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Reset the vector env. Typed to take an int; those which take a list have env i take its i-th entry."""
        if not isinstance(seed, list) or self._has_single_envs:
            rows: tuple[Any, dict[str, Any]] = self._ask(self.vector_env.reset, seed=seed, options=options)
            return rows
        try:
            return self.vector_env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        except (Error, TypeError, ValueError) as exc:
            kind = type(self.vector_env.unwrapped).__name__
            raise VecEnvError(f"{kind} takes no list of seeds ({exc}): give one int for all its envs") from exc

    def _began(self, slots: list[int], rows: Any, infos: list[dict[str, Any]]) -> Any:
        for slot in slots:
            self.reset_infos[slot] = {**infos[slot], "episode_start": True}
            self._seeds.pop(slot, None)
            self._options.pop(slot, None)
        self._ended[slots] = False
        self._fresh.difference_update(slots)
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
        if self._lost is not None:
            raise self._lost

    def _check_idle(self, what: str) -> None:
        self._check_open(what)
        if self._answers is not None:
            raise AlreadySteppingError(f"{what} after a call_async: call_wait first")
        if self._stepping and not self._sent:
            raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
        if self._stepping or self._ready is not None:
            raise AlreadySteppingError(f"{what} while rows are still to be received: recv first")

    def _check_free(self, what: str, slots: Sequence[int]) -> None:
        """Between the portions of one step all envs stand still; those whose rows have been received may be asked."""
        self._check_open(what)
        waiting = set() if self._ready is None else {int(slot) for slot in self._ready.indices}
        if self._answers is not None or self._stepping or not waiting.isdisjoint(slots):
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
        if isinstance(self.vector_env, AsyncVectorEnv):
            self.vector_env.close(terminate=self._cut_off or (self._stepping and not self._settled()))
        else:
            self.vector_env.close()

    def _settled(self) -> bool:
        """Give a step under way time to end: closing an AsyncVectorEnv before that warns, or waits forever."""
        try:
            self.vector_env.step_wait(CLOSE_GRACE)  # type: ignore[attr-defined]
        except multiprocessing.TimeoutError:
            return False
        except Exception:  # an env's own: nobody waits for it any more
            return True
        return True
