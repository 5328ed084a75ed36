"""The functions of the compiled core in Python: the library's cost per env, where nothing is compiled."""

from __future__ import annotations

import math
import reprlib
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import repeat
from operator import itemgetter
from time import perf_counter as clock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs._native import forks
from vecenvs._native.forks import end as end_fork
from vecenvs.batch.values import copy_containers, shown

StepResult = tuple[Any, Any, Any, Any, dict[str, Any]]
EndEpisode = Callable[[int, Any, Any, Any, dict[str, Any]], tuple[Any, dict[str, Any]]]

# Bits of a row's flags.
TERMINATED = 1
TRUNCATED = 2
FIRST = 4  # its observation is the first of an episode
FINAL = 8  # the last observation of the ended episode is in `BatchColumns.finals`
LAST = 16  # its observation is itself the last one of the ended episode, and nowhere else

# By a row's flags. For few rows faster than numpy's operators.
_TERMINATED = bytes(flags & TERMINATED > 0 for flags in range(256))
_TRUNCATED = bytes(flags & TRUNCATED > 0 for flags in range(256))
_ACTIVE = bytes(flags & (FIRST | TERMINATED | TRUNCATED) != FIRST for flags in range(256))

_FLOAT32 = np.dtype(np.float32)  # `astype` takes twice as long with the type itself
_FLOAT64, _BOOL = np.dtype(np.float64), np.dtype(np.bool_)
_NUMBERS = frozenset({float, int, np.float64, np.float32})  # of rewards, usually
_PYTHON = {"f": float, "i": int, "b": bool}  # by the kind of a dtype
_NO = np.bool_(False)  # numpy has only one such object


def step_envs(
    acts: list[Callable[[Any], StepResult]],
    actions: Any,
    cells: Any,
    where: Any,
    rewards: list[Any],
    infos: list[tuple[int, dict[str, Any]]],
    end_episode: EndEpisode,
    take_odd: Callable[[int, Any], None],
    chosen: list[int] | None,
    column: memoryview,
    until: float,
) -> bool:
    """Step the envs `chosen` of a shard, None for all of them, from position len(rewards) on.

    Stop after the env at whose end `clock()` has reached `until`: then len(rewards) envs have been stepped. If an env
    raises, len(rewards) is its position. `acts[local](actions[local])` steps the env `local` of the shard.
    Actions are a sequence, or a contiguous array of which each env gets its row as an array of its own. The observation
    is written to `cells[local][where]`; if that raises, `take_odd(local, obs)` gets it. Columns that `writes_to` takes
    may stand for the cells. The reward is appended to `rewards`, a non-empty info as (local, info) to `infos`. At the
    end of an episode, `end_episode(local, obs, terminated, truncated, info)` returns the observation and the info of
    the row.

    Nothing that an env has returned is kept: the next env may write over it, as the frame of a simulator that they
    share. So infos are copies, and rewards of other types than the usual ones are numbers.

    In the end, if all these rewards are plain numbers, they are written to `column`, the shard's float64 column. Return
    whether they are.

    Only flags that are neither Python's nor numpy's False itself are passed to `is_over`. So a flag that is None or ""
    is an error, and an env with proper flags costs no call.
    """
    no, before = _NO, forks.count
    done = len(rewards)
    timed = until < math.inf
    numbers_given = type(actions) is np.ndarray
    if chosen is None:
        places: Sequence[int] = range(len(acts))
        if done:
            acts, actions, cells = acts[done:], actions[done:], cells[done:]
    else:
        places, left = chosen, chosen[done:]
        acts, cells = [acts[local] for local in left], [cells[local] for local in left]
        actions = actions[left] if numbers_given else map(actions.__getitem__, left)
    if numbers_given:
        actions = rows_of(actions)
    # A list's method called by its name is faster than one looked up beforehand.
    for act, action, cell in zip(acts, actions, cells):  # noqa: B905  of equal lengths; strict= costs time here
        obs, reward, terminated, truncated, info = act(action)
        if forks.count != before:
            end_fork()
        if type(info) is not dict or info:
            info = own_info(info)
        if type(reward) not in _NUMBERS:
            reward = own_reward(reward)
        if (
            (terminated is not False and terminated is not no) or (truncated is not False and truncated is not no)
        ) and is_over(terminated, truncated):
            obs, info = end_episode(places[len(rewards)], obs, terminated, truncated, info)
            forks.leave(before, None)
        try:
            cell[where] = obs
        except Exception:  # whatever an odd value causes
            take_odd(places[len(rewards)], obs)
        if info:
            infos.append((places[len(rewards)], info))
        rewards.append(reward)
        if timed and clock() >= until:
            break
    return _write_numbers(rewards, chosen, column)


