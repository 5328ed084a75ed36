"""Take an env with its wrappers apart into plain data, and put these into another env of the same function.

Plain data are None, bool, int, float, str, bytes, and lists: a tag, then what the value consists of. The only other
leaves are arrays, so a file needs no pickle. What is met a second time is a reference to the first.

Objects keep their identity: those of the other env that stand at the same place get the attributes, so that what refers
to them (methods, closures, libraries) goes on to. A global of the env's modules and classes is found by its name
instead, and what is an item of one (a table's entry) is copied, as other episodes refer to it. What is no state stays
what the other env has: functions, EnvSpecs, models of simulators, loggers, windows.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import io
import itertools
import logging
import pathlib
import random
import re
import struct
import sys
import sysconfig
import threading
import types
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import Env, Wrapper
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space

from vecenvs.env_calls import layers
from vecenvs.state.adapters import Context, adapter_of, qualified
from vecenvs.state.packing import axes_of
from vecenvs.vec_env import VecEnv

PLAIN = frozenset({type(None), bool, int, float, str, bytes})
GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


class _Missing:
    """Nothing stands at a place."""


_MISSING: Any = _Missing()
_RNG = ("_np_random", "_np_random_seed")  # what Gymnasium's Env has beside the state that an env tells itself
_INNER = ("feature_space", "node_space", "edge_space")  # of Sequence and Graph
_SPAWN = ("entropy", "spawn_key", "pool_size", "n_children_spawned")  # what a SeedSequence is made with

_NAMED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, np.ufunc)
_METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_KEPT = (VecEnv, EnvSpec, np.dtype, struct.Struct, logging.Logger, pathlib.PurePath, re.Pattern, io.IOBase,
         threading.Thread, threading.Event, type(threading.Lock()), type(threading.RLock()))  # fmt: skip
# By module, or by the first letters of their names: not imported here.
_KEPT_OF = ("moviepy", "torch:device", "vecenvs.wrappers.kept_rows", "vecenvs.wrappers.results_writer",
            "mujoco._structs:MjModel", "mujoco._structs:Mjv")  # fmt: skip
_IN_PYTHON = 1 << 9  # Python's Py_TPFLAGS_HEAPTYPE
_IN_PLACE = ("x", "S", "v")  # tags of what is never made anew
_FOREIGN = ("builtins", "gymnasium", "vecenvs")  # their globals are no env's
_LIBRARIES = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_MOST = 1 << 16  # values that are looked up where tables are in tables
_PYGAME = ("pygame",)  # what it has in C: windows, clocks, fonts


class EncodingError(ValueError):
    """Raised for a value that cannot be taken apart, and for data that do not fit: says where, and why."""


class _Global(NamedTuple):
    """Where a global is: the namespace of a module or class, the name in it, and the keys of tables that lead on."""

    space: str
    path: tuple[Any, ...]


class _Place:
    """Where in the objects around `root` an encoder or decoder is. `action` is the last one of the episode, if any."""

    def __init__(self, root: Any, action: Any = None) -> None:
        self._root = root
        self._layers = layers(root) if isinstance(root, Env) else [root]
        self._kinds = tuple(map(type, self._layers))
        self._action = action
        self._globals = _globals_of(self._kinds).known()
        self._path: list[tuple[Any, str]] = []  # objects, and which of their attributes; left as it is by exceptions

    def context(self) -> Context:
        """Return what adapters are told."""
        return Context(self._path[-1][0] if self._path else None, self._layers, self._action)

    def where(self, value: Any) -> _Global | None:
        """Tell which global of the env's modules and classes, or part of one, a value is."""
        where = self._globals.get(id(value))
        found = where is not None and self.found(where) is value and not any(value is layer for layer in self._layers)
        return where if found else None

    def found(self, where: _Global) -> Any:
        """Return a global; `_MISSING` if it is not there."""
        value: Any = _spaces_of(self._kinds).get(where.space, {})
        try:
            for key in where.path:
                value = value[key]
        except (LookupError, TypeError):  # it is another one since
            return _MISSING
        return value

    def _name_in(self, owner: Any, method: Any) -> str:
        """Return the name by which an object has a method: not that of its function, if this is private, say."""
        of, members = getattr(method, "__func__", method), (vars(cls).items() for cls in type(owner).__mro__)
        for name in (method.__name__, *(name for each in members for name, value in each if value is of)):
            if getattr(owner, name, None) == method:
                return str(name)
        raise self.fault(f"a method {method.__name__} that a {qualified(type(owner))} does not have by this name")

    def fault(self, why: str) -> EncodingError:
        """Return an error that names the layer and the attribute."""
        owner, names = self._layers[0], list[str]()
        for holder, name in self._path:
            if any(holder is layer for layer in self._layers):
                owner, names = holder, []
            names.append(name)
        at = f", attribute {'.'.join(names)!r}" if names else ""
        return EncodingError(f"{type(owner).__name__}{at}: {why}")


