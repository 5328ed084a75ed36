"""Calls drawn at random, carried out on a VecEnv, and what comes of them held to the model."""

from __future__ import annotations

import faulthandler
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from chaos.disturb import Disturber, Interrupter
from chaos.env import (
    BAD_INFO,
    DEADLY,
    END,
    END_BAD,
    END_DIE,
    END_RAISE,
    END_SLOW,
    EXIT,
    HANG,
    HANG_SECONDS,
    KILL,
    KINDS,
    NONCES,
    RAISE,
    SEGFAULT,
    SLOW,
    STEP,
    TOLD,
    TRUNCATE,
)  # fmt: skip
from chaos.model import LIFE, PID, Row, State
from vecenvs.errors import (
    AlreadySteppingError,
    ClosedError,
    EnvError,
    NotSteppingError,
    StepTimeout,
    VecEnvError,
    WorkerDied,
)
from vecenvs.vec_env import Batch, VecEnv

# Seconds of a SIGSTOP: one that nothing need mind; one over `step_timeout`; one that only a restart can end.
SHORT, LONG, ENDLESS = 0.4, 3.0, 120.0
MOST_STATES = 600


def alive(pid: int) -> bool:
    """Tell whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Violation(Exception):
    """Something that may not be. `kind` is a class of such things; after a `soft` one the round goes on."""

    def __init__(self, kind: str, text: str, *, soft: bool = False) -> None:
        super().__init__(text)
        self.kind, self.soft = kind, soft


@dataclass
class Plan:
    """How a round goes."""

    mode: str
    num_envs: int
    form: str
    restart: bool
    max_restarts: int
    step_timeout: float | None
    steps: int
    interrupts: str  # "", "timer", "bytecode"
    interrupt_rate: float
    kill_rate: float
    stop_rate: float
    deadly: bool
    faults: bool
    patience: float
    info_attrs: tuple[str, ...] = ()
    newest: bool = False  # whether workers are children of this process, to be found without their pids


@dataclass
class Outcome:
    """What a call has given or raised."""

    result: Any = None
    error: BaseException | None = None


class Player:
    """One VecEnv and the states its slots may be in."""

    def __init__(
        self, vec: VecEnv, plan: Plan, shards: Sequence[range], inline: set[int], rng: random.Random,
        interrupter: Interrupter, disturber: Disturber, counts: Counter[str], log: IO[str],
    ) -> None:  # fmt: skip
        self.vec, self.plan, self.shards, self.inline = vec, plan, shards, inline
        self.rng, self.interrupter, self.disturber, self.counts, self.log = rng, interrupter, disturber, counts, log
        self.n = plan.num_envs
        self.owner = [worker for worker, shard in enumerate(shards) for _ in shard]
        self.slots = [{State(slot, plan.mode, self.owner[slot] not in inline)} for slot in range(self.n)]
        self.lock = {"idle"}  # or "step" or "call": what may be under way of all envs
        self.call_slots: list[int] = []
        self.gone: list[set[State]] = [set() for _ in range(self.n)]  # that would hold, had a row come
        self.dead: set[int] = set()
        self.held = False  # whether a recv may return what an interrupted call was about to: then without limits
        self.lives: list[set[int]] = [set() for _ in range(self.n)]
        self.last: list[Row | None] = [None] * self.n
        self.pids: dict[int, int] = {}
        self.causes = Counter[int]()  # by worker, of its end
        self.soft: list[Violation] = []
        self.history: list[str] = []
        self.homes: dict[int, int] = {}  # life -> pid

    # Calls

    def attempt(self, kind: str, call: Callable[[], Any], *, calm: bool = False) -> Outcome:
        """Carry out a call, perhaps disturbed; what it may raise is no violation."""
        plan, rng = self.plan, self.rng
        disturbed = plan.interrupts if not calm and rng.random() < plan.interrupt_rate else ""
        self._note(f"{kind} {disturbed}".strip())
        faulthandler.dump_traceback_later(plan.patience, exit=True, file=self.log)
        before = self.interrupter.fired
        try:
            if disturbed == "timer":
                delay = 10 ** rng.uniform(-4.7, -0.7)
                return Outcome(self.interrupter.by_timer(call, delay))
            if disturbed == "bytecode":
                return Outcome(self.interrupter.by_place(kind, call))
            return Outcome(call())
        except KeyboardInterrupt as exc:
            if self.interrupter.fired == before:
                raise Violation("KeyboardInterrupt from nowhere", self._told(exc)) from exc
            self.counts["interrupts"] += 1
            self._note(f"  interrupted at {self.interrupter.where}")
            self._maybe_broken()
            return Outcome(error=exc)
        except (VecEnvError, ValueError) as exc:
            if type(exc) is VecEnvError or (not isinstance(exc, VecEnvError) and kind != "recv"):
                raise Violation(f"{type(exc).__name__} out of {kind}", self._told(exc)) from exc
            if self.interrupter.fired != before:
                self._note(f"  interrupted, unseen, at {self.interrupter.where}")
                self._maybe_broken()
            self.counts["exceptions"] += 1
            self._note(f"  {type(exc).__name__}: {str(exc).splitlines()[0][:150]}")
            if isinstance(exc, EnvError):
                self._check_cause(exc)
            return Outcome(error=exc)
        except Exception as exc:
            raise Violation(f"{type(exc).__name__} out of {kind}", self._told(exc)) from exc
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _note(self, text: str) -> None:
        if self.history[-2:-1] == [text] or self.history[-1:] == [text]:  # polling
            return
        self.history.append(text)
        print(text, file=self.log, flush=True)  # what is left of it if this hangs
        del self.history[:-60]

    def _told(self, exc: BaseException) -> str:
        return "".join(traceback.format_exception(exc))[-3000:]

    def _check_cause(self, error: EnvError) -> None:
        """See that what an env is said to have raised is what it was told to, or follows from it."""
        for each in error.errors:
            text = str(each)
            words = (TOLD, "reset", "unpickled", "KeyboardInterrupt")
            if not any(word in text for word in words):
                raise Violation("EnvError of another cause", text)

    def _maybe_broken(self) -> None:
        """After a Ctrl-C an env in this process may have an error instead of its row."""
        for slot in range(self.n):
            if self.owner[slot] in self.inline:
                self.slots[slot] |= {failed for state in self.slots[slot] for failed in state.failed()}
                self._bound(slot)

    def _bound(self, slot: int) -> None:
        if len(self.slots[slot]) > MOST_STATES:
            raise Violation("too many states", f"env {slot} has {len(self.slots[slot])}: a fault of the chaos program")

    # Commands

    def give(
        self, slots: Iterable[int], apply: Callable[[State, int], State], outcome: Outcome, *, spare: bool = False
    ) -> None:
        """Note a command that was given, or perhaps was, if it raised; with `spare` not to envs being autoreset."""
        sure = outcome.error is None or isinstance(outcome.error, EnvError)
        for slot in slots:
            if self.owner[slot] in self.dead:
                continue
            free = {s for s in self.slots[slot] if s.due is None or s.due.leftover}
            given = {apply(state._replace(due=None), slot) for state in free}
            given |= {state for state in self.slots[slot] if spare and state.auto}
            self.slots[slot] = given if sure else self.slots[slot] | given
            if not self.slots[slot]:
                raise Violation("a command was taken where a row was due", f"env {slot}, {self._states(slot)}")
            self._bound(slot)
        if outcome.error is not None and not sure:
            self._maybe_broken_after(outcome.error)

    def _maybe_broken_after(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._maybe_broken()

    def surely_free(self, slots: Iterable[int], *, autoresets: bool) -> bool:
        """Whether no slot can have a command. With `autoresets` False those of an async autoreset do not count."""
        return not any(self._counts(s, autoresets) for slot in slots for s in self.slots[slot]) and self.lock == {
            "idle"
        }

    def surely_busy(self, slots: Iterable[int], *, autoresets: bool) -> bool:
        """Whether some slot must have one."""
        return any(all(self._counts(s, autoresets) for s in self.slots[slot]) for slot in slots)

    def _counts(self, state: State, autoresets: bool) -> bool:
        return state.due is not None and not state.due.leftover and (autoresets or not state.auto)

    def check_refusal(self, slots: Sequence[int], outcome: Outcome, *, autoresets: bool) -> bool:
        """Tell whether a command was refused; see that it was right to."""
        error = outcome.error
        busy = self.surely_busy(slots, autoresets=autoresets) or "idle" not in self.lock
        if isinstance(error, AlreadySteppingError):
            if self.surely_free(slots, autoresets=autoresets):
                raise Violation("refused though nothing was under way", str(error))
            return True
        if busy and not isinstance(error, KeyboardInterrupt | StepTimeout | WorkerDied):
            raise Violation("taken though something was under way", f"{slots} {self.lock} {error!r}")
        return False

    def actions(self, slots: Sequence[int]) -> list[int]:
        rng, plan = self.rng, self.plan
        kinds, weights = [STEP, END, TRUNCATE, SLOW], [60.0, 6, 3, 10]
        if plan.faults:
            kinds += [RAISE, BAD_INFO, END_SLOW, END_RAISE, END_BAD]
            weights += [2, 0.7, 2, 1, 0.7]
        if plan.deadly:
            kinds += [EXIT, KILL, SEGFAULT, HANG, END_DIE]
            weights += [0.5, 0.5, 0.3, 0.15, 0.5]
        chosen = [kind + KINDS * rng.randrange(NONCES) for kind in rng.choices(kinds, weights, k=len(slots))]
        for slot, action in zip(slots, chosen, strict=True):
            kind = action % KINDS
            if self.owner[slot] not in self.inline:
                late = kind == HANG and plan.step_timeout is not None and plan.step_timeout < HANG_SECONDS
                self.causes[self.owner[slot]] += kind in DEADLY or kind == END_DIE or late
        return chosen

    def _stepped(self, slots: Sequence[int], actions: Sequence[int], outcome: Outcome, *, together: bool) -> None:
        given = dict(zip(slots, actions, strict=True))
        before = {slot: set(self.slots[slot]) for slot in slots}
        self.give(slots, lambda state, slot: state.given_step(given[slot]), outcome, spare=together)
        if not together:
            return
        for worker, shard in enumerate(self.shards):  # what cannot be unpickled costs the rows of its message
            mine = [slot for slot in slots if slot in shard and worker not in self.inline]
            if any(
                given[slot] % KINDS in (BAD_INFO, END_BAD) or any(s.fault == "bad" for s in before[slot])
                for slot in mine
            ):
                for slot in mine:
                    self.slots[slot] |= {failed for state in self.slots[slot] for failed in state.failed()}

    def do_step_async(self) -> None:
        self._step("step_async", self.vec.step_async)

    def do_step(self) -> None:
        self._step("step", self.vec.step)

    def _step(self, kind: str, call: Callable[[Any], Any]) -> None:
        slots = [slot for slot in range(self.n) if not all(s.auto for s in self.slots[slot])]
        everyone = list(range(self.n))
        actions = self.actions(everyone)
        outcome = self.attempt(kind, lambda: call(np.array(actions)))
        if self.check_refusal(everyone, outcome, autoresets=False):
            return
        if self.dead and isinstance(outcome.error, WorkerDied):  # before anything is sent
            return
        late = isinstance(outcome.error, StepTimeout | WorkerDied) and kind == "step"
        stepping = Outcome() if outcome.error is None or late or isinstance(outcome.error, EnvError) else outcome
        self._stepped(slots, [actions[slot] for slot in slots], stepping, together=True)
        if kind == "step_async" or outcome.error is not None:
            self.lock = {"step"} if stepping.error is None else {"idle", "step"}
        if kind == "step" and (outcome.error is None or isinstance(outcome.error, EnvError)):
            self._take_step(outcome)
        elif outcome.error is not None:
            self.after(outcome.error)

    def do_step_wait(self) -> None:
        timeout = self._timeout()
        outcome = self.attempt("step_wait", lambda: self.vec.step_wait(timeout))
        if isinstance(outcome.error, NotSteppingError):
            if self.lock == {"step"} and not self.dead:
                raise Violation("a step is lost", f"step_wait: {outcome.error}")
            self.lock = self.lock - {"step"} or {"idle"}
        elif outcome.error is None or isinstance(outcome.error, EnvError):
            if "step" not in self.lock:
                raise Violation("a step from nowhere", f"step_wait gave {outcome.result!r:.500}")
            self._take_step(outcome)
        else:
            self.after(outcome.error)

    def _take_step(self, outcome: Outcome) -> None:
        self.lock = {"idle"}
        if isinstance(outcome.error, EnvError):
            self._take_errors(outcome.error)
            return
        obs, rewards, dones, infos = outcome.result
        terminated, truncated, active = self.vec.terminated, self.vec.truncated, self.vec.active
        if len(obs) != self.n or dones.tolist() != (terminated | truncated).tolist():
            raise Violation("a step of another form", f"{len(obs)} rows, dones {dones}, {terminated}, {truncated}")
        for slot in range(self.n):
            row = Row(
                slot,
                tuple(obs[slot].tolist()),
                float(rewards[slot]),
                bool(terminated[slot]),
                bool(truncated[slot]),
                infos[slot],
            )
            if "resetting" in infos[slot]:
                self._take_repeated(row, active=bool(active[slot]))
            else:
                self.take(row)

    def _take_repeated(self, row: Row, *, active: bool) -> None:
        self.slots[row.slot] = {s for s in self.slots[row.slot] if s.auto}
        last = self.last[row.slot]
        if not self.slots[row.slot] or active or row.reward or row.terminated or row.truncated:
            raise Violation("a wrong row", f"{row} says that it is being reset; it is in {self._states(row.slot)}")
        if last is not None and row.obs != last.obs:
            self._soften("a repeated row is another one", f"{row}, after {last}")
        self.counts["rows"] += 1

    def do_send(self) -> None:
        slots = self._some()
        actions = self.actions(slots)
        outcome = self.attempt("send", lambda: self.vec.send(np.array(actions), slots))
        if not self.check_refusal(slots, outcome, autoresets=True):
            if self._refused_as_dead(slots, outcome):
                return
            self._stepped(slots, actions, outcome, together=False)
        self.after(outcome.error)

    def _refused_as_dead(self, slots: Sequence[int], outcome: Outcome) -> bool:
        """Whether it was for a worker known to be dead: then nothing was sent."""
        return isinstance(outcome.error, WorkerDied) and any(self.owner[slot] in self.dead for slot in slots)

    def do_reset_async(self) -> None:
        self._reset("reset_async", self.vec.reset_async)

    def do_reset(self) -> None:
        self._reset("reset", self.vec.reset)

    def _reset(self, kind: str, call: Callable[..., Any]) -> None:
        slots = self._some()
        seed = self.rng.choice([None, None, self.rng.randrange(10**6)])
        option = self.rng.choice([None, None, self.rng.randrange(10**6)])
        options = None if option is None else {"option": option}
        outcome = self.attempt(kind, lambda: call(slots, seed=seed, options=options))
        if self.check_refusal(slots, outcome, autoresets=False) or self._refused_as_dead(slots, outcome):
            return

        def apply(state: State, slot: int) -> State:
            held = state.held[0] if seed is None else seed + slot, state.held[1] if option is None else option
            return state.given_reset("reset", held)

        self.held |= isinstance(outcome.error, KeyboardInterrupt)
        self._clear_autos(slots, sure=outcome.error is None or isinstance(outcome.error, EnvError))
        self.give(slots, apply, outcome)
        if kind == "reset" and outcome.error is None:
            rows = self._rows_of(slots, outcome.result)
            for slot, obs in rows:
                self._take_first(slot, obs)
        elif kind == "reset" and isinstance(outcome.error, EnvError):
            self._take_errors(outcome.error)
        else:
            self.after(outcome.error)

    def _clear_autos(self, slots: Iterable[int], *, sure: bool) -> None:
        """Async autoresets are waited out and their first rows overtaken."""
        for slot in slots:
            done = set()
            for state in self.slots[slot]:
                if state.auto:
                    for variant in [state, *state.failed()] if not sure else [state]:
                        done |= {s._replace(due=None) for s in ([variant] if variant.due else [])}
                    if self.causes[self.owner[slot]]:  # or died, and was begun again
                        done |= {s._replace(due=None) for s in state.after_death()}
            if sure:
                done |= {s for s in self.slots[slot] if not s.auto}
                self.slots[slot] = done
            else:
                self.slots[slot] |= done

    def _rows_of(self, slots: Sequence[int], obs: Any) -> list[tuple[int, tuple[int, ...]]]:
        if len(obs) != len(slots):
            raise Violation("rows are missing", f"reset of {slots} gave {len(obs)}")
        return [(slot, tuple(row.tolist())) for slot, row in zip(slots, obs, strict=True)]

    def _take_first(self, slot: int, obs: tuple[int, ...]) -> None:
        """Take a row of `reset`, of which only the observation and `reset_infos` are given."""
        info = {**self.vec.reset_infos[slot], "TimeLimit.truncated": False}
        self.take(Row(slot, obs, 0.0, terminated=False, truncated=False, info=info))

    def do_recv(self) -> None:
        sure = [slot for slot in range(self.n) if all(s.due is not None for s in self.slots[slot])]
        least = self.rng.randint(1, max(1, len(sure)))
        most = self.rng.choice([None, None, least, least + 1])
        self._recv(least, most, self._timeout())

    def _recv(self, least: int, most: int | None, timeout: float | None, *, calm: bool = False) -> Outcome:
        sure = [slot for slot in range(self.n) if all(s.due is not None for s in self.slots[slot])]
        maybe = [slot for slot in range(self.n) if any(s.due is not None for s in self.slots[slot])]
        outcome = self.attempt("recv", lambda: self.vec.recv(least, most, timeout), calm=calm)
        error = outcome.error
        self.held |= isinstance(error, KeyboardInterrupt)
        if isinstance(error, NotSteppingError | AlreadySteppingError):
            if sure and self.lock == {"idle"}:
                raise Violation("rows are lost", f"recv says {error!r:.200} while {self._states(*sure)}")
        elif isinstance(error, ValueError) and not isinstance(error, VecEnvError):
            if len(sure) >= least:
                raise Violation("rows are lost", f"recv({least}): {error}, but {self._states(*sure)}")
        elif isinstance(error, EnvError):
            self.lock = {"idle"}
            self._take_failed(error)
        elif error is None:
            batch = outcome.result
            self.lock = {"idle"}
            held, self.held = self.held, False
            if not maybe or (most is not None and len(batch) > most and not held):
                raise Violation("rows from nowhere", f"recv({least}, {most}) gave {batch.indices}")
            self._take_batch(batch)
        else:
            self.after(error)
        return outcome

    def _take_batch(self, batch: Batch) -> None:
        indices = batch.indices.tolist()
        if len(set(indices)) != len(indices):
            raise Violation("a row twice", f"{indices}")
        for j, slot in enumerate(indices):
            self.take(
                Row(slot, tuple(batch.obs[j].tolist()), float(batch.rewards[j]), bool(batch.terminated[j]),
                    bool(batch.truncated[j]), batch.infos[j])
            )  # fmt: skip

    def _take_errors(self, error: EnvError) -> None:
        """Take what a step or reset of several envs raised, and the others' rows."""
        for each in error.errors:
            self._take_failed(each)
        if error.batch is None:
            raise Violation("rows are lost", f"no batch with {error}")
        self._take_batch(error.batch)

    # Rows

    def take(self, row: Row) -> None:
        """Keep the states that foretold this row."""
        slot = row.slot
        self.counts["rows"] += 1
        if "bonus" in self.plan.info_attrs and not row.info.get("worker_restarted"):
            self._check_bonus(row)
        states = self.slots[slot]
        found = self._matching(row, states)
        worker = self.owner[slot]
        restarted = bool(row.info.get("worker_restarted"))
        if (restarted or not found) and worker not in self.inline and self.causes[worker]:
            again = {after for state in states for after in state.after_death()}
            found |= self._matching(row, again)
            if restarted or not found:
                found |= self._matching(row, {b for a in again for b in a.after_death()})
        if not found:
            kind = "a row of another env" if row.obs[0] != slot else "a wrong row"
            if all(s.due is None for s in states):
                kind = "a row from nowhere"
            if row.info.get("worker_restarted") and not self.causes[worker]:
                kind = "a restart without a cause"
            raise Violation(
                kind, f"{row}\nis none of\n{self._states(slot)}\ncauses {dict(self.causes)}, lives {self.lives[slot]}"
            )
        if row.info.get("worker_restarted"):
            self.counts["restarted rows"] += 1
            self._check_lost(row)
        elif row.obs[PID] not in (0, self.pids.get(worker)):
            self.pids[worker] = row.obs[PID]
        if not row.info.get("worker_restarted") or self.plan.mode == "same_step":
            self.lives[slot].add(row.obs[LIFE])
            self.homes[row.obs[LIFE]] = row.obs[PID]
        self.slots[slot] = {after for state in found for after in state.handed_out()}
        self.last[slot] = row

    def _check_bonus(self, row: Row) -> None:
        if row.info.get("bonus") not in {0, *(state.bonus for state in self.slots[row.slot])}:
            raise Violation("a wrong row", f"{row}: bonus; {self._states(row.slot)}")

    def _matching(self, row: Row, states: Iterable[State]) -> set[State]:
        matches = (state.match(row, self.plan.form, self.lives[row.slot]) for state in states)
        return {state for state in matches if state is not None}

    def _check_lost(self, row: Row) -> None:
        """The episode of a lost env ends with the last row that was handed out."""
        last = self.last[row.slot]
        got = row.obs if self.plan.mode != "same_step" else tuple(int(v) for v in row.info["terminal_observation"])
        if got[0] not in (row.slot, 0):
            raise Violation("a row of another env", f"{row}")
        if last is not None and got != last.obs:
            self._soften("a restart's last row is not the last one handed out", f"{got}, after {last.obs}")

    def _soften(self, kind: str, text: str) -> None:
        if all(each.kind != kind for each in self.soft):
            self.soft.append(Violation(kind, text, soft=True))

    def _take_failed(self, error: EnvError) -> None:
        slot, worker = error.index, self.owner[error.index]
        states = {s for s in self.slots[slot] if s.due is not None and s.due.kind == "error"}
        if not states and worker not in self.inline and self.causes[worker]:
            again = {after for state in self.slots[slot] for after in state.after_death()}
            states = {s for s in again if s.due is not None and s.due.kind == "error"}
        if not states:
            raise Violation("an error from nowhere", f"{error}\nwhile {self._states(slot)}")
        self.slots[slot] = {after for state in states for after in state.handed_out()}

    def _states(self, *slots: int) -> str:
        lines = []
        for slot in slots:
            states = list(self.slots[slot])
            lines += [f"env {slot} of {len(states)}: {state}" for state in states[:6]]
        return "\n".join(lines)

    # Asking

    def do_bump(self) -> None:
        slots = self._some()
        payload = bytes(self.rng.choice([0, 0, 0, 100, 200_000]))
        outcome = self.attempt("env_method", lambda: self.vec.env_method("bump", payload, indices=slots))
        if self.check_refusal(slots, outcome, autoresets=False):
            return
        if outcome.error is not None:
            self._maybe_called(slots, lambda s: s._replace(bumps=s.bumps + 1))
            self.after(outcome.error)
            return
        for slot, (life, pid, episode, t, bumps, bonus, length) in zip(slots, outcome.result, strict=True):
            if length != len(payload):
                raise Violation("a wrong result", f"bump took {length} bytes of {len(payload)}")
            self._told_by_env(slot, life, pid, (episode, t, bumps, bonus))

    def _told_by_env(self, slot: int, life: int, pid: int, got: tuple[int, ...]) -> None:
        worker = self.owner[slot]

        def fits(states: Iterable[State]) -> set[State]:
            found = set()
            for state in states:
                known = state.life in (0, life) and not (state.life == 0 and life in self.lives[slot])
                # A row that is due may be of before or after the call: its reset may still run aside.
                unsure = state.due is not None or state.blurred
                if (
                    known
                    and (state.bumps + 1, state.bonus) == got[2:]
                    and (unsure or (state.episode, state.t) == got[:2])
                ):
                    found.add(state._replace(life=life, bumps=state.bumps + 1))
            return found

        states = self.slots[slot]
        found = fits(states)
        if not found and worker not in self.inline and self.causes[worker]:
            found = fits({after for state in states for after in state.after_death()})
        if not found and fits(self.gone[slot]):
            raise Violation(
                "rows are lost", f"env {slot} has done what it was told; its row has not come: {self._states(slot)}"
            )
        if not found:
            raise Violation("a wrong result", f"bump of env {slot} gave {life} {got}, but {self._states(slot)}")
        self.slots[slot] = found
        self.lives[slot].add(life)
        self.pids[worker] = self.homes[life] = pid

    def do_set_attr(self) -> None:
        slots, value = self._some(), self.rng.randrange(1, 1000)
        outcome = self.attempt("set_attr", lambda: self.vec.set_attr("bonus", value, indices=slots))
        if self.check_refusal(slots, outcome, autoresets=False):
            return
        if outcome.error is not None:
            self._maybe_called(slots, lambda s: s._replace(bonus=value))
            self.after(outcome.error)
            return
        for slot in slots:
            states = self.slots[slot]
            after = {s for state in states for s in state.after_death()} if self.causes[self.owner[slot]] else set()
            self.slots[slot] = {s._replace(bonus=value) for s in states | after}

    def do_get_attr(self) -> None:
        slots = self._some()
        outcome = self.attempt("get_attr", lambda: self.vec.get_attr("slot", indices=slots))
        if not self.check_refusal(slots, outcome, autoresets=False):
            self._check_slots(slots, outcome)

    def _check_slots(self, slots: list[int], outcome: Outcome) -> None:
        if outcome.error is not None:
            self.after(outcome.error)
        elif outcome.result != slots:
            raise Violation("a wrong result", f"slots of {slots} are {outcome.result}")

    def do_call_async(self) -> None:
        from vecenvs import env_calls

        slots = self._some()
        outcome = self.attempt("call_async", lambda: self.vec.call_async(env_calls.get_attr, slots, "slot"))
        if self.check_refusal(slots, outcome, autoresets=False):
            return
        if outcome.error is None:
            self.lock, self.call_slots = {"call"}, slots
        elif isinstance(outcome.error, KeyboardInterrupt):
            self.lock, self.call_slots = {"idle", "call"}, slots
        self.after(outcome.error)

    def do_call_wait(self) -> None:
        timeout = self._timeout()
        outcome = self.attempt("call_wait", lambda: self.vec.call_wait(timeout))
        if isinstance(outcome.error, NotSteppingError):
            if self.lock == {"call"}:
                raise Violation("a call is lost", str(outcome.error))
            self.lock = self.lock - {"call"} or {"idle"}
            return
        if outcome.error is None:
            if "call" not in self.lock:
                raise Violation("results from nowhere", repr(outcome.result))
            self.lock = {"idle"}
        elif isinstance(outcome.error, WorkerDied | EnvError):
            self.lock = {"idle"}
        elif isinstance(outcome.error, KeyboardInterrupt):
            self.lock = self.lock | {"idle"}
        self._check_slots(self.call_slots, outcome)

    def do_seed(self) -> None:
        seed, option = self.rng.randrange(10**6), self.rng.randrange(10**6)
        everyone = list(range(self.n))
        if self.rng.random() < 0.5:
            outcome = self.attempt("seed", lambda: self.vec.seed(seed))
        else:
            seed = None
            outcome = self.attempt("set_options", lambda: self.vec.set_options({"option": option}))
        if self.check_refusal(everyone, outcome, autoresets=False):
            return

        def held(state: State, slot: int) -> State:
            return state._replace(held=(state.held[0], option) if seed is None else (seed + slot, state.held[1]))

        for slot in everyone:
            # An async autoreset was waited out, but one that died in the meantime has been begun again.
            states = self.slots[slot]
            again = (
                {a for s in states if s.due is not None for a in s.after_death()}
                if self.causes[self.owner[slot]]
                else set()
            )
            after = {held(state, slot) for state in states | again}
            self.slots[slot] = after if outcome.error is None else states | after
            self._bound(slot)
        self.after(outcome.error)

    def _maybe_called(self, slots: Iterable[int], change: Callable[[State], State]) -> None:
        for slot in slots:
            self.slots[slot] |= {change(state) for state in self.slots[slot]}
            self._bound(slot)

    # What follows

    def after(self, error: BaseException | None) -> None:
        """Note what an exception says of all envs; mostly, fetch what is there."""
        if error is None or isinstance(error, NotSteppingError | AlreadySteppingError):
            return
        if isinstance(error, ClosedError):
            raise Violation("closed", self._told(error))
        if isinstance(error, WorkerDied):
            self._bury(error)
            return
        if isinstance(error, StepTimeout):
            self.counts["timeouts"] += 1
            return
        if self.rng.random() < 0.6:
            self.drain()

    def _bury(self, error: WorkerDied) -> None:
        worker = error.worker
        if not self.causes[worker]:
            raise Violation("a death without a cause", self._told(error))
        self.counts["deaths told"] += 1
        if error.state == "replaced":
            self.lock -= {"call"}
            self.lock = self.lock or {"idle"}
            return
        if self.plan.restart and self.vec.stats()["restarts"] < self.plan.max_restarts:
            raise Violation("a worker is lost with restarts left", self._told(error))
        self.dead.add(worker)
        for slot in self.shards[worker]:  # a row that came before the death is still handed out
            self.slots[slot] |= {s._replace(due=None) for s in self.slots[slot]}
        if "step" in self.lock:
            self.lock = {"idle"}
            self._mark_leftover()
        self.lock = {"idle"}
        self.drain()

    def _mark_leftover(self) -> None:
        for slot in range(self.n):
            self.slots[slot] = {
                s._replace(due=s.due._replace(leftover=True)) if s.due is not None else s for s in self.slots[slot]
            }

    def drain(self) -> None:
        """Fetch all rows by the documented rules, and see that none is missing. Nothing disturbs the caller here."""
        self._note("drain:")
        patience = self.plan.patience / 3
        end = time.monotonic() + patience
        if "call" in self.lock:
            self._drain_call(patience)
        if "step" in self.lock and not self._drain_step(end):
            return
        self.lock = {"idle"}
        while True:
            self._not_late(end, "recv")
            outcome = self._recv(1, None, 2.0, calm=True)
            if isinstance(outcome.error, NotSteppingError):
                break
            if isinstance(outcome.error, AlreadySteppingError):
                raise Violation("recv refuses", str(outcome.error))
        self._settle()

    def _drain_call(self, patience: float) -> None:
        outcome = self.attempt("call_wait", lambda: self.vec.call_wait(patience), calm=True)
        if isinstance(outcome.error, StepTimeout):
            raise Violation("a call never ends", str(outcome.error))
        if isinstance(outcome.error, NotSteppingError) and self.lock == {"call"}:
            raise Violation("a call is lost", str(outcome.error))
        if isinstance(outcome.error, WorkerDied):
            self.lock = {"idle"}
            self._bury(outcome.error)
        self.lock = self.lock - {"call"} or {"idle"}

    def _drain_step(self, end: float) -> bool:
        """Finish a step; False if a worker's death has seen to the rest as well."""
        while "step" in self.lock:
            self._not_late(end, "step_wait")
            outcome = self.attempt("step_wait", lambda: self.vec.step_wait(2.0), calm=True)
            if isinstance(outcome.error, NotSteppingError):
                if self.lock == {"step"} and not self.dead:
                    raise Violation("a step is lost", f"step_wait: {outcome.error}")
                break
            if outcome.error is None or isinstance(outcome.error, EnvError):
                self._take_step(outcome)
            elif isinstance(outcome.error, WorkerDied):
                self._bury(outcome.error)  # drains
                return False
        return True

    def _settle(self) -> None:
        """Nothing is under way: strike the states in which something would be."""
        unsure = []
        for slot in range(self.n):
            states = {s for s in self.slots[slot] if s.due is None}
            if not states:
                raise Violation("rows are lost", self._states(slot))
            if states != self.slots[slot]:
                unsure.append(slot)
                self.gone[slot] = {after for s in self.slots[slot] - states for after in s.handed_out()}
            self.slots[slot] = states
        if unsure and self.rng.random() < 0.7:
            self._probe(unsure)
        self._forgive()

    def _probe(self, slots: list[int]) -> None:
        """Where it is not known whether a command was given, see that it was not: its row has not come."""
        slots = [slot for slot in slots if self.owner[slot] not in self.dead]
        outcome = self.attempt("env_method", lambda: self.vec.env_method("bump", b"", indices=slots), calm=True)
        if outcome.error is not None:
            self._maybe_called(slots, lambda s: s._replace(bumps=s.bumps + 1))
            self.after(outcome.error)
            return
        for slot, (life, pid, episode, t, bumps, bonus, _) in zip(slots, outcome.result, strict=True):
            self._told_by_env(slot, life, pid, (episode, t, bumps, bonus))

    def _not_late(self, end: float, what: str) -> None:
        if time.monotonic() > end:
            missing = [slot for slot in range(self.n) if any(s.due is not None for s in self.slots[slot])]
            raise Violation("rows never come", f"{what}; {self._states(*missing)}")

    def _forgive(self) -> None:
        """Once nothing is under way, a worker that lives, and that each env has shown, has no cause to be lost."""
        if not self.disturber.idle():
            return
        for worker, pid in self.pids.items():
            states = [state for slot in self.shards[worker] for state in self.slots[slot]]
            shown = all(s.phase not in ("lost", "new") and self.homes.get(s.life) == pid for s in states)
            known = shown and not any(s.fault == "die" for s in states)
            if known and alive(pid):
                self.causes[worker] = 0

    def _some(self) -> list[int]:
        living = [slot for slot in range(self.n) if self.owner[slot] not in self.dead]
        if self.rng.random() < 0.1 or not living:
            living = list(range(self.n))
        if self.rng.random() < 0.3:
            return living
        free = [slot for slot in living if all(s.due is None for s in self.slots[slot])]
        pool = free if free and self.rng.random() < 0.8 else living
        return sorted(self.rng.sample(pool, self.rng.randint(1, len(pool))))

    def _timeout(self) -> float | None:
        return self.rng.choice([None, None, None, 0, 0.001, 0.05])

    # A round

    def play(self) -> None:
        """Carry out a schedule."""
        weights = {
            "step": 14, "step_async": 5, "step_wait": 7, "send": 16, "recv": 18, "reset": 4, "reset_async": 5,
            "bump": 3, "set_attr": 1, "get_attr": 2, "call_async": 1, "call_wait": 2, "seed": 1,
        }  # fmt: skip
        lock_step = self.rng.random() < 0.4
        if lock_step:
            weights.update(send=1, reset_async=1, recv=3, step=40)
        for name in self.rng.choices(list(weights), list(weights.values()), k=self.plan.steps):
            if len(self.dead) == len(self.shards):
                break
            self._disturb_workers()
            getattr(self, f"do_{self._sensible(name)}")()
        self.drain()
        self.counts["restarts"] += self.vec.stats()["restarts"]

    def _sensible(self, name: str) -> str:
        """Mostly finish what is under way before anything else is tried."""
        if self.rng.random() < 0.15:
            return name
        if "step" in self.lock:
            return "step_wait"
        if "call" in self.lock:
            return "call_wait"
        due = [slot for slot in range(self.n) if any(self._counts(s, autoresets=False) for s in self.slots[slot])]
        if due and name not in ("send", "recv"):
            return "recv"
        if not due and name in ("recv", "step_wait", "call_wait"):
            return "send"
        if not any(s.begun for s in self.slots[self.n - 1]) and not due:
            return "reset"
        if not due and any(s.phase in ("failed", "over", "new") for slots in self.slots for s in slots):
            return self.rng.choice(["reset", name])
        return name

    def _disturb_workers(self) -> None:
        rng, plan = self.rng, self.plan
        remote = [worker for worker in self.pids if worker not in self.inline]
        if not remote:
            return
        worker = rng.choice(remote)
        if rng.random() < plan.kill_rate:
            if plan.newest and rng.random() < 0.3:  # one that is being started, perhaps
                self.causes.update(range(len(self.shards)))
                self.disturber.kill_newest(10 ** rng.uniform(-4, 0))
            else:
                self.causes[worker] += 1
                self.disturber.kill(self.pids[worker], 10 ** rng.uniform(-4, -0.7))
        elif rng.random() < plan.stop_rate:
            seconds = SHORT
            if plan.step_timeout is not None and rng.random() < 0.3:
                seconds = ENDLESS if plan.restart and plan.max_restarts > 100 else LONG
                self.causes[worker] += 1
            self.disturber.stop(self.pids[worker], 10 ** rng.uniform(-4, -0.7), seconds)
