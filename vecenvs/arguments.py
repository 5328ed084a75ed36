"""Checks of what callers pass (indices, seeds, options and others), the same for every method.

`check_` functions raise for a wrong argument; `parse_` functions also return it in one form.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import json
import math
import operator
import os
import time
from collections.abc import Collection, Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import VectorEnv

from vecenvs.batch.space_equality import same_layout
from vecenvs.batch.values import as_array, shown
from vecenvs.errors import NotSteppingError
from vecenvs.vec_env import Indices, VecEnv, batched_env_hint


def check_vec_env(taker: str, given: Any, *, tensors: bool = False) -> None:
    """Raise TypeError if `given` is not a VecEnv, with the way to one; `taker` is the class or function called.

    With `tensors` its rows may be tensors, as those of a VecTorch.
    """
    if isinstance(given, VecEnv):
        layer: Any = given
        while not tensors and layer is not None:
            if getattr(layer, "gives_tensors", False):
                kind = type(layer).__name__
                raise TypeError(
                    f"{taker} takes rows that are arrays, and those of {kind} are tensors: put {kind} around all other "
                    f"wrappers, as in {kind}(VecNormalize(vec)), and no view around it"
                )
            layer = getattr(layer, "venv", None)
        return
    kind = type(given).__name__
    if isinstance(getattr(given, "vec", None), VecEnv):
        kind = f"a view of one, as this {kind} is"
        remedy = "put our wrappers inside and the view around all, as in as_sb3(VecNormalize(vec))"
        if hasattr(given, "flat"):
            remedy = "flat() gives one, with a row for each agent"
    elif isinstance(given, VectorEnv):
        remedy = "from_gymnasium makes one of Gymnasium's vector envs"
    else:
        if any(cls.__module__.startswith("stable_baselines3.") for cls in type(given).__mro__):
            kind = f"Stable-Baselines3's {kind}"
        remedy = "make_vec_env makes one of an env's id, vecenvs.DummyVecEnv one of functions that make an env each"
    raise TypeError(f"{taker} takes a VecEnv, not {kind}: {remedy}")


def listed(given: Any) -> Any:
    """Return an iterator, or another iterable that is not a sequence, as a list; anything else unchanged."""
    iterable = isinstance(given, Iterable) and not isinstance(given, Sequence) and not callable(given)
    try:
        return list(given) if iterable else given
    except TypeError:  # such as an array without axes
        return given


def check_env_fns(env_fns: Any) -> None:
    """Raise if `env_fns` is not a list of functions; the message names the wrong entry."""
    if callable(env_fns) or not isinstance(env_fns, Sequence):
        way = batched_env_hint(env_fns)
        raise TypeError(
            f"env_fns must be a list of functions that make an env each, not {env_fns!r}{f': {way}' if way else ''}"
        )
    if not env_fns:
        raise ValueError("env_fns is empty: give one function per env")
    for i, env_fn in enumerate(env_fns):
        if not callable(env_fn):
            way = batched_env_hint(env_fn) or "give a function that makes an env (lambda: gym.make(...))"
            raise TypeError(f"env_fns[{i}] is {env_fn!r}: {way}")


def arguments_of(cls: type) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a class's constructor, and of its bases' while each one passes `**kwargs` on.

    Those of bases are keyword arguments.
    """
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        of_base = bool(found)
        for parameter in parameters:
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if named and parameter.name not in found:
                kind = parameter.KEYWORD_ONLY if of_base else parameter.kind
                found[parameter.name] = parameter.replace(kind=kind)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


# Our names of arguments of Gymnasium (context) and Stable-Baselines3.
_ELSEWHERE = {"context": "start_method", "vec_env_cls": "backend"}


