"""The states of one slot, and the rows that may come next in each.

After an exception it is unknown whether a command was sent, and after a death whether its row had come before. So each
slot has a set of states, and a row removes those that do not allow it. A slot without a state is a violation.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from chaos.env import (
    BAD_INFO,
    DEADLY,
    ENDING,
    FAULTS,
    FIELDS,
    HANG,
    KINDS,
    MISSING,
    RAISE,
    TRUNCATE,
    first_hash,
    goes_on,
    mix,
    padded,
    reward_of,
    step_info,
)
from chaos.hosts import BY_ITSELF, SINGLE
from chaos.plan import Violation

OURS = (
    "TimeLimit.truncated", "terminal_observation", "episode_start", "bad", "bonus", "worker_restarted",
    "env_error", "episode_seed", "episode_number", "task",
)  # fmt: skip
Obs = tuple[int, ...]
SLOT, PID, LIFE, EPISODE, T, HASH, SEED, OPTION = range(len(FIELDS))
RENEWING = ("reset", "renew")  # options of a round with which exceptions of envs end their episodes
UNSURE = ("seeds", "tasks", "recycle", "spares")  # with which the seeds of episodes are derived: see `Begun`


class Row(NamedTuple):
    """A row that has come."""

    slot: int
    obs: Obs
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Due(NamedTuple):
    """An answer to come.

    `kind`: "row"; "first" (row of an episode); "lost" (the row with worker_restarted); "error" (an EnvError); "death"
    (none: the worker ends before it). `command`: "step", "reset" or "auto" (the reset that an async episode's end
    brings). `held` are the seed and the option that waited before the command, `before` what was `known` of the env.
    """

    kind: str
    command: str
    action: int = 0
    ended: bool = False  # with this row, which in same_step is the first of the next episode
    last: Obs | None = None  # the ended episode's last row, but for the pid
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    start: bool = False
    resets: bool = False  # a step after an episode's end (next_step)
    unsure: bool = False  # whether the seed may be any: derived, of an env that replaces another
    held: tuple[int, int] = (MISSING, MISSING)  # what a reset gets
    kept: tuple[int, int] = (MISSING, MISSING)  # what waited for a reset when the command was given
    before: tuple[int, str, int, int, int] = (0, "", 0, 0, 0)
    refused: bool = False  # by a batched env, which does nothing then
    unread: bool = False  # an error because a row's infos cannot be unpickled
    among: bool = False  # an env's first one, perhaps after a reset of others of its batched env
    leftover: bool = False  # of a lock-step that a death has ended: the next command overtakes it
    raised: bool = False  # the env, whose episode ends so
    then_lost: bool = False  # the row had come before its worker died
    next: tuple[int, int] = (0, 0)  # then: the life, if known, and the bumps of the env that has replaced it


def fields_of(obs: Any) -> tuple[int, ...]:
    """Return the fields of an observation. Raise Violation if what follows them is another row's."""
    found = tuple(obs[: len(FIELDS)].tolist())
    pad = len(obs) - len(FIELDS)
    want = padded(found, pad) if any(found) else np.zeros_like(obs)
    if not np.array_equal(obs, want):
        wrong = np.flatnonzero(obs != want)
        raise Violation(
            "a row that another env's is mixed with", f"{found}: {len(wrong)} of {pad} numbers, from {wrong[0]}"
        )
    return found


