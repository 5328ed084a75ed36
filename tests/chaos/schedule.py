"""The order of a round's calls and of the signals that its workers get."""

from __future__ import annotations

import random
from collections import Counter

from chaos.disturb import Disturber
from chaos.expected import Expected
from chaos.model import State
from chaos.plan import Plan
from chaos.player import Player

# Seconds of a SIGSTOP: one without consequences; one over `step_timeout`; one that only a restart can end.
SHORT, LONG, ENDLESS = 0.4, 3.0, 120.0


class Schedule:
    """Draws the calls of a round, and disturbs workers between them."""

    def __init__(
        self, plan: Plan, rng: random.Random, player: Player, expected: Expected, disturber: Disturber,
        counts: Counter[str],
    ) -> None:  # fmt: skip
        self.plan, self.rng, self.player, self.expected = plan, rng, player, expected
        self.disturber, self.counts = disturber, counts

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
            if len(self.expected.dead) == len(self.expected.shards):
                break
            self._disturb_workers()
            getattr(self.player, f"do_{self._sensible(name)}")()
        self.player.drain()
        self.counts["restarts"] += self.player.vec.stats()["restarts"]

    def _is_due(self, state: State) -> bool:
        return self.expected.is_due(state, autoresets=False)

    def _sensible(self, name: str) -> str:
        """Return a call that mostly finishes what is under way, in place of `name`."""
        if self.rng.random() < 0.15:
            return name
        if "step" in self.expected.lock:
            return "step_wait"
        if "call" in self.expected.lock:
            return "call_wait"
        states = self.expected.states
        due = [slot for slot in range(self.expected.n) if any(map(self._is_due, states[slot]))]
        if due and name not in ("send", "recv"):
            return "recv"
        if not due and name in ("recv", "step_wait", "call_wait"):
            return "send"
        if not any(s.begun for s in states[-1]) and not due:
            return "reset"
        if not due and any(s.phase in ("failed", "over", "new") for slots in states for s in slots):
            return self.rng.choice(["reset", name])
        return name

    def _leaders(self) -> list[int]:
        """Return the processes of the nodes' leaders, which Ray has for workers by messages."""
        actors = getattr(self.player.vec, "_actors", None)
        return (
            [leader.location.pid for leader in actors.leaders.values() if leader.location is not None] if actors else []
        )

    def _disturb_workers(self) -> None:
        rng, plan = self.rng, self.plan
        remote = [worker for worker in self.expected.pids if worker not in self.expected.inline]
        if not remote:
            return
        worker = rng.choice(remote)
        if rng.random() < plan.kill_rate:
            leaders = self._leaders()
            if leaders and rng.random() < 0.3:
                self.expected.causes.update(range(len(self.expected.shards)))
                self.disturber.kill(rng.choice(leaders), 10 ** rng.uniform(-4, -0.7))
            elif plan.newest and rng.random() < 0.3:  # one that is being started, perhaps
                self.expected.causes.update(range(len(self.expected.shards)))
                self.disturber.kill_newest(10 ** rng.uniform(-4, 0))
            else:
                self.expected.causes[worker] += 1
                self.disturber.kill(self.expected.pids[worker], 10 ** rng.uniform(-4, -0.7))
        elif rng.random() < plan.stop_rate:
            seconds = SHORT
            if plan.step_timeout is not None and rng.random() < 0.3:
                seconds = ENDLESS if plan.restart and plan.max_restarts > 100 else LONG
                self.expected.causes[worker] += 1
            self.disturber.stop(self.expected.pids[worker], 10 ** rng.uniform(-4, -0.7), seconds)