class Encoder(_Place):
    """Takes values apart. What several of them have in common is written once."""

    def __init__(self, root: Any, action: Any = None, owners: Collection[int] = ()) -> None:
        super().__init__(root, action)
        self._owners = owners  # the ids of arrays that are written themselves beside views of them
        self._hidden: dict[int, list[int]] = {}  # of arrays with views: their bytes, less those of each view
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no id is used twice

    def encode(self, value: Any) -> Any:
        """Return plain data that a Decoder makes the value of. EncodingError if there are none."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if id(value) in self._seen:
            return ["=", self._seen[id(value)]]
        if kind is tuple:
            return ["t", *map(self.encode, value)]
        encode = self._BY_TYPE.get(kind)
        if encode is None and (node := self._encode_immutable(kind, value)):
            return node
        self._note(value)
        node = self._encode_object(kind, value) if encode is None else encode(self, value)
        where = self.where(value)
        plain = where is not None and all(type(key) in PLAIN for key in where.path)
        return ["g", where.space, [*where.path], node] if where and plain else node

    def owners(self) -> Collection[int]:
        """Return the ids of arrays of which views have been encoded, as have they themselves, or all their parts."""
        parts = self._hidden.items()
        return {each for each, sizes in parts if each in self._seen or (len(sizes) > 2 and sum(sizes) <= 0)}

    def _note(self, value: Any) -> None:
        self._seen[id(value)] = len(self._alive)
        self._alive.append(value)

    def _encode_immutable(self, kind: type, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return ["e", qualified(kind), self.encode(value.value if isinstance(value, enum.Flag) else value.name)]
        if isinstance(value, np.generic):
            return ["s", np.array(value)]
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ["n", qualified(kind), *map(self.encode, value)]
        if kind is complex:
            return ["c", value.real, value.imag]
        if kind is slice or kind is range:
            return [kind.__name__, *map(self.encode, (value.start, value.stop, value.step))]
        if kind in _METHODS and not isinstance(value.__self__, (types.ModuleType, type(None))):
            return ["m", self.encode(value.__self__), self._name_in(value.__self__, value)]
        if isinstance(value, _NAMED):
            return ["f", _name_of(value)]
        kept = isinstance(value, _KEPT) or _is_of(kind, _KEPT_OF)
        if not kept and _is_of(kind, _PYGAME) and not _is_python(kind):
            kept = _arguments_of(kind, value) is None
        return ["k"] if kept and value is not self._root else None

    def _encode_object(self, kind: Any, value: Any) -> Any:
        name = qualified(kind)
        if isinstance(value, Space):
            return ["S", *(self.encode(vars(part).get("_np_random")) for part in _parts(value))]
        adapter = adapter_of(kind)
        if adapter is not None:
            try:
                state = adapter.get(value, self.context())
            except Exception as exc:
                raise self.fault(f"its adapter raised {type(exc).__name__}: {exc}") from exc
            return ["x", name, self.encode(state)]
        if issubclass(kind, Env) and callable(getattr(kind, "get_state", None)) and hasattr(kind, "set_state"):
            own = _RNG if not isinstance(value, Wrapper) else ()
            rng = {each: self.encode(vars(value).get(each)) for each in own}
            return ["o", name, rng, self.encode(value.get_state())]
        if not _is_python(kind):
            arguments = _arguments_of(kind, value)
            if arguments is not None:
                return ["z", name, *map(self.encode, arguments)]
            raise self.fault(
                f"a {name} is no plain data: give its class an adapter (vecenvs.state.register), or the env get_state "
                "and set_state, or pass episode_seeds=True, by which an episode can be replayed"
            )
        found: dict[str, Any] = {}
        for attribute, each in attributes(value).items():
            self._path.append((value, attribute))
            found[attribute] = self.encode(each)
            self._path.pop()
        return ["o", name, found]

    def _dict(self, value: dict[Any, Any]) -> Any:
        if all(type(key) is str for key in value) and "@" not in value:  # which has a meaning in files
            return ["d", {key: self.encode(each) for key, each in value.items()}]
        return ["D", *(self.encode(each) for item in value.items() for each in item)]

    def _array(self, value: Any) -> Any:
        if not value.dtype.hasobject:
            owner = _owner_of(value)
            whole = owner.flags.c_contiguous or owner.flags.f_contiguous
            if owner is not value and whole and self.where(owner) is None:
                self._hidden.setdefault(id(owner), [owner.nbytes]).append(-value.nbytes)
            if owner is value or id(owner) not in self._owners:
                return ["a", value.copy("K")]
            at = _address(value) - _address(owner)
            return ["V", self.encode(owner), np.empty(0, value.dtype), [*value.shape], [*value.strides], at]
        return ["A", self.encode(value.shape), *map(self.encode, value.ravel())]

    def _generator(self, value: Any) -> Any:
        bits = value.bit_generator
        if type(bits).__name__ not in GENERATORS:
            raise self.fault(f"a random generator by {type(bits).__name__}: take one of {', '.join(GENERATORS)}")
        seeds: Any = bits.seed_seq
        known = isinstance(seeds, np.random.SeedSequence)
        return [
            "G",
            self.encode(bits.state),
            self.encode(_spawn_of(seeds) if known else None),
        ]

    _BY_TYPE: ClassVar[dict[type, Callable[[Encoder, Any], Any]]] = {
        list: lambda self, value: ["l", *map(self.encode, value)],
        dict: _dict,
        np.ndarray: _array,
        np.random.Generator: _generator,
        np.random.RandomState: lambda self, value: ["R", self.encode(value.get_state(legacy=False))],
        random.Random: lambda self, value: ["r", self.encode(value.getstate())],
        functools.partial: lambda self, value: ["p", *map(self.encode, (value.func, value.args, value.keywords))],
        OrderedDict: lambda self, value: ["O", *map(self.encode, value.items())],
        defaultdict: lambda self, value: ["F", self.encode(value.default_factory), *map(self.encode, value.items())],
        deque: lambda self, value: ["q", value.maxlen, *map(self.encode, value)],
        set: lambda self, value: ["set", *map(self.encode, value)],
        frozenset: lambda self, value: ["frozenset", *map(self.encode, value)],
        bytearray: lambda _, value: ["bytearray", bytes(value)],
        memoryview: lambda self, value: ["v", self.encode(value.obj)],
        array: lambda _, value: ["array", value.typecode, value.tobytes()],
    }


class Decoder(_Place):
    """Puts what an Encoder returned into `root` and what it refers to.

    Unless `trusted`, it takes no class, function or method by its name but those that stand at the same place.
    """

    def __init__(self, root: Any, *, trusted: bool) -> None:
        super().__init__(root)
        self._trusted = trusted
        self._made: list[Any] = []
        self._used: dict[int, Any] = {}  # what has got a state stands for nothing else
        self._named_here: Any = _MISSING  # the global to which the next value belongs

    def decode(self, node: Any, at: Any = _MISSING) -> Any:
        """Return the value of plain data; what stands `at` its place is used for it where that is possible."""
        if type(node) is not list:
            return node
        try:
            decode = self._BY_TAG[node[0]]
        except (LookupError, TypeError):
            raise self.fault(f"damaged data: {node[:1]!r} is no tag") from None
        return decode(self, at, *node[1:])

    def _note(self, value: Any) -> Any:
        self._made.append(value)
        self._used[id(value)] = value
        return value

    def _here(self, at: Any, kind: type, new: Callable[[], Any]) -> Any:
        if self._fits(at, kind):
            return self._note(at)
        if type(at) is kind:
            self._used.update((id(part), part) for part in _parts_of(at))  # its places are read alone
        return self._note(new())

    def _fits(self, at: Any, kind: type) -> bool:
        """Tell whether the value that is at the place can take the state: others refer to globals and their items."""
        if type(at) is not kind or id(at) in self._used:
            return False
        return at is self._named_here or self.where(at) is None

    def _global(self, at: Any, space: str, path: list[Any], node: Any) -> Any:
        """Return the value of a global: of one that has a name, and stands here, itself, else what is equal to it.

        Tables are not written into: other episodes have the same items, or an item was another one then.
        """
        found = self.found(_Global(space, tuple(path)))
        alike = type(at) is type(found)
        own = alike and at is not found and self.where(at) is None
        if at is found and len(path) == 1:
            self._named_here, own = at, True
        if not own and found is not _MISSING:
            self._used[id(found)] = found
        allowed = self._trusted or (alike and node[0] == "o")
        if own or found is _MISSING or not allowed or node[0] in _IN_PLACE:
            return self.decode(node, at)
        number, value = len(self._made), self.decode(node, found)
        with contextlib.suppress(EncodingError):  # what is there now cannot be taken apart, and so is not equal
            if _is_python(value.__class__) and same(value, found):
                self._made[number] = value = found  # one that others ask for by `is`
        return value

    def _later(self, make: Callable[[], Any]) -> Any:
        """Return, with its number, what can be made only when its parts are."""
        number = len(self._made)
        self._made.append(_MISSING)
        self._made[number] = value = make()
        return value

    def _again(self, _: Any, number: int) -> Any:
        if self._made[number] is _MISSING:
            raise self.fault("it refers to what has to be made after it, as a frozenset's item to that frozenset")
        return self._made[number]

    def _items(self, nodes: Iterable[Any], now: Any = ()) -> list[Any]:
        now, found = list(now), list[Any]()
        for position, node in enumerate(nodes):
            found.append(self.decode(node, now[position] if position < len(now) else _MISSING))
            if found[-1] is _MISSING:
                raise self.fault(f"item {position} is nothing that can be made anew")
        return found

    def _class(self, name: str, at: Any, base: type | None = None) -> Any:
        """Return the class of that name: that of what stands here, or one below `base`, or if trusted any."""
        if qualified(type(at)) == name:
            return type(at)
        found = _imported(name)
        if isinstance(found, type) and (self._trusted or (base is not None and issubclass(found, base))):
            return found
        here = "nothing" if at is _MISSING else f"a {qualified(type(at))}"
        remedy = " (trusted=True makes one)" if isinstance(found, type) else " (import its module first)"
        raise self.fault(f"it was a {name}, here is {here}{remedy}")

    def _object(self, at: Any, name: str, state: dict[str, Any], own: Any = _MISSING) -> Any:
        cls = self._class(name, at)
        now: dict[str, Any] = attributes(at) if type(at) is cls else {}
        value = self._here(at, cls, lambda: _bare(cls))
        new: dict[str, Any] = {}
        for attribute, node in state.items():
            self._path.append((value, attribute))
            new[attribute] = self.decode(node, now.get(attribute, _MISSING))
            self._path.pop()
        if own is not _MISSING:
            value.set_state(self.decode(own))
        for attribute, each in new.items():
            if each is not _MISSING:
                object.__setattr__(value, attribute, each)
        for attribute in attributes(value).keys() - new.keys() if own is _MISSING else ():
            object.__delattr__(value, attribute)
        return value

    def _space(self, at: Any, *generators: Any) -> Any:
        if not isinstance(at, Space):
            raise self.fault("it was a space, which the new env does not have there")
        self._note(at)
        for part, node in zip(_parts(at), generators, strict=True):
            vars(part)["_np_random"] = self.decode(node, vars(part).get("_np_random"))
        return at

    def _adapted(self, at: Any, name: str, state: Any) -> Any:
        kind: Any = type(at)
        adapter = adapter_of(kind)
        if adapter is None or qualified(kind) != name:
            raise self.fault(f"it was a {name} with an adapter, here is a {qualified(kind)}")
        self._note(at)
        adapter.set(at, self.decode(state))
        return at

    def _named(self, at: Any, name: str) -> Any:
        found = at if isinstance(at, _NAMED) and _name_of(at) == name else _imported(name) if self._trusted else None
        if not isinstance(found, _NAMED):
            raise self.fault(f"it was {name}, which the new env does not have there")
        return found

    def _method(self, at: Any, owner: Any, name: str) -> Any:
        if not (self._trusted or (type(at) in _METHODS and self._name_in(at.__self__, at) == name)):
            raise self.fault(f"it was the method {name}, which the new env does not have there")
        return getattr(self.decode(owner, getattr(at, "__self__", _MISSING)), name)

    def _list(self, at: Any, *nodes: Any) -> Any:
        value = self._here(at, list, list)
        value[:] = self._items(nodes, at if type(at) is list else ())
        return value

    def _dict(self, at: Any, nodes: dict[str, Any]) -> Any:
        value, now = self._here(at, dict, dict), at if type(at) is dict else {}
        return self._refill(value, {key: self.decode(node, now.get(key, _MISSING)) for key, node in nodes.items()})

    def _pairs(self, at: Any, *nodes: Any) -> Any:
        value, now, new = self._here(at, dict, dict), at if type(at) is dict else {}, {}
        for place in range(0, len(nodes), 2):
            key = self.decode(nodes[place])
            new[key] = self.decode(nodes[place + 1], now.get(key, _MISSING))
        return self._refill(value, new)

    def _refill(self, value: Any, new: dict[Any, Any]) -> Any:
        if list(value) != list(new):  # its order counts
            value.clear()
        value.update((key, each) for key, each in new.items() if each is not _MISSING)
        return value

    def _array(self, at: Any, given: Any) -> Any:
        fits = type(at) is np.ndarray and (at.dtype, at.shape) == (given.dtype, given.shape) and at.flags.writeable
        fits = fits and axes_of(at) == axes_of(given)  # by which sums have their last bits
        if fits and at.base is not None:  # else a part of a table, or the memory of another array here
            owner = _owner_of(at)
            fits = owner.size <= at.size and self._fits(owner, np.ndarray)
            self._used[id(owner)] = owner
        value = self._here(at if fits else None, np.ndarray, lambda: given.copy("K"))
        value[...] = given
        return value

    def _part(self, at: Any, owner: Any, kind: Any, shape: list[int], strides: list[int], place: int) -> Any:
        """Return a view of an array. NumPy checks that it lies within."""

        def make() -> Any:
            whole = self.decode(owner, _owner_of(at) if type(at) is np.ndarray else _MISSING)
            if type(whole) is not np.ndarray or whole.dtype.hasobject:
                raise self.fault("damaged data: a view of what has no memory of numbers")
            memory = whole if whole.flags.c_contiguous else whole.T
            value = np.ndarray(shape, kind.dtype, memory, place, strides)
            same = type(at) is np.ndarray and (at.dtype, at.shape) == (value.dtype, value.shape)
            return at if same and (_address(at), at.strides) == (_address(value), value.strides) else value

        return self._later(make)

    def _view(self, at: Any, node: Any) -> Any:
        self._note(at)
        if type(at) is not memoryview or self.decode(node, at.obj) is not at.obj:
            raise self.fault("it was a view of memory that the new env does not have there")
        return at

    def _objects(self, at: Any, shape: Any, *nodes: Any) -> Any:
        value = self._note(np.empty(self.decode(shape), object))
        value.ravel()[:] = None
        for place, each in enumerate(self._items(nodes, at.ravel() if type(at) is np.ndarray else ())):
            value.reshape(-1)[place] = each
        return value

    def _generator(self, at: Any, state: Any, spawn: Any) -> Any:
        state, spawn = self.decode(state), self.decode(spawn)
        if state["bit_generator"] not in GENERATORS:
            raise self.fault(f"a random generator by {state['bit_generator']!r}")
        now: Any = getattr(getattr(at, "bit_generator", None), "seed_seq", None)
        same = type(at) is np.random.Generator and type(at.bit_generator).__name__ == state["bit_generator"]
        if not (same and _spawn_of(now) == spawn and self._fits(at, np.random.Generator)):
            seeds = None if spawn is None else np.random.SeedSequence(**spawn)
            at = np.random.Generator(getattr(np.random, state["bit_generator"])(seeds))
        at.bit_generator.state = state
        self._used[id(at)] = at
        return at

    def _old_generator(self, at: Any, kind: type, set_state: str, state: Any) -> Any:
        value = self._here(at, kind, kind)
        getattr(value, set_state)(self.decode(state))
        return value

    def _enum(self, at: Any, name: str, member: str) -> Any:
        cls = self._class(name, at, enum.Enum)
        return cls(member) if issubclass(cls, enum.Flag) else cls[member]

    def _named_tuple(self, at: Any, name: str, *nodes: Any) -> Any:
        return tuple.__new__(self._class(name, at, tuple), self._items(nodes, at if isinstance(at, tuple) else ()))

    def _defaults(self, at: Any, factory: Any, *nodes: Any) -> Any:
        value = self._note(defaultdict(None))
        value.default_factory = self.decode(factory, getattr(at, "default_factory", _MISSING))
        value.update(self._items(nodes))
        return value

    def _ordered(self, _: Any, *nodes: Any) -> Any:
        value = self._note(OrderedDict())
        value.update(self._items(nodes))
        return value

    def _deque(self, at: Any, maxlen: int | None, *nodes: Any) -> Any:
        value = self._note(deque(maxlen=maxlen))
        value.extend(self._items(nodes, at if type(at) is deque else ()))
        return value

    def _set(self, _: Any, *nodes: Any) -> Any:
        value = self._note(set())
        value.update(self._items(nodes))
        return value

    def _made_by(self, at: Any, name: str, *nodes: Any) -> Any:
        return self._later(lambda: self._class(name, at)(*self._items(nodes)))

    def _partial(self, at: Any, *nodes: Any) -> Any:
        now = (at.func, at.args, at.keywords) if type(at) is functools.partial else ()

        def make() -> Any:
            function, args, kwargs = self._items(nodes, now)
            return functools.partial(function, *args, **kwargs)

        return self._later(make)

    _BY_TAG: ClassVar[dict[str, Callable[..., Any]]] = {
        "=": _again,
        "g": _global,
        "V": _part,
        "k": lambda _, at: at,
        "t": lambda self, at, *nodes: tuple(self._items(nodes, at if isinstance(at, tuple) else ())),
        "s": lambda _, __, given: given[()],
        "c": lambda _, __, real, imag: complex(real, imag),
        "slice": lambda self, _, *nodes: slice(*self._items(nodes)),
        "range": lambda self, _, *nodes: range(*self._items(nodes)),
        "frozenset": lambda self, _, *nodes: self._later(lambda: frozenset(self._items(nodes))),
        "bytearray": lambda self, _, data: self._note(bytearray(data)),
        "array": lambda self, _, code, data: self._note(array(code, data)),
        "R": lambda self, at, state: self._old_generator(at, np.random.RandomState, "set_state", state),
        "r": lambda self, at, state: self._old_generator(at, random.Random, "setstate", state),
        "G": lambda self, at, *nodes: self._later(lambda: self._generator(at, *nodes)),
        "l": _list,
        "d": _dict,
        "D": _pairs,
        "a": _array,
        "A": _objects,
        "p": _partial,
        "O": _ordered,
        "F": _defaults,
        "q": _deque,
        "v": _view,
        "set": _set,
        "e": _enum,
        "n": _named_tuple,
        "f": _named,
        "m": _method,
        "o": _object,
        "S": _space,
        "x": _adapted,
        "z": _made_by,
    }


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that an object of a Python class has itself."""
    kind: Any = type(value)
    found = dict(getattr(value, "__dict__", ()))
    for name in _slots(kind):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    return found


