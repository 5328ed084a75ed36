"""The only code that steps and resets envs, the same for every engine.

A `Worker` owns a shard: `count` envs whose slots are first, first + 1, ... It takes the commands of `protocol.Command`
and writes rows into the board's columns before it answers.

What happens next to an env is held as one callable per slot, `_act[local]`: usually the env's own `step`; after an
episode's end, or an error, what the autoreset mode puts in its place. So the loop over the envs asks no questions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from vecenvs.board import FINAL, FIRST, TERMINATED, TRUNCATED, Board, Specs
from vecenvs.errors import ResetNeededError, VecEnvError
from vecenvs.info_channel import InfoReader
from vecenvs.infos import InfoPacker, own_complete
from vecenvs.protocol import Answer, Command, Extra, Failure, Message, RowBody, can_pickle, dumps, own, tag
from vecenvs.stepping import StepResult, step_envs

Answering = Callable[[int, object], None]

ENV_ERRORS = (Exception, SystemExit)  # an env that calls sys.exit() has failed; it does not end the program
# Plain ints compare faster.
_ROWS, _INFO_ROWS, _PLAIN = int(Answer.ROWS), int(Answer.INFO_ROWS), int(Answer.PLAIN_ROWS)
_CLOSE = int(Command.CLOSE)
_FLAGGED_ROWS, _PLAIN_ROWS = (_ROWS, None), (_PLAIN, None)

_DICT = {dict}
_INFO_BODIES = (bytes, list)  # what INFO_ROWS can have, from a worker elsewhere and in process
_ALL = slice(None)

AUTORESET_MODES = ("same_step", "next_step", "async", "disabled")


class Worker:
    """A shard of envs.

    `answer(tag, body)` sends to the caller. `remote` says that this pickles: then exceptions and infos are made
    fit for it. In process, infos are copied instead, since the env may go on changing them.
    """

    def __init__(
        self, envs: Sequence[Any], first: int, board: Board, autoreset: str, answer: Answering, *, remote: bool
    ) -> None:
        self.envs = list(envs)
        self._first = first
        self._board = board
        self._autoreset = autoreset
        self._remote = remote
        self._answer = answer
        count = len(self.envs)
        self._has_objects = board.observations.layout.has_objects
        self._objects = board.observations.objects
        self._finals = board.finals
        self._all = range(count)
        self._read_actions = board.actions.shard(first, count).reader()
        self._observations = board.observations.shard(first, count)
        self._rewards = board.rewards[first : first + count]
        self._flags = board.flags.data[first : first + count]  # an item costs less than numpy takes
        self._no_flags = bytes(count)
        self._flagged = False
        self._act: list[Callable[[Any], StepResult]] = [
            partial(_refuse, "env {} has not been reset: call reset() first", first + local) for local in self._all
        ]
        self._seeds: dict[int, Any] = {}
        self._options: dict[int, Any] = {}
        self._reset_infos: dict[int, dict[str, Any]] = {}
        self._packer = InfoPacker(count)
        # Where `_run` puts observations: at `_where` of each cell. Vectors of numbers are written there and then, by
        # memoryviews, which refuse what is of another dtype or shape.
        self._cells: list[Any] = self._observations.cells() or []
        self._where: Any = _ALL
        self._final_cells: list[Any] = (board.finals.shard(first, count).cells() if board.finals else None) or []
        if not self._cells:
            self._collect_observations()
        self._reader = InfoReader(board.info_attrs, self.envs, first) if board.info_attrs else None
        self.unsettled = False
        self._interrupt: BaseException | None = None
        self._ended: list[int] = []  # async mode: episodes whose reset begins once their last row is out
        # One env alone in its process holds nobody up while it resets; others get a thread for each reset.
        self._threads = autoreset == "async" and (count > 1 or not remote)
        self._lock = threading.Lock()
        self._send = self._send_locked if self._threads else self._send_now
        self._send_bare = self._send_locked if self._threads else answer  # what has no body needs no check
        self._first_rows: dict[int, Failure | tuple[Any, dict[str, Any]]] = {}
        self._awaited: set[int] = set()
        self._commands: dict[int, Callable[[int, Any], None]] = {
            int(Command.STEP): self._on_step,
            int(Command.STEP_ONE): self._on_step_one,
            int(Command.RESET): self._on_reset,
            int(Command.AWAIT_RESET): self._on_await_reset,
            int(Command.CALL): self._on_call,
            int(Command.PREPARE): self._on_prepare,
            int(Command.RESUME): self._on_resume,
            int(Command.OPEN_INFO): self._on_open_info,
            _CLOSE: self._on_close,
        }

    def handle(self, tag: int, body: Any) -> bool:
        """Carry out one command and answer it. False after CLOSE: the worker is done."""
        kind = tag & 0xFF
        self._commands[kind]((tag >> 8) - self._first, body)
        if self.unsettled:
            self.settle()
        return kind != _CLOSE

    def settle(self) -> None:
        """Do what had to wait until a step was answered: begin the resets that it calls for, raise a Ctrl-C."""
        self.unsettled = False
        if self._ended:
            self._begin_resets()
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt

    # Stepping

    def step(self, objects: Any = None) -> Message:
        """Step the whole shard; give the answer, for who sends it himself. `settle` after that, if `unsettled`."""
        if objects is not None:
            self._board.actions.take_objects(self._first, len(self.envs), objects)
        body = self._step(self._all, self._read_actions(), pack=True)
        if body is None:
            return _FLAGGED_ROWS if self._flagged else _PLAIN_ROWS
        return (_ROWS if type(body) is RowBody else _INFO_ROWS), body

    def _on_step(self, _: int, objects: Any) -> None:
        tag, body = self.step(objects)
        if body is None:
            self._send_bare(tag, None)
        else:
            self._send(tag, body)

    def _on_step_one(self, local: int, objects: Any) -> None:
        actions, slot = self._board.actions, self._first + local
        actions.take_objects(slot, 1, objects)
        self._send(tag(Answer.ROW, slot), self._step(range(local, local + 1), actions.rows(slot, 1)))

    def _step(self, shard: range, actions: list[Any], *, pack: bool = False) -> RowBody | bytes | list[Any] | None:
        """Step some adjacent slots one after another and write their rows. With `pack` infos may travel packed.

        Give what there is besides the rows' columns: the body of ROWS, or of INFO_ROWS.
        """
        if self._flagged:
            self._clear_flags(shard)
        extras: list[Extra] = []
        infos: list[tuple[int, dict[str, Any]]] = []
        rewards: list[Any] = []
        acts, cells, where = self._act, self._cells, self._where
        if shard is not self._all:
            acts, cells = acts[shard.start : shard.stop], cells[shard.start : shard.stop]
        while True:
            try:
                step_envs(acts, actions, cells, where, rewards, infos, self._end_episode, self._take_odd, shard.start)
                break
            except BaseException as exc:
                self._fail_at(shard, exc, rewards, infos, extras)
        if where == 0:
            self._write(shard, [cell[0] for cell in cells], extras)
            for cell in cells:
                cell[0] = None  # the env's own: not to be kept alive
        try:
            self._rewards[shard.start : shard.stop] = rewards
        except (TypeError, ValueError):
            self._write_odd_rewards(shard, rewards, extras)
        packed = self._take_infos(infos, extras, pack=pack) if infos else None
        if self._reader is not None:
            for local, error in self._reader.collect(shard, extras, self._reset_infos):
                self._fail(local, "step", error, extras)
        if self._reset_infos and self._autoreset != "async":  # there a thread may be about to take its own
            self._add_reset_infos(extras)
        objects = self._objects(self._first + shard.start, len(shard)) if self._has_objects else None
        if type(packed) in _INFO_BODIES and not (extras or objects or self._flagged):
            return packed
        return RowBody(extras, objects, packed) if extras or objects or packed else None

    def _clear_flags(self, shard: range) -> None:
        self._flags[shard.start : shard.stop] = bytes(len(shard))
        self._flagged = shard is not self._all and self._flags != self._no_flags

    def _fail_at(
        self, shard: range, exc: BaseException, rewards: list[Any], infos: list[Any], extras: list[Extra]
    ) -> None:
        """Note an exception of the env at which the loop has stopped; if it is a Ctrl-C, of all that are left."""
        failed = shard[len(rewards) :]
        if isinstance(exc, ENV_ERRORS):
            failed = failed[:1]
        else:  # answer first, so that no command stays without one
            self._interrupt, self.unsettled = exc, True
        if infos and infos[-1][0] in failed:
            infos.pop()
        for local in failed:
            row = self._fail(local, "step", exc, extras)
            if self._where == 0:
                self._cells[local][0] = row
            rewards.append(0.0)

    def _take_odd(self, local: int, obs: Any) -> None:
        """Write an observation that is not just what its space says. Raises if it cannot be cast."""
        self._board.observations.store_row(self._first + local, obs)
        self._collect_observations()

    def _collect_observations(self) -> None:
        """Store them when the whole shard is done: what takes any value that can be cast to the space's dtype."""
        self._cells, self._where = [[None] for _ in self._all], 0

    def _take_infos(self, infos: list[tuple[int, dict[str, Any]]], extras: list[Extra], *, pack: bool) -> Any:
        """Make the rows' infos fit to travel: all in one if every env has some, else an Extra for each that has."""
        if pack and len(infos) == len(self.envs):
            alone = [info for _, info in infos]
            if {*map(type, alone)} == _DICT:
                packed = self._packer.pack(alone) if self._remote else own_complete(alone)
                if packed is not None:
                    return packed
        for local, info in infos:
            try:
                extras.append(Extra(self._first + local, dict(info) if self._remote else own(dict(info))))
            except Exception as exc:
                self._fail(local, "step", exc, extras)
        return None

    def _end_episode(
        self, local: int, obs: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Put a final observation aside and do what the mode says; give the row's observation and info."""
        flags = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
        if info:
            info = own(info)  # the reset may change it
        if self._finals is not None:
            try:
                self._final_cells[local][_ALL] = obs
            except Exception:  # odd, or not of this kind at all
                self._finals.store_row(self._first + local, obs)
            flags |= FINAL
        else:
            info = {**info, "terminal_observation": self._board.observations.layout.own(obs)}
        if self._autoreset == "same_step":
            if self._reader is not None:
                self._reader.keep(local)
            obs = self._reset(local)
            flags |= FIRST
        elif self._autoreset == "next_step":
            self._act[local] = partial(self._first_step, local)
        elif self._autoreset == "async":
            self._act[local] = partial(_refuse, "env {} is being reset: wait for its first row", self._first + local)
            self._ended.append(local)
            self.unsettled = True
        else:
            why = "env {} has ended its episode: reset([{}]) it first"
            self._act[local] = partial(_refuse, why, self._first + local)
        self._flags[local] = flags
        self._flagged = True
        return obs, info

    def _add_reset_infos(self, extras: list[Extra]) -> None:
        """Send the infos of autoresets along with their rows."""
        found = {extra.slot: position for position, extra in enumerate(extras)}
        for local, info in self._reset_infos.items():
            slot = self._first + local
            if slot in found:
                extras[found[slot]] = extras[found[slot]]._replace(reset_info=info)
            else:
                extras.append(Extra(slot, {}, info))
        self._reset_infos.clear()

    def _first_step(self, local: int, _: Any) -> StepResult:
        """Stand in for `step` on the step after an episode's end, in next_step mode."""
        obs = self._reset(local)
        self._flags[local] = FIRST
        self._flagged = True
        return obs, 0.0, False, False, self._row_info(self._reset_infos.get(local, {}))

    def _reset(self, local: int) -> Any:
        """Reset one env with the seed and options that wait for it. Its info, if any, waits in `_reset_infos`."""
        env, seed, options = self.envs[local], None, None
        if self._seeds or self._options:
            seed, options = self._seeds.pop(local, None), self._options.pop(local, None)
        obs, info = env.reset(seed=seed, options=options)
        if info:
            info = dict(info) if self._remote else own(info)
        if self._reader is not None:
            info = {**info, **self._reader.first(local)}
        if info:
            self._reset_infos[local] = info
        self._act[local] = env.step
        return obs

    def _row_info(self, reset_info: dict[str, Any]) -> dict[str, Any]:
        """A reset's info for a row: without what the row has in columns."""
        columns = self._board.info
        return {key: value for key, value in reset_info.items() if key not in columns} if columns else dict(reset_info)

    def _fail(self, local: int, doing: str, exc: BaseException, extras: list[Extra]) -> Any:
        """Note an exception; give the row as it was, for the columns."""
        slot = self._first + local
        self._act[local] = partial(_refuse, "env {} failed before: reset([{}]) it first", slot)
        self._reset_infos.pop(local, None)
        extras[:] = [extra for extra in extras if extra.slot != slot]
        if local in self._ended:
            self._ended.remove(local)
        extras.append(Extra(slot, {}, None, Failure.capture(slot, doing, exc, portable=self._remote)))
        self._flags[local] = 0
        return self._board.observations.rows(slot, 1)[0]

    def _write(self, shard: range, observations: list[Any], extras: list[Extra]) -> None:
        columns = self._board.observations
        try:
            if len(shard) == len(self._act):
                self._observations.store(observations)
            else:
                columns.store(self._first + shard.start, observations)
        except Exception:  # some env's row does not fit its space: find out whose
            for local, obs in zip(shard, observations, strict=True):
                try:
                    columns.store_row(self._first + local, obs)
                except Exception as exc:
                    self._fail(local, "step", exc, extras)

    def _write_odd_rewards(self, shard: range, rewards: list[Any], extras: list[Extra]) -> None:
        for local, reward in zip(shard, rewards, strict=True):
            try:
                self._rewards[local] = np.asarray(reward, np.float64).item()
            except Exception as exc:
                self._rewards[local] = 0.0
                self._fail(local, f"step (its reward is {reward!r})", exc, extras)

    # Resetting

    def _on_reset(self, _: int, wanted: dict[int, tuple[Any, Any]]) -> None:
        for slot, (seed, options) in wanted.items():
            local = slot - self._first
            self._hold(local, seed, options)
            self._send_first_row(local, self._try_reset(local))

    def _try_reset(self, local: int) -> Failure | tuple[Any, dict[str, Any]]:
        try:
            return self._reset(local), self._reset_infos.pop(local, {})
        except ENV_ERRORS as exc:
            self._act[local] = partial(_refuse, "env {} failed in reset: reset([{}]) it again", self._first + local)
            return Failure.capture(self._first + local, "reset", exc, portable=self._remote)
        except BaseException as exc:
            self._interrupt, self.unsettled = exc, True
            return Failure.capture(self._first + local, "reset", exc, portable=self._remote)

    def _send_first_row(self, local: int, outcome: Failure | tuple[Any, dict[str, Any]]) -> None:
        """Answer with the first row of an episode: reward 0."""
        slot = self._first + local
        self._flags[local] = FIRST
        self._flagged = True
        self._rewards[local] = 0.0
        extras: list[Extra] = []
        if isinstance(outcome, Failure):
            self._flags[local] = 0
            extras.append(Extra(slot, {}, None, outcome))
        else:
            obs, info = outcome
            try:
                self._board.observations.store_row(slot, obs)
                if info:
                    extras.append(Extra(slot, self._row_info(info), info))
                if self._board.info and self._reader is not None:
                    self._reader.collect([local], extras, {})
            except Exception as exc:
                self._fail(local, "reset", exc, extras)
        objects = self._objects(slot, 1) if self._has_objects else None
        self._send(tag(Answer.ROW, slot), RowBody(extras, objects) if extras or objects else None)

    def _begin_resets(self) -> None:
        ended, self._ended = self._ended, []
        for local in ended:
            if self._threads:
                threading.Thread(target=self._reset_aside, args=(local,), daemon=True).start()
            else:
                self._reset_aside(local)

    def _reset_aside(self, local: int) -> None:
        outcome = self._try_reset(local)
        with self._lock:
            self._first_rows[local] = outcome
            awaited = local in self._awaited
        if awaited:
            self._on_await_reset(local, None)

    def _on_await_reset(self, local: int, _: Any) -> None:
        with self._lock:
            self._awaited.add(local)
            outcome = self._first_rows.pop(local, None)
            if outcome is None:
                return
            self._awaited.discard(local)
        self._send_first_row(local, outcome)

    def _hold(self, local: int, seed: Any, options: Any) -> None:
        if seed is not None:
            self._seeds[local] = seed
        if options is not None:
            self._options[local] = options

    def _on_prepare(self, _: int, body: tuple[dict[int, Any], dict[int, Any]]) -> None:
        seeds, options = body
        for slot in {*seeds, *options}:
            self._hold(slot - self._first, seeds.get(slot), options.get(slot))
        self._send(Answer.REPLY, None)

    def _on_resume(self, _: int, lost: dict[int, tuple[Any, int | None]]) -> None:
        """Take over slots whose episodes ended with another worker: their next step gives a truncated row."""
        for slot, (row, seed) in lost.items():
            self._act[slot - self._first] = partial(_lost_step, row)
            self._hold(slot - self._first, seed, None)
        self._send(Answer.REPLY, None)

    # Everything else

    def _on_call(self, _: int, body: tuple[Callable[..., Any], list[int], tuple[Any, ...], dict[str, Any]]) -> None:
        function, slots, args, kwargs = body
        results: list[Any] = []
        for slot in slots:
            try:
                results.append(function(self.envs[slot - self._first], *args, **kwargs))
            except ENV_ERRORS as exc:
                results.append(Failure.capture(slot, _describe(function, args), exc, portable=self._remote))
        try:
            self._send(Answer.REPLY, results)
        except Exception:  # some result that no pickle takes
            doing = _describe(function, args)
            checked = [_portable_result(slot, doing, result) for slot, result in zip(slots, results, strict=True)]
            self._send(Answer.REPLY, checked)

    def _on_open_info(self, _: int, specs: Specs) -> None:
        self._board.open_info(specs)
        if self._reader is not None:
            self._reader.open(self._board.info, self._board.first_info)
        self._send(Answer.REPLY, None)

    def _on_close(self, _: int, __: Any) -> None:
        self._send(Answer.CLOSED, close_envs(self.envs, self._first, remote=self._remote))

    def _send_locked(self, tag: int, body: Any) -> None:
        with self._lock:
            self._send_now(tag, body)

    def _send_now(self, tag: int, body: Any) -> None:
        try:
            self._answer(tag, body)
        except Exception:
            if not isinstance(body, RowBody):
                raise
            self._answer(tag, RowBody([self._portable(extra) for extra in body.extras], body.objects))

    def _portable(self, extra: Extra) -> Extra:
        """Turn infos that no pickle takes into an error of their env."""
        try:
            dumps(extra)
        except Exception as exc:
            keys = [key for key, value in extra.info.items() if not can_pickle(value)]
            problem = VecEnvError(f"its info{keys} cannot be pickled ({exc}): leave it out, or use DummyVecEnv")
            return Extra(extra.slot, {}, None, Failure.capture(extra.slot, "step", problem, portable=True))
        return extra


def close_envs(envs: Sequence[Any], first: int, *, remote: bool) -> list[Failure]:
    """Close every env, whatever the others do."""
    failures = []
    for slot, env in enumerate(envs, first):
        try:
            env.close()
        except ENV_ERRORS as exc:
            failures.append(Failure.capture(slot, "close", exc, portable=remote))
    return failures


def _refuse(why: str, slot: int, _: Any) -> StepResult:
    raise ResetNeededError(why.format(slot, slot))


def _lost_step(row: Any, _: Any) -> StepResult:
    return row, 0.0, False, True, {"worker_restarted": True}


def _describe(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    return f"{function.__name__}({', '.join(map(repr, args[:1]))})"


def _portable_result(slot: int, doing: str, result: Any) -> Any:
    try:
        dumps(result)
    except Exception as exc:
        problem = VecEnvError(f"{doing} of env {slot} gives a {type(result).__name__} that cannot be pickled ({exc})")
        return Failure.capture(slot, doing, problem, portable=True)
    return result
