"""Run rounds, each engine after the other, and count. Exit code 1 if anything is lost, doubled, hung or left behind."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chaos.disturb import TOKEN
from chaos.rounds import ENGINES, Rounds, warm_up
from vecenvs.testing import leaks

ROOT = Path(__file__).parents[2]
QUICK = {"dummy": 40, "subproc-fork": 8, "caller": 8}  # rounds, always the same ones
LOSSES = ("lost", "nowhere", "twice", "another env", "never", "was due")
COUNTS = (
    "rows",
    "kills",
    "stops",
    "group stops",
    "group signals",
    "interrupts",
    "exceptions",
    "env errors",
    "seeds",
    "tasks",
    "timeouts",
    "restarts",
    "restarted rows",
    "recycled",
)
# What a round's whole process group is sent besides stops: what these end may not be among its processes.
TOLD = {
    "dummy": ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP"),
    "subproc": ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP"),
    "mpi": ("SIGUSR1", "SIGUSR2"),  # the launcher ends by the others
    "ray": (),  # Ray's own processes do
}
FOREIGN = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program, or with --child one of its child processes."""
    options = _parser().parse_args(argv)
    if options.child:
        return _child(options)
    names = [name for word in options.engine for name in ENGINES if name == word or name.split("-")[0] == word]
    unknown = [word for word in options.engine if not any(n == word or n.split("-")[0] == word for n in ENGINES)]
    if unknown:
        _parser().error(f"no engine {' '.join(unknown)}: there are {' '.join(ENGINES)}")
    if options.quick:
        names, options.first = names or list(QUICK), 1
    names = names or list(ENGINES)
    failed = False
    for name in names:
        failed |= _Engine(name, options).run()
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--engine", nargs="*", default=[], help=f"of {' '.join(ENGINES)}; or the word before the dash")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each engine")
    parser.add_argument("--seed", type=int, help="play this round alone")
    parser.add_argument("--times", type=int, default=1, help="play it so many times: a seed does not decide the timing")
    parser.add_argument("--first", type=int, help="the seed of the first round; the others follow")
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, always the same ones, on dummy, subproc-fork and caller"
    )
    parser.add_argument(
        "--anywhere", action="store_true", help="Ctrl-C at bytecodes where CPython never runs a handler, too"
    )
    parser.add_argument("--most", type=int, default=10**9, help="end an engine after so many failing rounds")
    parser.add_argument("--json", type=Path, help="write all violations to this file, one per line")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