class State(NamedTuple):
    """A state of one env. `phase`: new, live, over (disabled), first (next_step), failed, lost (its worker died)."""

    slot: int
    mode: str
    remote: bool
    kind: str = SINGLE  # of its host
    option_name: str = ""  # of the round: see `options`
    late: str = ""  # what becomes of its step that hangs, if it alone is late then: "lost" or "error"
    awaits: bool = False  # whether that one may be cancelled: see `AwaitingEnv`
    broken: bool = False  # whether its next reset makes it anew
    leaves: bool = False  # whether another env takes its place after this row, whatever that is to do
    life: int = 0  # 0: not known yet
    episode: int = 0
    t: int = 0
    hash: int = 0
    seed: int = MISSING
    option: int = MISSING
    bumps: int = 0
    bonus: int = 0
    fault: str = ""
    phase: str = "new"
    begun: bool = False
    blurred: bool = False  # broken off somewhere: its episode and step are not known
    replaced: bool = False  # in the episode to come seeds are derived ones
    held: tuple[int, int] = (MISSING, MISSING)
    spent: tuple[int, int] = (MISSING, MISSING)  # held before a reset that went well, but whose row could not be read
    due: Due | None = None

    @property
    def name(self) -> int:
        """The slot that the env's rows have."""
        return 0 if self.option_name == "spares" else self.slot

    @property
    def obs(self) -> Obs:
        """The observation, but for the pid."""
        return self.name, 0, self.life, self.episode, self.t, self.hash, self.seed, self.option

    @property
    def known(self) -> tuple[int, str, int, int, int]:
        """What an env has besides its row: another one, in its place, has none of that."""
        return self.episode, self.fault, self.life, self.bumps, self.bonus

    @property
    def together(self) -> bool:
        """Whether the env is part of a batched one."""
        return self.kind != SINGLE

    @property
    def needs_reset(self) -> bool:
        return self.phase in ("new", "over", "failed")

    @property
    def auto(self) -> bool:
        """Whether the env is under an async autoreset."""
        return self.due is not None and self.due.command == "auto"

    def given_step(self, action: int, *, in_time: bool = False, anew: bool = False) -> State:
        """Return the state after a step was sent.

        With `in_time` one that hangs does so while its process is stopped. With `anew` another env goes on if the
        episode ends.
        """
        kind = action % KINDS
        due = Due("row", "step", action, held=self.held, kept=self.held, before=self.known)
        if self.phase == "lost":
            return self._lose(due)
        if kind == RAISE and self.phase == "live" and self.option_name in RENEWING:
            return self._replace(broken=self.option_name == "renew")._end(due._replace(truncated=True, raised=True))
        if self.needs_reset or (kind == RAISE and self.phase == "live"):
            return self._replace(phase="failed", due=due._replace(kind="error"))
        if self.phase == "first":
            return self.given_reset("step", self.held)
        if kind in DEADLY and self.remote:
            return self._replace(due=due._replace(kind="death"))
        if kind == HANG and self.late and not in_time:
            ends = self.awaits and not goes_on(action)  # and the env itself goes on
            after = self._replace(broken=not ends or self.option_name == "renew", leaves=not ends)
            if self.option_name in RENEWING:
                return after._end(due._replace(truncated=True, raised=True))
            return after._lose(due) if self.late == "lost" else after._fail(due)
        number = mix(mix(self.hash, action), self.bonus)
        after = self._replace(t=self.t + 1, hash=number, fault=FAULTS.get(kind, self.fault))
        if kind == BAD_INFO and self.remote:
            return after._fail(due._replace(unread=True))
        due = due._replace(reward=reward_of(number), terminated=kind in ENDING, truncated=kind == TRUNCATE)
        return after._end(due, anew=anew) if due.terminated or due.truncated else after._replace(due=due)

    def refused(self, command: str, action: int = 0) -> State:
        """Return the state after a command which a batched env refuses as a whole."""
        due = Due("error", command, action, held=self.held, kept=self.held, before=self.known)
        return self._replace(phase="failed" if self.needs_reset else self.phase, due=due._replace(refused=True))

    def waiting(self, action: int) -> State:
        """Return the state after a step in which a batched env ends lost episodes: one that has begun is repeated."""
        due = Due("first", "step", action, held=self.held, kept=self.held, before=self.known)
        return self._replace(due=due._replace(start=True))

    def _lose(self, due: Due) -> State:
        """Return the state in which the row is due that reports a replaced worker."""
        return self._end(due._replace(kind="lost", truncated=True))

    def _end(self, due: Due, *, anew: bool = False) -> State:
        due = due._replace(ended=True, last=self.obs)
        if self.mode == "same_step":
            return (self.renewed() if anew else self)._begin(due)
        phase = {"next_step": "first", "disabled": "over", "async": "resetting"}[self.mode]
        return self._replace(phase=phase, due=due, leaves=self.leaves or anew)

    def given_reset(self, command: str, held: tuple[int, int]) -> State:
        """Return the state after a reset was sent, or a step that resets (next_step)."""
        due = Due("first", command, held=held, kept=self.held, before=self.known, resets=command == "step")
        after = self._replace(held=held)._begin(due)
        # What waited for the reset waits on if that fails, but not what was given to it.
        fails = self.fault == "raise" and self.option_name not in RENEWING
        return after._replace(held=self.held) if fails else after

    def _begin(self, due: Due) -> State:
        fault = self.fault
        if self.broken or (fault == "raise" and self.option_name in RENEWING):
            return self.renewed()._begin(due)
        clear = self._replace(fault="")
        if self.option_name == "spares":
            clear = self.renewed()._replace(bonus=self.bonus, replaced=self.replaced)
        if fault == "raise":  # what waited for the reset waits for the next one
            return clear._fail(due)
        if fault == "die" and self.remote:
            return self._replace(due=due._replace(kind="death"))
        by_itself = self.kind in BY_ITSELF and due.command == "step" and not self.replaced
        seed, option, held = (MISSING, MISSING, self.held) if by_itself else (*self.held, (MISSING, MISSING))
        due = due._replace(among=self.together and not (self.life and self.episode))
        unsure = (self.replaced and seed == MISSING) or self.option_name in UNSURE
        episode = clear.episode + 1
        after = clear._replace(
            episode=episode, t=0, seed=seed, option=option, hash=first_hash(self.name, episode, seed, option),
            phase="live", begun=True, blurred=False, replaced=False, held=held,
        )  # fmt: skip
        if fault == "bad" and self.remote:
            return after.unread(due)._fail(due._replace(unread=True))
        return after._replace(due=due._replace(start=True, unsure=unsure))

    def renewed(self) -> State:
        """Return the state of a new env in place of this one, before its first reset."""
        return self._replace(
            life=0,
            episode=0,
            t=0,
            hash=0,
            bumps=0,
            bonus=0,
            fault="",
            broken=False,
            leaves=False,
            blurred=False,
            replaced=True,
        )

    def unread(self, due: Due) -> State:
        """Return the state in which the row of a reset will not be returned."""
        return self._replace(spent=_merged(due.kept, self.spent))

    def _fail(self, due: Due) -> State:
        return self._replace(phase="failed", due=due._replace(kind="error", ended=False))

    def failed(self) -> list[State]:
        """Return the states in which an error is due instead, wherever the command was interrupted."""
        if self.due is None:
            return []
        due = self.due
        set_by = FAULTS.get(due.action % KINDS, "") if due.command == "step" else ""
        aside = due.ended and self.mode == "async"  # an episode that has ended is reset, even if its row is lost
        episodes = {due.before[0], self.episode, *([self.episode + 1] if aside else [])}
        faults = {"", due.before[1], self.fault, set_by}
        helds = {due.kept, self.held, *([(MISSING, MISSING)] if aside else [])}
        found = [
            self._replace(episode=episode, fault=fault, held=held, blurred=True)._fail(due)
            for episode, fault, held in itertools.product(episodes, faults, helds)
        ]
        spares = self.option_name == "spares"
        if (self.option_name in RENEWING or self.late or spares) and (
            due.raised or "raise" in faults or self.replaced or not self.life
        ):
            kept = self.bonus if spares else 0
            fresh = [self.renewed()._replace(held=held, bonus=kept)._fail(due) for held in helds]
            life, bumps, bonus = due.before[2:]
            found += [state._replace(life=life, bumps=bumps, bonus=bonus) for state in found if not self.life]
            found += [state._replace(broken=not state.broken) for state in found]
            found += [state._replace(episode=episode, blurred=True) for state in fresh for episode in (0, 1)]
        return found

    def after_death(self) -> list[State]:
        """Return the states in which the worker has been replaced since."""
        if self.spent != (MISSING, MISSING):  # the new worker gets it once more
            due, spent, state = self.due, self.spent, self._replace(spent=(MISSING, MISSING))
            if due is not None:
                due = due._replace(held=_merged(due.held, spent), kept=_merged(due.kept, spent))
            again = state._replace(held=_merged(state.held, spent), due=due)
            return [*state.after_death(), *again.after_death()]
        found = self._after_death()
        if self.kind in BY_ITSELF:  # the caller forgets what waited when the batched env resets the env by itself
            due = self.due
            if due is not None:
                given = (MISSING if held == kept else held for held, kept in zip(due.held, due.kept, strict=True))
                due = due._replace(held=tuple(given), kept=(MISSING, MISSING))
            found += self._replace(held=(MISSING, MISSING), due=due)._after_death()
        return found

    def _after_death(self) -> list[State]:
        fresh = self.renewed()._replace(blurred=self.blurred, due=None)
        due = self.due
        if due is None:
            if not self.begun:
                return [fresh._replace(phase="new")]
            phases = {"first": ["first"], "over": ["over"], "failed": ["lost", "failed"]}.get(self.phase, ["lost"])
            if self.phase == "failed":  # in a reset after an episode's end, perhaps
                phases += {"next_step": ["first"], "disabled": ["over"]}.get(self.mode, [])
            if self.together:  # with another env of its batched env, with which it may have to begin
                phases += ["lost", "failed"]
            return [fresh._replace(phase=phase) for phase in phases]
        found = []
        if due.kind != "death" and due._replace(next=(0, 0), then_lost=True) != due:
            found.append(self._replace(due=due._replace(next=(0, 0), then_lost=True)))
        again = fresh._replace(held=due.kept)
        if due.command == "step" and (self.begun or due.kind != "error"):
            if not due.resets or self.together:
                lost = again._replace(phase="lost")
                found.append(lost._lose(Due("row", "step", due.action, held=due.kept, kept=due.kept)))
            if due.resets or due.start or (self.phase == "failed" and self.mode == "next_step"):
                found.append(again.given_reset("step", due.held))
        error = due._replace(kind="error", ended=False)
        if self.together or (due.command == "step" and due.kind == "error"):
            found.append(again._replace(phase="failed", due=error))
        if self.together:
            found.append(again._replace(phase="lost" if self.begun else "new", due=error))
        if due.command != "step" and not due.refused:
            found.append(again.given_reset(due.command, due.held))
        return [state._replace(due=state.due._replace(leftover=due.leftover)) for state in found if state.due]

    def bumped(self) -> list[State]:
        """Return the states after a call was carried out: by the env, or by one that has replaced it unseen."""
        found = [self._replace(bumps=self.bumps + 1)]
        if self.due is not None and self.due.then_lost:
            life, bumps = self.due.next
            found.append(self._replace(due=self.due._replace(next=(life, bumps + 1))))
        return found

    def handed_out(self) -> list[State]:
        """Return the states after the answer was returned. In async mode an episode's end starts a reset."""
        due = self.due
        assert due is not None
        free = (self.renewed() if self.leaves else self)._replace(due=None)
        if due.then_lost:
            life, bumps = due.next
            found = [state._replace(life=life, bumps=bumps) for state in free.after_death()]
            if due.ended and self.mode == "async":
                found = [found[0]._replace(begun=True).given_reset("auto", self.held)]
            # An attribute set while the row was due is the old env's, or the one's that has replaced it.
            return [state._replace(bonus=bonus) for state in found for bonus in {state.bonus, self.bonus}]
        if due.ended and self.mode == "async" and due.kind in ("row", "lost"):
            return [free.given_reset("auto", self.held)]
        return [free]

    def match(self, row: Row, form: str, lives: set[int]) -> State | None:
        """Return the state that follows from a row, or None if another row is due. `lives`: those seen before."""
        due = self.due
        if due is None or due.kind in ("error", "death") or row.slot != self.slot or row.obs[SLOT] != self.name:
            return None
        info, obs = row.info, row.obs
        if (row.terminated, row.truncated) != (due.terminated, due.truncated) or row.reward != due.reward:
            return None
        if info.get("worker_restarted", False) != (due.kind == "lost") or ("env_error" in info) != due.raised:
            return None
        ended_here = due.ended and self.mode == "same_step"
        starts = due.start and (due.kind == "first" or ended_here)
        if info.get("episode_start", False) != starts or ("terminal_observation" in info) != due.ended:
            return None
        if info.get("TimeLimit.truncated") != (due.truncated and not due.terminated):
            return None
        if due.kind == "lost" and not ended_here:
            return self  # its observation is an older one: the player looks at it
        state = self
        if starts:
            found = state._started(obs, due, lives)
            if found is None:
                return None
            state = found._replace(spent=(MISSING, MISSING))
        if (0, *obs[2:]) != (0, *state.obs[2:]):
            return None
        if due.ended and due.kind == "row":
            last = fields_of(info["terminal_observation"])
            if due.last is None or last[0] != self.name or last[2:] != due.last[2:]:
                return None
        return state if state._info_fits(info, form, due) else None

    def _started(self, obs: Obs, due: Due, lives: set[int]) -> State | None:
        """Return the state with what only the first row of an episode contains."""
        state = self
        if not state.life:
            if obs[LIFE] in lives:
                return None
            state = state._replace(life=obs[LIFE])
        if due.among and 0 < obs[EPISODE] - state.episode <= 2:
            state = state._replace(episode=obs[EPISODE])
        if due.unsure:
            option = obs[OPTION] if state.option_name == "tasks" else state.option
            state = state._replace(seed=obs[SEED], option=option)
        if due.unsure or due.among:
            state = state._replace(hash=first_hash(state.name, state.episode, state.seed, state.option))
        return state

    def _info_fits(self, info: dict[str, Any], form: str, due: Due) -> bool:
        if due.kind == "lost":
            return True
        if due.kind == "first":
            want: dict[str, Any] = {"slot": self.name, "episode": self.episode}
        else:
            assert due.last is not None or not due.ended
            t, number = (due.last[T], due.last[HASH]) if due.last is not None else (self.t, self.hash)
            want = step_info(form, due.action, self.name, t, number) if not due.raised else {}
        return {key: value for key, value in info.items() if key not in OURS} == want


def _merged(held: tuple[int, int], before: tuple[int, int]) -> tuple[int, int]:
    seed, option = held
    return before[0] if seed == MISSING else seed, before[1] if option == MISSING else option
