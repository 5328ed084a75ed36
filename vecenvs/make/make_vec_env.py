"""`make_vec_env`: make a VecEnv from an env id or function, with baselines' preprocessing, Monitor and seeds."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import FlattenObservation

from vecenvs.arguments import (
    arguments_of,
    check_arguments,
    check_names,
    listed,
    parse_count,
    parse_directory,
    parse_flag,
    parse_int,
)
from vecenvs.backends import BACKENDS, backend_class, unknown_backend
from vecenvs.cpus import worker_cores
from vecenvs.make.auto import choose, has_processes_alone, is_cheap, needs_workers, workers_for
from vecenvs.make.env_fn import EnvFn, Recipe, Wrap
from vecenvs.make.env_types import check_env_type, find_spec
from vecenvs.make.native import check_single, mode_of, native_fns, wants_native
from vecenvs.make.preprocessing import Source, check_game, preprocessing
from vecenvs.make.rank import spmd_rank
from vecenvs.vec_env import VecEnv, batched_env_hint
from vecenvs.wrappers.reward import check_scale

RANK_STRIDE = 10_000  # the distance between the seeds of two ranks, as in baselines
AUTO = "auto"
_log = logging.getLogger("vecenvs")
_MONITOR_KWARGS = ("allow_early_resets", "reset_keywords", "info_keywords", "override_existing")


def make_vec_env(
    env_id: str | EnvSpec | Callable[..., Any] | Iterable[Callable[..., Any]],
    env_type: str | None = None,
    num_env: int | None = None,
    seed: int | None = None,
    wrapper_kwargs: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    start_index: int = 0,
    reward_scale: float = 1.0,
    flatten_dict_observations: bool = True,
    gamestate: Any = None,
    initializer: Callable[..., Any] | None = None,
    force_dummy: bool = False,
    *,
    num_envs: int | None = None,
    backend: str | None = None,
    num_workers: int | None = None,
    autoreset: str | None = None,
    vectorization: str | None = None,
    monitor_dir: str | os.PathLike[str] | None = None,
    monitor_kwargs: Mapping[str, Any] | None = None,
    wrapper_class: Wrap | Sequence[Wrap] | None = None,
    info_attrs: Sequence[str] = (),
    **backend_kwargs: Any,
) -> VecEnv:
    """Make `num_envs` copies of an env, each preprocessed and monitored, and a VecEnv that steps them.

    Arguments up to `force_dummy` have the order and meaning of baselines' function of this name. Unlike that, this
    function leaves the caller's global random state alone.

    The wrappers of each env, from the inside out: the preprocessing of its type; FlattenObservation for Dict
    observations; Monitor; `wrapper_class`; clipping of rewards (atari, retro) and of actions to a Box action space's
    bounds; `reward_scale`. The Monitor records raw rewards and, of Atari, whole games: the episodes per life, FIRE and
    frame stacking come after it.

    Args:
        env_id: an id ("CartPole-v1", or "package.module:Env-v0", which imports the module), a spec, a function that
            returns a new env, or a list of such functions, whose length then is the number of envs.
        env_type: the type whose preprocessing is used; None for that of the id, "plain" for none.
        num_env: the number of envs by its name in baselines: `num_envs`.
        seed: env i is seeded `seed + 10000 * mpi_rank + start_index + i` at its first reset, its action space at once.
            The rank is the caller's in MPI.COMM_WORLD, or among the processes that torchrun or srun has started, else
            0. None for no seeds.
        wrapper_kwargs: options of the preprocessing of Atari and retro games (see docs/making.md).
        env_kwargs: arguments of gymnasium.make, or of the function.
        start_index: the index of env 0 in seeds and in the names of monitor files.
        reward_scale: the factor of all rewards.
        flatten_dict_observations: whether Dict observations become one vector; not if they have parts of no fixed
            size, such as Graph or Sequence, or of a Space class that Gymnasium does not know.
        gamestate: the state in which a retro game starts.
        initializer: called as `initializer(mpi_rank=..., subrank=start_index + i)` before env i is made, in its worker
            process. As in baselines it is not called for envs that the calling process steps itself.
        force_dummy: use the backend "dummy".
        num_envs: the number of envs; 1 unless given.
        backend: "dummy", "subproc", "mpi" or "ray". None chooses the one that is fast beside a learner: "dummy" for one
            env, for a few of Gymnasium's cheapest and on one core, unless an argument needs worker processes, and with
            `force_dummy`; else "subproc", where the caller steps a share unless an argument does. "auto" also chooses
            "mpi" in an MPI job. docs/backends.md describes the rule; the choice is logged to "vecenvs".
        num_workers: the number of workers of the backend. It has no effect if None or "auto" leads to "dummy".
        autoreset: the autoreset mode: see vecenvs/vec_env.py. None is "same_step", or what a batched env does itself.
        vectorization: "native" makes one batched env per worker by the id's `vector_entry_point` (see docs/batched.md),
            "auto" does so if the id has one and no argument is about single envs; None makes single envs. Batched envs
            have no Monitor: put VecMonitor around the VecEnv. There is a worker for each core if `num_workers` is None.
        monitor_dir: the directory for the files `<mpi_rank>.<start_index + i>.monitor.csv`; None for no files.
        monitor_kwargs: the other arguments of Monitor.
        wrapper_class: one function that wraps an env, or several, the first innermost.
        info_attrs: attributes of the envs for `VecEnv.info_array`.
        **backend_kwargs: further arguments of the backend's class.

    Returns:
        The VecEnv.

    Raises:
        TypeError: an argument has a wrong type, or the backend has no argument of this name.
        ValueError: an argument has a wrong value.
        ImportError: a library that the env or backend needs is missing.
        gymnasium.error.Error: the id is unknown or malformed.
        EnvError: an env could not be made.
        SpaceMismatch: the envs have different spaces.
    """
    _check_type(env_type)
    sources = _sources(env_id, _number_of_envs(num_env, num_envs), env_type)
    spec = sources[0] if isinstance(sources[0], EnvSpec) else None
    about_single_envs = {
        "env_type": env_type,
        "wrapper_kwargs": wrapper_kwargs,
        "reward_scale": None if reward_scale == 1.0 else reward_scale,
        "gamestate": gamestate,
        "initializer": initializer,
        "monitor_dir": monitor_dir,
        "monitor_kwargs": monitor_kwargs,
        "wrapper_class": wrapper_class,
    }
    native = spec if wants_native(vectorization, spec, about_single_envs) else None
    if autoreset is None:
        autoreset = mode_of(native) if native else "same_step"
    env_kwargs = _mapping("env_kwargs", env_kwargs)
    start_index = parse_int("start_index", start_index, 0)

    num_workers = workers_for(num_workers, len(sources), backend, backend_kwargs)
    chosen = _backend(backend, parse_flag("force_dummy", force_dummy), backend_kwargs)
    options: dict[str, Any] = {}
    if chosen is None or chosen == AUTO:
        _check_arguments(backend_class("dummy"), AUTO, backend_kwargs)
        choice = choose(
            len(sources),
            num_workers=num_workers,
            keep_caller_free=bool(native),
            in_workers=str(autoreset) == "async" or initializer is not None or needs_workers(backend_kwargs),
            own_processes=env_type == "retro",
            cheap=wrapper_class is None
            and env_kwargs.get("render_mode") is None
            and all(isinstance(each, EnvSpec) and is_cheap(each) for each in sources),
            ranks=chosen == AUTO,
        )
        _log.info("backend=%r: %s (%s)", backend, choice.told, choice.reason)
        chosen, options = choice.backend, dict(choice.options)
    num_workers = _workers(num_workers, backend, chosen, len(sources), env_type)
    mpi_rank = spmd_rank()
    base = None if seed is None else parse_int("seed", seed, 0) + RANK_STRIDE * mpi_rank

    recipe = Recipe(
        preprocessing=preprocessing(check_env_type(env_type, spec), _mapping("wrapper_kwargs", wrapper_kwargs)),
        env_kwargs=_with_gamestate(env_kwargs, gamestate, env_type),
        module=env_id.rpartition(":")[0] if isinstance(env_id, str) else "",
        flatten=parse_flag("flatten_dict_observations", flatten_dict_observations),
        wrappers=_wrappers(wrapper_class),
        reward_scale=check_scale(reward_scale),
        monitor_dir=None if monitor_dir is None else parse_directory("monitor_dir", monitor_dir),
        monitor_kwargs=_mapping("monitor_kwargs", monitor_kwargs, _MONITOR_KWARGS),
        seed=base,
        mpi_rank=mpi_rank,
        initializer=_initializer(initializer),
    )
    env_fns: Sequence[Callable[[], Any]] = [EnvFn(recipe, each, start_index + i) for i, each in enumerate(sources)]
    if native is not None:
        if num_workers is None and chosen != "dummy":
            num_workers = min(len(sources), worker_cores())
        workers = options.get("num_workers", num_workers or 1)
        env_fns = native_fns(native, len(sources), workers, env_kwargs, recipe.flatten)

    cls = backend_class(chosen)
    optional = {"num_workers": num_workers, "info_attrs": check_names("info_attrs", info_attrs) or None}
    given = {name: value for name, value in optional.items() if value is not None}
    kwargs = {**backend_kwargs, **given, **options}
    _check_arguments(cls, chosen, kwargs)
    vec = cls(env_fns, autoreset=autoreset, **kwargs)
    if base is not None:
        vec.seed(base + start_index)
    asks = recipe.flatten and native is None and _log.isEnabledFor(logging.INFO)  # env 0, where the answer is read
    if asks and vec.env_is_wrapped(FlattenObservation, [0])[0]:
        _log.info("Dict observations become one vector: flatten_dict_observations=False keeps the dicts")
    return vec


# Each of these functions checks one argument of make_vec_env and returns it in its final form.


def _check_type(env_type: Any) -> None:
    if env_type is not None and not isinstance(env_type, str):
        # In SB3's function the second argument is the number of envs.
        hint = f": the number of envs is num_envs={env_type}" if isinstance(env_type, int) else ""
        raise TypeError(f"env_type must be a name or None, not {env_type!r}{hint}")


def _number_of_envs(num_env: Any, num_envs: Any) -> int:
    if num_env is not None and num_envs is not None:
        raise TypeError(f"num_env={num_env!r} and num_envs={num_envs!r} name the same argument: give one of them")
    name, given = ("num_env", num_env) if num_envs is None else ("num_envs", num_envs)
    return 1 if given is None else parse_count(name, given)


def _sources(env_id: Any, num_envs: int, env_type: Any) -> list[Source]:
    if isinstance(env_id, str):
        return [check_game(env_id) if env_type == "retro" else find_spec(env_id)] * num_envs
    env_id = listed(env_id)
    check_single(env_id)
    if callable(env_id) or isinstance(env_id, EnvSpec):
        return [env_id] * num_envs
    if not isinstance(env_id, Sequence):
        way = batched_env_hint(env_id)
        raise TypeError(
            f"env_id must be an env id, a function that returns an env, or a list of such, not {env_id!r}"
            f"{f': {way}' if way else ''}"
        )
    for i, source in enumerate(env_id):
        if not callable(source):
            way = batched_env_hint(source)
            raise TypeError(
                f"env_id[{i}] must be a function that returns an env, not {source!r}{f': {way}' if way else ''}"
            )
    if not env_id:
        raise ValueError("env_id is an empty list: give one function per env")
    if num_envs not in (1, len(env_id)):
        raise ValueError(f"num_envs is {num_envs}, but env_id has {len(env_id)} functions: leave num_envs out")
    return list(env_id)


def _backend(backend: Any, force_dummy: bool, kwargs: Mapping[str, Any]) -> str | None:
    """Return the backend that the user has chosen. None: the rule is to choose one."""
    if backend is None:
        if force_dummy:
            return "dummy"
        return "subproc" if has_processes_alone(kwargs) else None
    if not isinstance(backend, str) or backend not in (*BACKENDS, AUTO):
        raise ValueError(unknown_backend(backend, [AUTO]))
    if force_dummy and backend not in ("dummy", AUTO):
        raise ValueError(f"force_dummy contradicts backend={backend!r}: give one of them")
    return "dummy" if force_dummy else str(backend)


def _workers(num_workers: Any, backend: str | None, chosen: str, num_envs: int, env_type: Any) -> int | None:
    workers = None if num_workers is None else parse_int("num_workers", num_workers, 1)
    if env_type == "retro" and num_envs > 1:
        # Its emulator exists once per process.
        if chosen == "dummy" or workers not in (None, num_envs):
            raise ValueError(
                f"retro's emulator exists once per process: {num_envs} games need a backend with num_workers={num_envs}"
            )
        return num_envs
    if chosen != "dummy":
        return workers
    if workers is not None and backend == "dummy":
        raise ValueError("backend 'dummy' has no workers: leave num_workers out, or give backend='subproc'")
    return None


def _check_arguments(cls: type[VecEnv], backend: str, kwargs: Mapping[str, Any]) -> None:
    own = [name for name in inspect.signature(make_vec_env).parameters if name != "backend_kwargs"]
    known = dict.fromkeys([*own, *arguments_of(cls)])
    check_arguments(f"make_vec_env with backend {backend!r}", kwargs, [name for name in known if name != "env_fns"])


def _mapping(name: str, value: Any, known: Sequence[str] | None = None) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name} must be a dict of arguments by name, not {value!r}")
    for key in value:
        if known is not None and key not in known:
            raise TypeError(f"unknown {name} {key!r}: there are {', '.join(known)}")
    return dict(value)


def _with_gamestate(env_kwargs: dict[str, Any], gamestate: Any, env_type: Any) -> dict[str, Any]:
    if gamestate is None:
        return env_kwargs
    if env_type != "retro":
        raise ValueError(f"gamestate={gamestate!r} is for env_type='retro' only, not {env_type!r}")
    return {"state": gamestate, **env_kwargs}


def _wrappers(wrapper_class: Any) -> tuple[Wrap, ...]:
    if wrapper_class is None:
        return ()
    wrappers = tuple(wrapper_class) if isinstance(wrapper_class, Sequence) else (wrapper_class,)
    for wrap in wrappers:
        if not callable(wrap):
            raise TypeError(f"wrapper_class must be one function or several that wrap an env, not {wrap!r}")
    return wrappers


def _initializer(initializer: Any) -> Callable[..., Any] | None:
    if initializer is not None and not callable(initializer):
        raise TypeError(f"initializer must be a function of mpi_rank and subrank, not {initializer!r}")
    checked: Callable[..., Any] | None = initializer
    return checked
