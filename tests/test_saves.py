"""Files of whole runs: `vecenvs.state.save` and `load`."""

from __future__ import annotations

import contextlib
import enum
import importlib
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import vecenvs
from vecenvs import Batched
from vecenvs.state import load, save
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import CountingEnv
from vecenvs.testing.envs.states import OpaqueEnv, StateBatch, StateEnv

Phase = enum.Flag("Phase", "ONE TWO")
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.sparse
@pytest.mark.parametrize(
    ("engine", "kills"),
    [("dummy", 2), ("fork", 3)]
    + [
        pytest.param(name, kills, marks=[pytest.mark.long, pytest.mark.timeout(600)])
        for name, kills in (("dummy", 20), ("fork", 20), ("spawn", 20), ("caller", 20), ("mpi", 5), ("ray", 3))
    ],
)
def test_killed_at_any_step(engine: str, kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed again and again, and goes on from its last save, ends as another one."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    importlib.import_module("random_kills").kill_and_go_on(engine, kills, random.Random(), tmp_path)


def made(wrapped: bool = True, n: int = 3, **common: Any) -> vecenvs.VecEnv:
    vec: vecenvs.VecEnv = vecenvs.DummyVecEnv([partial(CountingEnv, tag=slot) for slot in range(n)], **common)
    return vecenvs.VecMonitor(vec) if wrapped else vec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.npz"


@pytest.mark.parametrize("mode", ["same_step", "next_step", "async", "disabled"])
def test_every_mode(mode: str, path: Path) -> None:
    with made(autoreset=mode) as vec, made(autoreset=mode) as other:
        vec.reset()
        for _ in range(3):
            vec.step([0] * 3)
        save(vec, path)
        assert load(other, path) is None
        assert_same(other.step([1] * 3)[:3], vec.step([1] * 3)[:3], "rows")


FIELDS = np.array([(1.5, [2, 3], b"x"), (2.5, [4, 5], b"y")], [("a", "f4"), ("b", "i8", 2), ("c", "S2")])
EXTRAS: list[Any] = [None, {"@": 1, "a": np.arange(3), 2: (1.5, b"x")}, [float("nan"), 2**100, "ü"], FIELDS, FIELDS[1],
                     np.array("2026-01-01", "M8[s]"), Phase.ONE | Phase.TWO]  # fmt: skip


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_the_program_adds(extra: Any, path: Path) -> None:
    with made() as vec:
        vec.reset()
        save(vec, path, extra=extra)
        assert repr(load(vec, path)) == repr(extra)
        assert getattr(load(vec, path), "dtype", None) == getattr(extra, "dtype", None)
        rng = np.random.default_rng(5)
        save(vec, path, extra=rng)
        assert load(vec, path).random() == rng.random()


class Touch:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_nothing_is_executed_without_trust(path: Path, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    with made() as vec:
        vec.reset()
        save(vec, path, extra={"a": Touch(touched)})
        with pytest.raises(
            vecenvs.VecEnvError, match=r"run\.npz' has an extra that is pickled: load it with trusted=True"
        ):
            load(vec, path)
        assert not touched.exists()
        load(vec, path, trusted=True)
        assert touched.exists()


def test_two_generations(path: Path) -> None:
    with made() as vec:
        vec.reset()
        for extra in range(3):
            save(vec, path, extra=extra)
        assert (load(vec, path), load(vec, f"{path}.previous")) == (2, 1)
        data = path.read_bytes()
        for length in (0, 10, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:length])
            with pytest.raises(vecenvs.VecEnvError, match=r"run\.npz' is not .* \(the save before it is .*previous'\)"):
                load(vec, path)
        vec.step([0] * 3)
        with pytest.raises(FileNotFoundError):
            load(vec, path.with_name("none"))


def test_bytes_that_have_changed(path: Path) -> None:
    """Nothing but an error comes of them, and the envs can be reset."""
    with made() as vec:
        vec.reset()
        save(vec, path)
        data = path.read_bytes()
        for _ in range(50):
            place = random.randrange(len(data))
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :])
            try:
                load(vec, path)
            except vecenvs.VecEnvError as error:
                assert "run.npz" in str(error)  # noqa: PT017
        vec.reset()


@pytest.mark.parametrize("seed", range(5))
def test_a_hostile_header(path: Path, seed: int) -> None:
    """Values of other kinds anywhere in the header."""
    rng = random.Random(seed)
    with made() as vec:
        vec.reset()
        save(vec, path)
        with np.load(path) as file:
            members = dict(file)
        np.savez(path, **members)
        load(vec, path)
    header = json.loads(members["header"].tobytes())
    for _ in range(30):
        changed = json.loads(json.dumps(header))
        _change(changed, rng)
        members["header"] = np.frombuffer(json.dumps(changed).encode(), np.uint8)
        np.savez(path, **members)
        with made() as vec, contextlib.suppress(vecenvs.VecEnvError):
            load(vec, path)


