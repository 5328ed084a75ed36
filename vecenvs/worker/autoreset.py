"""Resets of the envs of one worker, and what their autoreset mode does at the end of an episode.

What happens next to an env is one callable per slot, `Autoreset.acts[local]`. Usually it is the env's own `step`. After
the end of an episode, or after an error, another function stands in its place: it resets the env, or refuses to step
it. So the loop over the envs has no branch for modes.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gymnasium.spaces import Space

from vecenvs._native import forks
from vecenvs._native.twin import StepResult, is_over, own_info, unpack_row
from vecenvs.batch.batch_columns import FINAL, FIRST, TERMINATED, TRUNCATED, BatchColumns
from vecenvs.batch.infos import RESET, TRUNCATED_KEY
from vecenvs.batch.values import copy_containers
from vecenvs.env_calls import layers
from vecenvs.errors import RepeatedEnvError, ResetNeededError, SpaceMismatch, StateError
from vecenvs.state.env_state import EnvState
from vecenvs.transport.pickling import can_pickle
from vecenvs.transport.protocol import LastStep, Slots
from vecenvs.transport.reset_arguments import SeedStream, hold
from vecenvs.worker.env_errors import ENV_ERRORS, ERROR, EnvErrors, Remake, has_error
from vecenvs.worker.env_states import ENDED, STEPPING, EnvStates
from vecenvs.worker.info_reader import InfoReader
from vecenvs.worker.outcomes import begin_reset, check_time
from vecenvs.worker.rules import EpisodeSeeds, Rules
from vecenvs.worker.spares import Spares

AUTORESET_MODES = ("same_step", "next_step", "async", "disabled")
Acts = Sequence[Callable[[Any], Any]] | Mapping[int, Callable[[Any], Any]]  # by env

FAILED = "failed before"
RESET_FIRST = "reset([{}]) it first"  # views say it in words of their own: `EnvError.tell_reset`


class RowFlags:
    """The flags of a shard's rows. `some` is False only if no row has a flag."""

    def __init__(self, batch: BatchColumns, first: int, count: int) -> None:
        self.some = False
        self._cells = batch.flags.data[first : first + count]  # an item of a memoryview costs less than one of an array
        self._none = bytes(count)

    def set(self, local: int, flags: int) -> None:
        """Replace the flags of one row."""
        self._cells[local] = flags
        self.some = True

    def clear(self, rows: Slots) -> None:
        """Remove all flags of these rows."""
        if type(rows) is range:
            self._cells[rows.start : rows.stop] = bytes(len(rows))
        else:
            for local in rows:
                self._cells[local] = 0
        self.some = False  # after that, as an exception may come in between
        if self._cells != self._none:  # of other rows, or set by the thread of an async reset meanwhile
            self.some = True


