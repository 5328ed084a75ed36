"""Batched envs of any kind as hosts: what a worker needs of one that steps all its envs at once.

`make_host` finds the kind: a gymnasium.vector.VectorEnv, a VecEnv of this library, or an object with `reset` and `step`
over arrays or tensors, as ManiSkill, Brax and Isaac Lab have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from vecenvs import env_calls
from vecenvs.batch.info_arrays import columns_of_dicts
from vecenvs.batch.info_batches import Columns, columns_of, map_leaves
from vecenvs.batch.values import as_array, copy_containers
from vecenvs.errors import VecEnvError
from vecenvs.vec_env import VecEnv
from vecenvs.worker.autoreset import seed_action_spaces
from vecenvs.worker.final_infos import columns_of_list
from vecenvs.worker.hosts.host_parts import HostCall, VecEnvPart

MODES = {
    AutoresetMode.NEXT_STEP: "next_step",
    AutoresetMode.SAME_STEP: "same_step",
    AutoresetMode.DISABLED: "disabled",
}
_RETURNED = {2: "observations and infos", 5: "observations, rewards, terminated, truncated and infos"}
_OF_VIEWS = ("vecenvs.views.", "vecenvs.compat.")  # a class of the user's own may have a VecEnv as its `vec`, too
_OF_ALL = 4  # axes of an array with a picture of each env, which has height, width and colours
MASK = "reset_mask"  # Gymnasium's option that names the envs to reset

Step = tuple[Any, Any, Any, Any, Columns]


class BatchedHost:
    """A batched env. This class is for any object with `reset` and `step` over arrays; others adapt what differs.

    Attributes:
        env: the batched env.
        num_envs: how many envs it steps.
        observation_space: of one env, as is `action_space`.
        autoreset: what it does itself at the end of an episode: "same_step", "next_step" or "disabled".
        takes_masks: whether it can reset some of its envs.
        begun: whether all envs have been reset.
        keeps_finals: whether its infos must have the last observations of episodes after which it resets itself.
    """

    keeps_finals = False

    def __init__(self, env: Any, num_envs: int, autoreset: str | None = None) -> None:
        self.env = env
        self.num_envs = num_envs
        self.observation_space = _single(env, "observation_space")
        self.action_space = _single(env, "action_space")
        self.spec = getattr(env, "spec", None)
        self.metadata = {k: v for k, v in (getattr(env, "metadata", None) or {}).items() if k != "autoreset_mode"}
        self.render_mode = getattr(env, "render_mode", None)
        self.autoreset = mode_of(env) or autoreset or "same_step"
        self.takes_masks = self.autoreset == "disabled"
        self.begun = False
        # Makes what the env's own rows are of actions: tensors of torch.
        self._tensor: Callable[[Any], Any] | None = None

    # Stepping

    def step(self, actions: Any) -> Step:
        """Step every env; return observations, rewards, terminated, truncated and columns of infos."""
        if self._tensor is not None:
            actions = map_leaves(self._tensor, actions)
        obs, rewards, terminated, truncated, infos = self._checked("step", 5, self.env.step(actions))
        if isinstance(infos, dict):
            return obs, rewards, terminated, truncated, columns_of(infos, self.num_envs) if infos else {}
        ended = (as_array(terminated) != 0) | (as_array(truncated) != 0)
        ended = ended if ended.shape == (self.num_envs,) else np.zeros(self.num_envs, bool)  # it is refused later
        infos = columns_of_list(copy_containers(list(infos)), ended, same_step=self.autoreset == "same_step")
        return obs, rewards, terminated, truncated, infos

    def reset(self, mask: NDArray[np.bool_] | None, seeds: Sequence[int | None], options: Any) -> tuple[Any, Columns]:
        """Reset all envs, or those of `mask`; return the observations of all, and columns of infos.

        The first reset is one of all envs, as Gymnasium's need it: a replaced worker may begin with a mask.
        """
        given: dict[str, Any] = {}
        if any(seed is not None for seed in seeds):
            given["seed"] = common_seed(seeds, mask)
            self._seed_actions(seeds, mask)
        if mask is not None and self.begun:
            options = {**(options or {}), MASK: mask}
        if options is not None:
            given["options"] = options
        obs, infos = self._checked("reset", 2, self._reset(**given))
        self.begun = True
        leaves: list[Any] = []
        map_leaves(leaves.append, obs)
        if leaves and type(leaves[0]).__module__.partition(".")[0] == "torch":
            import torch  # the env has imported it

            device = leaves[0].device
            self._tensor = lambda actions: torch.from_numpy(actions).to(device)
        if isinstance(infos, dict):
            return obs, columns_of(infos, self.num_envs)
        return obs, columns_of_dicts(copy_containers(list(infos)))

    def _seed_actions(self, seeds: Sequence[int | None], mask: NDArray[np.bool_] | None) -> None:
        """Seed the action spaces, from which some envs sample: those that all envs share when all are reset."""
        if mask is None and seeds[0] is not None:
            for name in ("action_space", "single_action_space"):
                space = getattr(self.env, name, None)
                if isinstance(space, spaces.Space):
                    space.seed(seeds[0])

    def _checked(self, doing: str, count: int, values: Any) -> Any:
        """Return what the env's `reset` or `step` has returned. VecEnvError if these are not Gymnasium's values.

        Infos are a dict of arrays, or as in SB3 and SuperSuit a dict for each env.
        """
        if isinstance(values, tuple) and len(values) == count and self._are_infos(values[-1]):
            return values
        found = f"{len(values)} values" if isinstance(values, tuple) else f"one {type(values).__name__}"
        if isinstance(values, tuple) and len(values) == count:
            found += f", the last a {type(values[-1]).__name__}"
        raise VecEnvError(
            f"{type(self.env).__name__}.{doing} returned {found}, where Gymnasium's returns {count}, the last a dict "
            f"of infos or a list of one for each env: put a class around it whose {doing} returns {_RETURNED[count]}"
        )

    def _are_infos(self, infos: Any) -> bool:
        several = isinstance(infos, (list, tuple)) and len(infos) == self.num_envs
        return isinstance(infos, dict) or (several and all(isinstance(info, dict) for info in infos))

    def _reset(self, **given: Any) -> Any:
        seed = given.get("seed")
        if not isinstance(seed, list):
            return self.env.reset(**given)
        try:
            return self.env.reset(**given)
        except Exception as exc:  # whatever a foreign env raises for a list
            raise VecEnvError(
                f"{type(self.env).__name__} takes no list of seeds ({type(exc).__name__}: {exc}): give one int for all "
                "its envs, reset(seed=0)"
            ) from exc

    # Asking single envs

    def parts(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return the envs `indices`, or what stands for them while one function is run on them: see `run_on`."""
        return HostCall(self).parts(indices)

    def envs_here(self) -> list[Any]:
        """Return the list of the single envs itself. AttributeError if there are none, or not in this process."""
        raise AttributeError(
            f"{type(self.env).__name__!r} object has no attribute 'envs' with envs in this process: get_attr, set_attr "
            "and env_method ask for what it has of single envs"
        )

    def read_all(self, name: str) -> Any:
        """Return an attribute of all envs: an array or a list, one item for each."""
        value = env_calls.get_attr(self.env, name)
        if not self._is_batch(value):
            return [value] * self.num_envs
        return value if isinstance(value, (list, tuple)) else as_array(value)

    def write(self, index: int, name: str, value: Any) -> None:
        """Write env `index`'s item of an attribute."""
        held = env_calls.get_attr(self.env, name)
        if not self._is_batch(held):
            raise VecEnvError(
                f"{type(self.env).__name__} has one {name!r} for all its envs: set it on the batched env itself, where "
                "it is made"
            )
        held[index] = value

    def _is_batch(self, value: Any) -> bool:
        try:
            return np.ndim(value) > 0 and len(value) == self.num_envs and not isinstance(value, (str, bytes, dict))
        except (TypeError, ValueError):
            return False

    def is_wrapped(self, names: Sequence[tuple[str, str]]) -> bool:
        """Tell whether a wrapper around the batched env is of one of these classes."""
        layer, found = self.env, []
        while layer is not None:
            found.append(layer)
            layer = layer.__dict__.get("env") or layer.__dict__.get("venv") if hasattr(layer, "__dict__") else None
        return any(env_calls.class_name(cls) in names for each in found for cls in type(each).__mro__)

    def render_all(self) -> Sequence[Any]:
        """Return the pictures of all envs, None for each that has none."""
        frames = self.env.render()
        if hasattr(frames, "ndim"):
            frames = as_array(frames)
        several = np.ndim(frames) == _OF_ALL if isinstance(frames, np.ndarray) else isinstance(frames, (list, tuple))
        return frames if several and len(frames) == self.num_envs else [frames] * self.num_envs

    def close(self) -> None:
        """Close the batched env."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


class GymnasiumHost(BatchedHost):
    """A gymnasium.vector.VectorEnv. A SyncVectorEnv has its envs here; a view by `as_gymnasium` can reach its own."""

    keeps_finals = True

    def __init__(self, env: Any, num_envs: int, autoreset: str | None = None) -> None:
        super().__init__(env, num_envs, autoreset)
        bare = env.unwrapped
        self._sync = bare if isinstance(bare, SyncVectorEnv) else None
        self._inner = shown_by(bare)
        self.takes_masks = self.takes_masks or self._sync is not None or self._inner is not None

    def _seed_actions(self, seeds: Sequence[int | None], mask: NDArray[np.bool_] | None) -> None:
        super()._seed_actions(seeds, mask)
        for index, env in enumerate(self._sync.envs if self._sync is not None else ()):
            seed = seeds[index] if mask is None or mask[index] else None
            if seed is not None:
                seed_action_spaces(env, seed)

    def parts(self, indices: Sequence[int]) -> Sequence[Any]:
        if self._sync is not None:
            return [self._sync.envs[index] for index in indices]
        if self._inner is not None:
            return [VecEnvPart(self._inner, index) for index in indices]
        return super().parts(indices)

    def read_all(self, name: str) -> Any:
        if self._sync is not None:
            return [env_calls.get_attr(env, name) for env in self._sync.envs]
        return super().read_all(name) if self._inner is None else self._inner.get_attr(name)

    def envs_here(self) -> list[Any]:
        here: Any = self._sync or self._inner
        return super().envs_here() if here is None else here.envs


def shown_by(view: Any) -> VecEnv | None:
    """Return the VecEnv that one of this library's views shows, such as `as_gymnasium` returns; None for others."""
    vec = getattr(view, "vec", None) if type(view).__module__.startswith(_OF_VIEWS) else None
    return vec if isinstance(vec, VecEnv) else None


