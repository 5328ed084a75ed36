"""Rows of 1 byte to 5 MiB, around every limit between a caller and an env, that name their env, episode and step."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from vecenvs.errors import EnvError, NotSteppingError, WorkerDied
from vecenvs.testing.envs.counting import pid_of
from vecenvs.testing.envs.sized import FORMS, KIB, LARGE, NEAR, Rows, SizedEnv, filled
from vecenvs.testing.ledger import Due, Ledger
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT, wait_for_the_end
from vecenvs.testing.suite.schedules import Player
from vecenvs.vec_env import VecEnv
from vecenvs.worker.autoreset import AUTORESET_MODES

ENVS = 4
NAP = 0.001  # so that the rows of one command do not travel together
MIXED = (*NEAR[3:], 300 * KIB, 1, 700)
CALLS = ("send", "send", "recv", "recv", "recv_group", "reset_async", "reset", "step")


def begin(make: Make, rows: Rows, mode: str, folder: Path | None = None, envs: int = ENVS, **common: Any) -> Ledger:
    """Make a VecEnv of SizedEnvs, and reset it."""
    births = [None if folder is None else folder / f"births-{tag}" for tag in range(envs)]
    fns = [functools.partial(SizedEnv, tag, rows, births[tag], os.getpid()) for tag in range(envs)]
    ledger = Ledger(make(fns, autoreset=mode, **common), rows, lambda number: filled(rows.action_size, number))
    ledger.reset(seed=3)
    return ledger


def rested(ledger: Ledger) -> None:
    """Reset envs that need it."""
    over = [i for i, slot in enumerate(ledger.slots) if slot.phase in ("over", "failed", "new") and not slot.due]
    if over:
        ledger.reset(over)


def play(ledger: Ledger, calls: int, seed: int) -> None:
    """Make random calls, of subsets in any order."""
    rng, player = random.Random(seed), Player(ledger)
    for _ in range(calls):
        player.play(rng.choice(CALLS), rng.randrange(2 ** len(ledger.slots)), rng.randrange(10))
    player.drain()


class Sized(Conformance):
    """What the tests of rows of any size do."""

    def lock_step(self, ledger: Ledger, steps: int) -> None:
        for t in range(steps):
            rested(ledger)
            ledger.step(batched=bool(t % 2))
        ledger.drain()

    def portions(self, ledger: Ledger, rounds: int) -> None:
        ledger.vec.set_attr("nap", NAP)
        everyone = list(range(len(ledger.slots)))
        for k in range(rounds):
            ledger.reset_async(everyone[::-1])
            ledger.drain()
            ledger.send(everyone)
            ledger.recv(indices=everyone[1:])
            ledger.drain()
            ledger.reset([2, 0], options={"blob": filled(50 * KIB, k).tobytes()})


class SizeConformance(Sized):
    """Every row, info and last observation arrives whole and is its own env's."""

    @PROMPT
    @pytest.mark.parametrize("mode", AUTORESET_MODES)
    @pytest.mark.parametrize("form", FORMS)
    def test_sizes(self, make: Make, form: str, mode: str) -> None:
        """In lock-step, in portions, and by random calls on subsets."""
        ledger = begin(make, Rows(form, MIXED, 40 * KIB), mode)
        self.lock_step(ledger, 4)
        self.portions(ledger, 2)
        play(ledger, 25, len(form + mode))

    @PROMPT
    @pytest.mark.parametrize("mode", AUTORESET_MODES)
    def test_sizes_after_a_ctrl_c(self, make: Make, mode: str) -> None:
        """A call that is interrupted was made for each env or was not; what it was to bring comes later."""
        form = FORMS[AUTORESET_MODES.index(mode)]
        ledger = begin(make, Rows(form, MIXED, 40 * KIB), mode)
        for k in range(12):
            rested(ledger)
            interrupt(ledger, k)
        self.lock_step(ledger, 2)

    @PROMPT
    def test_rows_of_five_mebibytes(self, make: Make) -> None:
        ledger = begin(make, Rows("text", (LARGE[1], 1, LARGE[0])), "async", envs=2)
        ledger.vec.set_attr("nap", NAP)
        ledger.reset_async([0, 1])
        ledger.drain()
        ledger.send([0, 1])
        ledger.drain()