@functools.lru_cache(maxsize=1024)
def _slots(kind: Any) -> tuple[str, ...]:
    classes = (cls for cls in kind.__mro__ if cls.__flags__ & _IN_PYTHON)  # dates have members that are none of these
    members = ((name, each) for cls in classes for name, each in vars(cls).items())
    return tuple(name for name, each in members if isinstance(each, types.MemberDescriptorType) and name != "__dict__")


@functools.lru_cache(maxsize=1024)
def _is_python(kind: Any) -> bool:
    """Tell whether objects of a class have nothing but attributes: those of libraries in C are larger."""
    pointers: int = len(_slots(kind)) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return bool(kind.__basicsize__ == object.__basicsize__ + 8 * pointers)


def _arguments_of(kind: Any, value: Any) -> tuple[Any, ...] | None:
    """Return what an object in C is made of, if its class tells that for its pickles, and nothing else counts."""
    own = kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__
    if not own or getattr(value, "__dict__", None):
        return None
    made: Any = value.__reduce_ex__(2)
    return made[1] if type(made) is tuple and len(made) == 2 and made[0] is kind else None


def _is_of(kind: type, names: tuple[str, ...]) -> bool:
    """Tell whether a class is of one of these modules, or its name begins so."""
    name = qualified(kind)
    return any(name.startswith(each if ":" in each else (f"{each}.", f"{each}:")) for each in names)