def check_arguments(taker: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for an argument that is not known; the message has the nearest known one, and all of them."""
    for name in given:
        if name not in known:
            elsewhere = [ours for ours in (_ELSEWHERE.get(name, ""),) if ours in known]
            raise TypeError(
                f"{taker} has no argument {name!r}{did_you_mean(name, known, elsewhere)}: it has {', '.join(known)}"
            )


def did_you_mean(name: Any, known: Iterable[str], meant: Sequence[str] = ()) -> str:
    """Return " (did you mean 'x'?)" with `meant`, or the nearest of `known`; "" if none is near."""
    near = meant or difflib.get_close_matches(str(name).lower(), list(known), 2, 0.65)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def parse_int(name: str, value: Any, least: int | None = None) -> int:
    """Return an int. TypeError for anything else, True and 2.0 included; ValueError if it is less than `least`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")
    return number


MOST_ENVS = 2**24  # more than any machine has memory for, but a list of this length does fit


def parse_count(name: str, value: Any) -> int:
    """Return a number of envs; TypeError or ValueError for anything else."""
    number = parse_int(name, value, 1)
    if number > MOST_ENVS:
        raise ValueError(f"{name} must be at most {MOST_ENVS}, not {number}")
    return number


def parse_number(name: str, value: Any, what: str = "a number") -> float:
    """Return a number as a float. TypeError for anything else, True included."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (Real, np.integer, np.floating)):
        raise TypeError(f"{name} must be {what}, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large a number: {shown(value)}") from None


def parse_rates(name: str, given: Any, whats: str, each: str, does: str) -> tuple[float, float]:
    """Return a limit of what goes on at once, and one per second; infinity for none.

    TypeError unless it is None or a pair, ValueError for a limit that is not more than 0.
    """
    if given is None:
        return math.inf, math.inf
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"{name} must be a pair ({whats} at once, {each} per second) or None, not {given!r}")
    at_once, per_second = given
    found = math.inf if at_once is None else parse_int(f"{name}[0], {whats} at once,", at_once)
    rate = math.inf if per_second is None else parse_number(f"{name}[1], {each} per second,", per_second)
    for value in (found, rate):
        if not value > 0:
            raise ValueError(f"{name}={given!r} lets no env {does}: each limit must be more than 0; None for none")
    return found, rate


def check_callback(name: str, value: Any, what: str) -> None:
    """Raise TypeError unless an argument is None or can be called; `what` is what it is called with."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a function of {what}, or None, not {value!r}")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise ValueError if `value` is not one of `choices`."""
    if not isinstance(value, str) or value not in choices:  # in this order: an array equals a word item by item
        raise ValueError(f"{name} {value!r} is none of {', '.join(choices)}")


def check_observation_mode(mode: Any) -> None:
    """Raise unless this is "same", "different", or two spaces, of a batch and of one env, as in Gymnasium."""
    if not isinstance(mode, tuple):
        check_choice("observation_mode", mode, ("same", "different"))
    elif len(mode) != 2 or not all(isinstance(space, Space) for space in mode):
        raise TypeError(f"observation_mode has to be a word, or the spaces of a batch and of one env, not {mode!r}")


def observation_space_of(found: Space[Any], mode: str | tuple[Space[Any], Space[Any]]) -> Space[Any]:
    """Return the space of one env's observations: that in `mode`, or `found`, which env 0 has."""
    if isinstance(mode, str):
        return found
    if not same_layout(mode[1], found):
        raise ValueError(f"observation_mode has {mode[1]} for one env, and env 0 {found}: only bounds may differ")
    return mode[1]


def parse_flag(name: str, value: Any) -> bool:
    """Return a bool; TypeError for a value that has no truth value, such as an array."""
    try:
        return bool(value)
    except Exception:  # numpy's ValueError, or what a foreign __bool__ raises
        raise TypeError(f"{name} must be True or False, not {value!r}") from None


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. ValueError for anything else, and for text nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_path(name: str, value: Any) -> str:
    """Return a path as text; TypeError for what is not a path."""
    try:
        return os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{name} must be a path, not {value!r}") from None


def parse_path(name: str, value: Any) -> str:
    """Return a path as absolute text; TypeError for what is not a path."""
    return os.path.abspath(check_path(name, value))


def check_function(function: Any) -> None:
    """Raise TypeError if `function` cannot be called."""
    if not callable(function):
        raise TypeError(f"function must be a function of an env and the arguments, not {function!r}")