class SizeWorkerConformance(Sized):
    """Rows of any size beside a worker that ends."""

    @PROMPT
    @pytest.mark.parametrize("mode", AUTORESET_MODES)
    @pytest.mark.parametrize("form", FORMS)
    def test_sizes_beside_a_death(self, make: Make, form: str, mode: str, tmp_path: Path) -> None:
        """Each row is the one that was due, or tells of a restart; what follows a reset is of the new envs."""
        ledger = begin(make, Rows(form, MIXED), mode, tmp_path, on_failure="restart", max_restarts=99)
        vec = ledger.vec
        rng = random.Random(f"{form} {mode}")
        for k in range(4):
            rested(ledger)
            vec.set_attr("nap", NAP)
            pid = vec.call(pid_of, [0])[0]
            if k % 2:
                vec.set_attr("fate", "die", [rng.randrange(ENVS)])
            everyone = list(range(ENVS))
            ledger.send(everyone)
            if not k % 2:
                if rng.random() < 0.5:  # its message is under way by then
                    take(ledger, vec)
                os.kill(pid, signal.SIGKILL)
                wait_for_the_end(pid)
            with contextlib.suppress(NotSteppingError):
                while True:
                    take(ledger, vec)
            vec.reset()
            vec.set_attr("fate", "")
            resume(ledger)
            self.lock_step(ledger, 2)
        assert vec.stats()["restarts"] >= 2


def take(ledger: Ledger, vec: VecEnv) -> None:
    """Receive rows beside a death. Those of envs that were replaced are looked at here, the others by the ledger."""
    batch = vec.recv(timeout=30.0)
    for j, i in enumerate(batch.indices.tolist()):
        slot, info = ledger.slots[i], batch.infos[j]
        if slot.mode == "next_step" and slot.due is not None and slot.due.step is None:  # the first row after an end
            with contextlib.suppress(WorkerDied):
                (place,) = vec.get_attr("place", [i])
                if place.episode == 1:  # of a new env
                    slot.place, slot.due = place, Due(place)
        if not info.get("worker_restarted") and slot.place.life > 0:
            ledger.check(i, batch.obs, j, batch.rewards[j], batch.terminated[j], batch.truncated[j], info)
            if slot.auto:  # which a death may replace
                slot.place = slot.place._replace(life=-1)
            continue
        if info.get("worker_restarted"):
            assert batch.truncated[j]
            assert not batch.terminated[j]
            if slot.mode != "same_step":
                ledger.check_obs(i, batch.obs, j, slot.last)
            slot.due = None
        slot.place = slot.place._replace(life=-1)  # it is known again after a reset


def resume(ledger: Ledger) -> None:
    """After a reset of all envs, ask them where they are, and check the observations of the next step from there."""
    for i, place in enumerate(ledger.vec.get_attr("place")):
        slot = ledger.slots[i]
        assert place.tag == i
        assert place.t == 0
        slot.place, slot.last, slot.phase, slot.due, slot.auto = place, place, "live", None, False


def interrupt(ledger: Ledger, k: int) -> None:
    """Interrupt a call; then receive all rows; then see which envs the call has reached."""
    vec, slots, rng = ledger.vec, ledger.slots, random.Random(k)
    before = [slot.place for slot in slots]
    everyone, actions = list(range(len(slots))), ledger.actions(len(slots))
    what = ("step", "send", "reset")[k % 3]
    errors: list[EnvError] = []
    result: Any = None
    with interrupting(10 ** rng.uniform(-4.0, -1.7)):
        try:
            if what == "step":
                result = vec.step(actions)
            elif what == "reset":
                result = vec.reset()
            else:
                vec.send(actions, everyone)
                result = vec.recv(len(slots))
        except EnvError as failed:
            errors.append(failed)
    if what == "reset":
        ledger.given_reset(everyone, None, None)
    else:
        ledger.given_steps(everyone, actions)
    if what == "reset" and result is not None:
        for i in everyone:
            ledger.check_reset(i, result, i)
    elif result is not None:
        (ledger.check_step if what == "step" else ledger.check_batch)(result)
    errors += receive_all(ledger)
    failing = [one.index for error in errors for one in error.errors]
    assert all("KeyboardInterrupt" in str(one) for error in errors for one in error.errors)
    for error in errors:
        if error.batch is not None:
            ledger.check_batch(error.batch)
    for i, reached in enumerate(vec.get_attr("place")):
        slot = slots[i]
        if slot.due is not None:  # it has not been told to
            assert i in failing or reached == before[i], f"env {i} is at {reached}, its row has not come: {slot}"
            slot.due, slot.auto = None, False
        slot.place = reached
    ledger.reset()


def receive_all(ledger: Ledger) -> list[EnvError]:
    """Receive the rows of a step in lock-step, if there is one, and all others. Return the errors."""
    errors: list[EnvError] = []
    with contextlib.suppress(NotSteppingError):
        try:
            ledger.check_step(ledger.vec.step_wait(timeout=30))
        except EnvError as failed:
            errors.append(failed)
    with contextlib.suppress(NotSteppingError):
        while True:
            try:
                ledger.check_batch(ledger.vec.recv(timeout=30))
            except EnvError as failed:
                errors.append(failed)
    return errors


@contextlib.contextmanager
def interrupting(seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt after some seconds, if the block runs code of the library then."""

    def press(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.startswith("vecenvs.") and not name.startswith("vecenvs.testing."):
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, press)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