def _change(node: Any, rng: random.Random) -> None:
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = rng.choice(list(keys))
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.9:
            node = node[key]
        else:
            node[key] = rng.choice(
                [None, -1, 10**9, "os:system", ["f", "os:system"], [], {}, ["o", "subprocess:Popen", {}]]
            )
            return


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (partial(made, n=2), "is of 3 envs, and this VecEnv has 2"),
        (
            partial(made, wrapped=False),
            r"is of a VecEnv in the wrappers \['vecenvs.wrappers.vec_monitor:VecMonitor'\], and",
        ),
        (partial(made, autoreset="disabled"), "autoreset is disabled, in the state it is same_step"),
        (lambda: vecenvs.VecMonitor(vecenvs.DummyVecEnv([StateEnv] * 3)), "class is .*StateEnv, in the state it is"),
    ],
    ids=["number", "wrappers", "mode", "class"],
)
def test_another_vec_env(other: Any, message: str, path: Path) -> None:
    with made() as vec, other() as wrong:
        vec.reset()
        save(vec, path)
        with pytest.raises(vecenvs.VecEnvError, match=message):
            load(wrong, path)
        wrong.reset()


@pytest.mark.parametrize("files", [False, True])
def test_episodes_that_are_replayed(files: bool, path: Path, tmp_path: Path) -> None:
    """A save, or a load, keeps no episode from the next save."""

    def make(name: str) -> vecenvs.VecEnv:
        fns: list[Any] = [OpaqueEnv] * 3
        if files:
            fns = [partial(_monitored, OpaqueEnv, tmp_path / f"{name}{slot}") for slot in range(3)]
        return vecenvs.DummyVecEnv(fns, episode_seeds=True)

    with make("a") as vec, make("b") as other:
        vec.reset(seed=4)
        for _ in range(25):
            vec.step([1, 2, 3])
        for _ in range(2):
            save(vec, path)
            load(other, path)
            save(other, path)
            for _ in range(2):
                assert_same(other.step([3, 2, 1])[:3], vec.step([3, 2, 1])[:3], "rows")
        for _ in range(25):
            assert_same(other.step([3, 2, 1])[:3], vec.step([3, 2, 1])[:3], "rows")


def _monitored(make: Any, file: Path) -> Any:
    return vecenvs.Monitor(make(), file, override_existing=False)


def test_a_batched_env(path: Path) -> None:
    make = partial(Batched, partial(StateBatch, [StateEnv] * 3, autoreset_mode=AutoresetMode.NEXT_STEP), 3)
    with (
        vecenvs.VecMonitor(vecenvs.DummyVecEnv([make()], autoreset="next_step")) as vec,
        vecenvs.VecMonitor(vecenvs.DummyVecEnv([make()], autoreset="next_step")) as other,
    ):
        vec.reset(seed=4)
        for _ in range(7):
            vec.step([1] * 3)
        save(vec, path)
        load(other, path)
        for _ in range(20):
            assert_same(other.step([2] * 3)[:3], vec.step([2] * 3)[:3], "rows")


@pytest.mark.parametrize("engine", ["dummy", "subproc", "threads"])
@pytest.mark.parametrize("lock_step", [True, False])
def test_first_rows_that_were_not_returned(engine: str, lock_step: bool, path: Path) -> None:
    """They come after the load: of each env the same rows in the same order, with the same seeds."""
    engines: dict[str, Any] = {
        "dummy": vecenvs.DummyVecEnv,
        "subproc": partial(vecenvs.SubprocVecEnv, num_workers=2),
        "threads": partial(vecenvs.DummyVecEnv, concurrency="threads"),
    }
    fns = [partial(CountingEnv, tag, 1 + tag) for tag in range(3)]

    def rows(vec: Any, free: set[int], count: int) -> list[list[Any]]:
        """Step until each env has so many rows; `free` are those that can be stepped."""
        found: list[list[Any]] = [[] for _ in fns]
        while min(map(len, found)) < count:
            if lock_step:
                obs, _, dones, infos = vec.step([0] * 3)
                slots, active = range(3), vec.active
            else:
                if free:
                    vec.send([0] * len(free), sorted(free))
                batch = vec.recv()
                slots, obs, dones, infos, active = (
                    batch.indices.tolist(),
                    batch.obs,
                    batch.dones,
                    batch.infos,
                    batch.active,
                )
            for j, slot in enumerate(slots):
                if "resetting" not in infos[j]:
                    starts = "episode_start" in infos[j]
                    seed = vec.reset_infos[slot]["episode_seed"] if starts else None
                    found[slot].append((obs[j].tolist(), bool(dones[j]), bool(active[j]), starts, seed))
            free = {slot for j, slot in enumerate(slots) if not dones[j]}
        return [each[:count] for each in found]

    with (
        engines[engine](fns, autoreset="async", episode_seeds=True) as vec,
        engines[engine](fns, autoreset="async", episode_seeds=True) as other,
    ):
        vec.reset(seed=4)
        vec.send([0] * 3)
        batch = vec.recv(3)
        assert batch.dones.tolist() == [slot == 0 for slot in batch.indices]
        save(vec, path)
        load(other, path)
        expected, found = rows(vec, {1, 2}, 9), rows(other, {1, 2}, 9)
        assert found == expected
        assert found[0][0][:4] == ([0, 2, 0], False, False, True)


