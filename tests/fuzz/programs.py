"""A program: a VecEnv and calls on it, drawn from a seed; playing it, and a smaller one that fails as well."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.worlds import INFOS, SMALL, World, box, draw_space, value
from vecenvs.backends import backend_class
from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.batched import Batched
from vecenvs.errors import AlreadySteppingError, NotSteppingError, StepTimeout
from vecenvs.pool.hosts import Hosts
from vecenvs.testing.compare import difference
from vecenvs.testing.envs.counting import pid_of
from vecenvs.testing.envs.sized import SizedEnv, filled
from vecenvs.testing.ledger import Ledger
from vecenvs.testing.suite.deaths import wait_for_the_end
from vecenvs.testing.suite.sizes import resume, take
from vecenvs.worker.autoreset import AUTORESET_MODES

ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "dummy": ("dummy", {}),
    "fork": ("subproc", {"start_method": "fork"}),
    "caller": ("subproc", {"start_method": "fork", "caller_steps": True}),
    "forkserver": ("subproc", {"start_method": "forkserver"}),
    "spawn": ("subproc", {"start_method": "spawn"}),
    "mpi-shared": ("mpi", {}),
    "mpi-messages": ("mpi", {"transport": "messages"}),
    "ray-shared": ("ray", {"actor_options": {"num_cpus": 0.1}}),
    "ray-messages": ("ray", {"actor_options": {"num_cpus": 0.1}, "transport": "messages"}),
}
CALLS = {
    "step": 12, "send": 12, "recv": 12, "group": 5, "timeout": 3, "reset": 3, "reset_async": 5, "seed": 2, "options": 2,
    "raise": 2, "places": 2, "refused": 2, "keep": 2, "nap": 1, "kill": 1,
}  # fmt: skip
ATTRS = ((), (), ("place.t",), ("place.t", "place.told"), ("place.episode", "place"))
BATCHED_MODES = ("same_step", "next_step")
NOT_BATCHED = ("seed", "options", "raise", "kill", "group")  # rules of their own: the suite has them
PATIENCE = 60  # seconds of one program


@dataclass(frozen=True)
class Program:
    """A VecEnv and calls on it: each a name and a number, valid in any state."""

    engine: str
    envs: int
    workers: int
    mode: str
    world: World
    copy: bool
    restart: bool
    batched: bool  # whether pairs of envs are a DummyVecEnv's, one batched env
    calls: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        world = self.world
        return (
            f"{self.engine}, {self.envs} envs, {self.workers} workers, {self.mode}, copy={self.copy}, "
            f"restart={self.restart}, batched={self.batched}, info_attrs={world.attrs}\n  observations {world.space}\n"
            f"  actions {world.action_space}\n  infos {world.infos!r}, length {world.length}\n  {self.calls}"
        )


def draw(seed: int, engine: str) -> Program:
    """Draw a program."""
    rng = random.Random(seed)
    large = rng.random() < 0.5
    world = World(
        draw_space(rng, large=large), draw_space(rng, 1, large=large and rng.random() < 0.2), rng.choice(INFOS),
        rng.choice([1, 3, 8]), rng.choice(ATTRS),
    )  # fmt: skip
    most = 8 if large else 300 if rng.random() < 0.1 else 12
    weight = len(repr(value(world.space, 1))) if not large else _bytes(value(world.space, 1))
    envs = max(1, min(rng.randint(1, most), 12_000_000 // max(weight, 1)))
    names = rng.choices(list(CALLS), list(CALLS.values()), k=rng.randint(5, 40 if weight < 500_000 else 12))
    mode, batched = rng.choice(AUTORESET_MODES), rng.random() < 0.25
    if batched and mode in BATCHED_MODES:
        envs += envs % 2
        names, world = [name for name in names if name not in NOT_BATCHED], world._replace(attrs=())
    else:
        batched = False
    return Program(
        engine, envs, rng.randint(1, min(envs // (1 + batched), 3 if not engine.startswith("mpi") else 2)),
        mode, world, rng.random() < 0.8, rng.random() < 0.5, batched,
        tuple((name, rng.randrange(10**6)) for name in names),
    )  # fmt: skip


def _bytes(found: Any) -> int:
    if isinstance(found, dict):
        return sum(map(_bytes, found.values()))
    if isinstance(found, tuple):
        return sum(map(_bytes, found))
    return found.nbytes if isinstance(found, (np.ndarray, np.generic)) else 4 * len(str(found))


def play(program: Program) -> tuple[int, str | None]:
    """Play a program. Return how many rows were compared, and what differed."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, warnings.catch_warnings(), _no_longer_than(PATIENCE):
        warnings.simplefilter("ignore")
        player = None
        try:
            player = _Player(program, Path(folder))
            player.play()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            text = "".join(traceback.format_exception(error))
            return 0, f"{type(error).__name__}: {str(error)[:1500]}\n{text[-2500:]}"
        finally:
            if player is not None:
                player.vec.close()
        return player.ledger.checked, None