def _write_numbers(rewards: list[Any], chosen: list[int] | None, column: memoryview) -> bool:
    try:
        numbers = array("d", rewards)
    except Exception:  # a reward that is no number
        return False
    if chosen is None:
        column[: len(numbers)] = numbers
    else:
        for local, number in zip(chosen, numbers):  # noqa: B905  not all of them may have been stepped
            column[local] = number
    return True


def writes_to(columns: Any) -> bool:  # noqa: ARG001
    """Tell whether `step_envs` writes rows itself to this column, dict or tuple of columns, so that it needs no cells.

    Observations that are not dicts, tuples or arrays of exactly these kinds and shapes go to `take_odd`.
    """
    return False


def own_info(info: Any) -> dict[str, Any]:
    """Return a copy of an env's info, an empty dict for none. TypeError if it is not a dict."""
    if hasattr(info, "keys"):
        copied: dict[str, Any] = copy_containers(info if type(info) is dict else dict(info))
        return copied
    if info is None or (isinstance(info, (int, str, list, tuple)) and not info):
        return {}
    raise TypeError(f"info must be a dict, not {shown(info)}: return {{}} where there is nothing to tell")


def own_reward(reward: Any) -> Any:
    """Return a reward as a number; one that is none as it is, an error of its env as soon as its row is written."""
    try:
        return number_of(reward)
    except Exception:  # whatever an odd value causes
        return reward


def take_batch(column: NDArray[Any], batch: Any, indices: NDArray[np.int64] | None = None, /) -> bool:
    """Write a batch to a column, or to some rows, if it is an array of this very dtype and shape; else return False.

    Rows are written by a contiguous batch alone.
    """
    shape = column.shape if indices is None else (len(indices), *column.shape[1:])
    if type(batch) is not np.ndarray or batch.shape != shape or batch.dtype != column.dtype:
        return False
    if indices is None:
        if batch.ndim == 2 and batch.strides[0] < batch.strides[1]:  # numpy would take rows of few numbers at a time
            for k in range(batch.shape[1]):
                column[:, k] = batch[:, k]
        else:
            column[...] = batch
    elif batch.flags.c_contiguous:
        column[indices] = batch
    else:
        return False
    return True


def write_arrays(column: NDArray[Any], values: list[Any] | tuple[Any, ...], /) -> bool:
    """Write an array to each row of a column, if all are contiguous ones of its dtype and a row's shape; else False."""
    wanted = column.dtype, column.shape[1:]
    if len(values) != len(column) or not all(
        type(value) is np.ndarray and (value.dtype, value.shape) == wanted and value.flags.c_contiguous
        for value in values
    ):
        return False
    for row, value in enumerate(values):
        column[row] = value
    return True


def write_column(column: NDArray[Any], rows: slice | list[int], values: Sequence[Any], /) -> bool:
    """Write a list or a tuple of values to rows of a column of float64, int64 or bool, one after another or a list.

    Return False if one of them is not exactly of Python's type for these numbers, or too large: then some are written.
    """
    if {*map(type, values)} != {_PYTHON[column.dtype.kind]}:
        return False
    try:
        column[rows] = values
    except OverflowError:
        return False
    return True


def write_outcomes(
    rewards: NDArray[np.float64],
    flags: NDArray[np.uint8],
    given: Any,
    terminated: Any,
    truncated: Any,
    began: NDArray[np.int64],
    mark: int,
) -> NDArray[np.int64] | None:
    """Write the outcomes of a step of batched envs to their columns; return the rows whose episodes have ended.

    These rows get the flags of `mark`, too. The rows of `began`, with which episodes begin, get reward 0 and FIRST. If
    the rewards are no contiguous array of float32 or float64, or the others none of bool, of one item per row, nothing
    is written, and None returned.
    """
    fit = all(type(each) is np.ndarray and each.shape == rewards.shape and each.flags.carray
              for each in (given, terminated, truncated))  # fmt: skip
    if not fit or given.dtype not in (_FLOAT32, _FLOAT64) or {terminated.dtype, truncated.dtype} != {_BOOL}:
        return None
    rewards[:] = given
    np.multiply(truncated, np.uint8(TRUNCATED), out=flags)
    flags |= terminated
    ended = flags.nonzero()[0]
    flags[ended] |= mark
    rewards[began] = 0.0
    flags[began] |= FIRST
    return ended


