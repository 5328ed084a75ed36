"""Every kind of call on a VecEnv with random arguments, its answer compared with what is expected."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from chaos.calls import Calls, told
from chaos.disturb import Disturber
from chaos.env import (
    BAD_INFO,
    DEADLY,
    END,
    END_BAD,
    END_DIE,
    END_RAISE,
    END_SLOW,
    EXIT,
    GO_ON_SECONDS,
    HANG,
    HANG_SECONDS,
    KILL,
    KINDS,
    NONCES,
    RAISE,
    SEGFAULT,
    SLOW,
    STEP,
    TRUNCATE,
    goes_on,
)
from chaos.expected import Expected
from chaos.hosts import OPAQUE
from chaos.model import RENEWING, Row, State, fields_of
from chaos.plan import Outcome, Plan, Violation
from vecenvs import env_calls
from vecenvs.errors import (
    AlreadySteppingError,
    ClosedError,
    EnvError,
    NotSteppingError,
    StepTimeout,
    VecEnvError,
    WorkerDied,
)
from vecenvs.testing.envs.batches import KINDS as BATCHED
from vecenvs.vec_env import VecEnv


class Player:
    """Commands to one VecEnv, and checks of their answers. `do_x` makes one call of `x`."""

    def __init__(
        self, vec: VecEnv, plan: Plan, rng: random.Random, calls: Calls, expected: Expected, disturber: Disturber,
        counts: Counter[str],
    ) -> None:  # fmt: skip
        self.vec, self.plan, self.rng, self.calls, self.expected = vec, plan, rng, calls, expected
        self.disturber, self.counts, self.n, self.shards = disturber, counts, plan.num_envs, expected.shards
        self.call_slots: list[int] = []
        self.alone_until = 0.0  # until then an env may go on in spite of a cancellation

    def actions(self, slots: Sequence[int]) -> list[int]:
        rng, plan = self.rng, self.plan
        kinds, weights = [STEP, END, TRUNCATE, SLOW], [60.0, 6, 3, 10]
        if plan.faults:
            kinds += [RAISE, BAD_INFO, END_SLOW, END_RAISE, END_BAD]
            weights += [2, 0.7, 2, 1, 0.7]
        if plan.option in RENEWING:
            kinds, weights = [*kinds, RAISE], [*weights, 6]
        if plan.deadly:
            kinds += [EXIT, KILL, SEGFAULT, HANG]
            weights += [0.5, 0.5, 0.3, 0.15]
        if plan.deadly and plan.option != "spares":  # whose next reset is that of another slot, some time
            kinds, weights = [*kinds, END_DIE], [*weights, 0.5]
        if plan.late:
            kinds, weights = [*kinds, HANG], [*weights, 2]
        if plan.option == "spares":
            kinds, weights = [*kinds, END_SLOW, RAISE], [*weights, 3, 2]
        chosen = [kind + KINDS * rng.randrange(NONCES) for kind in rng.choices(kinds, weights, k=len(slots))]
        if plan.late == "error" or (plan.late and self.expected.inline):  # where two at once are not made anew
            for j, action in enumerate(chosen):
                if action % KINDS == HANG and (goes_on(action) or not plan.awaits):
                    now = time.monotonic()
                    chosen[j] -= HANG * (now < self.alone_until)
                    self.alone_until = max(self.alone_until, now + 2 * GO_ON_SECONDS)
        for slot, action in zip(slots, chosen, strict=True):
            kind = action % KINDS
            if self.expected.owner[slot] not in self.expected.inline:
                late = kind == HANG and plan.step_timeout is not None and plan.step_timeout < HANG_SECONDS
                self.expected.causes[self.expected.owner[slot]] += kind in DEADLY or kind == END_DIE or late
        return chosen

    def do_step_async(self) -> None:
        self._step("step_async", self.vec.step_async)

    def do_step(self) -> None:
        self._step("step", self.vec.step)

    def _step(self, kind: str, call: Callable[[Any], Any]) -> None:
        slots = [slot for slot in range(self.n) if not all(s.auto for s in self.expected.states[slot])]
        everyone = list(range(self.n))
        actions = self.actions(everyone)
        outcome = self.calls.attempt(kind, lambda: call(np.array(actions)), str(actions))
        if self.expected.check_refusal(everyone, outcome, autoresets=False):
            return
        if self.expected.dead and isinstance(outcome.error, WorkerDied):  # before anything is sent
            return
        late = isinstance(outcome.error, StepTimeout | WorkerDied) and kind == "step"
        stepping = Outcome() if outcome.error is None or late or isinstance(outcome.error, EnvError) else outcome
        self.expected.give_steps(slots, [actions[slot] for slot in slots], stepping, together=True)
        if kind == "step_async" or outcome.error is not None:
            if stepping.error is None:
                self.expected.lock = {"step"}
            elif "idle" in self.expected.lock:  # perhaps a call is under way, and the step was refused
                self.expected.lock = self.expected.lock | {"step"}
        if kind == "step" and (outcome.error is None or isinstance(outcome.error, EnvError)):
            self._take_step(outcome)
        elif outcome.error is not None:
            self.after(outcome.error)

    def do_step_wait(self) -> None:
        timeout = self._timeout()
        outcome = self.calls.attempt("step_wait", lambda: self.vec.step_wait(timeout))
        if isinstance(outcome.error, NotSteppingError):
            if self.expected.lock == {"step"} and not self.expected.dead:
                raise Violation("a step is lost", f"step_wait: {outcome.error}")
            self.expected.lock = self.expected.lock - {"step"} or {"idle"}
        elif outcome.error is None or isinstance(outcome.error, EnvError):
            if "step" not in self.expected.lock:
                raise Violation("a step from nowhere", f"step_wait gave {outcome.result!r:.500}")
            self._take_step(outcome)
        else:
            self.after(outcome.error)

    def _take_step(self, outcome: Outcome) -> None:
        self.expected.lock = {"idle"}
        if isinstance(outcome.error, EnvError):
            self.expected.take_errors(outcome.error)
            return
        obs, rewards, dones, infos = outcome.result
        terminated, truncated, active = self.vec.terminated, self.vec.truncated, self.vec.active
        if len(obs) != self.n or dones.tolist() != (terminated | truncated).tolist():
            raise Violation("a step of another form", f"{len(obs)} rows, dones {dones}, {terminated}, {truncated}")
        for slot in range(self.n):
            row = Row(
                slot,
                fields_of(obs[slot]),
                float(rewards[slot]),
                bool(terminated[slot]),
                bool(truncated[slot]),
                infos[slot],
            )
            if "resetting" in infos[slot]:
                self.expected.take_repeated(row, active=bool(active[slot]))
            else:
                self.expected.take(row)

    def do_send(self) -> None:
        slots = self._whole(self._some())
        partly = not self.expected.whole(slots)
        actions = self.actions(slots)
        outcome = self.calls.attempt("send", lambda: self.vec.send(np.array(actions), slots), f"{actions} {slots}")
        if type(outcome.error) is VecEnvError or (partly and outcome.error is None):
            if partly != (outcome.error is not None):
                raise Violation("a part of a batched env is stepped, or a whole one refused", f"{slots} {outcome}")
            return
        if not self.expected.check_refusal(slots, outcome, autoresets=True):
            if partly or self.expected.refused_as_dead(slots, outcome):
                return
            self.expected.give_steps(slots, actions, outcome, together=False)
        self.after(outcome.error)

    def do_reset_async(self) -> None:
        self._reset("reset_async", self.vec.reset_async)

    def do_reset(self) -> None:
        self._reset("reset", self.vec.reset)

    def _reset(self, kind: str, call: Callable[..., Any], some: list[int] | None = None) -> None:
        slots = self._whole(self._some(), OPAQUE) if some is None else some
        seed = self.rng.choice([None, None, self.rng.randrange(2**31)])
        option = self.rng.choice([None, None, self.rng.randrange(10**6)])
        options = None if option is None else {"option": option}
        self.expected.begun.give(slots, seed)
        given = f"{slots} {seed} {option}"
        calm = some is not None
        outcome = self.calls.attempt(kind, lambda: call(slots, seed=seed, options=options), given, calm=calm)
        states = [state for slot in slots for state in self.expected.states[slot]]
        unseen = any(s.auto and s.due is not None and s.due.unsure for s in states)
        refused = self.expected.check_refusal(slots, outcome, autoresets=False)
        if refused or self.expected.refused_as_dead(slots, outcome):
            return

        self.expected.held |= isinstance(outcome.error, KeyboardInterrupt)
        self.expected.clear_autoresets(slots, sure=outcome.error is None or isinstance(outcome.error, EnvError))
        self.expected.give_resets(slots, seed, option, outcome)
        if kind == "reset" and outcome.error is None:
            rows = self._rows_of(slots, outcome.result)
            for slot, obs in rows:
                self._take_first(slot, obs)
        elif kind == "reset" and isinstance(outcome.error, EnvError):
            self.expected.take_errors(outcome.error)
        else:
            self.after(outcome.error)
            if unseen and isinstance(outcome.error, KeyboardInterrupt) and not calm:
                self.drain()  # and begin episodes whose seeds will be known
                self._reset("reset", self.vec.reset, slots)

    def _rows_of(self, slots: Sequence[int], obs: Any) -> list[tuple[int, tuple[int, ...]]]:
        if len(obs) != len(slots):
            raise Violation("rows are missing", f"reset of {slots} gave {len(obs)}")
        return [(slot, fields_of(row)) for slot, row in zip(slots, obs, strict=True)]

    def _take_first(self, slot: int, obs: tuple[int, ...]) -> None:
        """Take a row of `reset`, which has only an observation and `reset_infos`."""
        info = {**self.vec.reset_infos[slot], "TimeLimit.truncated": False}
        self.expected.take(Row(slot, obs, 0.0, terminated=False, truncated=False, info=info))

    def do_recv(self) -> None:
        sure = [slot for slot in range(self.n) if all(s.due is not None for s in self.expected.states[slot])]
        least = self.rng.randint(1, max(1, len(sure)))
        most = self.rng.choice([None, None, least, least + 1])
        self._recv(least, most, self._timeout())

    def _recv(self, least: int, most: int | None, timeout: float | None, *, calm: bool = False) -> Outcome:
        sure = [slot for slot in range(self.n) if all(s.due is not None for s in self.expected.states[slot])]
        maybe = [slot for slot in range(self.n) if any(s.due is not None for s in self.expected.states[slot])]
        outcome = self.calls.attempt("recv", lambda: self.vec.recv(least, most, timeout), calm=calm)
        error = outcome.error
        self.expected.held |= isinstance(error, KeyboardInterrupt)
        if isinstance(error, NotSteppingError):
            self.expected.held = False
        if isinstance(error, NotSteppingError | AlreadySteppingError):
            if sure and self.expected.lock == {"idle"}:
                raise Violation("rows are lost", f"recv says {error!r:.200} while {self.expected.describe(*sure)}")
        elif isinstance(error, ValueError) and not isinstance(error, VecEnvError):
            if len(sure) >= least:
                raise Violation("rows are lost", f"recv({least}): {error}, but {self.expected.describe(*sure)}")
        elif isinstance(error, EnvError):
            self.expected.lock, self.expected.held = {"idle"}, False
            if error.batch is not None:  # of a reset that was interrupted
                self.expected.take_errors(error)
            else:
                for each in error.errors:  # of a batched env, all of its envs
                    self.expected.take_failed(each)
        elif error is None:
            batch = outcome.result
            self.expected.lock = {"idle"}
            held, self.expected.held = self.expected.held, False
            if not maybe or (most is not None and len(batch) > most and not held):
                raise Violation("rows from nowhere", f"recv({least}, {most}) gave {batch.indices}")
            self.expected.take_batch(batch)
        else:
            self.after(error)
        return outcome

    def do_bump(self) -> None:
        slots = self._shown(self._some())
        payload = bytes(self.rng.choice([0, 0, 0, 100, 200_000]))
        outcome = self.calls.attempt("env_method", lambda: self.vec.env_method("bump", payload, indices=slots))
        if self.expected.check_refusal(slots, outcome, autoresets=False):
            return
        if outcome.error is not None:
            self.expected.maybe_called(slots, State.bumped)
            self.after(outcome.error)
            return
        for slot, (life, pid, episode, t, bumps, bonus, length) in zip(slots, outcome.result, strict=True):
            if length != len(payload):
                raise Violation("a wrong result", f"bump took {length} bytes of {len(payload)}")
            self.expected.take_reply(slot, life, pid, (episode, t, bumps, bonus))

    def do_set_attr(self) -> None:
        slots, value = self._shown(self._some()), self.rng.randrange(1, 1000)
        outcome = self.calls.attempt("set_attr", lambda: self.vec.set_attr("bonus", value, indices=slots))
        if self.expected.check_refusal(slots, outcome, autoresets=False):
            return
        if outcome.error is not None:
            self.expected.maybe_called(slots, lambda s: [s._replace(bonus=value)])
            self.after(outcome.error)
            return
        for slot in slots:
            states = self.expected.states[slot]
            self.expected.former[slot] |= {state.bonus for state in states if state.due is not None}
            self.expected.states[slot] = {s._replace(bonus=value) for s in states | self.expected.replaced(slot)}

    def do_get_attr(self) -> None:
        slots = self._shown(self._some())
        outcome = self.calls.attempt("get_attr", lambda: self.vec.get_attr("slot", indices=slots))
        if not self.expected.check_refusal(slots, outcome, autoresets=False):
            self._check_slots(slots, outcome)

    def _check_slots(self, slots: list[int], outcome: Outcome) -> None:
        if outcome.error is not None:
            self.after(outcome.error)
        elif outcome.result != (slots if self.plan.option != "spares" else [0] * len(slots)):
            raise Violation("a wrong result", f"slots of {slots} are {outcome.result}")

    def do_call_async(self) -> None:
        slots = self._shown(self._some())
        outcome = self.calls.attempt("call_async", lambda: self.vec.call_async(env_calls.get_attr, slots, "slot"))
        if self.expected.check_refusal(slots, outcome, autoresets=False):
            return
        if outcome.error is None:
            self.expected.lock, self.call_slots = {"call"}, slots
        elif isinstance(outcome.error, KeyboardInterrupt) and "idle" in self.expected.lock:
            self.expected.lock, self.call_slots = self.expected.lock | {"call"}, slots
        self.after(outcome.error)

    def do_call_wait(self) -> None:
        timeout = self._timeout()
        outcome = self.calls.attempt("call_wait", lambda: self.vec.call_wait(timeout))
        if isinstance(outcome.error, NotSteppingError):
            if self.expected.lock == {"call"}:
                raise Violation("a call is lost", str(outcome.error))
            self.expected.lock = self.expected.lock - {"call"} or {"idle"}
            return
        if outcome.error is None:
            if "call" not in self.expected.lock:
                raise Violation("results from nowhere", repr(outcome.result))
            self.expected.lock = {"idle"}
        elif isinstance(outcome.error, WorkerDied) and not {*self.call_slots}.intersection(outcome.error.indices):
            self.expected.lock = self.expected.lock | {"idle"}  # it goes on, unless it had ended before
        elif isinstance(outcome.error, WorkerDied | EnvError):
            self.expected.lock = {"idle"}
        elif isinstance(outcome.error, KeyboardInterrupt):
            self.expected.lock = self.expected.lock | {"idle"}
        self._check_slots(self.call_slots, outcome)

    def do_seed(self) -> None:
        seed, option = self.rng.randrange(2**31), self.rng.randrange(10**6)
        everyone = list(range(self.n))
        if self.rng.random() < 0.5:
            self.expected.begun.give(everyone, seed)
            outcome = self.calls.attempt("seed", lambda: self.vec.seed(seed), str(seed))
        else:
            seed = None
            outcome = self.calls.attempt("set_options", lambda: self.vec.set_options({"option": option}), str(option))
        if self.expected.check_refusal(everyone, outcome, autoresets=False):
            return

        def held(state: State, slot: int) -> State:
            return state._replace(held=(state.held[0], option) if seed is None else (seed + slot, state.held[1]))

        for slot in everyone:
            # An async autoreset was waited out, but one that died in the meantime has been begun again.
            states = self.expected.states[slot]
            again = (
                {a for s in states if s.due is not None for a in s.after_death()}
                if self.expected.causes[self.expected.owner[slot]]
                else set()
            )
            after = {held(state, slot) for state in states | again}
            self.expected.states[slot] = after if outcome.error is None else states | after
            self.expected.check_bound(slot)
        self.after(outcome.error)

    def after(self, error: BaseException | None) -> None:
        """Record what an exception means for all envs. Mostly, fetch the rows that are there."""
        if error is None or isinstance(error, NotSteppingError | AlreadySteppingError):
            return
        if isinstance(error, ClosedError):
            raise Violation("closed", told(error))
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
        if not self.expected.causes[worker]:
            raise Violation("a death without a cause", told(error))
        self.counts["deaths told"] += 1
        if error.state == "replaced":
            self.expected.lock -= {"call"}
            self.expected.lock = self.expected.lock or {"idle"}
            return
        if self.plan.restart and self.vec.stats()["restarts"] < self.plan.max_restarts:
            raise Violation("a worker is lost with restarts left", told(error))
        self.expected.dead.add(worker)
        for slot in self.shards[worker]:  # a row that came before the death is still handed out
            self.expected.states[slot] |= {s._replace(due=None) for s in self.expected.states[slot]}
        if "step" in self.expected.lock:
            self.expected.lock = {"idle"}
            self.expected.mark_leftover()
        self.expected.lock = {"idle"}
        self.drain()

    def drain(self) -> None:
        """Fetch all rows by the documented rules and check that none is missing, without disturbances in the caller."""
        self.calls.note("drain:")
        patience = self.plan.patience / 3
        end = time.monotonic() + patience
        if "call" in self.expected.lock:
            self._drain_call(patience)
        if "step" in self.expected.lock and not self._drain_step(end):
            return
        self.expected.lock = {"idle"}
        while True:
            self._not_late(end, "recv")
            outcome = self._recv(1, None, 2.0, calm=True)
            if isinstance(outcome.error, NotSteppingError):
                break
            if isinstance(outcome.error, AlreadySteppingError):
                raise Violation("recv refuses", str(outcome.error))
        self._settle()

    def _drain_call(self, patience: float) -> None:
        outcome = self.calls.attempt("call_wait", lambda: self.vec.call_wait(patience), calm=True)
        if isinstance(outcome.error, StepTimeout):
            raise Violation("a call never ends", str(outcome.error))
        if isinstance(outcome.error, NotSteppingError) and self.expected.lock == {"call"}:
            raise Violation("a call is lost", str(outcome.error))
        if isinstance(outcome.error, WorkerDied):
            self._bury(outcome.error)
            if not {*self.call_slots}.intersection(outcome.error.indices):
                self._drain_call(patience)  # it goes on
                return
        self.expected.lock = self.expected.lock - {"call"} or {"idle"}

    def _drain_step(self, end: float) -> bool:
        """Finish a step. Return False if a worker died: then the rest is done, too."""
        while "step" in self.expected.lock:
            self._not_late(end, "step_wait")
            outcome = self.calls.attempt("step_wait", lambda: self.vec.step_wait(2.0), calm=True)
            if isinstance(outcome.error, NotSteppingError):
                if self.expected.lock == {"step"} and not self.expected.dead:
                    raise Violation("a step is lost", f"step_wait: {outcome.error}")
                break
            if outcome.error is None or isinstance(outcome.error, EnvError):
                self._take_step(outcome)
            elif isinstance(outcome.error, WorkerDied):
                self._bury(outcome.error)  # drains
                return False
        return True

    def _settle(self) -> None:
        """Remove the states in which a command would be under way, as none is."""
        unsure = []
        for slot in range(self.n):
            states = {s for s in self.expected.states[slot] if s.due is None}
            if not states:
                raise Violation("rows are lost", self.expected.describe(slot))
            if states != self.expected.states[slot]:
                unsure.append(slot)
                self.expected.gone[slot] = {
                    after for s in self.expected.states[slot] - states for after in s.handed_out()
                }
            self.expected.states[slot] = states
        if unsure and self.rng.random() < 0.7:
            self._probe(unsure)
        if self.disturber.idle():
            self.expected.forgive_causes(self.disturber.killed)

    def _probe(self, slots: list[int]) -> None:
        """Check that commands without a row were never sent, where that is unknown."""
        slots = self._shown([slot for slot in slots if self.expected.owner[slot] not in self.expected.dead])
        outcome = self.calls.attempt("env_method", lambda: self.vec.env_method("bump", b"", indices=slots), calm=True)
        if outcome.error is not None:
            self.expected.maybe_called(slots, State.bumped)
            self.after(outcome.error)
            return
        for slot, (life, pid, episode, t, bumps, bonus, _) in zip(slots, outcome.result, strict=True):
            self.expected.take_reply(slot, life, pid, (episode, t, bumps, bonus))

    def _not_late(self, end: float, what: str) -> None:
        if time.monotonic() > end:
            missing = [slot for slot in range(self.n) if any(s.due is not None for s in self.expected.states[slot])]
            raise Violation("rows never come", f"{what}; {self.expected.describe(*missing)}")

    def _some(self) -> list[int]:
        living = [slot for slot in range(self.n) if self.expected.owner[slot] not in self.expected.dead]
        if self.rng.random() < 0.1 or not living:
            living = list(range(self.n))
        if self.rng.random() < 0.3:
            return living
        free = [slot for slot in living if all(s.due is None for s in self.expected.states[slot])]
        pool = free if free and self.rng.random() < 0.8 else living
        found = self.rng.sample(pool, self.rng.randint(1, len(pool)))
        return found if self.rng.random() < 0.3 else sorted(found)

    def _whole(self, slots: list[int], kinds: Collection[str] = frozenset(BATCHED)) -> list[int]:
        """Return mostly, with some envs of a batched env of these kinds, all of them."""
        if self.rng.random() < 0.1:
            return slots
        hosts = (self.expected.hosts[slot] for slot in slots)
        groups = ([slot] if host.kind not in kinds else host.slots for slot, host in zip(slots, hosts, strict=True))
        return list(dict.fromkeys(itertools.chain.from_iterable(groups)))

    def _shown(self, slots: list[int]) -> list[int]:
        """Return those of these envs that a function can be called on."""
        return [slot for slot in slots if self.expected.hosts[slot].kind not in OPAQUE]

    def _timeout(self) -> float | None:
        return self.rng.choice([None, None, None, 0, 0.001, 0.05])
