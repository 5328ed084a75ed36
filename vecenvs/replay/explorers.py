"""The caller's side of the explorers: starts them, watches them, replaces those that die, asks and ends them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np

from vecenvs.arguments import parse_indices
from vecenvs.backends.ray.cluster import Session, import_paths, shorten
from vecenvs.backends.ray.placement import Request
from vecenvs.batch.space_equality import alike
from vecenvs.errors import BackendUnavailable, VecEnvError
from vecenvs.replay import link
from vecenvs.replay.errors import ExplorerDied, ExplorerFailure, ExplorerMismatch, StoppedError
from vecenvs.replay.explorer_actor import ExplorerActor, Report
from vecenvs.replay.member import Member

PAUSE = 0.5  # seconds between looks at each explorer: how old stats are, how late errors
GRACE = 3.0  # seconds for explorers to close their envs


class Explorers:
    """A number of explorers, from 0 on. A thread looks after them twice a second."""

    def __init__(
        self,
        session: Session,
        functions: tuple[Callable[..., Any], Callable[..., Any]],
        count: int,
        request: Request,
        arguments: Mapping[str, Any],
        seed: int | None,
        max_restarts: int,
    ) -> None:
        self._session = session
        try:
            self._functions = cloudpickle.dumps(functions, protocol=5)
        except Exception as exc:  # whatever a foreign __reduce__ raises
            raise VecEnvError(
                f"make_vec or make_policy cannot be pickled ({exc}): make what they need inside them"
            ) from exc
        self._paths = import_paths()
        self._request = request
        self._class = request.actor_class(ExplorerActor)
        self._arguments = dict(arguments)
        self._seed = seed
        self._max_restarts = max_restarts
        self._server: Any = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._troubles: deque[Exception] = deque()
        self._last_trouble: Exception | None = None
        self.replaced = 0
        self._members = [self._launch(index, 0) for index in range(count)]
        self._thread = threading.Thread(target=self._watch, name="vecenvs-explorers", daemon=True)
        try:
            for member in self._members:
                member.settle(member.placing.wait(), session.node)
            self.spaces = self._agree([self._first_words(member) for member in self._members])
        except BaseException:
            self.stop()
            raise

    def __len__(self) -> int:
        return len(self._members)

    def begin(self, server: Any) -> None:
        """Let them explore, and send what they find to the server's actor."""
        self._server = server
        for member in self._members:
            member.started = True
            link.answer_of(member.actor.begin.remote(server))
        self._thread.start()

    def raise_trouble(self) -> None:
        """Raise what an explorer raised or died of, once each."""
        if self._troubles:
            raise self._troubles.popleft()

    def check(self) -> None:
        """As `raise_trouble`; and if none of them explores any longer, raise the last of it again."""
        self.raise_trouble()
        if self._last_trouble is not None and all(member.failed for member in self._members):
            raise self._last_trouble

    def stats(self) -> list[dict[str, Any]]:
        """What each has last reported, where it runs, and how often it was replaced."""
        with self._lock:
            return [
                {
                    **member.stats,
                    "replaced": member.generation,
                    "node": member.home.node if member.home else None,
                    "pid": member.home.pid if member.home else None,
                }
                for member in self._members
            ]

    def get_attr(self, name: str, indices: int | Sequence[int] | None = None) -> list[Any]:
        """Read an attribute of each Explorer by a dotted name: "policy.epsilon", "vec.num_envs"."""
        return self._ask("get_attr", indices, name)

    def set_attr(self, name: str, value: Any, indices: int | Sequence[int] | None = None) -> None:
        """Write an attribute of each Explorer by a dotted name. AttributeError if it has none of that name.

        Explorers that replace others later begin without it.
        """
        self._ask("set_attr", indices, name, value)

    def call(
        self, function: Callable[..., Any], *args: Any, indices: int | Sequence[int] | None = None, **kwargs: Any
    ) -> list[Any]:
        """Run `function(explorer, *args, **kwargs)` where each lives, between two steps; give what they return."""
        return self._ask("call", indices, link.pickled_call(function, args, kwargs))

    def stop(self) -> None:
        """Close the envs and end the actors, within a bounded time. Repeatable."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        members, self._members = self._members, []
        if self._session.pid != os.getpid() or not self._session.alive():
            return
        import ray

        deadline = time.monotonic() + GRACE
        farewells = [member.actor.finish.remote() for member in members if member.home is not None]
        if farewells:
            ray.wait(farewells, num_returns=len(farewells), timeout=GRACE)
        for member in members:
            ray.kill(member.actor)
        for member in members:
            link.end(member.actor, member.process, max(deadline, time.monotonic() + 0.5), self._session)

    def _launch(self, index: int, generation: int) -> Member:
        member = Member(index, generation, self._class.remote(index, generation), self._request)  # type: ignore[attr-defined]
        seed = None if self._seed is None else np.random.SeedSequence(self._seed, spawn_key=(index, generation))
        member.call = member.actor.make.remote(self._functions, self._paths, {**self._arguments, "seed": seed})
        return member

    def _first_words(self, member: Member) -> tuple[Any, Any]:
        import ray

        try:
            made = ray.get(member.call)
        except ray.exceptions.RayActorError as exc:
            raise ExplorerDied(member.index, f"while starting: {shorten(str(exc))}", 0) from None
        member.call = None
        if isinstance(made, ExplorerFailure):
            raise made.to_error()
        spaces: tuple[Any, Any] = made
        return spaces

    def _agree(self, spaces: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
        for index, theirs in enumerate(spaces):
            for which, their, ours in zip(("observation_space", "action_space"), theirs, spaces[0], strict=True):
                if not alike(their, ours):
                    raise ExplorerMismatch(index, which, their, ours)
        return spaces[0]

    # The thread that watches

    def _watch(self) -> None:
        while not self._over.wait(PAUSE):
            for place, member in enumerate(self._members):
                if not self._session.alive():
                    return
                if not self._over.is_set():
                    self._look(place, member)

    def _look(self, place: int, member: Member) -> None:
        import ray

        if member.failed:
            return
        if member.call is None:
            member.call = member.actor.report.remote()
        try:
            if member.home is None and not self._settle(member):
                return
            if not ray.wait([member.call], timeout=0, fetch_local=False)[0]:
                return
            answer = ray.get(member.call)
            member.call = None
            if member.started:
                self._hear(member, answer)
            else:
                self._start(member, answer)
        except ray.exceptions.RayActorError as exc:
            if not self._over.is_set():
                self._replace(place, member, shorten(str(exc)))
        except BackendUnavailable as exc:  # there is no place for it
            ray.kill(member.actor)
            self._give_up(member, exc)
        except Exception as exc:  # whatever a foreign exception does on its way
            self._give_up(member, exc)

    def _settle(self, member: Member) -> bool:
        home = member.placing.home(0)
        if home is not None:
            with self._lock:
                member.settle(home, self._session.node)
        return home is not None

    def _hear(self, member: Member, report: Report) -> None:
        with self._lock:
            member.stats = report.stats
        if report.failure is not None:
            self._give_up(member, report.failure.to_error())

    def _start(self, member: Member, made: tuple[Any, Any] | ExplorerFailure) -> None:
        if isinstance(made, ExplorerFailure):
            self._give_up(member, made.to_error())
            return
        self._agree([self.spaces, made])
        member.actor.begin.remote(self._server)
        member.started = True

    def _replace(self, place: int, member: Member, words: str) -> None:
        if member.process is not None:
            member.process.close()
        if self.replaced >= self._max_restarts:
            self._give_up(member, ExplorerDied(member.index, words, self._max_restarts))
            return
        self.replaced += 1
        made = self._launch(member.index, member.generation + 1)
        with self._lock:
            self._members[place] = made

    def _give_up(self, member: Member, trouble: Exception) -> None:
        member.failed = True
        self._last_trouble = trouble
        self._troubles.append(trouble)

    def _ask(self, method: str, indices: int | Sequence[int] | None, *args: Any) -> list[Any]:
        import ray

        if self._over.is_set():
            raise StoppedError(method)
        link.check_connection(self._session)
        asked = [self._members[index] for index in parse_indices(indices, len(self._members))]
        calls = [getattr(member.actor, method).remote(*args) for member in asked]
        answers = []
        for member, call in zip(asked, calls, strict=True):
            try:
                answers.append(link.answer_patiently(call, lambda: link.check_connection(self._session)))
            except ray.exceptions.RayActorError as exc:
                raise VecEnvError(
                    f"explorer {member.index} has died meanwhile ({shorten(str(exc))}): ask again when it is replaced"
                ) from None
        return answers
