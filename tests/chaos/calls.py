"""Calls of the VecEnv, perhaps disturbed by Ctrl-C, with the exceptions that they may raise."""

from __future__ import annotations

import faulthandler
import random
import traceback
from collections import Counter
from collections.abc import Callable
from typing import IO, Any

from chaos.disturb import Interrupter
from chaos.env import TOLD
from chaos.plan import Outcome, Plan, Violation
from vecenvs.errors import EnvError, VecEnvError

PART_OF_A_BATCH = "are one batched env"


class Calls:
    """Carries out the calls of a round. `on_interrupt` is called after a Ctrl-C inside the library."""

    def __init__(
        self, plan: Plan, rng: random.Random, interrupter: Interrupter, counts: Counter[str], log: IO[str],
        history: list[str], on_interrupt: Callable[[], None],
    ) -> None:  # fmt: skip
        self.plan, self.rng, self.interrupter, self.counts, self.log = plan, rng, interrupter, counts, log
        self.history = history
        self._on_interrupt = on_interrupt

    def attempt(self, kind: str, call: Callable[[], Any], given: str = "", *, calm: bool = False) -> Outcome:
        """Carry out a call, perhaps with a Ctrl-C inside. Raise Violation for exceptions that it must not raise.

        `given` are its arguments, for the history.
        """
        plan, rng = self.plan, self.rng
        disturbed = plan.interrupts if not calm and rng.random() < plan.interrupt_rate else ""
        self.note(" ".join(filter(None, (kind, given, disturbed))))
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
                raise Violation("KeyboardInterrupt from nowhere", told(exc)) from exc
            self.counts["interrupts"] += 1
            self.note(f"  interrupted at {self.interrupter.where}")
            self._on_interrupt()
            return Outcome(error=exc)
        except (VecEnvError, ValueError) as exc:
            if (type(exc) is VecEnvError and PART_OF_A_BATCH not in str(exc)) or (
                not isinstance(exc, VecEnvError) and kind != "recv"
            ):
                raise Violation(f"{type(exc).__name__} out of {kind}", told(exc)) from exc
            if self.interrupter.fired != before:
                self.note(f"  interrupted, unseen, at {self.interrupter.where}")
                self._on_interrupt()
            self.counts["exceptions"] += 1
            self.note(f"  {type(exc).__name__}: {str(exc).splitlines()[0][:150]}")
            if isinstance(exc, EnvError):
                self._check_cause(exc)
            return Outcome(error=exc)
        except Exception as exc:
            raise Violation(f"{type(exc).__name__} out of {kind}", told(exc)) from exc
        finally:
            faulthandler.cancel_dump_traceback_later()

    def note(self, text: str) -> None:
        if self.history[-2:-1] == [text] or self.history[-1:] == [text]:  # polling
            return
        self.history.append(text)
        print(text, file=self.log, flush=True)  # what is left of it if this hangs
        del self.history[:-60]

    def _check_cause(self, error: EnvError) -> None:
        """Check that the env raised what its action asked for, or what follows from it."""
        for each in error.errors:
            text = str(each)
            words = (TOLD, "reset", "unpickled", "KeyboardInterrupt")
            if not any(word in text for word in words):
                raise Violation("EnvError of another cause", text)


def told(exc: BaseException) -> str:
    """Return the end of an exception's traceback."""
    return "".join(traceback.format_exception(exc))[-3000:]
