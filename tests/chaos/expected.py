"""The states that the slots of a VecEnv may be in, and so the rows and errors that they may give next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from chaos.env import BAD_INFO, END_BAD, KINDS, MISSING
from chaos.hosts import OPAQUE, SINGLE, Host, alive
from chaos.model import LIFE, PID, RENEWING, Row, State, fields_of
from chaos.options import Begun
from chaos.plan import Outcome, Plan, Violation
from vecenvs.errors import AlreadySteppingError, EnvError, StepTimeout, WorkerDied
from vecenvs.vec_env import Batch

MOST_STATES = 600


class Expected:
    """What is known of the slots: a set of possible states for each, narrowed by every answer that comes.

    `inline` are the workers in this process. `causes` counts, by worker, the reasons for which it may have ended.
    """

    def __init__(
        self, plan: Plan, shards: Sequence[range], inline: set[int], counts: Counter[str], begun: Begun
    ) -> None:
        self.plan, self.shards, self.inline, self.counts, self.begun = plan, shards, inline, counts, begun
        self.n = plan.num_envs
        self.owner = [worker for worker, shard in enumerate(shards) for _ in shard]
        self.hosts = [host for host in plan.hosts for _ in host.slots]  # by slot
        self.states = [
            {State(slot, plan.mode, self.owner[slot] not in inline, host.kind, plan.option, plan.late, plan.awaits)}
            for slot, host in enumerate(self.hosts)
        ]
        self.lock = {"idle"}  # or "step" or "call": what may be under way of all envs
        self.gone: list[set[State]] = [set() for _ in range(self.n)]  # states that would hold, had a row come
        self.former: list[set[int]] = [set() for _ in range(self.n)]  # attributes when a row came that is still due
        self.dead: set[int] = set()
        self.lives: list[set[int]] = [set() for _ in range(self.n)]
        self.last: list[Row | None] = [None] * self.n
        self.pids: dict[int, int] = {}
        self.causes = Counter(dict.fromkeys(range(len(shards)), int(plan.moves)))
        self.soft: list[Violation] = []
        self.homes: dict[int, int] = {}  # life -> pid
        self.held = False  # whether the next recv may return the rows of an interrupted call, beyond its own limits

    def maybe_broken(self) -> None:
        """Allow, after a Ctrl-C, an error in place of a row for each env in this process.

        In place of a WorkerDied it leaves the caller without a word of the rows that are lost.
        """
        for slot in range(self.n):
            if self.causes[self.owner[slot]] and (not self.plan.restart or self.plan.max_restarts < 1000):
                self.states[slot] |= {state._replace(due=None) for state in self.states[slot]}
            if self.owner[slot] in self.inline:
                self.states[slot] |= {failed for state in self.states[slot] for failed in state.failed()}
                if self.hosts[slot].kind != SINGLE:
                    self._fail_beside(slot)
                self.check_bound(slot)

    def check_bound(self, slot: int) -> None:
        if len(self.states[slot]) > MOST_STATES:
            raise Violation("too many states", f"env {slot} has {len(self.states[slot])}: a fault of the chaos program")

    def _fail_beside(self, slot: int) -> None:
        """Allow an env to need a reset, since another one of its batched env may have failed."""
        self.states[slot] |= {s if s.phase == "new" else s._replace(phase="failed") for s in self.states[slot]}

    def give(
        self, slots: Iterable[int], apply: Callable[[State, int], set[State]], outcome: Outcome, *, spare: bool = False
    ) -> None:
        """Record a command that was, or may have been, sent; with `spare` not to envs under autoreset."""
        sure = outcome.error is None or isinstance(outcome.error, EnvError)
        for slot in slots:
            if self.owner[slot] in self.dead:
                continue
            if self.plan.option in RENEWING:  # the row of an env that has raised has the attributes of that one
                self.former[slot] |= {state.bonus for state in self.states[slot]}
            given = {after for state in self.free(slot) for after in apply(state, slot)}
            given |= {state for state in self.states[slot] if spare and state.auto}
            self.states[slot] = given if sure else self.states[slot] | given
            if not self.states[slot]:
                raise Violation("a command was taken where a row was due", f"env {slot}, {self.describe(slot)}")
            self.check_bound(slot)
        if isinstance(outcome.error, KeyboardInterrupt):
            self.maybe_broken()

    def whole(self, slots: Collection[int]) -> bool:
        """Tell whether, of each batched env, all envs are among these slots or none."""
        return all(other in slots for slot in slots for other in self.hosts[slot].slots)

    def free(self, slot: int) -> set[State]:
        """Return the states in which a slot can take a command."""
        return {s._replace(due=None) for s in self.states[slot] if s.due is None or s.due.leftover}

    def surely_free(self, slots: Iterable[int], *, autoresets: bool) -> bool:
        """Tell whether no slot can have a command. With `autoresets` False, async autoresets do not count."""
        due = (self.is_due(state, autoresets) for slot in slots for state in self.states[slot])
        return self.lock == {"idle"} and not self.held and not any(due)

    def surely_busy(self, slots: Iterable[int], *, autoresets: bool) -> bool:
        """Tell whether some slot must have a command."""
        return any(all(self.is_due(s, autoresets) for s in self.states[slot]) for slot in slots)

    def is_due(self, state: State, autoresets: bool) -> bool:
        return state.due is not None and not state.due.leftover and (autoresets or not state.auto)

    def check_refusal(self, slots: Sequence[int], outcome: Outcome, *, autoresets: bool) -> bool:
        """Tell whether a command was refused. Raise Violation if it was wrong to refuse or to accept it."""
        error = outcome.error
        busy = self.surely_busy(slots, autoresets=autoresets) or "idle" not in self.lock
        if isinstance(error, AlreadySteppingError):
            if self.surely_free(slots, autoresets=autoresets):
                raise Violation("refused though nothing was under way", str(error))
            return True
        if busy and not isinstance(error, KeyboardInterrupt | StepTimeout | WorkerDied):
            raise Violation("taken though something was under way", f"{slots} {self.lock} {error!r}")
        return False

    def refused_as_dead(self, slots: Sequence[int], outcome: Outcome) -> bool:
        """Tell whether the command was refused because its worker is dead. Then nothing was sent."""
        return isinstance(outcome.error, WorkerDied) and any(self.owner[slot] in self.dead for slot in slots)

    def give_steps(self, slots: Sequence[int], actions: Sequence[int], outcome: Outcome, *, together: bool) -> None:
        given = dict(zip(slots, actions, strict=True))
        before = {slot: set(self.states[slot]) for slot in slots}
        steps = {host: self._step_of(host, given) for host in {self.hosts[slot] for slot in slots}}
        self.give(slots, lambda state, slot: steps[self.hosts[slot]](state), outcome, spare=together)
        if not together:
            return
        for worker, shard in enumerate(self.shards):  # what cannot be unpickled costs the rows of its message
            mine = [slot for slot in slots if slot in shard and worker not in self.inline]
            if any(
                given[slot] % KINDS in (BAD_INFO, END_BAD) or any(s.fault == "bad" for s in before[slot])
                for slot in mine
            ):
                for slot in mine:
                    self.states[slot] |= {failed for state in self.states[slot] for failed in state.failed()}

    def _step_of(self, host: Host, given: Mapping[int, int]) -> Callable[[State], set[State]]:
        """Return what a step does to the states of a host's envs. Those of a batched env are refused or fail together.

        After a worker's death they wait for each other: see `State.waiting`.
        """
        if host.kind == SINGLE:
            ways = [{"in_time": True}, {"anew": True}] if self.plan.late or self.plan.option == "recycle" else []
            return lambda state: {state.given_step(given[state.slot], **way) for way in ({}, *ways)}
        each = [self.free(slot) for slot in host.slots]
        refused = any(s.needs_reset for states in each for s in states)
        lost = self.causes[self.owner[host.first]] > 0 or any(
            s.phase == "lost" or (s.phase == "first" and s.replaced) for states in each for s in states
        )
        steps = [
            {s.given_step(given[s.slot]) for s in states if not (s.needs_reset or s.phase == "lost")} for states in each
        ]
        fails = self._fail_together(steps) or self._differ(host, each, MISSING)
        surely = not (refused or lost) and self._surely_fail(steps)

        def apply(state: State) -> set[State]:
            action = given[state.slot]
            found = {state.refused("step", action)} if refused else set()
            if lost and state.phase == "live" and not state.t:
                found.add(state.waiting(action))
            if not state.needs_reset:
                after = state.given_step(action)
                found |= self._outcomes(after, fails=fails, surely=surely)
            return found

        return apply

    def _reset_of(
        self, host: Host, some: Sequence[int], apply: Callable[[State], State], option: int
    ) -> Callable[[State], set[State]]:
        """Return what a reset of `some` envs of a host does to their states. Change those of the others."""
        if host.kind == SINGLE:
            return lambda state: {apply(state)}
        if host.kind in OPAQUE and len(some) < host.size:
            return lambda state: {state.refused("reset")}
        each = [self.free(slot) for slot in some]
        resets = [{apply(s) for s in states} for states in each]
        fails = self._fail_together(resets) or self._differ(host, each, option)
        surely = not self.causes[self.owner[host.first]] and self._surely_fail(resets)
        if fails:
            for slot in host.slots:
                if slot not in some:
                    self._fail_beside(slot)
        return lambda state: self._outcomes(apply(state), fails=fails, surely=surely)

    def _fail_together(self, each: Iterable[set[State]]) -> bool:
        return any(s.due is not None and s.due.kind == "error" for states in each for s in states)

    def _surely_fail(self, each: Iterable[set[State]]) -> bool:
        """Tell whether some env is sure to raise. An error without that concerns a row which has been made."""
        return any(all(s.due and s.due.kind == "error" and not s.due.unread for s in states) for states in each)

    def _differ(self, host: Host, each: Iterable[set[State]], option: int) -> bool:
        """Tell whether envs that are reset at once may have different options, which are refused and forgotten then."""
        if host.kind not in OPAQUE or option != MISSING:
            return False
        return len({s.held[1] for states in each for s in states}) > 1

    def _outcomes(self, after: State, *, fails: bool, surely: bool) -> set[State]:
        """Return the states in which a batched env has done this or has failed."""
        found = set() if surely else {after}
        if fails and after.due is not None:
            if not surely:  # it has come, and then another one was found to be unreadable
                found.add(after._replace(phase="failed"))
            found |= {f for state in (after, after.unread(after.due)) for f in state.failed()}
            if after.kind in OPAQUE:  # which may have refused different options
                found |= {f._replace(held=(f.held[0], MISSING)) for f in found}
        return found

    def clear_autoresets(self, slots: Iterable[int], *, sure: bool) -> None:
        """Record that a reset has waited for async autoresets and replaced their first rows."""
        for slot in slots:
            done = set()
            for state in self.states[slot]:
                if state.auto:
                    for variant in [state, *state.failed()] if not sure else [state]:
                        done |= {s.unread(s.due)._replace(due=None) for s in ([variant] if variant.due else [])}
                    if self.causes[self.owner[slot]]:  # or died, and was begun again
                        done |= {s._replace(due=None) for s in state.after_death()}
                        if state.due is not None and not state.due.before[2]:  # it has replaced another, not begun that
                            known = {"life": state.life, "bumps": state.bumps, "bonus": state.bonus}
                            new = state.renewed()._replace(**known, due=None)
                            done |= {new._replace(held=held) for held in (state.held, state.due.kept)}
            if sure:
                done |= {s for s in self.states[slot] if not s.auto}
                self.states[slot] = done
            else:
                self.states[slot] |= done

    def give_resets(self, slots: Sequence[int], seed: int | None, option: int | None, outcome: Outcome) -> None:
        def apply(state: State) -> State:
            held = state.held[0] if seed is None else seed + state.slot, state.held[1] if option is None else option
            return state.given_reset("reset", held)

        resets = {}
        for host in {self.hosts[slot] for slot in slots}:
            some = [slot for slot in slots if slot in host.slots]
            resets[host] = self._reset_of(host, some, apply, MISSING if option is None else option)
        self.give(slots, lambda state, slot: resets[self.hosts[slot]](state), outcome)

    def take(self, row: Row) -> None:
        """Keep the states that allow this row. Raise Violation if there are none."""
        slot = row.slot
        self.counts["rows"] += 1
        if "bonus" in self.plan.info_attrs and not row.info.get("worker_restarted"):
            self._check_bonus(row)
        states = self.states[slot]
        found = self._matching(row, states)
        worker = self.owner[slot]
        restarted = bool(row.info.get("worker_restarted"))
        # A new env may be a state's own, begun before what was done to it since, or one that has replaced it.
        replaced = restarted or row.obs[LIFE] not in self.lives[slot]
        if (replaced or not found) and worker not in self.inline and self.causes[worker]:
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
                kind, f"{row}\nis none of\n{self.describe(slot)}\ncauses {dict(self.causes)}, lives {self.lives[slot]}"
            )
        if row.info.get("worker_restarted"):
            self.counts["restarted rows"] += 1
            self._check_lost(row)
        elif row.obs[PID] not in (0, self.pids.get(worker)):
            self.pids[worker] = row.obs[PID]
        if not row.info.get("worker_restarted") or self.plan.mode == "same_step":
            self.lives[slot].add(row.obs[LIFE])
            self.homes[row.obs[LIFE]] = row.obs[PID]
        self.states[slot] = {after for state in found for after in state.handed_out()}
        if worker in self.dead:  # which begins no async autoreset
            self.states[slot] = {state._replace(due=None) for state in self.states[slot]}
        self.last[slot] = row
        self.counts["env errors"] += "env_error" in row.info
        if row.info.get("episode_start"):
            self.counts[self.plan.option] += 1
            self.begun.check(row)

    def take_batch(self, batch: Batch) -> None:
        indices = batch.indices.tolist()
        if len(set(indices)) != len(indices):
            raise Violation("a row twice", f"{indices}")
        for j, slot in enumerate(indices):
            self.take(
                Row(slot, fields_of(batch.obs[j]), float(batch.rewards[j]), bool(batch.terminated[j]),
                    bool(batch.truncated[j]), batch.infos[j])
            )  # fmt: skip

    def take_errors(self, error: EnvError) -> None:
        """Take the errors of a step or reset of several envs, and the rows of the other envs."""
        for each in error.errors:
            self.take_failed(each)
        if error.batch is None:
            raise Violation("rows are lost", f"no batch with {error}")
        self.take_batch(error.batch)

    def take_failed(self, error: EnvError) -> None:
        slot, worker = error.index, self.owner[error.index]
        states = {s for s in self.states[slot] if s.due is not None and s.due.kind == "error"}
        if not states and worker not in self.inline and self.causes[worker]:
            again = {after for state in self.states[slot] for after in state.after_death()}
            states = {s for s in again if s.due is not None and s.due.kind == "error"}
        if not states:
            raise Violation("an error from nowhere", f"{error}\nwhile {self.describe(slot)}")
        self.states[slot] = {after for state in states for after in state.handed_out()}

    def take_repeated(self, row: Row, *, active: bool) -> None:
        self.states[row.slot] = {s for s in self.states[row.slot] if s.auto}
        last = self.last[row.slot]
        if not self.states[row.slot] or active or row.reward or row.terminated or row.truncated:
            raise Violation("a wrong row", f"{row} says that it is being reset; it is in {self.describe(row.slot)}")
        if last is not None and row.obs != last.obs:
            self.note_soft("a repeated row is another one", f"{row}, after {last}")
        self.counts["rows"] += 1

    def _check_bonus(self, row: Row) -> None:
        allowed = {0, *(state.bonus for state in self.states[row.slot]), *self.former[row.slot]}
        if row.info.get("bonus") not in allowed:
            raise Violation("a wrong row", f"{row}: bonus; {self.describe(row.slot)}")
        self.former[row.slot] = set()

    def _matching(self, row: Row, states: Iterable[State]) -> set[State]:
        matches = (state.match(row, self.plan.form, self.lives[row.slot]) for state in states)
        return {state for state in matches if state is not None}

    def _check_lost(self, row: Row) -> None:
        """Check that the episode of a lost env ends with the last row that was returned."""
        last = self.last[row.slot]
        got = row.obs if self.plan.mode != "same_step" else fields_of(row.info["terminal_observation"])
        if got[0] not in (row.slot, 0):
            raise Violation("a row of another env", f"{row}")
        if last is not None and got != last.obs:
            self.note_soft("a restart's last row is not the last one handed out", f"{got}, after {last.obs}")

    def note_soft(self, kind: str, text: str) -> None:
        if all(each.kind != kind for each in self.soft):
            self.soft.append(Violation(kind, text, soft=True))

    def take_reply(self, slot: int, life: int, pid: int, got: tuple[int, ...]) -> None:
        worker = self.owner[slot]

        def may_be(known: int) -> bool:
            return life == known or (known == 0 and life not in self.lives[slot])

        def fits(states: Iterable[State]) -> set[State]:
            found = set()
            for state in states:
                own, *others = state.bumped()
                # A row that is due may be of before or after the call: its reset may still run aside.
                unsure = own.due is not None or own.blurred or (own.together and not own.episode)
                if (
                    may_be(own.life)
                    and (own.bumps, own.bonus) == got[2:]
                    and (unsure or (own.episode, own.t) == got[:2])
                ):
                    found.add(own._replace(life=life))
                for other in others:
                    due = other.due
                    if due and may_be(due.next[0]) and due.next[1] == got[2] and got[3] in (0, other.bonus):
                        found.add(other._replace(due=due._replace(next=(life, got[2]))))
            return found

        states = self.states[slot]
        found = fits(states) | (fits(self.replaced(slot)) if worker not in self.inline else set())
        if not found and fits(self.gone[slot]):
            raise Violation(
                "rows are lost", f"env {slot} has done what it was told; its row has not come: {self.describe(slot)}"
            )
        if not found:
            raise Violation("a wrong result", f"bump of env {slot} gave {life} {got}, but {self.describe(slot)}")
        self.states[slot] = found
        self.lives[slot].add(life)
        self.pids[worker] = self.homes[life] = pid

    def maybe_called(self, slots: Iterable[int], change: Callable[[State], Iterable[State]]) -> None:
        """Record a call that may have been carried out: by the workers that are known, or by ones that replace them."""
        for slot in slots:
            states = self.states[slot]
            self.states[slot] = states.union(*(change(state) for state in states | self.replaced(slot)))
            self.check_bound(slot)

    def replaced(self, slot: int) -> set[State]:
        """Return the states in which the worker has died and was replaced, if there is a cause for that."""
        if not self.causes[self.owner[slot]]:
            return set()
        return {after for state in self.states[slot] for after in state.after_death()}

    def mark_leftover(self) -> None:
        for slot in range(self.n):
            self.states[slot] = {
                s._replace(due=s.due._replace(leftover=True)) if s.due is not None else s for s in self.states[slot]
            }

    def forgive_causes(self, killed: Collection[int]) -> None:
        """Clear the causes of workers that are alive, once rows of all their envs have come from their process.

        Processes that were `killed` count as dead: on a busy machine they take a while to end.
        """
        for worker, pid in self.pids.items():
            states = [state for slot in self.shards[worker] for state in self.states[slot]]
            shown = all(s.phase not in ("lost", "new") and self.homes.get(s.life) == pid for s in states)
            known = shown and not any(s.fault == "die" or s.due is not None for s in states)
            if known and not self.plan.moves and pid not in killed and alive(pid):
                self.causes[worker] = 0

    def describe(self, *slots: int) -> str:
        lines = []
        for slot in slots:
            states = list(self.states[slot])
            lines += [f"env {slot} of {len(states)}: {state}" for state in states[:6]]
        return "\n".join(lines)