class _Engine:
    """All rounds of one engine. After a process that hangs or crashes, another one plays the next rounds."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.counts: Counter[str] = Counter()
        self.kinds: dict[str, list[int]] = {}
        self.rounds = 0
        self.begun: int | None = None
        self.stopped = False  # the last process ended itself after a round that failed
        first = options.first if options.first is not None else random.SystemRandom().randrange(10**6) * 1000
        self.next = options.seed if options.seed is not None else first
        self.left = options.times if options.seed is not None else QUICK.get(name, 4) if options.quick else 10**9

    def run(self) -> bool:
        """Play the rounds and print the counts. Return whether anything failed."""
        end = time.monotonic() + self.options.seconds
        while self.left > 0 and sum(map(len, self.kinds.values())) < self.options.most:
            if self.options.seed is None and time.monotonic() >= end:
                break
            if not self._process(end):
                break
        counts = ", ".join(f"{self.counts[what]} {what}" for what in COUNTS)
        losses = sum(len(seeds) for kind, seeds in self.kinds.items() if any(word in kind for word in LOSSES))
        hangs = len(self.kinds.get("hang", []))
        others = sum(map(len, self.kinds.values())) - losses - hangs
        print(f"{self.name}: {self.rounds} rounds, {counts}; {losses} losses, {hangs} hangs, {others} other violations")
        for kind, seeds in sorted(self.kinds.items(), key=lambda item: -len(item[1])):
            print(f"  {len(seeds)} x {kind}: --engine {self.name} --seed {' '.join(map(str, seeds[:5]))}")
        sys.stdout.flush()
        return bool(self.kinds)

    def _process(self, end: float) -> bool:
        """Play rounds in a process until it ends. Return whether to go on."""
        token, files = uuid.uuid4().hex, leaks.shared_memory_files()
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            report, errors = Path(folder) / "report", Path(folder) / "errors"
            line = ["-m", "chaos", "--child", str(report), "--engine", self.name, "--first", str(self.next)]
            line += ["--times", str(self.left), "--seconds", str(max(end - time.monotonic(), 1.0))]
            line += ["--seed", str(self.next)] if self.options.seed is not None else []
            line += ["--anywhere"] if self.options.anywhere else []
            ranks = ENGINES[self.name].ranks
            line = [sys.executable, *(["-m", "vecenvs.mpi", "-n", str(ranks)] if ranks else []), *line]
            with errors.open("w") as sink:
                environ = os.environ | FOREIGN | {TOKEN: token, "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}"}
                child = subprocess.Popen(line, env=environ, cwd=ROOT, stdout=sink, stderr=sink, start_new_session=True)
                self.stopped = False
                code = self._follow(child, report)
                self._read(report)
            broken = self.begun is not None or self.stopped
            if self.begun is not None:  # it has not ended
                text = errors.read_text(errors="replace")
                kind = "hang" if "Timeout (" in text or code is None else f"the process ended ({code})"
                self._note(self.begun, kind, text[-8000:])
                self.left -= 1
                self.begun = None
            elif code != 0 and not self.stopped:
                self._note(
                    self.next, f"the process ended ({code}) between rounds", errors.read_text(errors="replace")[-6000:]
                )
                broken = True
            self._end(token, files, failed=broken)
        return broken

    def _follow(self, child: subprocess.Popen[bytes], report: Path) -> int | None:
        """Return the exit code of the process, or None if it was killed because it reported nothing for too long."""
        patience = ENGINES[self.name].patience * 2 + 60
        while True:
            try:
                return child.wait(random.uniform(0.05, 2.0))
            except subprocess.TimeoutExpired:
                if report.exists() and report.stat().st_size:  # its handlers stand
                    self._signal_group(child)
                last = report.stat().st_mtime if report.exists() else time.time()
                if time.time() - last > patience:
                    child.kill()
                    child.wait()
                    return None
            except KeyboardInterrupt:
                os.killpg(child.pid, signal.SIGKILL)
                raise

    def _signal_group(self, child: subprocess.Popen[bytes]) -> None:
        """Stop the whole process group of the rounds for a while, as Ctrl-Z does, or send it what schedulers send."""
        told = TOLD[ENGINES[self.name].backend]
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if told and random.random() < 0.5:
                os.killpg(child.pid, getattr(signal, random.choice(told)))
                self.counts["group signals"] += 1
            elif random.random() < 0.5:
                try:
                    os.killpg(child.pid, signal.SIGSTOP)
                    time.sleep(random.choice([0.01, 0.1, 0.5, 2.5]))
                finally:
                    os.killpg(child.pid, signal.SIGCONT)
                self.counts["group stops"] += 1

    def _read(self, report: Path) -> None:
        for text in report.read_text().splitlines() if report.exists() else []:
            entry = json.loads(text)
            if "stop" in entry:
                self.stopped = True
                continue
            if "begin" in entry:
                self.begun = entry["begin"]
                self.next = entry["begin"] + (self.options.seed is None)
                continue
            self.begun = None
            self.rounds += 1
            self.left -= 1
            self.counts.update(entry["counts"])
            for each in entry["violations"]:
                self._note(entry["seed"], each["kind"], each["text"], each)

    def _note(self, seed: int, kind: str, text: str, more: dict[str, Any] | None = None) -> None:
        first = kind not in self.kinds
        self.kinds.setdefault(kind, []).append(seed)
        if first or self.options.seed is not None:
            print(f"{self.name}, seed {seed}: {kind}\n{_indented(text)}")
            if more:
                print(_indented("\n".join([str(more["plan"]), *more["history"]])))
            sys.stdout.flush()
        if self.options.json:
            with self.options.json.open("a") as file:
                file.write(
                    json.dumps({"engine": self.name, "seed": seed, "kind": kind, "text": text, **(more or {})}) + "\n"
                )

    def _end(self, token: str, files: frozenset[str], *, failed: bool) -> None:
        """Check that no process or file outlives the process, and remove those that do."""
        exempt = ENGINES[self.name].exempt

        def left() -> list[int]:
            return [
                pid
                for pid, words in leaks.processes_with(TOKEN, token).items()
                if failed or not any(w in words for w in exempt)
            ]

        outlived = leaks.wait_until_empty(left, 10.0)
        named = leaks.wait_until_empty(lambda: leaks.files_left(files), 2.0)
        if (outlived or named) and not failed:
            self._note(self.next - 1, "left behind by the process", f"{outlived} {named}")
        for pid in leaks.processes_with(TOKEN, token):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for name in named:
            (leaks.SHM / name).unlink(missing_ok=True)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _child(options: argparse.Namespace) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in TOLD["subproc"]:
        signal.signal(getattr(signal, name), lambda *_: None)  # as a program that saves its state and goes on
    end = time.monotonic() + options.seconds
    with Path(options.child).open("a", buffering=1) as report:
        rounds = Rounds(options.engine[0], os.environ[TOKEN], sys.stderr, anywhere=options.anywhere)
        warm_up(options.engine[0])
        seed, left = options.first, options.times
        while left > 0 and (options.seed is not None or time.monotonic() < end):
            report.write(json.dumps({"begin": seed}) + "\n")
            played = rounds.play(seed)
            report.write(json.dumps(played) + "\n")
            if any(not each["soft"] for each in played["violations"]):  # what is left of it would disturb the next one
                report.write(json.dumps({"stop": True}) + "\n")
                os._exit(1)
            seed += options.seed is None
            left -= 1
        for name in TOLD["subproc"]:
            signal.signal(getattr(signal, name), signal.SIG_IGN)  # the interpreter's end would restore the default
    return 0


if __name__ == "__main__":
    sys.exit(main())