class _Player:
    def __init__(self, program: Program, folder: Path) -> None:
        backend, kwargs = ENGINES[program.engine]
        if program.restart:
            kwargs = {**kwargs, "on_failure": "restart", "max_restarts": 99, "step_timeout": 50.0}
        world = program.world
        fns = [
            functools.partial(SizedEnv, tag, world._replace(attrs=()), folder / str(tag), os.getpid())
            for tag in range(program.envs)
        ]
        if program.batched:
            inner = functools.partial(DummyVecEnv, autoreset=program.mode)
            fns = [Batched(functools.partial(inner, fns[k : k + 2]), 2) for k in range(0, len(fns), 2)]
        if backend != "dummy":
            workers = program.workers if kwargs.get("caller_steps") else Hosts(fns).default_workers(program.workers)
            kwargs = {**kwargs, "num_workers": workers}
        self.program = program
        self.vec = backend_class(backend)(
            fns, autoreset=program.mode, info_attrs=world.attrs, copy=program.copy, **kwargs
        )
        self.ledger = Ledger(self.vec, world, lambda number: value(world.action_space, 77, number))
        self.kept: list[tuple[Any, Any]] = []

    def play(self) -> None:
        self.ledger.reset()
        for name, number in self.program.calls:
            getattr(self, f"_{name}")(random.Random(number))
            self._attributes()
        self.ledger.drain()
        for kept, before in self.kept:
            text = difference(kept, before, "an array that was returned long ago")
            if text is not None:
                raise AssertionError(text)

    def _attributes(self) -> None:
        names = self.program.world.attrs
        if names and not self.ledger.pending() and all(slot.phase != "new" for slot in self.ledger.slots):
            for name in names:
                assert len(self.vec.info_array(name)) == self.program.envs

    def _some(self, rng: random.Random, among: list[int]) -> list[int]:
        if self.program.batched:
            pairs = [k for k in among if k % 2 == 0 and k + 1 in among]
            return [one for k in (rng.sample(pairs, rng.randint(1, len(pairs))) if pairs else []) for one in (k, k + 1)]
        return rng.sample(among, rng.choice([len(among), rng.randint(1, len(among))])) if among else []

    def _step(self, rng: random.Random) -> None:
        if len(self.ledger.free(autoresets=True)) == self.program.envs:
            self.ledger.step(batched=rng.random() < 0.5)

    def _send(self, rng: random.Random) -> None:
        some = self._some(rng, self.ledger.free())
        if some:
            self.ledger.send(some)

    def _recv(self, rng: random.Random) -> None:
        pending = len(self.ledger.pending())
        if pending:
            least = rng.randint(1, pending)
            self.ledger.recv(least, rng.choice([None, least, least + 1]))

    def _group(self, rng: random.Random) -> None:
        some = self._some(rng, self.ledger.pending())
        if some:
            self.ledger.recv(indices=some)

    def _timeout(self, rng: random.Random) -> None:
        pending = len(self.ledger.pending())
        if pending:
            with contextlib.suppress(StepTimeout):
                self.ledger.recv(pending, None, rng.choice([0.0, 0.001]))

    def _reset(self, rng: random.Random, call: str = "reset") -> None:
        some = self._some(rng, self.ledger.free(autoresets=True))
        if some:
            options = rng.choice([None, None, {"blob": filled(rng.choice([3, 40_000]), rng.randrange(99)).tobytes()}])
            getattr(self.ledger, call)(some, seed=rng.choice([None, None, rng.randrange(1000)]), options=options)

    def _reset_async(self, rng: random.Random) -> None:
        self._reset(rng, "reset_async")

    def _seed(self, rng: random.Random) -> None:
        if not self.ledger.pending():
            seed = rng.choice([None, rng.randrange(99), [rng.choice([None, k]) for k in range(self.program.envs)]])
            self.vec.seed(seed)
            for i, slot in enumerate(self.ledger.slots):
                own = seed[i] if isinstance(seed, list) else None if seed is None else seed + i
                slot.held = own, slot.held[1]

    def _options(self, rng: random.Random) -> None:
        if not self.ledger.pending():
            blob = {"blob": bytes([rng.randrange(99)])}
            options = rng.choice([None, blob, [rng.choice([None, blob]) for _ in self.ledger.slots]])
            self.vec.set_options(options)
            for i, slot in enumerate(self.ledger.slots):
                slot.held = slot.held[0], options[i] if isinstance(options, list) else options

    def _raise(self, rng: random.Random) -> None:
        if not self.ledger.pending():
            some = self._some(rng, self.ledger.free())
            self.vec.set_attr("fate", "raise", some)
            for i in some:
                self.ledger.slots[i].fate = "raise"

    def _places(self, rng: random.Random) -> None:
        some = self._some(rng, self.ledger.free())
        if some:
            got = self.vec.get_attr("place", some)
            want = [self.ledger.slots[i].place for i in some]
            assert got == want, f"places of {some}: {got}, not {want}"

    def _refused(self, rng: random.Random) -> None:
        pending = self.ledger.pending()
        try:
            if pending:
                self.vec.send(self.ledger.actions(1), [rng.choice(pending)])
            else:
                self.vec.recv()
        except (AlreadySteppingError, NotSteppingError):
            return
        raise AssertionError("taken though it had to be refused")

    def _keep(self, rng: random.Random) -> None:
        if self.program.copy and not self.ledger.pending() and all(s.phase == "live" for s in self.ledger.slots):
            actions = self.ledger.actions(self.program.envs)
            if any(slot.fate for slot in self.ledger.slots):
                return
            result = self.vec.step(actions)
            self.ledger.given_lock_step(actions)
            self.ledger.check_step(result)
            found = (*result[:3], list(result[3]))
            self.kept.append((found, copy.deepcopy(found)))

    def _nap(self, rng: random.Random) -> None:
        if not self.ledger.pending():
            self.vec.set_attr("nap", rng.choice([0.0, 0.001]))

    def _kill(self, rng: random.Random) -> None:
        if not self.program.restart or self.ledger.pending() or any(slot.fate for slot in self.ledger.slots):
            return
        if any(slot.phase != "live" for slot in self.ledger.slots):
            return
        victim = rng.randrange(self.program.envs)
        (pid,) = self.vec.call(pid_of, [victim])
        if pid == os.getpid():
            return
        some = self._some(rng, self.ledger.free())
        self.ledger.send(some)
        if rng.random() < 0.5:
            take(self.ledger, self.vec)
        os.kill(pid, signal.SIGKILL)
        wait_for_the_end(pid)
        with contextlib.suppress(NotSteppingError):
            while True:
                take(self.ledger, self.vec)
        self.vec.reset()
        resume(self.ledger)
        for slot in self.ledger.slots:
            slot.held = None, None


