"""The calls of every VecEnv: check the arguments, send commands to the workers, wait, and return rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vecenvs import env_calls
from vecenvs.arguments import check_function, check_portion, deadline_of, parse_flag
from vecenvs.batch.actions import parse_actions
from vecenvs.batch.batch_columns import TERMINATED, TRUNCATED
from vecenvs.errors import AlreadySteppingError, ClosedError, EnvError, NotSteppingError, VecEnvError
from vecenvs.pool.commands import NO_RESETS
from vecenvs.pool.coroutine_waits import wait_in_thread
from vecenvs.pool.pool_base import EnvFn, PoolBase, Result
from vecenvs.pool.recovery import copied
from vecenvs.pool.reset_parsing import parse_options, parse_reset, parse_seeds, parse_states
from vecenvs.pool.step_results import env_error
from vecenvs.pool.subsets import SlotSet, bits_of, slots_in
from vecenvs.state.env_state import EnvState
from vecenvs.transport.protocol import Command
from vecenvs.transport.reset_arguments import NONE_GIVEN, ResetArguments
from vecenvs.vec_env import Batch, Indices, Options, Seeds, StepReturn, grouped
from vecenvs.worker.env_states import take_state
from vecenvs.worker.process import HeldSignals

__all__ = ["EnvFn", "PoolVecEnv"]


class PoolVecEnv(PoolBase):
    """The VecEnv that all engines share. `vecenvs.DummyVecEnv` describes the arguments that they have in common."""

    # Stepping in lock-step

    def step_async(self, actions: Any) -> None:
        if not self._free:
            self._check_free("step_async", None, autoresets=False)
        self._free = False
        commands, columns = self._commands, self._batch.actions
        if not columns.take(actions):
            columns.assign(self._parse_actions(actions, self.num_envs))
        if not commands.resetting:
            commands.step_all()
        else:
            commands.step_some(commands.everyone & ~bits_of(commands.resetting))

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        if self.closed:
            self._check_open("step_wait")
        commands = self._commands
        if self._result is not None and self._result.of_step:  # an exception (Ctrl-C) has ended the step_wait before
            return self._deliver()  # type: ignore[no-any-return]
        deadline = None if timeout is None else deadline_of(timeout)
        if commands.stepping is None or self._recovery.lost:
            self._check_stepping()
        partial, ready, prepared = bool(commands.resetting), 0, None
        if partial:
            self._await_partial_step(deadline, timeout)
            ready = commands.ready_slots()
        else:
            prepared = self._step_results.prepare()
            self._waiting.finish_step(deadline, timeout)
        try:
            if partial:
                rows = self._step_results.take_some(copy=self.copy)
            else:
                rows = self._step_results.take(prepared, copy=self.copy)
                if not (self._asynchronous or self._step_results.notes):
                    if self._recorder is not None:
                        self._recorder.note(self._delivered, None, rows[3])
                    self._tally.steps += 1
                    self._tally.sums = self._tally.new
                    self._free = True
                    commands.stepping = None
                    return rows
            self._result = Result(rows, ready, self._step_results.resets, of_step=True)
        except EnvError as exc:
            self._result = Result(exc, ready, self._step_results.resets, of_step=True)
        return self._deliver()  # type: ignore[no-any-return]

    def _await_partial_step(self, deadline: float | None, timeout: float | None) -> None:
        """Wait for a step in which some envs take no part, since they are being reset."""
        commands = self._commands
        if commands.step_slots:
            self._waiting.await_rows(commands.step_slots, deadline, timeout)
        else:
            self._waiting.wait_until(lambda: bool(commands.ready), bits_of(commands.resetting), deadline, timeout)
        self._waiting.collect()

    def _deliver(self) -> Any:
        """Return or raise the result of a call. After an exception in here, the next step_wait or recv does that."""
        assert self._result is not None
        value, slots, resets, of_step = self._result
        failed = isinstance(value, EnvError)
        if self._recorder is not None:
            self._recorder.note_result(self._delivered, value, slots_in(slots))
        self._tell_episodes()
        self._commands.forget_rows(slots)
        self._commands.begin_resets(*resets)
        if self._tasks is not None:
            self._tasks.follow(self._step_results.turns, slots)
        if self._recycling is not None:
            self._recycling.look()  # after the commands for first rows, whose numbers are lower than those of its own
        received = 0 if of_step else slots.bit_count()
        if of_step:
            self._commands.end_step()
            self._free = not failed
        self._tally.steps += of_step  # nothing is called from here on: a signal's handler may raise when a call ends
        self._counters["received"] += received
        self._tally.sums = self._tally.new
        self._cut_off &= ~slots
        self._result = None
        if failed:
            try:
                raise value
            finally:
                del value  # no cycle, over its traceback
        return value

    @property
    def _delivered(self) -> tuple[int, int]:
        """What is another for each result."""
        return self._tally.steps, self._counters["received"]

    def _tell_episodes(self) -> None:
        """Call `on_episode` for the episodes that end in a held result: once for each, whatever it raises."""
        ended = self._step_results.ended
        while self._on_episode is not None and ended:
            next(map(self._on_episode, map(ended.pop, (0,))))  # no Ctrl-C comes in between

    # Any subset

    def send(self, actions: Any, indices: Indices = None) -> None:
        subset = self._parse_slots("send", indices)
        self._check_free("send", subset.bits)
        self._cut_off &= ~subset.bits
        self._hosts.check_whole("send", subset.parts)
        columns = self._batch.actions
        if not columns.take_rows(actions, subset.array):
            columns.assign(self._parse_actions(actions, len(subset.slots)), subset.array)
        self._commands.send(self._commands.numbered(Command.STEP_SOME, subset.parts))

    def reset_async(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> None:
        self._begin_resets(indices, seed, options, leave_out=True)

    def _begin_resets(self, indices: Indices, seed: Seeds, options: Options, *, leave_out: bool = False) -> SlotSet:
        subset = self._parse_slots("reset", indices)
        given = parse_reset(seed, options, subset.slots)
        self._check_free("reset", subset.bits, autoresets=False)
        if options is not None:
            self._workers.check_portable("options", given.options)
        if self._tasks is not None:
            subset = self._subsets.of([*self._tasks.ask(subset.slots, leave_out=leave_out)])
            given = self._tasks.over(subset.slots, given)
        body = None if given == NONE_GIVEN else given
        self._cut_off = self._cut_off & ~subset.bits if leave_out else self._cut_off | subset.bits
        self._send_resets(subset, body, body)
        return subset

    def _send_resets(self, subset: SlotSet, body: ResetArguments | None, seeds: ResetArguments | None) -> None:
        """Send a reset of envs that can take a command; `seeds` are those that episodes begin with."""
        overtaken = [slot for slot in subset.slots if slot in self._commands.resetting]
        self._waiting.finish_resets(subset.bits)
        with HeldSignals():  # the first rows of the overtaken resets go, and the reset is recorded: both or neither
            self._commands.forget_rows(bits_of(overtaken))
            self._episodes.drop_first_rows(overtaken)
            if seeds is not None:
                self._episodes.record_seeds(subset.slots, seeds)
            self._episodes.record_streams(subset.slots, seeds)
            self._episodes.record_options(subset.slots, body)
            if self._recorder is not None:
                self._recorder.forget(subset.slots)
            commands = self._commands.numbered(Command.RESET, subset.parts, body)
            self._commands.unsent = commands, None
            self._counters["resets"] += len(subset.slots)
        self._commands.send(commands)

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None, timeout: float | None = None, indices: Indices = None
    ) -> Batch:
        self._check_open("recv")
        self._free = False
        if self._calls.waiting:
            raise AlreadySteppingError("recv after a call_async: call_wait first")
        commands = self._commands
        if (self._result and self._result.of_step) or (commands.in_step and not self._recovery.lost):
            raise NotSteppingError("recv after step_async: finish it with step_wait, or use send instead")
        if self._result is None:
            if indices is None:
                self._copy_ready(min_envs, max_envs, timeout)
            else:
                self._copy_group(indices, min_envs, max_envs, timeout)
        return self._deliver()  # type: ignore[no-any-return]

    async def await_rows(self, min_envs: int = 1, timeout: float | None = None, indices: Indices = None) -> None:
        self._check_open("arecv")
        if self._result is not None:  # which is the next one, after an exception
            return
        commands, deadline = self._commands, deadline_of(timeout)
        bits = commands.everyone if indices is None else self._parse_slots("arecv", indices).bits
        count = bits.bit_count() if indices is not None else min_envs
        due = (commands.ready_slots() | commands.pending_slots) & bits
        by_caller = self._caller_steps and self._rules.concurrency is None
        if by_caller or commands.stepping is not None or not (type(count) is int and 1 <= count <= due.bit_count()):
            return  # `recv` steps the envs, or raises an error

        def wait(cancelled: Callable[[], bool]) -> None:
            def enough() -> bool:
                return cancelled() or (commands.ready_slots() & bits).bit_count() >= count

            self._waiting.wait_until(enough, bits, deadline, timeout)

        self._free, self._awaited = False, True
        try:
            await wait_in_thread(wait)
        finally:
            self._awaited = False

    def _copy_ready(self, min_envs: int, max_envs: int | None, timeout: float | None) -> None:
        """Wait for some rows, and copy those that are ready."""
        commands = self._commands
        due = commands.due
        if type(min_envs) is not int or not 1 <= min_envs <= due or max_envs is not None:
            if type(min_envs) is int and min_envs > due > 0:
                for error in self._recovery.lost.values():  # a death of which a Ctrl-C has kept the caller to hear
                    raise copied(error)
            check_portion(due, min_envs, max_envs)
        deadline = deadline_of(timeout)
        everyone = commands.everyone
        self._waiting.wait_until(lambda: commands.ready_slots().bit_count() >= min_envs, everyone, deadline, timeout)
        slots, bits = [slot for rows in commands.ready for slot in rows.slots], commands.ready_slots()
        extras = commands.ready_extras()
        failures = (extra.failure for slot in slots if (extra := extras.get(slot)) and extra.failure)
        failure = next(failures, None) if extras else None
        if failure is not None:  # the rows before it come first
            position = slots.index(failure.slot)
            max_envs = min(position, max_envs or position)
            if not position:
                host = self._hosts.host_of(failure.slot) or (failure.slot,)  # a batched env fails as a whole
                failed = [slot for slot in slots if slot in host and slot in extras and extras[slot].failure]
                self._result = Result(env_error(extras[slot] for slot in failed), bits_of(failed), NO_RESETS)
                return
        if max_envs is not None and max_envs < len(slots):
            slots = slots[:max_envs]
            bits = bits_of(slots)
        batch = self._step_results.batch_of(slots, extras)
        self._result = Result(batch, bits, self._step_results.resets)

    def _copy_group(self, indices: Indices, min_envs: int, max_envs: int | None, timeout: float | None) -> None:
        """Wait for the rows of these envs and copy them."""
        subset = self._parse_slots("recv", indices)
        if not subset.slots:
            raise ValueError("recv(indices=...) of no env: give at least one")
        if not (type(min_envs) is int and min_envs == 1 and max_envs is None):
            raise ValueError("recv(indices=...) waits for all of these envs: leave out min_envs and max_envs")
        deadline = deadline_of(timeout)
        self._waiting.check_pending(subset.bits, deadline, timeout)
        self._waiting.await_rows(subset.bits, deadline, timeout)
        self._copy_rows(subset)

    def _copy_rows(self, subset: SlotSet) -> None:
        """Copy the rows of these envs, which are ready. If envs raised, keep one error for all of them."""
        slots, extras = subset.slots, self._commands.ready_extras()
        error = env_error(extras[slot] for slot in slots if slot in extras) if extras else None
        if error is None:
            batch = self._step_results.batch_of(slots, extras, subset.array.copy())
        else:
            failed = {each.index for each in error.errors}
            whole = [slot for slot in slots if slot not in failed]
            error.batch = batch = self._step_results.batch_of(whole, extras)
        self._result = Result(error or batch, subset.bits, self._step_results.resets)

    def reset(self, indices: Indices = None, *, seed: Seeds = None, options: Options = None) -> Any:
        subset = self._parse_slots("reset", indices)
        self._drop_cut_off(subset.bits)
        return self._first_rows(self._begin_resets(indices, seed, options))

    def _drop_cut_off(self, bits: int) -> None:
        """Take the rows of an interrupted reset of these slots, upon which nobody has acted."""
        bits &= self._cut_off
        if bits:
            self._commands.send_unsent()
        held = self._result
        if bits and held is not None and not held.of_step and not held.slots & ~bits:
            with suppress(EnvError):
                self._deliver()
        while self._result is None and (due := bits & (self._commands.ready_slots() | self._commands.pending_slots)):
            with suppress(EnvError):
                self.recv(indices=slots_in(due))

    def _first_rows(self, subset: SlotSet) -> Any:
        self._waiting.await_rows(subset.bits)
        self._copy_rows(subset)
        return self._deliver().obs

    # States

    def get_state(self, indices: Indices = None, *, verify: bool = False) -> list[EnvState]:
        slots = self._parse_slots("get_state", indices).slots
        states: list[EnvState] = self.call(take_state, indices, parse_flag("verify", verify))
        waiting, due = self._commands.ready_extras(), self._commands.resetting  # for the first rows of async autoresets
        infos = [self.reset_infos[slot] for slot in slots]
        for j, slot in enumerate(slots):
            if slot in due:
                infos[j] = (waiting[slot].reset_info if slot in waiting else None) or {}
        return [
            state.begun_with(info, slot, first_due=slot in due)
            for slot, info, state in zip(slots, infos, states, strict=True)
        ]

    def set_state(self, states: EnvState | Sequence[EnvState], indices: Indices = None) -> Any:
        subset = self._parse_slots("set_state", indices)
        given = parse_states(states, subset.slots)
        self._check_free("set_state", subset.bits, autoresets=False)
        if self._tasks is not None:
            raise VecEnvError("set_state with tasks: states know nothing of the tasks of episodes")
        roots = {slot: None if state.stream is None else state.stream[0] for slot, state in given.items()}
        self._send_resets(subset, ResetArguments(None, given, each_options=True), ResetArguments(roots, None))
        try:
            obs = self._first_rows(subset)
        except EnvError as error:
            failed = {each.index for each in error.errors}
            self._note_states({slot: state for slot, state in given.items() if slot not in failed})
            raise
        self._note_states(given)
        return obs

    def _note_states(self, given: dict[int, EnvState]) -> None:
        """Take note of the states that envs were put into; ask for first rows that have not been returned."""
        held = {slot: state.held() for slot, state in given.items()}
        seeds, options = ({slot: each.get(name) for slot, each in held.items()} for name in ("seed", "options"))
        due = [slot for slot, state in given.items() if state.first_due]
        self._episodes.hold(seeds, options, due)
        if due:
            self._commands.begin_resets(*self._commands.first_rows_of(due))

    def groups(self, count: int) -> list[NDArray[np.int64]]:
        return self._hosts.grouped(count) if self._hosts.batched else grouped(self._shards, count)

    def info_array(self, name: str) -> NDArray[Any]:
        self._check_open("info_array")
        commands = self._commands  # workers may have written rows that were not returned yet
        if commands.in_step or (commands.pending_slots | commands.ready_slots()) & ~bits_of(commands.resetting):
            raise AlreadySteppingError("info_array while envs step or reset: receive their rows first, or read infos")
        return self._infos.stacked(name)

    # Checks

    def _parse_actions(self, actions: Any, n: int) -> list[NDArray[Any]]:
        layout = self._batch.actions.layout
        parts = parse_actions(layout, actions, n)
        if layout.has_objects:
            self._workers.check_portable("actions", [part for part in parts if part.dtype == object])
        return parts

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedError(what, self._finalizer.forked)
        if self._awaited and self._commands.reviving is None:
            raise AlreadySteppingError(f"{what} while a coroutine waits in arecv: await that first")

    def _check_stepping(self) -> None:
        """Raise if there is no step to wait for."""
        if not self._commands.in_step:
            raise NotSteppingError("step_wait without a step_async before it")
        for error in self._recovery.lost.values():  # the step has failed: recv returns what is left of it
            raise copied(error)

    def _parse_slots(self, what: str, indices: Indices) -> SlotSet:
        self._check_open(what)
        return self._subsets.of(indices)

    def _check_free(self, what: str, slots: int | None, *, autoresets: bool = True) -> None:
        """Raise unless these slots, by default all, can take a command."""
        self._free = False
        self._check_open(what)
        if self._calls.waiting:
            raise AlreadySteppingError(f"{what} after a call_async: call_wait first")
        if self._result is not None:
            if self._result.of_step:
                raise AlreadySteppingError(f"{what} after a step_async: step_wait first")
            raise AlreadySteppingError(f"{what} while an interrupted call has not returned its rows: recv first")
        self._waiting.check_free(what, self._commands.everyone if slots is None else slots, autoresets=autoresets)

    @property
    def active(self) -> NDArray[np.bool_]:
        self._check_open("active")
        return self._step_results.active

    @property
    def terminated(self) -> NDArray[np.bool_]:
        self._check_open("terminated")
        return self._step_results.flagged(TERMINATED)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        self._check_open("truncated")
        return self._step_results.flagged(TRUNCATED)

    @property
    def rewards64(self) -> NDArray[np.float64]:
        self._check_open("rewards64")
        return self._step_results.rewards64

    # Asking the envs

    def call(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> list[Any]:
        self._check_open(env_calls.name_for(function))
        calls = self._calls
        if self._commands.reviving is not None:
            slots = self._parse_slots("call", indices).slots
            if self._recorder is not None:
                self._recorder.note_call(slots, function, args, kwargs)
            return calls.call_new(slots, function, args, kwargs)
        free = not calls.waiting
        try:
            self.call_async(function, indices, *args, **kwargs)
            return self.call_wait()
        finally:
            if free:  # after a Ctrl-C
                calls.forget()

    def call_async(self, function: Callable[..., Any], indices: Indices, *args: Any, **kwargs: Any) -> None:
        check_function(function)
        what = env_calls.name_for(function)
        subset = self._parse_slots(what, indices)
        self._check_free(what, subset.bits, autoresets=False)
        self._workers.check_portable(f"the function {what}", function)
        self._workers.check_portable(f"an argument of {what}", (args, kwargs))
        self._waiting.finish_resets(subset.bits)
        self._calls.begin(subset.slots, function, args, kwargs)
        if self._recorder is not None:
            self._recorder.note_call(subset.slots, function, args, kwargs)

    def call_wait(self, timeout: float | None = None) -> list[Any]:
        self._check_open("call_wait")
        return self._calls.finish(timeout)

    def seed(self, seed: Seeds = None) -> list[int | None]:
        seeds = parse_seeds(seed, range(self.num_envs))
        self._prepare("seed", seeds, {})
        self._episodes.record_seeds(seeds, ResetArguments(seeds, None))
        return [seeds[slot] for slot in range(self.num_envs)]

    def set_options(self, options: Options = None) -> None:
        self._prepare("set_options", {}, parse_options(options, range(self.num_envs)))

    def _prepare(self, what: str, seeds: dict[int, Any], options: dict[int, Any]) -> None:
        self._check_free(what, None, autoresets=False)
        if options:
            self._workers.check_portable("options", options)
        self._waiting.finish_resets(self._commands.everyone)
        if self._tasks is not None:
            seeds, options = self._tasks.over_next(0, seeds), self._tasks.over_next(1, options)
        self._calls.prepare(seeds, options)
        self._episodes.hold(seeds, options, slots_in(self._commands.ready_slots()))
