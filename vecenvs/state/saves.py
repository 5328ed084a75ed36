"""Files with all that a run needs to go on: the states of the envs, of wrappers, and what the program adds."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import gymnasium
import numpy as np

from vecenvs._version import __version__
from vecenvs.array_file import ArrayFile, ArrayFileError, Kind, write
from vecenvs.env_calls import cut_files, file_lengths, writers_of
from vecenvs.errors import StateError, VecEnvError
from vecenvs.state.adapters import qualified
from vecenvs.state.encoding import Decoder, Encoder, EncodingError
from vecenvs.state.env_state import EnvState, captured
from vecenvs.state.packing import Packer, unpacked
from vecenvs.vec_env import VecEnv

FILE = Kind("a file that vecenvs.state.save wrote", "vecenvs-state", 1)
PREVIOUS = ".previous"  # what the name of the save before ends with
_INSIDE = ("venv", "multi", "vec")  # attributes that are what a wrapper or view is made of


def save(vec: Any, path: str | os.PathLike[str], *, extra: Any = None) -> None:
    """Save where a VecEnv is, with its wrappers, so that another program can go on from there bit for bit.

    The file is complete whenever the program ends: an old one is replaced at once, and kept beside the new one, with
    ".previous" at the end of its name.

    Args:
        vec: a VecEnv, with wrappers or without, or a MultiAgentVecEnv. No env may have an unanswered command.
        path: the file.
        extra: what the program needs besides, such as its last observations, its own random generators and how far it
            is. Numbers, texts, arrays, NumPy's generators and containers of these are saved as they are; all else is
            pickled.

    Raises:
        StateError: the state of an env cannot be read.
        VecEnvError: the state of a wrapper cannot be read.
    """
    *around, inner = _layers(vec)
    states: list[EnvState] = inner.get_state()
    kinds: list[dict[str, str]] = []
    rows = []
    for state in states:
        row = {field.name: getattr(state, field.name) for field in fields(EnvState)}
        if row["kind"] not in kinds:
            kinds.append(row["kind"])
        rows.append({**row, "kind": kinds.index(row["kind"]), "trusted": False})
    try:
        wrappers = [captured(layer, None) for layer in around]
    except EncodingError as exc:
        raise VecEnvError(f"the state of a wrapper cannot be saved: {exc}") from exc
    node, pickled = _extra_of(extra)
    files = [*inner.call(file_lengths, None), *({w.path: w.length for w in writers_of(layer)} for layer in around)]
    packer = Packer()
    header = {
        "written_by": {"vecenvs": __version__, "gymnasium": gymnasium.__version__, "numpy": np.__version__,
                       "python": sys.version.split()[0]},
        "layers": [qualified(type(layer)) for layer in around],
        "kinds": kinds,
        "states": packer.packed(rows),
        "wrappers": packer.packed(wrappers),
        "files": {path: length for each in files for path, length in each.items()},
        "extra": packer.packed(node),
    }  # fmt: skip
    path = os.fsdecode(path)
    if os.path.exists(path):
        _keep(path)
    members = [("data", np.frombuffer(b"".join(packer.parts), np.uint8))]
    if pickled is not None:
        members.append(("pickled", np.frombuffer(pickled, np.uint8)))
    write(path, FILE, header, members)


def load(vec: Any, path: str | os.PathLike[str], *, trusted: bool = False) -> Any:
    """Go on from where a VecEnv was saved: put a new one, made in the same way, into the same state.

    The engine and the number of workers may be others. It counts as a reset, without new rows: the program goes on with
    its last observations, which `save` gets as a part of `extra`.

    Args:
        vec: a VecEnv with the same envs, mode and wrappers.
        path: the file.
        trusted: whether to unpickle, and to take classes and functions by their names. Whoever can write the file can
            then run any code here. Without it nothing in the file is executed.

    Returns:
        What `save` got as `extra`.

    Raises:
        VecEnvError: the file is damaged, or of another kind of VecEnv, or needs to be `trusted`. The message has its
            name, and what differs. The envs may need a reset then.
        OSError: the file cannot be opened.
    """
    *around, inner = _layers(vec)
    path = os.fsdecode(path)
    try:
        with ArrayFile(path, FILE) as file:
            header, data = file.header, file.read("data").tobytes()
            pickled = file.read("pickled").tobytes() if "pickled" in file.arrays else None
        if pickled is not None and not trusted:
            raise VecEnvError(f"{path!r} has an extra that is pickled: load it with trusted=True if you trust it")
        layers, names = [qualified(type(layer)) for layer in around], header["layers"]
        if layers != names:
            raise VecEnvError(f"{path!r} is of a VecEnv in the wrappers {names}, and this one is in {layers}")
        rows = unpacked(header["states"], data)
        if len(rows) != inner.num_envs:
            raise VecEnvError(f"{path!r} is of {len(rows)} envs, and this VecEnv has {inner.num_envs}")
        states = [EnvState(**{**row, "kind": header["kinds"][row["kind"]], "trusted": trusted}) for row in rows]
        wrappers = unpacked(header["wrappers"], data)
        extra = Decoder(None, trusted=False).decode(unpacked(header["extra"], data))
        _set(states, [*around, inner])
        for layer, node in zip(around, wrappers, strict=True):
            Decoder(layer, trusted=trusted).decode(node, layer)
        _cut(header["files"], around, inner)
        return extra if pickled is None else pickle.loads(pickled)
    except StateError as exc:
        raise VecEnvError(f"{path!r} does not fit: {exc}") from exc
    except (VecEnvError, OSError):
        raise
    except ArrayFileError as exc:
        raise VecEnvError(f"{exc}{_before(path)}") from exc
    except Exception as exc:  # a file may have anything in it
        raise VecEnvError(f"{path!r} does not fit: {type(exc).__name__}: {str(exc)[:500]}{_before(path)}") from exc


def _cut(lengths: dict[str, int], around: list[Any], inner: Any) -> None:
    """Let monitor files end where they ended at the save."""
    if not all(type(length) is int and length >= 0 for length in lengths.values()):
        raise ValueError("the length of a file is none")
    if lengths:
        inner.call(cut_files, None, lengths)
    for writer in [writer for layer in around for writer in writers_of(layer)]:
        writer.cut(lengths.get(writer.path))


def _set(states: list[EnvState], layered: list[Any]) -> None:
    """Put the envs into their states by the outermost layer that can: wrappers make what they need for rows."""
    for layer in layered:
        try:
            if isinstance(layer, VecEnv):
                layer.set_state(states)
                return
        except VecEnvError as exc:
            if type(exc) is not VecEnvError or layer is layered[-1]:  # else this layer cannot, and nothing was done
                raise


def _before(path: str) -> str:
    return f" (the save before it is {path + PREVIOUS!r})" if os.path.exists(path + PREVIOUS) else ""


def _keep(path: str) -> None:
    """Let the name of the save before be this one's, too, without a moment at which there is none."""
    part = f"{path}.{os.getpid()}.kept"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    try:
        os.link(path, part)
    except OSError:  # a file system without links
        shutil.copyfile(path, part)
    os.replace(part, path + PREVIOUS)


def _layers(vec: Any) -> list[Any]:
    """Return wrappers and views from the outermost inwards, and last the VecEnv in them."""
    found = [vec]
    while (
        inside := next(
            (each for name in _INSIDE if (each := getattr(found[-1], "__dict__", {}).get(name)) is not None), None
        )
    ) is not None:
        found.append(inside)
    if not isinstance(found[-1], VecEnv):
        raise TypeError(f"save and load take a VecEnv, not {vec!r}")
    return found


def _extra_of(extra: Any) -> tuple[Any, bytes | None]:
    """Return plain data for `extra`, or else its pickle."""
    with contextlib.suppress(Exception):  # whatever is not plain, or is none without its class
        node = Encoder(None).encode(extra)
        if "k" not in _tags(node):
            Decoder(None, trusted=False).decode(node)
            return node, None
    return None, pickle.dumps(extra, protocol=5)


def _tags(node: Any) -> Iterator[str]:
    if type(node) is list:
        yield node[0]
    for each in node[1:] if type(node) is list else node.values() if type(node) is dict else ():
        yield from _tags(each)