def _spawn_of(seeds: Any) -> dict[str, Any]:
    """Return what a SeedSequence is made with."""
    found = {each: getattr(seeds, each, None) for each in _SPAWN}
    return {each: value.tolist() if isinstance(value, np.ndarray) else value for each, value in found.items()}


def _parts(space: Any) -> list[Any]:
    """Return a space and those that it consists of."""
    inner = getattr(space, "spaces", ())
    parts = [*(inner.values() if isinstance(inner, dict) else inner), *(getattr(space, each, None) for each in _INNER)]
    return [space, *(part for each in parts if each is not None for part in _parts(each))]


@functools.lru_cache(maxsize=256)
def _spaces_of(kinds: tuple[type, ...]) -> dict[str, Mapping[str, Any]]:
    """Return the namespaces of an env's classes, their modules and modules of programs that these import, by name."""
    found: dict[str, Mapping[str, Any]] = {}
    for cls in (cls for kind in kinds for cls in kind.__mro__):
        module = qualified(cls).partition(":")[0]
        if module.partition(".")[0] not in _FOREIGN:
            found[qualified(cls)] = vars(cls)
            if module in sys.modules:
                found[module] = vars(sys.modules[module])
    tops = {name.partition(".")[0].partition(":")[0] for name in found}
    values = [value for space in found.values() for value in list(space.values())]
    for each in [value for value in values if type(value) is types.ModuleType]:  # no lazy one, which would be imported
        own = each.__name__.partition(".")[0] in tops or not _is_installed(each)
        if own and sys.modules.get(each.__name__) is each:
            found.setdefault(each.__name__, vars(each))
    return found