@contextlib.contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"the program took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def smaller(program: Program, tries: int = 60) -> Program:
    """Return the smallest program found that fails as well."""

    def candidates(now: Program) -> Iterator[Program]:
        calls, size = now.calls, len(now.calls)
        step = size // 2
        while step:
            for at in range(0, size, step):
                yield replace(now, calls=calls[:at] + calls[at + step :])
            step //= 2
        for envs in sorted({1 + now.batched, 2, now.envs // 4 * 2}):
            if 0 < envs < now.envs:
                yield replace(now, envs=envs, workers=min(now.workers, max(envs // 2, 1)))
        if now.batched:
            yield replace(now, batched=False)
        if now.workers > 1:
            yield replace(now, workers=1)
        yield replace(now, restart=False) if now.restart else replace(now, copy=True)
        yield replace(now, world=now.world._replace(infos="none"))
        yield replace(now, world=now.world._replace(attrs=()))
        yield replace(now, world=now.world._replace(action_space=SMALL.action_space))
        yield replace(now, world=now.world._replace(space=box((3,), "int64")))

    kind = (play(program)[1] or "").partition(":")[0]  # of its error: another one's program is another finding
    found = bool(kind)
    while found and tries > 0:
        found = False
        for candidate in candidates(program):
            if candidate == program or tries <= 0:
                continue
            tries -= 1
            if (play(candidate)[1] or "").partition(":")[0] == kind:
                program, found = candidate, True
                break
    return program
