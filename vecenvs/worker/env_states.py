"""The states of a worker's envs: read by a call, and set in the place of a reset."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from vecenvs.batch.batch_columns import FIRST, BatchColumns
from vecenvs.batch.values import copy_containers
from vecenvs.env_calls import READS, SETTERS, get_attr, layers, name_for
from vecenvs.errors import StateError
from vecenvs.state.encoding import Decoder, Encoder, EncodingError, same
from vecenvs.state.env_state import EnvState, captured, kind_of, restore
from vecenvs.transport.reset_arguments import SeedStream
from vecenvs.worker.env_errors import Remake, has_error
from vecenvs.worker.outcomes import check_time
from vecenvs.worker.rules import Rules

if TYPE_CHECKING:
    from vecenvs.worker.autoreset import Autoreset

STEPPING, ENDED = "is in an episode", "has ended its episode"
_BESIDE = 20  # steps in which an env put into a verified state is compared with the original


def take_state(env: Any, verify: bool) -> EnvState:
    """Name a call by which workers return the states of envs: see `EnvStates.read`."""
    raise NotImplementedError


class Log(NamedTuple):
    """What an episode can be replayed from: the arguments of its reset, the actions since, calls that may change it.

    And the attributes that had been set before: of plain ones the values then, of properties those that were given.
    """

    arguments: dict[str, Any]
    actions: list[Any]
    calls: list[str]
    before: dict[str, Any]


class EnvStates:
    """Reads and sets the states of one worker's envs, of slots first, first + 1, ...

    Where resets are seeded, the actions of envs whose state cannot be read are logged: episodes can be replayed then.
    """

    def __init__(
        self,
        autoreset: Autoreset,
        envs: list[Any],
        first: int,
        batch: BatchColumns,
        rules: Rules,
        remake: Remake | None,
    ) -> None:
        self._autoreset, self._envs, self._first, self._batch = autoreset, envs, first, batch
        self._rules, self._remake = rules, remake
        self._kinds: dict[int, tuple[Any, dict[str, str]]] = {}
        self._logged: dict[tuple[type, ...], bool] = {}  # by the classes of an env's layers: whether it needs a log
        self._logs: dict[int, Log] = {}
        # Attributes that have been set: by what, and what that was given besides.
        self._set: list[dict[str, list[Any]]] = [{} for _ in envs]
        self._given: list[dict[str, Any]] = [{} for _ in envs]  # to what they have been set
        self._last: dict[int, Any] = {}  # last actions of envs that were put into a state, until they are stepped
        self._verified: set[tuple[type, ...]] = set()
        self.twins: dict[int, list[Any]] = {}  # envs that are stepped beside the originals, and how many steps are left

    def _kind(self, local: int) -> dict[str, str]:
        env = self._envs[local]
        if local not in self._kinds or self._kinds[local][0] is not env:
            self._kinds[local] = env, kind_of(env, self._rules.autoreset, self._rules.root is not None)
        return self._kinds[local][1]

    # While an episode goes on

    def begin(self, local: int, arguments: dict[str, Any]) -> None:
        """Take note that an env was reset, and how."""
        self._last.pop(local, None)
        self._end_beside(local)
        if self._rules.root is None or self._rules.concurrency == "asyncio":  # whose steps would have to be awaited
            return
        classes = _classes(self._envs[local])
        if classes not in self._logged:
            self._logged[classes] = _data_of(self._envs[local], None) is None
        self._logs.pop(local, None)
        if self._logged[classes]:
            env = self._envs[local]
            self._logs[local] = Log(arguments, [], [], self._attributes(local, env, self._set[local]))

    def _attributes(self, local: int, env: Any, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of attributes as they are, or as they were set: a property may return something else."""
        given = self._given[local]
        return {
            name: copy_containers(get_attr(env, name)) if _is_plain(env, name) else given[name]
            for name in names
            if name in given or _is_plain(env, name)
        }

    def around(self, local: int, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what an env is stepped by: its `step`, with what has to be done beside it."""
        if local in self._logs:
            step = partial(_logged_step, self._logs[local].actions, step)
        return partial(self._step_beside, local, step) if local in self.twins else step

    def note_call(self, local: int, function: Any, args: tuple[Any, ...], *, succeeded: bool) -> None:
        """Take note that a function was called on an env."""
        if succeeded and args and function in SETTERS.values():
            self._set[local][str(args[0])] = [name_for(function), *args[2:]]
            self._given[local][str(args[0])] = copy_containers(args[1])
        if local in self._logs and function not in READS:
            self._logs[local].calls.append(name_for(function))

    # States

    def read(self, local: int, verify: bool) -> EnvState:
        """Return the state of an env. With `verify` the next steps show whether the first one of its kind is right."""
        slot, env, autoreset = self._first + local, self._envs[local], self._autoreset
        phase = autoreset.phase(local)
        if phase not in (STEPPING, ENDED):
            raise StateError(slot, f"env {slot} {phase}, so there is nothing to go on with: reset([{slot}]) it first")
        begins = self._batch.flags[slot] & FIRST
        action = self._last.get(local) if begins else self._batch.actions.row(slot)
        data, way = self._state_of(local, action)
        stream = None if autoreset.seeds is None else autoreset.seeds.of(local, None)
        episode = {
            "phase": phase,
            "held": autoreset.held.get(local),
            "obs": self._batch.observations.row(slot),
            "action": action,
            "set": self._set[local],
        }
        try:
            state = EnvState(self._kind(local), way, data, Encoder(None).encode(episode), stream)
        except EncodingError as exc:
            raise StateError(slot, f"env {slot}: its observation or options: {exc}") from exc
        if verify and phase == STEPPING and _classes(env) not in self._verified:
            self._verified.add(_classes(env))
            self._begin_beside(local, state)
        return state

    def _state_of(self, local: int, action: Any) -> tuple[Any, str]:
        slot, log = self._first + local, self._logs.get(local)
        try:
            return captured(self._envs[local], action), "state"
        except EncodingError as exc:
            if log is None:
                raise StateError(slot, f"env {slot}: {exc}") from exc
            if log.calls:
                told = f"nor can its episode be replayed, in which {log.calls[0]} was called: wait for the next one"
                raise StateError(slot, f"env {slot}: {exc}; {told}") from exc
        try:
            return [Encoder(None).encode([log.arguments, log.actions]), _encoded_each(log.before)], "replay"
        except EncodingError as exc:
            told = "the options or actions of its episode, from which it is replayed"
            raise StateError(slot, f"env {slot}: {told}: {exc}") from exc

    def write(self, local: int, state: EnvState) -> Any:
        """Put an env into a state, with all that concerns its next reset. Return its last observation."""
        slot, autoreset = self._first + local, self._autoreset
        check_time()
        try:
            state.check(self._kind(local))
            episode = Decoder(None, trusted=state.trusted).decode(state.episode)
            self._logs.pop(local, None)
            self._end_beside(local)
            self._put(self._envs[local], local, state, episode)
            info = Decoder(None, trusted=state.trusted).decode(state.info)
        except EncodingError as exc:
            raise StateError(slot, f"env {slot}: {exc}") from exc
        check_time()
        self._last[local] = episode["action"]
        if autoreset.seeds is not None and state.stream is not None:
            autoreset.seeds.put(local, SeedStream(*state.stream))
        autoreset.held.pop(local, None)
        if episode["held"] is not None:
            autoreset.held[local] = episode["held"]
        self._set[local] = dict(episode["set"])
        if autoreset.spares is not None:
            autoreset.spares.put(local, self._set[local])
        autoreset.set_phase(local, episode["phase"], info)
        autoreset.due.pop(local, None)  # of a state that was set before
        if state.first_due:
            autoreset.due[local] = episode["obs"], info
        return episode["obs"]

    def _put(self, env: Any, local: int, state: EnvState, episode: dict[str, Any]) -> None:
        if state.way == "state":
            restore(env, state.data, trusted=state.trusted)
            return
        arguments, actions = Decoder(None, trusted=state.trusted).decode(state.data[0])
        here, before = self._attributes(local, env, episode["set"]), dict[str, Any]()
        for node in state.data[1]:
            before |= Decoder(None, trusted=state.trusted).decode(node, dict(here))
        for name, value in before.items():
            by, *rest = episode["set"][name]
            SETTERS[by](env, name, copy_containers(value), *rest)
        last = self._autoreset.replay(env, copy.deepcopy(arguments), actions)
        if not _same(self._batch.observations.layout.copied(last), episode["obs"]):
            raise EncodingError(
                f"{type(layers(env)[-1]).__name__} is not deterministic: its episode, replayed with the same seed and "
                f"{len(actions)} actions, has come to another observation"
            )
        check_time()
        if env is self._envs[local]:
            self._logs[local] = Log(arguments, actions, [], before)
            self._given[local] |= before

    # Envs beside the originals

    def _begin_beside(self, local: int, state: EnvState) -> None:
        if self._remake is None:
            raise StateError(
                self._first + local,
                "verify=True makes an env once more, and this worker has given its functions back: verify with "
                "DummyVecEnv or start_method='fork' and no concurrency, or give on_error='renew'",
            )
        twin = self._remake(local, self._envs[local])
        self.twins[local] = [twin, _BESIDE]
        episode = Decoder(None, trusted=True).decode(state.episode)
        try:
            self._put(twin, local, state, episode)
        except Exception as exc:
            self._end_beside(local)
            slot = self._first + local
            raise StateError(
                slot, f"env {slot}: its state does not fit into another env of its function: {exc}"
            ) from exc
        self._autoreset.set_phase(local, STEPPING)

    def _step_beside(self, local: int, step: Callable[[Any], Any], action: Any) -> Any:
        twin, left = self.twins[local]
        given = copy_containers(action)
        try:
            row = step(action)
        except BaseException:
            self._end_beside(local)  # there is nothing to compare
            raise
        if has_error(row[4] or {}):
            self._end_beside(local)
            return row
        other = twin.step(given)
        self.twins[local][1] = left - 1
        if not _same(row[:4], other[:4]):
            self._end_beside(local)
            slot = self._first + local
            raise StateError(
                slot,
                f"env {slot}: the state of {type(layers(twin)[-1]).__name__} that get_state(verify=True) read is not "
                f"whole: an env put into it differs in step {_BESIDE - left + 1}. Give the env get_state and "
                "set_state, or its class an adapter (vecenvs.state.register)",
            )
        if left == 1 or row[2] or row[3]:
            self._end_beside(local)
            self._autoreset.set_phase(local, STEPPING)
        return row

    def _end_beside(self, local: int) -> None:
        twin, _ = self.twins.pop(local, (None, 0))
        if twin is not None:
            twin.close()


def _logged_step(actions: list[Any], step: Callable[[Any], Any], action: Any) -> Any:
    actions.append(copy_containers(action))
    return step(action)


def _classes(env: Any) -> tuple[type, ...]:
    return tuple(map(type, layers(env)))


def _data_of(env: Any, action: Any) -> Any:
    try:
        return captured(env, action)
    except EncodingError:
        return None


def _is_plain(env: Any, name: str) -> bool:
    """Tell whether an env or a wrapper has an attribute itself, rather than by a property of its class."""
    owner, _, last = name.rpartition(".")
    with contextlib.suppress(Exception):
        return any(last in vars(each) for each in ([get_attr(env, owner)] if owner else layers(env)))
    return False


def _encoded_each(attributes: dict[str, Any]) -> list[Any]:
    """Return those of some attributes that are data."""
    nodes = []
    for name, value in attributes.items():
        with contextlib.suppress(Exception):  # they may be nested too deeply, too
            nodes.append(Encoder(None).encode({name: value}))
    return nodes


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal bit for bit."""
    try:
        return same(one, other)
    except EncodingError:
        return True  # observations that cannot be taken apart are not compared
