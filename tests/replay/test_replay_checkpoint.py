"""Saving and restoring of buffers: nothing is lost or unpickled, and errors name the differences of layouts."""

from __future__ import annotations

import functools
import json
import signal
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bytecodes import interrupted
from gymnasium import spaces
from hostile_files import HEADERS, HUGE, TEXTS, array, as_bytes, mutations, read_or_refuse, rewritten
from numbered import ACTION, HIGH, OBS, numbers, transitions

from vecenvs.replay import ReplayBuffer
from vecenvs.replay import buffer as buffer_module
from vecenvs.replay import storage as storage_module

FILES = {buffer_module.__file__, storage_module.__file__}


def buffer_of(rows: int = 23, capacity: int = 10, **kwargs: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(OBS, ACTION, capacity, **kwargs)
    for begin in range(0, rows, 4):
        buffer.add(transitions(begin, min(begin + 4, rows)))
    return buffer


@pytest.mark.parametrize("rows", [0, 6, 10, 23])
def test_it_goes_on_as_if_nothing_had_been(tmp_path: Path, rows: int) -> None:
    """The restored buffer draws and overwrites the same, even if it had other content before."""
    saved, restored = buffer_of(rows, seed=1), buffer_of(5, seed=2)
    saved.save(tmp_path / "buffer.npz")
    restored.restore(tmp_path / "buffer.npz")
    assert (len(restored), restored.inserted) == (min(rows, 10), rows)
    for begin in (rows, rows + 3, rows + 6):
        for buffer in (saved, restored):
            buffer.add(transitions(begin, begin + 3))
        assert numbers(saved.sample(3)) == numbers(restored.sample(3))


def test_into_a_larger_one(tmp_path: Path) -> None:
    buffer_of(23).save(tmp_path / "buffer.npz")
    restored = buffer_of(0, capacity=30, seed=0)
    restored.restore(tmp_path / "buffer.npz")
    restored.add(transitions(23, 25))
    assert {k for _ in range(30) for k in numbers(restored.sample(12))} == set(range(13, 25))


def test_priorities(tmp_path: Path) -> None:
    saved = buffer_of(23, prioritized=True, alpha=1.0)
    saved.update_priorities([20], [HIGH * 1e6])
    saved.update_priorities(range(13, 23), [0.0] * 9 + [HIGH])
    saved.save(tmp_path / "buffer.npz")
    restored = buffer_of(0, prioritized=True, alpha=1.0)
    restored.restore(tmp_path / "buffer.npz")
    batch = restored.sample(10)
    assert set(numbers(batch)) == {22}
    assert set(batch["indexes"].tolist()) == {22}
    assert restored.update_priorities([12, 21], [HIGH, 0.0]) == 1
    restored.add(transitions(23, 24))  # with the largest priority there has been, also before it was saved
    assert set(numbers(restored.sample(10))) == {23}


def test_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large buffers are written in pieces."""
    monkeypatch.setattr(buffer_module, "PIECE", 3)
    buffer_of(23).save(tmp_path / "buffer.npz")
    restored = buffer_of(0)
    restored.restore(tmp_path / "buffer.npz")
    assert {k for _ in range(30) for k in numbers(restored.sample(10))} == set(range(13, 23))
    ranked = buffer_of(23, prioritized=True, alpha=1.0)
    ranked.update_priorities(range(13, 23), [0.0] * 9 + [HIGH])
    ranked.save(tmp_path / "ranked.npz")
    restored = buffer_of(0, prioritized=True, alpha=1.0)
    restored.restore(tmp_path / "ranked.npz")
    assert set(numbers(restored.sample(10))) == {22}


def test_no_pickle_in_the_file(tmp_path: Path) -> None:
    buffer_of(prioritized=True).save(tmp_path / "buffer.npz")
    with np.load(tmp_path / "buffer.npz", allow_pickle=False) as members:
        assert {name: members[name].dtype for name in members.files} == {
            "header": np.uint8, "rows/0": np.uint64, "priorities": np.float32,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (ReplayBuffer(spaces.Box(0, 1, (3,)), ACTION, 10), r"its obs is float32 \(2,\), here it is float32 \(3,\)"),
        (ReplayBuffer(spaces.Box(0, 1, (2,), float), ACTION, 10), r"its obs is float32 \(2,\), here it is float64"),
        (ReplayBuffer(spaces.Dict({"x": OBS}), ACTION, 10), r"its obs\['x'\] is missing, here it is float32"),
        (ReplayBuffer(OBS, ACTION, 10, n_step=3), "its n_step is 1, here it is 3"),
        (ReplayBuffer(OBS, ACTION, 9), "holds 10 transitions, but capacity=9"),
    ],
)  # fmt: skip
def test_another_layout(tmp_path: Path, other: ReplayBuffer, words: str) -> None:
    """The error names the difference, and the buffer is unchanged."""
    buffer_of().save(tmp_path / "buffer.npz")
    with pytest.raises(ValueError, match=words):
        other.restore(tmp_path / "buffer.npz")
    assert len(other) == 0


def test_columns_in_another_order(tmp_path: Path) -> None:
    ReplayBuffer(spaces.Dict(x=OBS, y=OBS), ACTION, 9).save(tmp_path / "buffer.npz")
    with pytest.raises(ValueError, match="its columns are in another order"):
        ReplayBuffer(spaces.Dict(y=OBS, x=OBS), ACTION, 9).restore(tmp_path / "buffer.npz")


def test_another_gamma(tmp_path: Path) -> None:
    """Gamma matters only for n-step rewards, which were summed with it."""
    ReplayBuffer(OBS, ACTION, 9, n_step=2, gamma=0.9).save(tmp_path / "buffer.npz")
    with pytest.raises(ValueError, match=r"its gamma is 0.9, here it is 0.99"):
        ReplayBuffer(OBS, ACTION, 9, n_step=2).restore(tmp_path / "buffer.npz")
    buffer_of(7, gamma=0.9).save(tmp_path / "single.npz")
    restored = buffer_of(0)
    restored.restore(tmp_path / "single.npz")
    assert len(restored) == 7


def test_what_is_no_saved_buffer(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    buffer_of().save(tmp_path / "cut.npz")
    data = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(data[: len(data) // 2])
    flipped = bytearray(data)
    flipped[len(data) * 2 // 3] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(flipped)
    for name, header in (("list.npz", [1]), ("bare.npz", {"format": "vecenvs-replay", "version": 2})):
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        np.savez(tmp_path / name, header=text, rows=np.zeros((3, 2), np.uint64))
    kept = buffer_of(7)
    for name in ("text", "other.npz", "cut.npz", "flipped.npz", "list.npz", "bare.npz"):
        with pytest.raises(ValueError, match="is not a saved replay buffer"):
            kept.restore(tmp_path / name)
    assert (len(kept), kept.inserted) == (7, 7), "nothing was restored, and nothing lost"
    with pytest.raises(FileNotFoundError):
        buffer_of().restore(tmp_path / "nowhere.npz")


def test_files_of_version_0_1_0(tmp_path: Path) -> None:
    """All their rows are one array."""
    saved, restored = buffer_of(23, seed=1), buffer_of(5, seed=2)
    saved.save(tmp_path / "buffer.npz")
    with np.load(tmp_path / "buffer.npz") as file:
        header, rows = json.loads(file["header"].tobytes()), file["rows/0"]
    text = json.dumps({**header, "version": 1, "extra": {"sampled": 7}})
    np.savez(tmp_path / "old.npz", header=np.frombuffer(text.encode(), np.uint8), rows=rows)
    restored.restore(tmp_path / "old.npz")
    assert numbers(saved.sample(3)) == numbers(restored.sample(3))
    text = json.dumps({**header, "version": 3})
    np.savez(tmp_path / "new.npz", header=np.frombuffer(text.encode(), np.uint8), rows=rows)
    with pytest.raises(ValueError, match=r"new.npz.* it has version 3, and 1 to 2 are read here: read it with"):
        restored.restore(tmp_path / "new.npz")


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = buffer_of(seed=0)
    buffer.save(tmp_path / "buffer.npz")
    with monkeypatch.context() as patch:
        patch.setattr(type(buffer._storage), "rows_at", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            buffer.save(tmp_path / "buffer.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["buffer.npz"]
    buffer.restore(tmp_path / "buffer.npz")


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of a file that has just been opened
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("call", ["add", "clear", "restore"])
def test_an_interrupted_call(tmp_path: Path, call: str, prioritized: bool) -> None:
    """Wherever it is cut off, all of it is done or nothing; what is saved afterwards can be restored."""
    buffer_of(5, prioritized=prioritized).save(tmp_path / "other.npz")
    given = {"add": [transitions(23, 36)], "clear": [], "restore": [tmp_path / "other.npz"]}[call]
    bytecodes, more, found = 0, True, set()
    while more:
        buffer = buffer_of(prioritized=prioritized)
        more = interrupted(functools.partial(getattr(buffer, call), *given), bytecodes, FILES)
        found.add((len(buffer), n := buffer.inserted))
        buffer.add(transitions(n, n + 2))
        buffer.save(tmp_path / "buffer.npz")
        buffer.restore(tmp_path / "buffer.npz")
        rows = buffer.schema.unpack(buffer._storage.rows_at(np.arange(len(buffer))))
        assert numbers(rows) == [*range(n + 2 - len(buffer), n + 2)], bytecodes
        bytecodes += 1
    assert found == {(10, 23), {"add": (10, 36), "clear": (0, 23), "restore": (5, 5)}[call]}


def test_interrupted_priorities() -> None:
    """Those that would be saved are those that are drawn by."""

    def update(*given: Any) -> None:
        ring.update_priorities(*given)
        signal.raise_signal(signal.SIGINT)

    buffer = buffer_of(prioritized=True)
    storage: Any = buffer._storage
    ring, storage._ring = storage._ring, SimpleNamespace(update_priorities=update, get_stored_size=lambda: 10)
    with pytest.raises(KeyboardInterrupt):
        buffer.update_priorities([20], [HIGH])
    assert storage.priorities_at(np.arange(10)).max() == HIGH


class TestHostileFiles:
    """A refused file leaves the buffer unchanged."""

    @pytest.fixture(params=[False, True], ids=["uniform", "prioritized"])
    def prioritized(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param)

    @pytest.fixture
    def path(self, tmp_path: Path, prioritized: bool) -> Path:
        path = tmp_path / "buffer.npz"
        buffer_of(23, prioritized=prioritized).save(path)
        return path

    @pytest.fixture
    def kept(self, prioritized: bool) -> ReplayBuffer:
        return buffer_of(7, prioritized=prioritized, **({} if prioritized else {"seed": 3}))

    def read(self, path: Path, buffer: ReplayBuffer) -> bool:
        before = self.state_of(buffer)
        ours = read_or_refuse(lambda: buffer.restore(path), ValueError, path.name)
        assert ours or self.state_of(buffer) == before
        return ours

    def state_of(self, buffer: ReplayBuffer) -> Any:
        rows = buffer._storage.rows_at(np.arange(len(buffer)))
        random = None if buffer.prioritized else buffer._rng.bit_generator.state
        return len(buffer), buffer.inserted, buffer._origin, rows.tolist(), random

    def test_damaged(self, path: Path, kept: ReplayBuffer) -> None:
        content = path.read_bytes()
        found = []
        for damaged in mutations(content, 700):
            path.write_bytes(damaged)
            found.append(self.read(path, kept))
        assert {True, False} == set(found)

    @pytest.mark.parametrize("member", ["header", "rows/0", "priorities"])
    @pytest.mark.parametrize("content", HEADERS, ids=range(len(HEADERS)))
    def test_members_made_to_do_harm(self, path: Path, kept: ReplayBuffer, member: str, content: bytes) -> None:
        rewritten(path, **{member: content})
        assert not self.read(path, kept)

    @pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
    def test_headers_that_are_no_headers(self, path: Path, kept: ReplayBuffer, text: str) -> None:
        rewritten(path, header=as_bytes(text))
        assert not self.read(path, kept)

    def test_rows_left_out(self, path: Path, kept: ReplayBuffer) -> None:
        rewritten(path, **{"rows/0": None})
        assert not self.read(path, kept)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("inserted", 9), ("inserted", -1), ("inserted", int(HUGE)), ("inserted", 2.5), ("inserted", None),
            ("random", 5), ("schema", []), ("schema", {}), ("schema", None),
        ],
    )  # fmt: skip
    def test_headers_of_other_kinds(self, path: Path, kept: ReplayBuffer, name: str, value: Any) -> None:
        self.change(path, {name: value})
        assert not self.read(path, kept)

    @pytest.mark.parametrize("value", [{}, {"bit_generator": "MT19937"}, {"bit_generator": "PCG64", "state": {}}])
    def test_states_that_no_generator_has(self, path: Path, kept: ReplayBuffer, value: Any) -> None:
        self.change(path, {"random": value})
        assert not self.read(path, kept)

    @pytest.mark.parametrize("value", ["x", None, -1.0, float("nan"), float("inf"), int(HUGE), [], True])
    def test_largest_priorities_that_are_none(self, path: Path, kept: ReplayBuffer, value: Any) -> None:
        self.change(path, {"max_priority": value})
        assert not self.read(path, kept)

    @pytest.mark.parametrize(
        "columns",
        [None, 5, [[]], [["obs", "<f4"]], [["obs", "no dtype", [2]]], [["obs", "<f4", 2]], [[[], "<f4", [2]]]],
    )
    def test_layouts_that_are_none(self, path: Path, kept: ReplayBuffer, columns: Any) -> None:
        self.change(path, {"schema": {**kept.schema.describe(), "columns": columns}})
        assert not self.read(path, kept)

    @pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
    def test_priorities_that_are_none(self, path: Path, kept: ReplayBuffer, value: float) -> None:
        rewritten(path, priorities=array(np.full(10, value, np.float32)))
        assert not self.read(path, kept)

    def test_a_bomb(self, path: Path, kept: ReplayBuffer) -> None:
        """A compressed member may expand to gigabytes of zeros, so it is refused without unpacking."""
        rewritten(path, zipfile.ZIP_DEFLATED)
        assert not self.read(path, kept)
        with pytest.raises(ValueError, match="is compressed"):
            kept.restore(path)

    def change(self, path: Path, changes: dict[str, Any]) -> None:
        with np.load(path) as members:
            header = json.loads(members["header"].tobytes())
        rewritten(path, header=as_bytes(json.dumps({**header, **changes})))