def check_portion(due: int, min_envs: Any, max_envs: Any) -> None:
    """Raise for numbers of rows that `recv` cannot return while `due` rows are pending."""
    if not due:
        raise NotSteppingError("recv while nothing is pending: send or reset_async first")
    if type(min_envs) is not int:
        parse_int("min_envs", min_envs)
    if max_envs is not None and type(max_envs) is not int:
        parse_int("max_envs", max_envs)
    if not 1 <= min_envs <= due:
        raise ValueError(f"min_envs={min_envs} while {due} envs have a command pending: give 1 to {due}")
    if max_envs is not None and max_envs < min_envs:
        raise ValueError(f"max_envs={max_envs} is less than min_envs={min_envs}")


def parse_timeout(timeout: float | None, name: str = "timeout") -> float | None:
    """Return a number of seconds, at least 0, as a float; None for no limit."""
    if timeout is None:
        return None
    seconds = parse_number(name, timeout, "seconds or None")
    if not seconds >= 0:
        raise ValueError(f"{name} must be seconds from 0 on, not {timeout!r}")
    return seconds


def parse_limit(timeout: float | None, name: str) -> float:
    """Return a number of seconds, at least 0, as a float; infinity for no limit."""
    seconds = parse_timeout(timeout, name)
    return math.inf if seconds is None else seconds


def parse_directory(name: str, given: Any) -> str:
    """Return the path of a directory, which may have to be made: whole, as a worker may have another working one."""
    try:
        path = str(os.path.abspath(os.fspath(given)))
    except TypeError:
        raise TypeError(f"{name} must be a path or None, not {given!r}") from None
    if os.path.exists(path) and not os.path.isdir(path):
        raise NotADirectoryError(f"{name} {path!r} is a file: give a directory")
    return path


def deadline_of(timeout: float | None) -> float | None:
    """Return the time, on the monotonic clock, at which a timeout that starts now ends; None for no limit."""
    seconds = parse_timeout(timeout)
    return None if seconds is None else time.monotonic() + seconds


def check_names(what: str, names: Any, kind: str = "attribute names") -> tuple[str, ...]:
    """Return a sequence of distinct names as a tuple; TypeError or ValueError for anything else."""
    names = listed(names)
    found = tuple(names) if isinstance(names, Sequence) and not isinstance(names, str) else None
    if found is None or not all(isinstance(name, str) and name for name in found):
        raise TypeError(f"{what} must be a tuple of {kind}, not {names!r}")
    if len(set(found)) != len(found):
        raise ValueError(f"{what} has a name twice: {names!r}")
    return found


def split(n: int, num_workers: int) -> list[range]:
    """Divide n envs into contiguous shards whose sizes differ by at most one, larger ones first."""
    if not 1 <= parse_int("num_workers", num_workers) <= n:
        raise ValueError(f"num_workers={num_workers} for {n} envs: give 1 to {n}, or None for one per usable core")
    size, rest = divmod(n, num_workers)
    starts = [worker * size + min(worker, rest) for worker in range(num_workers + 1)]
    return [range(a, b) for a, b in itertools.pairwise(starts)]


def parse_indices(indices: Indices, n: int) -> list[int]:
    """Return env indices as a list. IndexError for an unknown one, ValueError for a repeated one or a wrong mask."""
    if indices is None:
        return list(range(n))
    try:
        array = np.atleast_1d(as_array(indices))
    except ValueError:  # lists of different lengths
        array = np.zeros((0, 0))
    if array.size == 0 and array.ndim == 1:
        return []
    if array.ndim != 1 or array.dtype.kind not in "biu":
        raise TypeError(f"indices must be ints or a bool mask of length {n}, not {indices!r}")
    if array.dtype.kind == "b":
        if len(array) != n:
            raise ValueError(f"a mask of length {len(array)} for {n} envs: give one bool per env")
        return [*np.flatnonzero(array).tolist()]
    found: list[int] = array.tolist()
    if min(found) < 0 or max(found) >= n:
        index = next(index for index in found if not 0 <= index < n)
        raise IndexError(f"no env {index}: this VecEnv has envs 0 to {n - 1}")
    if len(set(found)) != len(found):
        twice = sorted({i for i in found if found.count(i) > 1})
        raise ValueError(f"indices name env {', '.join(map(str, twice))} more than once")
    return found