def test_several_agents(path: Path) -> None:
    from mpe2 import simple_spread_v3

    def make() -> Any:
        return vecenvs.make_multi_agent(partial(simple_spread_v3.parallel_env, max_cycles=12), 3, backend="dummy")

    with make() as vec, make() as other:
        vec.reset(seed=4)
        rng = np.random.default_rng(1)
        actions = rng.integers(5, size=(40, 3, 3))
        for each in actions[:20]:
            vec.step(each)
        save(vec, path)
        load(other, path)
        for each in actions[20:]:
            expected, found = vec.step(each), other.step(each)
            assert_same(found[:3], expected[:3], "rows")


def test_a_slot_with_an_unanswered_command(path: Path) -> None:
    """Nothing is written, and nothing is loaded; the row comes."""
    with made() as vec:
        vec.reset()
        save(vec, path)
        data = path.read_bytes()
        vec.venv.send([0], [1])
        for call in (save, load):
            with pytest.raises(vecenvs.AlreadySteppingError, match="while envs 1 have a command: recv first"):
                call(vec, path)
        assert path.read_bytes() == data
        assert vec.venv.recv().indices.tolist() == [1]


class Totals(vecenvs.VecEnvWrapper):
    """Counts steps in a part of a table."""

    def __init__(self, venv: vecenvs.VecEnv) -> None:
        super().__init__(venv)
        self.table = np.zeros((venv.num_envs, 3))
        self.totals = self.table[:, 0]

    def step_wait(self, timeout: float | None = None) -> Any:
        self.totals += 1
        return self.venv.step_wait(timeout)


def test_views_in_wrappers_stay_views(path: Path) -> None:
    with Totals(made()) as vec, Totals(made()) as other:
        for each in (vec, other):
            each.reset()
            each.step([0] * 3)
        save(vec, path)
        load(other, path)
        other.step([0] * 3)
        assert other.table[:, 0].tolist() == other.totals.tolist() == [2, 2, 2]


def test_what_cannot_be_saved(path: Path) -> None:
    class Odd(vecenvs.VecEnvWrapper):
        numbers = None

    vec = Odd(made())
    vec.numbers = iter([])
    with vec:
        vec.reset()
        with pytest.raises(vecenvs.VecEnvError, match="a wrapper cannot be saved: Odd, attribute 'numbers'"):
            save(vec, path)
        with pytest.raises(TypeError, match="take a VecEnv, not 3"):
            save(3, path)
    assert not path.exists()


def test_monitor_files_end_where_they_did(path: Path, tmp_path: Path) -> None:
    """By `load`, not by `set_state`; another file is as it was."""

    def make(name: str = "0") -> vecenvs.VecEnv:
        fns = [partial(vecenvs.Monitor, CountingEnv(length=3), tmp_path / name, override_existing=False)]
        return vecenvs.DummyVecEnv(fns)

    with make() as vec:
        vec.reset()
        for _ in range(8):
            vec.step([0])
        save(vec, path)
        states, whole = vec.get_state(), (tmp_path / "0.monitor.csv").read_bytes()
        for _ in range(8):
            vec.step([0])
        longer = (tmp_path / "0.monitor.csv").read_bytes()
        vec.set_state(states)
        assert (tmp_path / "0.monitor.csv").read_bytes() == longer != whole
    with make() as vec:
        load(vec, path)
        assert (tmp_path / "0.monitor.csv").read_bytes() == whole
        vec.step([0])
    assert len((tmp_path / "0.monitor.csv").read_text().splitlines()) == len(whole.splitlines()) + 1
    with make("other") as vec:
        load(vec, path)
