"""One VecEnv from its constructor to its end, and the check for leaks after it."""

from __future__ import annotations

import faulthandler
import functools
import gc
import logging
import os
import random
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from chaos.calls import Calls
from chaos.disturb import Disturber, Interrupter
from chaos.env import FORMS, PADS, AwaitingEnv, ChaosEnv, NamelessEnv
from chaos.expected import Expected
from chaos.hosts import SINGLE, Host, draw_hosts, functions, within
from chaos.options import OPTIONS, Begun, arguments_of
from chaos.plan import Plan, Violation
from chaos.player import Player
from chaos.schedule import Schedule
from chaos.teams import TeamEnv, TeamView
from vecenvs import make_multi_agent
from vecenvs.backends import backend_class
from vecenvs.errors import VecEnvError
from vecenvs.pool.hosts import Hosts
from vecenvs.testing import leaks
from vecenvs.testing.envs.awaiting import awaiting
from vecenvs.vec_env import VecEnv
from vecenvs.worker.autoreset import AUTORESET_MODES


@dataclass(frozen=True)
class Engine:
    """A backend and its arguments. With `ranks` > 0 it runs under MPI."""

    backend: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    ranks: int = 0
    patience: float = 40.0  # seconds that a call may take
    steps: int = 80  # calls of a round
    exempt: tuple[str, ...] = leaks.EXEMPT
    descriptors: int = 0  # that may come and go by themselves


RAY_EXEMPT = (*leaks.EXEMPT, "ray::IDLE", "default_worker.py", "ray/_private", "ray/core/src", "ray::DashboardAgent")
RAY: dict[str, Any] = {"patience": 120.0, "steps": 40, "exempt": RAY_EXEMPT, "descriptors": 6}
MPI: dict[str, Any] = {"ranks": 3, "patience": 60.0, "exempt": (*leaks.EXEMPT, "vecenvs.mpi")}

ENGINES = {
    "dummy": Engine("dummy"),
    "subproc-fork": Engine("subproc", {"start_method": "fork"}),
    "subproc-forkserver": Engine("subproc", {"start_method": "forkserver"}, steps=50),
    "subproc-spawn": Engine("subproc", {"start_method": "spawn"}, steps=50),
    "caller": Engine("subproc", {"start_method": "fork", "caller_steps": True}),
    "dummy-threads": Engine("dummy", {"concurrency": "threads"}),
    "dummy-asyncio": Engine("dummy", {"concurrency": "asyncio"}),
    "threads": Engine("subproc", {"start_method": "fork", "concurrency": "threads"}),
    "asyncio": Engine("subproc", {"start_method": "fork", "concurrency": "asyncio"}),
    "mpi-shared": Engine("mpi", **MPI),
    "mpi-messages": Engine("mpi", {"transport": "messages"}, **MPI),
    "ray-shared": Engine("ray", **RAY),
    "ray-messages": Engine("ray", {"transport": "messages"}, **RAY),
}


