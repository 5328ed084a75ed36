"""`spares`: envs beside those of a worker's slots, reset in advance, which change places with these at episodes' ends.

Resets follow from seeds (`episode_seeds`), so a spare plays the next episode of a slot as the own env would. Each
spare is made, reset and closed in a thread of its own. Nothing here has a lock: whoever pops the `token` of a reset
gives its spare back. What has to be done as a whole holds back the handlers of signals, which may raise anywhere.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from vecenvs.batch.layout import SpaceLayout
from vecenvs.batch.values import copy_containers
from vecenvs.env_calls import SETTERS, SlotLayer, get_attr, has_attr, layers, set_attr
from vecenvs.transport.protocol import safe_text
from vecenvs.transport.reset_arguments import SeedStream
from vecenvs.worker.env_errors import ENV_ERRORS, EnvErrors, Remake, Unmade
from vecenvs.worker.env_threads import EnvThreads
from vecenvs.worker.outcomes import Job, Raised, check_time
from vecenvs.worker.process import HeldSignals
from vecenvs.worker.rules import EpisodeSeeds, Rules, TimeLimits, WorkShare

_NONE: Any = object()
_PAUSE, _LONGEST = 0.05, 5.0  # seconds before a spare that has failed is made anew; each time twice as many

_log = logging.getLogger("vecenvs")


class Reset:
    """A reset of a spare for the episode `stream` of env `local`. `outcome` is what it has returned or raised."""

    __slots__ = (
        "arguments",
        "awaited",
        "dropped",
        "ended",
        "local",
        "outcome",
        "position",
        "stream",
        "token",
        "version",
    )

    def __init__(self, local: int, position: int, arguments: dict[str, Any], stream: SeedStream, version: int) -> None:
        self.local, self.position, self.arguments = local, position, arguments
        self.stream, self.version = stream, version
        self.token = deque([position])
        self.awaited = self.dropped = False
        self.outcome: Any = _NONE
        self.ended: queue.SimpleQueue[None] = queue.SimpleQueue()


class Spares:
    """The spares of one worker, whose slots have `envs`, and are first, first + 1, ...

    `held` are the arguments of next resets, by env. What belongs to a slot and not to an env stays: the layers of
    class SlotLayer change places back, and a spare gets the attributes that were set on the env of its slot.
    """

    def __init__(
        self,
        envs: list[Any],
        first: int,
        rules: Rules,
        layout: SpaceLayout,
        remake: Remake,
        reset: Callable[[Any, dict[str, Any]], Any],
        held: dict[int, dict[str, Any]],
        seeds: EpisodeSeeds,
        errors: EnvErrors | None,
    ) -> None:
        self.envs: list[Any] = [Unmade(envs[0]) for _ in range(rules.spares)]
        self._slots, self._first, self._layout, self._remake = envs, first, layout, remake
        self._reset = reset  # of an env with these arguments
        self._held, self._seeds, self._errors = held, seeds, errors
        self._broken = set(range(rules.spares))  # those that have to be made before their next reset
        self._failed = [0] * rules.spares
        self._idle = deque(range(rules.spares))
        self._coming: list[deque[Reset]] = [deque() for _ in envs]  # by env: resets for its next episodes, in order
        self._versions = [0] * len(envs)  # how often what a reset depends on has changed
        self._told = set[int]()  # envs that were told how their next episode begins
        self._waits = "tasks" in rules.own_resets  # for that
        self._count = itertools.count()
        self._begun: dict[int, int] = {}  # by env: when its episode began, as a number
        self._set: list[dict[str, Callable[[Any], Any]]] = [{} for _ in envs]  # by env: what sets an attribute
        self._defaults: dict[str, Any] = {}  # what envs have on which an attribute was not set
        self._runner = EnvThreads(first, TimeLimits(), WorkShare())
        self._shared = False
        self._pid = os.getpid()

    def use_runner(self, runner: EnvThreads) -> None:
        """Take the threads of a worker in which every env has one: an env stays in its thread in another place."""
        self._runner, self._shared = runner, True

    # In the threads of slots

    def begun(self, local: int) -> None:
        """Take note that an episode of an env has begun; prepare those that come next."""
        with HeldSignals():  # a reset that is noted and never begun would be waited for
            self._begun[local] = next(self._count)
            self._told.discard(local)
            coming = [*self._coming[local]]
            if coming and coming[0].stream != self._next_of(local):
                self._drop(local)
            self._prepare()

    def changed(self, local: int, *, told: bool = False) -> None:
        """Take note that the next reset of an env is another one; with `told` a seed or options are held for it."""
        with HeldSignals():
            self._versions[local] += 1
            self._drop(local)
            if told:
                self._told.add(local)
            if local in self._begun:
                self._prepare()

    def note_call(self, local: int, function: Any, args: tuple[Any, ...]) -> None:
        """Take note that a function was called on an env: what sets an attribute counts for its slot."""
        if function in SETTERS.values() and args:
            self._set[local][str(args[0])] = partial(_set_again, function, copy_containers(args))
            self.changed(local)

    def put(self, local: int, setters: dict[str, list[Any]]) -> None:
        """Take note that an env was put into a state, in which attributes have been set: by what, and with what else.

        They count as set to what they are now, if the state has them.
        """
        env, self._set[local] = self._slots[local], {}
        for name, (by, *rest) in setters.items():
            if has_attr(env, name):
                args = name, copy_containers(get_attr(env, name)), *rest
                self._set[local][name] = partial(_set_again, SETTERS[by], args)
        self.changed(local)

    def take(self, local: int) -> tuple[Any, dict[str, Any], SeedStream] | None:
        """Put a spare that is reset for an env's next episode in its place, if one is, or will be.

        Return what its reset has returned, and its arguments; None if the env has to be reset itself.
        """
        coming = self._coming[local]
        if os.getpid() != self._pid or not coming:
            return None
        reset = coming[0]
        if reset.stream != self._next_of(local) or reset.version != self._versions[local]:
            with HeldSignals():
                self._drop(local)
            return None
        while reset.outcome is _NONE:
            if reset.awaited:  # by a thread that was too late, or interrupted
                with HeldSignals():
                    self._drop(local)
                return None
            reset.awaited = True
            reset.ended.get()
        check_time()
        if type(reset.outcome) is Raised:
            with HeldSignals():
                coming.popleft()
                self._release(reset)
            return None
        with HeldSignals():
            if self._pid < 0:  # envs are being closed, each in its place
                return None
            coming.popleft()
            position = reset.token.pop()
            old, new = self._slots[local], self.envs[position]
            self._slots[local], self.envs[position] = new, old
            if self._shared:
                self._runner.exchange(local, len(self._slots) + position)
            for of_slot, of_spare in zip(layers(old), layers(new), strict=False):
                if isinstance(of_slot, SlotLayer) and type(of_slot) is type(of_spare):
                    of_slot.exchange(of_spare)
            if self._errors is not None and local in self._errors.broken:
                self._errors.broken.discard(local)
                self._broken.add(position)
            self._idle.append(position)
        return reset.outcome, reset.arguments, reset.stream

    def close(self, grace: float) -> None:
        """Close the spares, unless they share the threads of the other envs: these are closed together."""
        self._idle.clear()
        if not self._shared and os.getpid() == self._pid:
            works = {position: partial(self._close, position) for position in range(len(self.envs))}
            self._runner.close({len(self._slots) + position: work for position, work in works.items()}, grace)
        self._pid = -1

    def _close(self, position: int) -> None:
        self.envs[position].close()

    def _next_of(self, local: int) -> SeedStream:
        return self._seeds.of(local, self._held.get(local, {}).get("seed"))

    def _drop(self, local: int) -> None:
        """Forget the resets for an env's next episodes."""
        coming = self._coming[local]
        while coming:
            reset = coming.popleft()
            reset.dropped = True
            if reset.outcome is not _NONE:
                self._release(reset)

    def _release(self, reset: Reset) -> None:
        with contextlib.suppress(IndexError):  # it was released by another thread
            self._idle.append(reset.token.pop())

    def _prepare(self) -> None:
        """Begin resets for next episodes, as far as there are spares: of envs that have fewest, of the oldest first."""
        while self._idle and os.getpid() == self._pid:
            waiting = [x for x in [*self._begun] if not self._waits or (x in self._told and not self._coming[x])]
            if not waiting:
                return
            local = min(waiting, key=lambda x: (len(self._coming[x]), self._begun[x]))
            try:
                position = self._idle.popleft()
            except IndexError:  # another thread has it
                return
            version, coming = self._versions[local], [*self._coming[local]]
            arguments = {} if coming else copy_containers(self._held.get(local, {}))
            stream = coming[-1].stream.after() if coming else self._next_of(local)
            arguments["seed"] = stream.seed(self._first + local)
            reset = Reset(local, position, arguments, stream, version)
            self._coming[local].append(reset)
            key = len(self._slots) + position
            self._runner.begin([Job(key, partial(self._carry_out, reset), partial(self._deliver, reset))])

    # In the threads of spares

    def _carry_out(self, reset: Reset) -> Any:
        position = reset.position
        if position in self._broken:
            if failed := self._failed[position]:
                time.sleep(min(_PAUSE * 2.0**failed, _LONGEST))
            old, like = self.envs[position], Unmade(self.envs[position])
            self.envs[position] = like
            with contextlib.suppress(*ENV_ERRORS):  # the env is broken: that it cannot be closed is no news
                old.close()
            self.envs[position] = self._remake(len(self._slots) + position, like)
            self._broken.discard(position)
        env = self.envs[position]
        for name in {*self._defaults, *(name for each in self._set for name in [*each])}:
            if name not in self._defaults:  # no env that it was set on has been a spare yet
                self._defaults[name] = get_attr(env, name) if has_attr(env, name) else _NONE
            if (again := self._set[reset.local].get(name)) is not None:
                again(env)
            elif self._defaults[name] is not _NONE:
                set_attr(env, name, copy_containers(self._defaults[name]))
        obs, info = self._reset(env, copy_containers(reset.arguments))
        self._failed[position] = 0
        return self._layout.copied(obs), info

    def _deliver(self, reset: Reset, _: Job, outcome: Any) -> None:
        if type(outcome) is Raised:
            self._broken.add(reset.position)
            self._failed[reset.position] += 1
            slot, exc = self._first + reset.local, outcome.exc
            _log.warning(
                "a spare for env %d raised %s: %s. The env is reset itself, and the spare made anew",
                slot, type(exc).__name__, safe_text(exc),
            )  # fmt: skip
        reset.outcome = outcome
        if reset.dropped:
            self._release(reset)
        reset.ended.put(None)


def _set_again(function: Callable[..., Any], args: tuple[Any, ...], env: Any) -> None:
    function(env, *copy_containers(args))