class Autoreset:
    """Resets the envs `envs` of slots first, first + 1, ... in one autoreset mode.

    `reset_infos` has the infos of resets, by env, until they are sent. In async mode an env whose episode has ended is
    added to `deferred`: its reset begins when the step has been answered.
    """

    def __init__(
        self,
        envs: list[Any],
        first: int,
        batch: BatchColumns,
        rules: Rules,
        flags: RowFlags,
        deferred: list[int | BaseException],
        reader: InfoReader | None,
        errors: EnvErrors | None = None,
        remake: Remake | None = None,
    ) -> None:
        self.acts: list[Callable[[Any], StepResult]] = []
        self.resets: list[Callable[[Any], StepResult]] = []  # stand in for acts; they take arguments
        self.reset_infos: dict[int, dict[str, Any]] = {}
        self._envs = envs
        self._first = first
        self._batch = batch
        self._mode = rules.autoreset
        self._waits = rules.concurrency is not None
        self.seeds = None if rules.root is None else EpisodeSeeds(rules.root, first)
        self._flags = flags
        self._deferred = deferred
        self._reader = reader
        self.errors = errors
        self._reset_marks = batch.info_marks[RESET].data
        self.held: dict[int, dict[str, Any]] = {}  # seeds and options for an env's next reset
        self.due: dict[int, tuple[Any, dict[str, Any]]] = {}  # first rows that are to come again, after a state was set
        self.ended: dict[int, tuple[Any, ...]] = {}  # last rows, without observations, whose envs that wait are reset
        self._retires = False
        self._exchangeable = False  # whether the caller may exchange envs, so that each step looks up `env.step`
        self._me = me = weakref.proxy(self)  # what it keeps of itself: no collector has to run for its memory to go
        self.states = EnvStates(me, envs, first, batch, rules, remake)
        self.spares: Spares | None = None
        if rules.spares and self.seeds is not None and remake is not None:
            layout = batch.observations.layout
            self.spares = Spares(
                envs, first, rules, layout, remake, self.reset_in_advance, self.held, self.seeds, errors
            )
        for local in range(len(envs)):
            self.acts.append(partial(_refuse, first + local, "has not been reset", "call reset() first"))
            self.resets.append(partial(type(self)._first_row, me, local))  # noqa: SLF001  or a subclass's

    # The end of an episode

    def end_episode(
        self, local: int, obs: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Keep the final observation, and do what the mode says. Return the row's observation and info."""
        flags = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
        info = info or {}  # an empty one is the env's own, which its reset may fill
        self.due.pop(local, None)
        if self.errors is not None and not has_error(info):
            self.errors.completed(local)
        if self._batch.finals is not None:
            self._batch.finals.store_row(self._first + local, obs)
            flags |= FINAL
        else:
            # At the place that it has in the infos of every other engine.
            last = self._batch.observations.layout.copied(obs)
            info = {**info, TRUNCATED_KEY: False, "terminal_observation": last}
        if self._mode == "same_step":
            if self._reader is not None:
                self._reader.keep(local)
            flags |= FIRST
            if local in self.ended:
                self.ended[local] += info, flags
            obs = self.reset(local)
        elif self._mode == "next_step":
            self.acts[local] = partial(Autoreset._first_step, self._me, local)
        elif self._mode == "async":
            self.refuse(local, "is being reset", "wait for its first row")
            self._deferred.append(local)
        else:
            self.refuse(local, ENDED)
        self._flags.set(local, flags)
        return obs, info

    def end_again(self, local: int) -> StepResult:
        """Return the last row of an episode whose autoreset was too late, in same_step mode, by a new reset."""
        *row, flags = self.ended[local]
        obs = self.reset(local)
        self._flags.set(local, flags)
        return obs, *row

    def _first_step(self, local: int, _: Any) -> StepResult:
        """Stand in for `step` on the step after an episode's end, in next_step mode."""
        return self._first_row(local, None)

    def _first_row(self, local: int, given: dict[str, Any] | None) -> StepResult:
        """Reset one env (see `reset`), and return the first row of its episode as a step's."""
        obs = self.reset(local, given)
        self._flags.set(local, FIRST)
        return obs, 0.0, False, False, copy_containers(self.reset_infos.get(local, {}))

    def refuse(self, local: int, why: str, remedy: str = RESET_FIRST) -> None:
        """Make every step of the env a ResetNeededError, until its next reset."""
        self.acts[local] = partial(_refuse, self._first + local, why, remedy)

    def resume(self, lost: dict[int, tuple[LastStep, Any]]) -> None:
        """Take over slots whose episodes ended with another worker: their next step returns a last row, if none has.

        With it comes the next episode's seed, or its SeedStream if all are seeded.
        """
        for slot, (last, seed) in lost.items():
            *row, attrs, returned = last
            self.acts[slot - self._first] = partial(_lost_step, tuple(row))
            if returned:
                self.set_phase(slot - self._first, ENDED)
            if attrs is not None and self._reader is not None:
                self._reader.give(slot - self._first, attrs)
            if self.seeds is None:
                self.hold(slot - self._first, "seed", seed)
            else:
                self.seeds.put(slot - self._first, seed)

    def row(self, local: int, acts: Acts, given: Any) -> StepResult:
        """Return a row of an env by one of its `acts` or `resets`, with what follows if it ends an episode."""
        obs, reward, terminated, truncated, info = unpack_row(acts[local](given))
        if self._waits:
            check_time()
        if (terminated is not False or truncated is not False) and is_over(terminated, truncated):
            self.note_end(local, reward, terminated, truncated)
            obs, info = self.end_episode(local, obs, terminated, truncated, own_info(info))
        return obs, reward, terminated, truncated, info

    def note_end(self, local: int, reward: Any, terminated: Any, truncated: Any) -> None:
        """Keep what the last row of an episode has, until the next one has begun."""
        if self._waits and self._mode == "same_step":
            self.ended[local] = reward, terminated, truncated

    # Resets

    def hold(self, local: int, name: str, value: Any) -> None:
        """Keep the "seed" or the "options" of the env's next reset, until one succeeds; see `hold`."""
        hold(self.held, local, name, value)
        if self.spares is not None:
            self.spares.changed(local, told=True)

    def reset(self, local: int, given: dict[str, Any] | None = None) -> Any:
        """Reset one env: see `_reset`. With `on_error` try again with a new env until that succeeds.

        The second try has the same seed; later ones have other seeds, as the env may fail with this one.
        """
        if local in self.due and given is None:
            return self.take_due(local)
        errors = self.errors
        if self.spares is not None and not given:
            if self._waits:
                begin_reset()
            if (first := self.spares.take(local)) is not None:
                return self._begin_episode(local, *first)
        if errors is None:
            return self._reset(local, given)
        while True:
            try:
                if local in errors.broken:
                    errors.make_anew(self._envs, local)
                    self._seed_new_env(local, given or {}, errors)
                return forks.run(self._reset, local, given)
            except (SpaceMismatch, RepeatedEnvError, StateError):
                raise
            except ENV_ERRORS as exc:
                errors.happened(local, "reset", exc)
            tries = errors.pause(local)
            check_time()
            if tries > 1:
                given = self._change_seed(local, given, errors)

    def begin_wanted(self, local: int, wanted: Callable[[], bool]) -> Any:
        """Reset an env that waits, in async mode; if that is not `wanted` by then, another reset has to follow."""
        return self.begun(local, self.reset(local), wanted)

    def begun(self, local: int, obs: Any, wanted: Callable[[], bool]) -> Any:
        """Return what the reset of `begin_wanted` has returned."""
        if not wanted():
            self.refuse(local, FAILED)
            self.reset_infos.pop(local, None)
        return obs

    def take_due(self, local: int) -> Any:
        """Return the first observation of an env that is in the state after its reset."""
        obs, info = self.due.pop(local)
        if info:
            self.reset_infos[local] = info
        return obs

    def _seed_new_env(self, local: int, given: dict[str, Any], errors: EnvErrors) -> None:
        """Seed the first reset of an env that was made anew, if it has no seed of its own."""
        if self.seeds is None and "seed" not in {**self.held.get(local, {}), **given}:
            self.hold(local, "seed", errors.other_seed(local))

    def _change_seed(self, local: int, given: dict[str, Any] | None, errors: EnvErrors) -> dict[str, Any] | None:
        """Let the next reset of an env, which was to be `given` a seed, have another one; return what it is given."""
        seed = (given or {}).get("seed", self.held.get(local, {}).get("seed"))
        if self.seeds is None:
            self.hold(local, "seed", errors.other_seed(local))
        else:
            self.seeds.put(local, self.seeds.of(local, seed).after())
            self.hold(local, "seed", None)
        return given and {name: value for name, value in given.items() if name != "seed"}

    def _reset(self, local: int, given: dict[str, Any] | None = None) -> Any:
        """Reset one env with what `hold` has kept; return its observation. A non-empty info is put in `reset_infos`.

        `given` are the arguments of a reset that the caller has asked for (see `named`), which come first. As in SB3
        and Gymnasium, an autoreset without a seed does not name `seed`, which some envs look for; a reset that the
        caller has asked for does. `options` is named only if there are some: not every env takes it. A seed is one of
        the action space, too, from which some envs sample.
        """
        if given is not None and isinstance(state := given.get("options"), EnvState):
            return self.states.write(local, state)
        arguments, stream = self._arguments(local, given)
        first = self._envs[local].reset(**copy_containers(arguments))  # they are logged as they were given
        return self._begin_episode(local, first, arguments, stream)

    def _arguments(self, local: int, given: dict[str, Any] | None) -> tuple[dict[str, Any], SeedStream | None]:
        """Return the arguments of a reset that begins, and the stream of the seeds of which it has one."""
        if self._waits:
            begin_reset()
        arguments = copy_containers(self.held[local]) if local in self.held else {}
        if given is not None:
            arguments = {"seed": None, **arguments, **given}
        stream = None
        if self.seeds is not None:
            stream = self.seeds.of(local, arguments.get("seed"))
            arguments["seed"] = stream.seed(self._first + local)
        if arguments.get("seed") is not None:
            seed_action_spaces(self._envs[local], arguments["seed"])
        if self.errors is not None:
            self.errors.seeded(local, arguments.get("seed"))
        return arguments, stream

    def _begin_episode(self, local: int, first: Any, arguments: dict[str, Any], stream: SeedStream | None) -> Any:
        """Take what a reset has returned; return its observation."""
        check_time()
        if not isinstance(first, (tuple, list)):  # an array of two items could be unpacked, too
            if inspect.iscoroutine(first):
                first.close()  # never to be awaited
            raise TypeError(f"cannot unpack a {type(first).__name__} into obs and info")
        obs, info = first
        info = own_info(info)
        self.ended.pop(local, None)
        self.due.pop(local, None)
        self.states.begin(local, arguments)
        self.held.pop(local, None)
        if self.errors is not None:
            self.errors.was_reset(local)
        if stream is not None and self.seeds is not None:
            info = {**info, **self.seeds.begin(local, stream)}
        self._begun(local, info)
        return obs

    def _begun(self, local: int, info: dict[str, Any]) -> None:
        """Keep the info of a reset that has succeeded; let the env be stepped."""
        self._reset_marks[self._first + local] = 0  # until the info of this one is written
        if self._reader is not None:
            first_values = self._reader.first(local)
            if info or first_values:
                info = {**self._reader.without(info), **first_values}
        if info:
            self.reset_infos[local] = info
        self.acts[local] = self.step_of(local)
        if self.spares is not None:
            self.spares.begun(local)

    # States

    def phase(self, local: int) -> str:
        """Return STEPPING, ENDED, or why else the env cannot be stepped."""
        act = self.acts[local]
        stands_in = act.func if isinstance(act, partial) else None
        if stands_in in (_lost_step, Autoreset._first_step):
            return ENDED if stands_in is not _lost_step else "was lost with its worker"
        return act.args[1] if stands_in is _refuse and isinstance(act, partial) else STEPPING

    def set_phase(self, local: int, phase: str, info: dict[str, Any] | None = None) -> None:
        """Take note that the env is in this phase, of an episode that has begun with this info unless it goes on."""
        if info is None:
            self.acts[local] = self.step_of(local)
        else:
            self._begun(local, info)
        if phase == ENDED and self._mode == "next_step":
            self.acts[local] = partial(Autoreset._first_step, self._me, local)
        elif phase == ENDED:
            self.refuse(local, ENDED)

    @staticmethod
    def reset_in_advance(env: Any, arguments: dict[str, Any]) -> Any:
        """Reset a spare with these arguments, a seed among them; return what that returns."""
        seed_action_spaces(env, arguments["seed"])
        return env.reset(**arguments)

    @staticmethod
    def replay(env: Any, arguments: dict[str, Any], actions: Sequence[Any]) -> Any:
        """Reset an env and give it these actions; return its last observation."""
        if arguments.get("seed") is not None:
            seed_action_spaces(env, arguments["seed"])
        obs, _ = env.reset(**arguments)
        for action in actions:
            obs = env.step(copy_containers(action))[0]
        return obs

    # The envs' own steps

    def make_exchangeable(self) -> None:
        """Look up `env.step` at every step from now on, since the caller may exchange envs or their `step`."""
        self._exchangeable = True
        for local in range(len(self._envs)):
            self.renew(local)

    def renew(self, local: int, *, begun: bool = False) -> None:
        """Look up the env's `step` anew, as a function that was called on the env may have changed it.

        With `begun` an env that needs a reset counts as reset: the caller has done so, or takes it as it is.
        """
        act = self.acts[local]
        stands_in = act.func if isinstance(act, partial) else None
        if stands_in not in (_refuse, _lost_step, Autoreset._first_step) or (begun and stands_in is _refuse):
            self.acts[local] = self.step_of(local)

    def _guarded_step(self, local: int, action: Any) -> StepResult:
        """Step one env. What it raises ends its episode, truncated, with its last observation."""
        assert self.errors is not None
        if self._reader is not None:
            self._reader.notice(local)
        try:
            row: StepResult = forks.run(self._envs[local].step, action)
        except ENV_ERRORS as exc:
            return self._cut_short(local, self.errors.happened(local, "step", exc))
        return row

    def _cut_short(self, local: int, told: str | None) -> StepResult:
        """Return the row of an env whose episode an exception has ended; None tells that of a time limit, a restart."""
        info = {"worker_restarted": True} if told is None else {ERROR: told}
        return self._batch.observations.row(self._first + local), 0.0, False, True, info

    def cut_short(self, local: int, told: str | None) -> Any:
        """Return the row of `_cut_short`, with what follows the end of an episode."""
        return self.row(local, {local: partial(self._cut_short, local)}, told)

    def step_of(self, local: int) -> Callable[[Any], StepResult]:
        """Return what steps the env in its episodes."""
        step: Callable[[Any], StepResult] = self._envs[local].step
        if self.errors is not None:
            step = partial(type(self)._guarded_step, self._me, local)  # noqa: SLF001
        elif self._exchangeable:
            step = partial(_current_step, self._envs, self._reader, local)
        step = self.states.around(local, step)
        return partial(type(self)._last_step, self._me, local, step) if self._retires else step  # noqa: SLF001

    def retire(self) -> None:
        """From now on raise Retired where an episode has ended: another worker begins the next one."""
        self._retires = True
        for local in range(len(self._envs)):
            self.renew(local)

    def _last_step(self, local: int, step: Callable[[Any], StepResult], action: Any) -> StepResult:
        """Step one env, in the episode after which it retires."""
        obs, reward, terminated, truncated, info = row = unpack_row(step(action))
        if (terminated or truncated) and not has_error(info or {}):  # after errors they are counted here
            attrs = None if self._reader is None else self._reader.values(local)
            last = LastStep(obs, reward, terminated, truncated, own_info(info), attrs)
            if can_pickle(last):
                raise Retired(last)
        return row


class Retired(BaseException):
    """The episode of an env that retires has ended."""

    def __init__(self, last: LastStep) -> None:
        self.last = last


def seed_action_spaces(env: Any, seed: int) -> None:
    """Seed the action spaces of an env and of its wrappers."""
    spaces = (getattr(layer, "action_space", None) for layer in layers(env))
    for space in {id(space): space for space in spaces if isinstance(space, Space)}.values():
        space.seed(seed)


def named(seed: Any, options: Any) -> dict[str, Any]:
    """Return what is not None, by the names of `reset`'s arguments; options as a copy, which the env may change."""
    found = {} if seed is None else {"seed": seed}
    return found if options is None else {**found, "options": copy_containers(options)}


def _refuse(slot: int, why: str, remedy: str, _: Any) -> StepResult:
    raise ResetNeededError(f"env {slot} {why}", remedy.format(slot))


def _current_step(envs: list[Any], reader: InfoReader | None, local: int, action: Any) -> StepResult:
    if reader is not None:
        reader.notice(local)
    row: StepResult = envs[local].step(action)
    return row


def _lost_step(row: StepResult, _: Any) -> StepResult:
    *others, info = row
    return *others, dict(info)