def take_outcomes(
    rewards: NDArray[np.float64], flags: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.uint8], bool, NDArray[np.int64], NDArray[np.int64]]:
    """Return copies of columns: rewards, dones, flags. And whether a row has FIRST; the rows with LAST, with FINAL."""
    last, final = ((flags & np.uint8(mask)).nonzero()[0] for mask in (LAST, FINAL))
    begun = bool((flags & np.uint8(FIRST)).any())
    return as_float32(rewards), flagged(flags, TERMINATED | TRUNCATED), flags.copy(), begun, last, final


def as_float32(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return numbers as float32: infinite where they are too large for it."""
    with np.errstate(over="ignore"):
        return numbers.astype(_FLOAT32)


def unrounded(before: NDArray[np.float64], rewards: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return rewards as they were `before` rounding, but for those that a wrapper has changed since."""
    return np.where(as_float32(before) == rewards, before, rewards)


def flagged(flags: NDArray[np.uint8], mask: int) -> NDArray[np.bool_]:
    """Return whether each row has a flag of `mask`."""
    found: NDArray[np.bool_] = (flags & np.uint8(mask)) != 0
    return found


def plain_result(
    observations: NDArray[Any] | Callable[[], Any],
    rewards: NDArray[np.float64],
    infos: dict[str, Any] | list[dict[str, Any]],
) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
    """Return the result of a step in which no episode has ended: observations, rewards, dones and infos.

    Observations are a column to be copied, or a function that returns them. If `infos` is one info, each env gets a
    copy of it.
    """
    if type(infos) is dict:
        infos = list(map(dict.copy, repeat(infos, len(rewards))))  # the fastest way to many small dicts
    given = observations.copy() if type(observations) is np.ndarray else observations()  # type: ignore[operator]
    return given, as_float32(rewards), np.zeros(len(rewards), np.bool_), infos  # type: ignore[return-value]


def rows_result(
    observations: NDArray[Any] | Callable[[NDArray[np.int64]], Any],
    rewards: NDArray[np.float64],
    flags: NDArray[np.uint8],
    indices: NDArray[np.int64],
    info: dict[str, Any],
) -> tuple[
    Any, NDArray[np.float32], bytes, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_], list[dict[str, Any]]
]:
    """Return some rows: observations, rewards, flags, terminated, truncated, whether a transition, and infos.

    Observations are a column, or a function that returns copies of these rows. Each env gets a copy of `info`.
    """
    given = observations.take(indices, axis=0) if type(observations) is np.ndarray else observations(indices)  # type: ignore[operator]
    found = flags.take(indices).tobytes()
    terminated, truncated, active = (
        np.frombuffer(bytearray(found.translate(table)), np.bool_) for table in (_TERMINATED, _TRUNCATED, _ACTIVE)
    )
    infos = list(map(dict.copy, repeat(info, len(indices))))
    return given, as_float32(rewards.take(indices)), found, terminated, truncated, active, infos


def rows_of(column: NDArray[Any]) -> Sequence[Any]:
    """Return the rows, which share no memory with the column: of one dimension, numpy's scalars."""
    # For few rows this takes a third of the time of list(column), which needs an iterator of numpy's.
    return _items(len(column))(column if column.ndim == 1 else column.copy())


@cache
def _items(count: int) -> Callable[[NDArray[Any]], Sequence[Any]]:
    return itemgetter(*range(count)) if count > 1 else lambda rows: tuple(rows[:count])


def unpack_row(row: Any) -> StepResult:
    """Return what an env's step has returned as a tuple. Python's own error says what is wrong with it."""
    obs, reward, terminated, truncated, info = row
    return obs, reward, terminated, truncated, info


def is_over(terminated: Any, truncated: Any) -> bool:
    """Tell whether an episode has ended. TypeError for a flag that is neither True nor False, nor 1 nor 0."""
    ended = _flag("terminated", terminated)
    return _flag("truncated", truncated) or ended


def _flag(name: str, value: Any) -> bool:
    if value is True or value is False:
        return value
    try:
        given = np.asarray(value)
        number = given.item() if given.dtype.kind in "biu" else None
    except Exception:  # several values, or an object that numpy cannot convert
        number = None
    if number not in (0, 1):
        raise TypeError(f"{name} must be True or False, not {reprlib.repr(value)}")
    return bool(number)


def number_of(reward: Any) -> float:
    """Return a reward as a float. Raise an error if it is not a number, nor an array of one."""
    try:
        return float(array("d", [reward])[0])
    except Exception:  # TypeError; for arrays, before numpy 2.4, a DeprecationWarning if warnings are errors
        given = np.asarray(reward)
        if given.dtype.kind not in "biuf":  # text, None
            raise
    return float(given.item())