class Lines:
    """A stream whose lines are handed to a function."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take

    def write(self, text: str) -> None:
        if text.strip():
            self._take(f"  log: {text.strip()}")

    def flush(self) -> None:
        pass


def plan_of(rng: random.Random, engine: Engine) -> Plan:
    """Draw the parameters of a round."""
    disturbed = rng.random() < 0.9
    interrupts = rng.choice(["", "", "timer", "bytecode"]) if disturbed else ""
    restart = rng.random() < 0.75
    mode = rng.choice(AUTORESET_MODES)
    pad = rng.choice(PADS)
    info_attrs = ("bonus",) if rng.random() < 0.2 else ()
    hosts = draw_hosts(rng, mode, info_attrs)
    waits = "concurrency" in engine.kwargs  # of single envs, whose time limits are their own
    if waits:
        hosts = [Host(SINGLE, k, 1) for k in range(hosts[-1].slots.stop)]
    plan = Plan(
        mode=mode,
        hosts=hosts,
        form=rng.choice(FORMS),
        pad=pad,
        restart=restart,
        max_restarts=1000 if rng.random() < 0.9 else rng.randint(0, 3),
        step_timeout=1.5 if rng.random() < 0.3 else None,
        steps=engine.steps if pad < 100_000 else engine.steps // 4,
        interrupts=interrupts,
        interrupt_rate=rng.choice([0.05, 0.3]),
        kill_rate=rng.choice([0.0, 0.0, 0.03, 0.15]) * disturbed * (1.0 if restart else 0.3),
        stop_rate=rng.choice([0.0, 0.0, 0.03]) * disturbed,
        deadly=disturbed and rng.random() < (0.5 if restart else 0.2),
        faults=disturbed and rng.random() < 0.6,
        patience=engine.patience,
        info_attrs=info_attrs,
        teams=not waits and all(host.kind == SINGLE for host in hosts) and rng.random() < 0.3,
        newest=engine.backend == "subproc",
    )
    awaits = engine.kwargs.get("concurrency") == "asyncio"
    if plan.step_timeout is not None and (awaits or (waits and engine.backend != "dummy")):
        plan.late, plan.max_restarts, plan.awaits = "lost" if plan.restart else "error", 1000, awaits
    if not plan.teams and all(host.kind == SINGLE for host in hosts) and rng.random() < 0.8:
        processes = engine.backend != "dummy" and not engine.kwargs.keys() & {"caller_steps", "concurrency"}
        spares = plan.mode != "async" and not awaits
        plan.option = rng.choice([*OPTIONS, *(["recycle"] if processes else []), *(["spares"] if spares else [])])
        plan.spares = rng.randint(1, 3) * (plan.option == "spares")
        plan.faults &= plan.option != "spares"
        plan.steps *= 1 + 2 * (plan.option == "recycle")  # a successor takes a while to start
    if rng.random() < 0.3:
        plan.start_limit = rng.choice([(1, None), (2, None), (1, 40.0), (None, 40.0)])
    return plan


class Rounds:
    """Rounds on one engine, in this process."""

    def __init__(self, name: str, token: str, log: IO[str], *, anywhere: bool) -> None:
        self.engine, self.log, self.anywhere = ENGINES[name], log, anywhere
        self.token = token
        self.processes = 0  # of the VecEnv, besides the caller that steps, too

    def play(self, seed: int) -> dict[str, Any]:
        """Play a round; return counts and violations."""
        rng = random.Random(seed)
        plan = plan_of(rng, self.engine)
        print(f"round {seed}: {plan}", file=self.log, flush=True)
        counts: Counter[str] = Counter()
        violations: list[dict[str, Any]] = []
        files, processes = leaks.shared_memory_files(), leaks.child_processes(self.engine.exempt)
        descriptors = leaks.open_files()
        history: list[str] = []
        played = self._play(rng, plan, counts, history)
        traced = plan.interrupts == "bytecode" and counts["interrupts"] > 0
        for violation in [*played, *self._left(files, processes, descriptors, traced=traced)]:
            told = {"kind": violation.kind, "text": str(violation)[:6000], "soft": violation.soft}
            violations.append({**told, "plan": asdict(plan), "history": history[-25:]})
        return {"seed": seed, "counts": counts, "violations": violations}

    def _play(self, rng: random.Random, plan: Plan, counts: Counter[str], history: list[str]) -> list[Violation]:
        interrupter, disturber = Interrupter(rng, anywhere=self.anywhere), Disturber(self.token)
        found: list[Violation] = []
        with tempfile.TemporaryDirectory(prefix="chaos-starts-") as folder:
            vec = self._make(rng, plan, interrupter, counts, found, Path(folder))
            if vec is not None:
                self._play_with(vec, rng, plan, counts, history, found, interrupter, disturber)
        for violation in found:  # frames keep the VecEnv
            violation.__traceback__ = violation.__cause__ = violation.__context__ = None
        return found

    def _play_with(
        self, vec: VecEnv, rng: random.Random, plan: Plan, counts: Counter[str], history: list[str],
        found: list[Violation], interrupter: Interrupter, disturber: Disturber,
    ) -> None:  # fmt: skip
        hosts = Hosts(functions(plan.hosts, plan.form, plan.pad))
        shards = hosts.shards_of(vec.stats()["num_workers"])
        processes = {"dummy": 0, "caller": self.processes}.get(self._kind(), len(shards))
        inline = {*range(processes, len(shards))}
        expected = Expected(plan, shards, inline, counts, Begun(vec, plan))
        calls = Calls(plan, rng, interrupter, counts, self.log, history, expected.maybe_broken)
        handler = logging.StreamHandler(Lines(calls.note))  # deaths, and why workers are replaced
        logging.getLogger("vecenvs").addHandler(handler)
        player = Player(vec, plan, rng, calls, expected, disturber, counts)
        try:
            Schedule(plan, rng, player, expected, disturber, counts).play()
        except Violation as violation:
            found.append(violation)
        except BaseException as exc:
            found.append(Violation(f"{type(exc).__name__} in the chaos program", traceback.format_exc()[-3000:]))
        found += expected.soft
        disturber.finish()
        counts["kills"] += disturber.kills
        counts["stops"] += disturber.stops
        counts["recycled"] += vec.stats().get("recycled", 0)
        logging.getLogger("vecenvs").removeHandler(handler)
        self._close(vec, rng, plan, interrupter, found)

    def _kind(self) -> str:
        return "caller" if self.engine.kwargs.get("caller_steps") else self.engine.backend

    def _make(
        self, rng: random.Random, plan: Plan, interrupter: Interrupter, counts: Counter[str], found: list[Violation],
        folder: Path,
    ) -> VecEnv | None:  # fmt: skip
        fns = functions(plan.hosts, plan.form, plan.pad)
        kwargs = dict(self.engine.kwargs)
        if self.engine.backend != "dummy":
            hosts = Hosts(fns)
            least = 1 if self._kind() == "caller" else hosts.default_workers(1)
            kwargs["num_workers"] = rng.randint(least, max(least, min(len(fns), 3)))
            self.processes = kwargs["num_workers"] - 1  # where the caller steps, too
        if plan.option == "recycle":
            kwargs["num_workers"] = len(fns)
        elif self.engine.backend == "ray" and kwargs["num_workers"] == 3 and rng.random() < 0.5:
            plan.moves = True  # there are CPUs for two of three
            kwargs |= {"min_workers": 1, "actor_options": {"num_cpus": 3}}
        if plan.restart:
            kwargs |= {"on_failure": "restart", "max_restarts": plan.max_restarts}

        kwargs |= {"autoreset": plan.mode, "step_timeout": plan.step_timeout, "info_attrs": plan.info_attrs}
        kwargs |= arguments_of(plan)
        if plan.start_limit is not None:
            kwargs["start_limit"] = plan.start_limit

        def make() -> VecEnv:
            if plan.teams:
                fns = functions(plan.hosts, plan.form, plan.pad, TeamEnv)
                multi = make_multi_agent(fns, backend=self.engine.backend, **kwargs)
                return TeamView(multi, direct=bool(plan.interrupts))
            fns = self._functions(plan, folder)
            return backend_class(self.engine.backend)(fns, **kwargs)

        faulthandler.dump_traceback_later(self.engine.patience, exit=True, file=self.log)
        try:
            if plan.interrupts and rng.random() < 0.2:
                try:
                    delay = 10 ** rng.uniform(-4, 0)
                    vec = interrupter.by_timer(make, delay)
                except KeyboardInterrupt:
                    counts["interrupts"] += 1
                    return None
            else:
                vec = make()
        except Exception:
            found.append(Violation("the constructor raised", traceback.format_exc()[-3000:]))
            return None
        finally:
            faulthandler.cancel_dump_traceback_later()
        assert isinstance(vec, VecEnv)
        return vec

    def _functions(self, plan: Plan, folder: Path) -> list[Any]:
        single = AwaitingEnv if plan.awaits else NamelessEnv if plan.spares else ChaosEnv
        fns = functions(plan.hosts, plan.form, plan.pad, single)
        if plan.start_limit is not None and plan.start_limit[0] is not None and not plan.spares:
            fns = within(folder, plan.start_limit[0], fns)  # functions that differ
        if self.engine.kwargs.get("concurrency") == "asyncio" and not plan.awaits:
            fns = awaiting(fns)
        return fns

    def _close(
        self, vec: VecEnv, rng: random.Random, plan: Plan, interrupter: Interrupter, found: list[Violation]
    ) -> None:
        faulthandler.dump_traceback_later(self.engine.patience, exit=True, file=self.log)
        began = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what closing envs has raised
                if plan.interrupts and rng.random() < 0.2:
                    try:
                        interrupter.by_timer(vec.close, 10 ** rng.uniform(-4.5, -1))
                    except KeyboardInterrupt:
                        vec.close()
                else:
                    vec.close()
        except BaseException:
            found.append(Violation("close raised", traceback.format_exc()[-3000:]))
        finally:
            faulthandler.cancel_dump_traceback_later()
        if time.monotonic() - began > 20:
            found.append(Violation("close took long", f"{time.monotonic() - began:.1f} s"))

    def _left(
        self, files: Any, processes: dict[int, str], descriptors: dict[str, int], *, traced: bool
    ) -> list[Violation]:
        """Return the leaks of a round; `traced` tells whether a trace function has raised in it."""
        gc.collect()

        def left_processes() -> list[str]:
            now = leaks.child_processes(self.engine.exempt)
            return [f"{pid}: {words[:200]}" for pid, words in now.items() if pid not in processes]

        def left_descriptors() -> list[str]:
            gc.collect()  # what the first one has finalized
            if traced:  # CPython 3.11 never frees an exception in whose handler a trace function has raised
                return []
            now = leaks.open_files()
            more = [
                f"{name} ({now[name] - descriptors.get(name, 0)})"
                for name in now
                if now[name] > descriptors.get(name, 0)
            ]
            total = sum(now.values()) - sum(descriptors.values())
            return more if total > self.engine.descriptors else []

        found = []
        for what, look in (
            ("processes left", left_processes),
            ("shared memory left", lambda: leaks.files_left(files)),
            ("descriptors left", left_descriptors),
        ):
            left = leaks.wait_until_empty(look, 5.0)
            if left:
                found.append(Violation(what, ", ".join(left)))
        return found


def warm_up(name: str) -> None:
    """Start what a process starts once and keeps, such as a fork server or a Ray."""
    engine = ENGINES[name]
    if engine.backend == "ray":
        import ray

        ray.init(
            address="local", num_cpus=8, include_dashboard=False, object_store_memory=80 * 2**20,
            logging_level="error", log_to_driver=False,
        )  # fmt: skip
    kwargs = {key: value for key, value in engine.kwargs.items() if key != "concurrency"}
    if engine.backend != "dummy":
        kwargs["num_workers"] = 2
    vec = backend_class(engine.backend)(
        [functools.partial(ChaosEnv, slot, os.getpid(), "none") for slot in range(2)], **kwargs
    )
    try:
        vec.reset()
    except VecEnvError:
        vec.close()
        raise
    vec.close()
