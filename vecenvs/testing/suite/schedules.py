"""Random schedules of send, recv, reset_async, step, timeouts, attributes and failures, against a ledger."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable

import pytest

from vecenvs.errors import AlreadySteppingError, NotSteppingError, StepTimeout
from vecenvs.testing.compare import stack
from vecenvs.testing.envs.sized import KIB, Rows, SizedEnv, filled
from vecenvs.testing.ledger import Ledger
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.vec_env import VecEnv
from vecenvs.worker.autoreset import AUTORESET_MODES

ENVS = 5
ROWS = Rows("box", (24,))
BLOB = 40 * KIB  # bytes of an option
EXAMPLES = int(os.environ.get("VECENVS_SCHEDULES", "25"))  # per mode and configuration; each of up to 50 operations


class Player:
    """Carries out operations on a ledger's VecEnv. Every set of envs and every number is valid for each."""

    def __init__(self, ledger: Ledger) -> None:
        self.vec, self.ledger, self.envs = ledger.vec, ledger, len(ledger.slots)
        self.operations: dict[str, Callable[[list[int], int], None]] = {
            "send": self.send, "recv": self.recv, "recv_group": self.recv_group, "recv_timeout": self.recv_timeout,
            "reset": self.reset, "reset_async": self.reset_async, "step": self.step, "get_attr": self.get_attr,
            "set_attr": self.set_attr,
        }  # fmt: skip

    def play(self, kind: str, mask: int, number: int) -> None:
        """Carry out an operation on env i if bit i of `mask` is set, in an order that depends on `number`."""
        chosen = [i for i in range(self.envs) if mask >> i & 1]
        if number % 2:
            chosen = chosen[number % 3 :: -1] + chosen[number % 3 + 1 :]
        self.operations[kind](chosen, number)

    def send(self, chosen: list[int], _: int) -> None:
        if not chosen:
            self.vec.send(stack(self.vec.action_space, []), [])
        elif self._are_free(chosen, lambda: self.vec.send(self.ledger.actions(len(chosen)), chosen), autoresets=False):
            self.ledger.send(chosen)

    def reset(self, chosen: list[int], number: int, call: str = "reset") -> None:
        if self._are_free(chosen, lambda: getattr(self.vec, call)(chosen)):
            options = {"blob": filled(BLOB, number).tobytes()} if number == 5 else None
            getattr(self.ledger, call)(chosen, seed=number if number % 3 else None, options=options)

    def reset_async(self, chosen: list[int], number: int) -> None:
        self.reset(chosen, number, "reset_async")

    def step(self, _: list[int], number: int) -> None:
        if self._are_free(range(self.envs), lambda: self.vec.step(self.ledger.actions(self.envs))):
            self.ledger.step(batched=bool(number % 2))

    def recv(self, chosen: list[int], number: int) -> None:
        due = len(self.ledger.pending())
        if not due:
            self._is_refused(self.vec.recv, NotSteppingError)
            return
        self._is_refused(lambda: self.vec.recv(due + 1), ValueError)
        least = 1 + number % due
        most = least + len(chosen) if chosen else None
        count = self.ledger.recv(least, most)
        assert most is None or count <= most

    def recv_group(self, chosen: list[int], _: int) -> None:
        pending = self.ledger.pending()
        chosen = [i for i in chosen if i in pending]
        if len(pending) < self.envs:
            other = next(i for i in range(self.envs) if i not in pending)
            self._is_refused(lambda: self.vec.recv(indices=[*chosen, other]), NotSteppingError)
        if chosen:
            self.ledger.recv(indices=chosen)

    def recv_timeout(self, _: list[int], number: int) -> None:
        due = len(self.ledger.pending())
        if due:
            with contextlib.suppress(StepTimeout):
                self.ledger.recv(due, None, 1e-3 * (number % 2))

    def get_attr(self, chosen: list[int], _: int) -> None:
        if self._are_free(chosen, lambda: self.vec.get_attr("place", chosen)):
            assert self.vec.get_attr("place", chosen) == [self.ledger.slots[i].place for i in chosen]

    def set_attr(self, chosen: list[int], number: int) -> None:
        """Let envs take so long that they overtake each other, or raise at their next step."""
        name, value = ("nap", 5e-5 * number) if number < 7 else ("fate", "raise")
        if self._are_free(chosen, lambda: self.vec.set_attr(name, value, chosen)):
            self.vec.set_attr(name, value, chosen)
            for i in chosen if name == "fate" else ():
                self.ledger.slots[i].fate = "raise"

    def drain(self) -> None:
        """Receive all rows that are to come, and check that there are no others."""
        self.ledger.drain()
        self._is_refused(self.vec.recv, NotSteppingError)

    def _are_free(self, chosen: Iterable[int], command: Callable[[], object], *, autoresets: bool = True) -> bool:
        """Tell whether the envs may take a command; check, otherwise, that it is refused."""
        free = set(chosen) <= set(self.ledger.free(autoresets=autoresets))
        if not free:
            self._is_refused(command, AlreadySteppingError)
        return free

    def _is_refused(self, command: Callable[[], object], error: type[Exception]) -> None:
        with pytest.raises(error):
            command()


def player_of(vec: VecEnv) -> Player:
    return Player(Ledger(vec, ROWS, lambda number: filled(ROWS.action_size, number)))


class ScheduleConformance(Conformance):
    """Each command is answered exactly once, in any schedule."""

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("mode", AUTORESET_MODES)
    def test_schedules(self, make: Make, mode: str) -> None:
        # Not at the top of this file: workers import it with the suite, whose env functions they unpickle.
        from hypothesis import HealthCheck, given, settings
        from hypothesis import strategies as st

        env_fns = [functools.partial(SizedEnv, tag, ROWS) for tag in range(ENVS)]
        player = player_of(make(env_fns, autoreset=mode))
        kinds = [*player.operations, "send", "send", "recv"]
        operations = st.lists(
            st.tuples(st.sampled_from(kinds), st.integers(0, 2**ENVS - 1), st.integers(0, 9)), max_size=50
        )

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(operations)
        def play(schedule: list[tuple[str, int, int]]) -> None:
            nonlocal player
            try:
                for kind, mask, number in schedule:
                    player.play(kind, mask, number)
                player.drain()
            except BaseException:  # the next example, perhaps a smaller one, needs a sound VecEnv
                player.vec.close()
                player = player_of(make(env_fns, autoreset=mode))
                raise

        play()
        assert player.ledger.checked + player.ledger.failed > 0  # all may fail, without a reset before them