def _is_installed(module: types.ModuleType) -> bool:
    """Tell whether a module is one of Python or of a library."""
    file = getattr(module, "__file__", None) or ""
    return not file or file.startswith(_LIBRARIES) or "-packages" in file  # site, or dist in Debian


class _Globals:
    """Where values are that are global, or in global tables, by their ids."""

    def __init__(self, spaces: Mapping[str, Mapping[str, Any]]) -> None:
        self._spaces = spaces
        self._tables: list[tuple[_Global, Any, int]] = []  # namespaces, and tables that are global themselves; sizes
        self._found: dict[int, _Global] = {}

    def known(self) -> dict[int, _Global]:
        """Return them. New ones are looked up where such a table has grown."""
        if not self._tables or any(len(table) < size for _, table, size in self._tables):
            found: dict[int, _Global] = {}
            self._tables = _look(((_Global(name, ()), space, 0) for name, space in self._spaces.items()), found)
            self._found = found  # other threads may be reading the old ones
        elif any(len(table) > size for _, table, size in self._tables):
            self._tables = _look(self._tables, self._found)
        return self._found


def _look(tables: Iterable[tuple[_Global, Any, int]], found: dict[int, _Global]) -> list[tuple[_Global, Any, int]]:
    """Add what is in tables, behind the first items; return those tables in which items may be missing later."""
    waiting, kept = deque(tables), list[tuple[_Global, Any, int]]()
    while waiting:  # in this order: a name comes before an item of a table
        where, table, begin = waiting.popleft()
        size = len(table)
        if len(where.path) < 2:
            kept.append((where, table, size))
        items = enumerate(table) if isinstance(table, (list, tuple)) else table.items()
        for key, value in list(itertools.islice(items, begin, size)):
            if type(value) not in PLAIN and id(value) not in found:
                found[id(value)] = inner = _Global(where.space, (*where.path, key))
                deep = where.path and len(found) > _MOST
                if not deep and issubclass(type(value), (dict, list, tuple)):  # `isinstance` would import a lazy module
                    waiting.append((inner, value, 0))
    return kept