def _single(env: Any, which: str) -> spaces.Space[Any]:
    """Return the space of one env, whichever way a batched env names it."""
    space = getattr(env, f"single_{which}", None)
    if space is None:
        space = getattr(env, which, None)
    if not isinstance(space, spaces.Space):
        raise VecEnvError(
            f"{type(env).__name__} has neither `single_{which}` nor `{which}` that is a gymnasium.spaces.Space"
        )
    return space


def mode_of(env: Any) -> str | None:
    """Return the autoreset mode that a batched env says it has; None if it says nothing."""
    metadata = getattr(env, "metadata", None) or {}
    declared = metadata.get("autoreset_mode") or getattr(env, "autoreset_mode", None)
    try:
        return None if declared is None else MODES[AutoresetMode(declared)]
    except ValueError:
        raise VecEnvError(
            f"{type(env).__name__} has the autoreset_mode {declared!r}, which is none of "
            f"gymnasium.vector.AutoresetMode's ({', '.join(repr(mode.value) for mode in MODES)})"
        ) from None


def common_seed(seeds: Sequence[int | None], mask: NDArray[np.bool_] | None = None) -> int | list[int | None]:
    """Return one int s if s + i is the seed of every env i that is reset, as in Gymnasium; else the list.

    Batched envs with one random generator take no list.
    """
    if isinstance(seeds, range):
        return seeds.start
    chosen = range(len(seeds)) if mask is None else np.flatnonzero(mask).tolist()
    firsts = {None if (seed := seeds[i]) is None else seed - i for i in chosen}
    first = firsts.pop()
    return list(seeds) if firsts or first is None or first < 0 else first


def spread_rows(rows: Any, mask: NDArray[np.bool_]) -> Any:
    """Return observations or infos of all envs, given those of `mask`: the others mean nothing."""

    def spread(part: Any) -> Any:
        whole = np.zeros((len(mask), *part.shape[1:]), part.dtype)
        whole[mask] = part
        return whole

    return map_leaves(spread, rows)