@functools.lru_cache(maxsize=256)
def _globals_of(kinds: tuple[type, ...]) -> _Globals:
    return _Globals(_spaces_of(kinds))


def _bare(cls: Any) -> Any:
    """Return an object of a class without attributes."""
    try:
        return object.__new__(cls)
    except TypeError:  # of a class in C, such as SimpleNamespace
        return cls.__new__(cls)


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else attributes(value).values()


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal bit for bit. EncodingError if they cannot be taken apart."""
    return repr(_told(Encoder(None).encode(one))) == repr(_told(Encoder(None).encode(other)))


def _told(node: Any) -> Any:
    if type(node) is list:
        return [_told(each) for each in node]
    if type(node) is dict:
        return {key: _told(each) for key, each in node.items()}
    return (node.dtype.str, node.shape, node.tobytes()) if isinstance(node, np.ndarray) else node


def _owner_of(array: Any) -> Any:
    """Return the array that has the memory of this one: itself, or the one that it is a view of."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _name_of(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return f"{value.__name__}:"
    return f"{getattr(value, '__module__', None) or 'builtins'}:{getattr(value, '__qualname__', value.__name__)}"


def _imported(name: str) -> Any:
    """Return what has this name in a module that is imported already; None if nothing has."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split(".") if path else ():
        found = getattr(found, part, None)
    return found
