"""Files of `record`, and `python -m vecenvs rerun`."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import vecenvs
from vecenvs.__main__ import main
from vecenvs.pool import ticks
from vecenvs.pool.spill import Spill
from vecenvs.state.episode_file import checksums, decoded, read_record, write_record
from vecenvs.state.rerun import Rerun, run_again
from vecenvs.testing.envs import CountingEnv
from vecenvs.testing.envs.awaiting import awaiting
from vecenvs.testing.envs.states import BrittleEnv, StateEnv
from vecenvs.testing.suite.records import again, records_in


def test_long_episodes_leave_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes that outlast the ticks, in memory and in the file."""
    monkeypatch.setattr(ticks, "BYTES", 1000)
    monkeypatch.setattr("vecenvs.pool.recorder.Spill", partial(Spill, memory=3000))
    fns = [partial(StateEnv, end) for end in (0.0, 0.003, 0.1)]
    common = {"episode_seeds": True, "record": tmp_path / "a", "record_episodes": "all", "on_error": "reset"}
    with vecenvs.DummyVecEnv(fns, **common) as vec:
        vec.reset(seed=random.randrange(1000))
        for _ in range(1500):
            vec.step(vec.action_space.sample() * np.ones(3, int))
        for _ in range(200):
            indices = sorted(random.sample(range(3), 2))
            vec.send([1, 2], indices)
            vec.recv(2)
        vec.call(lambda env: env.__setattr__("step", None), [0])
        vec.step([0, 0, 0])
    found = records_in(tmp_path / "a")
    assert {record.slot for record in found} == {0, 1, 2}
    for record in found:
        if record.outcome == "ended":
            assert again(record) == Rerun(len(record.rewards))
        else:
            assert len(record.rewards) > 1500
            assert again(record) == Rerun(len(record.rewards) + 1)


def test_kept_bytes(tmp_path: Path) -> None:
    spill, kept = Spill(str(tmp_path), memory=1000), list[Any]()
    for _ in range(300):
        if kept and random.random() < 0.5:
            place, data = kept.pop(random.randrange(len(kept)))
            assert spill.get(place) == data
            spill.free(place)
        else:
            data = random.randbytes(random.choice([1, 300, 70_000, 200_000]))
            kept.append((spill.put(data), data))
    for place, data in kept:
        assert spill.get(place) == data
        spill.free(place)
    assert spill._left == 1000
    assert len({*spill._free}) == spill._end
    assert not [*tmp_path.iterdir()]


def test_checksums_tell_rows_apart() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (50, 3, 7), np.uint8)
    scalars = rng.random(50)
    sums = checksums([rows, scalars], 50)
    assert len({*sums.tolist()}) == 50
    for j in range(50):
        changed = rows.copy()
        changed[j, random.randrange(3), random.randrange(7)] ^= 1 << random.randrange(8)
        assert (checksums([changed, scalars], 50) != sums).nonzero()[0].tolist() == [j]


def failed(folder: Path, make: Any = BrittleEnv) -> str:
    """Record an episode that fails; return its file."""
    with vecenvs.make_vec_env(make, num_envs=2, backend="dummy", episode_seeds=True, record=folder, seed=3) as vec:
        vec.reset()
        vec.step([1, 2])
        with pytest.raises(vecenvs.EnvError) as caught:
            vec.step([3, 2])
    return caught.value.record


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = failed(tmp_path)
    assert main(["rerun", file]) == 2
    assert "its env function is pickled: give --trusted" in capfd.readouterr().err
    assert main(["rerun", file, "--trusted"]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("env 0, episode 0, seed 3, 2 steps: it raised: env 0 raised ToyError in step: action 3")
    assert "raises in step, after 1 equal steps" in out
    assert err.rstrip().endswith("ToyError: action 3")
    assert main(["rerun", file, "--env", "vecenvs.testing.envs.states:StateEnv"]) == 0
    assert "2 steps: the same rows, and no exception" in capfd.readouterr().out
    assert main(["rerun", file, "--env", "CartPole-v1"]) == 2
    assert "is of an env with the action_space Discrete(4), and this one has Discrete(2)" in capfd.readouterr().err
    assert main(["rerun", str(tmp_path / "none")]) == 2
    stopped: list[Any] = []
    monkeypatch.setattr("pdb.post_mortem", stopped.append)
    assert main(["rerun", file, "--trusted", "--pdb"]) == 1
    assert stopped[0].tb_frame.f_code.co_name == "play"


def test_an_env_of_an_id_needs_no_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = {"env_kwargs": {"sutton_barto_reward": True}, "reward_scale": 0.5, "monitor_dir": tmp_path / "monitor"}
    with vecenvs.make_vec_env(
        "CartPole-v1", num_envs=3, seed=5, episode_seeds=True, record=tmp_path / "a", record_episodes="all", **common
    ) as vec:
        vec.reset()
        for _ in range(60):
            vec.step([1, 0, 1])
    files = [*(tmp_path / "a").iterdir()]
    assert len(files) > 6
    before = sorted((tmp_path / "monitor").iterdir())
    for file in files[:5]:
        assert not read_record(file).function
        assert main(["rerun", str(file)]) == 0
        assert "the same rows" in capsys.readouterr().out
    assert sorted((tmp_path / "monitor").iterdir()) == before


class Drifting(BrittleEnv):
    """An env that has changed since."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + 1, *rest


def test_where_it_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = failed(tmp_path)
    record = read_record(file)
    assert again(record).exception is not None
    sys.modules["drifted"] = sys.modules[__name__]
    assert main(["rerun", file, "--env", "drifted:Drifting"]) == 1
    assert "differs in step 0: its reward was" in capsys.readouterr().out


def test_an_env_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sys.modules["drifted"] = sys.modules[__name__]
    assert main(["rerun", failed(tmp_path), "--env", "drifted:failed"]) == 2
    assert "its env cannot be made: TypeError" in capsys.readouterr().err


def test_what_makes_it_impossible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with vecenvs.DummyVecEnv([BrittleEnv], episode_seeds=True, record=tmp_path) as vec:
        vec.reset()
        vec.set_state(vec.get_state())
        with pytest.raises(vecenvs.EnvError) as caught:
            vec.step([3])
    assert main(["rerun", caught.value.record, "--trusted"]) == 2
    assert "cannot be run again: it has begun with set_state" in capsys.readouterr().err


def test_files_that_are_torn_or_hostile(tmp_path: Path) -> None:
    path = Path(failed(tmp_path))
    data = path.read_bytes()
    for length in (0, 10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(vecenvs.VecEnvError, match=r"\.npz' is not a record of an episode"):
            read_record(path)
    for _ in range(50):
        place = random.randrange(len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :])
        try:
            read_record(path)
        except vecenvs.VecEnvError as error:
            assert "env0-" in str(error)  # noqa: PT017


def test_an_id_from_a_file_imports_nothing(tmp_path: Path) -> None:
    from vecenvs.make.env_fn import described

    with pytest.raises(ValueError, match="is no id of a registered env"):
        described({"id": "this:Env-v0", "env_type": "preprocessing", "env_kwargs": {}, "wrapper_kwargs": {}})


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The error comes all the same."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        failed(tmp_path / "file")
    assert "not written" in failed(tmp_path / "file" / "a")
    assert "its episode cannot be recorded" in caplog.text


def test_batched_envs_have_no_records(tmp_path: Path) -> None:
    from vecenvs.testing.envs.batches import batched_fns

    with pytest.raises(ValueError, match="record with a Batched"):
        vecenvs.DummyVecEnv(
            batched_fns([StateEnv] * 4, [4], "disabled"), autoreset="disabled", episode_seeds=True, record=tmp_path
        )


@pytest.mark.parametrize("concurrency", ["threads", "asyncio"])
def test_envs_that_wait(concurrency: str, tmp_path: Path) -> None:
    fns: list[Any] = [partial(StateEnv, 0.2)] * 3
    fns = awaiting(fns) if concurrency == "asyncio" else fns
    common = {"episode_seeds": True, "record": tmp_path / "a", "record_episodes": "all"}
    with vecenvs.DummyVecEnv(fns, concurrency=concurrency, **common) as vec:
        vec.reset(seed=1)
        for _ in range(40):
            vec.send([0, 1], [0, 2])
            vec.recv(2)
        for _ in range(20):
            vec.step([1, 2, 3])
        episodes = vec.stats()["episodes"]
    found = records_in(tmp_path / "a")
    assert len(found) == episodes > 0
    for record in found:
        assert again(record) == Rerun(len(record.rewards))


class Bonus(CountingEnv):
    """Its rewards are an attribute. It raises in step 2 of an episode of seed 7, or in a reset with seed 5."""

    def __init__(self, high: float = np.inf) -> None:
        super().__init__(0, 3)
        self.observation_space: Any = spaces.Box(-1, high, (3,), np.float64)
        self.bonus, self.given = 0.0, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed == 5:
            raise ValueError
        self.episode, self.given = 0, -1 if seed is None else seed
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.given == 7 and self.t == 1:
            raise ValueError
        obs, _, *rest = super().step(action)
        return obs, self.bonus, *rest


def read_all(folder: Path) -> list[Any]:
    return [read_record(str(path)) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("policy", ["renew", "reset"])
def test_an_env_made_anew_has_no_calls_of_the_one_before(policy: str, tmp_path: Path) -> None:
    options = {"on_error": policy, "record": tmp_path, "record_episodes": "all"}
    with vecenvs.DummyVecEnv([Bonus], episode_seeds=True, **options) as vec:
        vec.set_attr("bonus", 5.0)
        vec.reset(seed=7)
        rewards = [vec.step([0])[1][0] for _ in range(6)]
    assert rewards[2:5] == ([0.0] * 3 if policy == "renew" else [5.0] * 3)
    found = read_all(tmp_path)
    assert [record.outcome for record in found] == ["raised", "ended"]
    assert not any(run_again(record, Bonus()).differs for record in found)


def test_the_seed_of_a_reset_comes_before_a_held_one(tmp_path: Path) -> None:
    with vecenvs.DummyVecEnv([Bonus], episode_seeds=True, record=tmp_path) as vec:
        vec.reset(seed=1)
        vec.seed(7)
        with pytest.raises(vecenvs.EnvError):
            vec.reset(seed=5)
    (found,) = read_all(tmp_path)
    assert found.seed == 5
    assert isinstance(run_again(found, Bonus()).exception, ValueError)


@pytest.mark.parametrize("held", [False, True])
def test_options_are_those_that_were_given(held: bool, tmp_path: Path) -> None:
    """Not what the caller makes of them later."""
    levels = [1]
    options: Any = {"record": tmp_path, "record_episodes": "all"}
    with vecenvs.DummyVecEnv([Bonus], episode_seeds=True, **options) as vec:
        if held:
            vec.set_options({"levels": levels})
        vec.reset(seed=1, options=None if held else {"levels": levels})
        levels.append(2)
        for _ in range(3):
            vec.step([0])
    assert [decoded(record.options) for record in read_all(tmp_path)] == [{"levels": [1]}]


def test_envs_of_different_bounds(tmp_path: Path) -> None:
    fns = [Bonus, partial(Bonus, 99.0)]
    options = {"observation_mode": "different", "record": tmp_path, "record_episodes": "all"}
    with vecenvs.DummyVecEnv(fns, episode_seeds=True, **options) as vec:
        vec.reset(seed=1)
        for _ in range(3):
            vec.step([0, 0])
    found = read_all(tmp_path)
    assert [record.slot for record in found] == [0, 1]
    assert not any(run_again(record, fns[record.slot]()).differs for record in found)


def test_resets_of_no_envs_change_nothing(tmp_path: Path) -> None:
    """In the loop of mode disabled most masks are empty."""
    options = {"autoreset": "disabled", "record": tmp_path, "record_episodes": "all"}
    with vecenvs.DummyVecEnv([Bonus], episode_seeds=True, **options) as vec:
        vec.reset(seed=1)
        vec.reset([])
        for _ in range(7):
            vec.reset(vec.step([0])[2])
    found = read_all(tmp_path)
    assert [len(record.rewards) for record in found] == [3, 3]
    assert not any(run_again(record, Bonus()).differs for record in found)


def test_a_death_between_two_attempts_to_return_rows(tmp_path: Path) -> None:
    """The rows that are noted for the dead worker's records are not those of the result, which is noted once."""
    with vecenvs.DummyVecEnv([Bonus] * 2, episode_seeds=True, record=tmp_path) as vec:
        vec.reset(seed=1)
        result = vec.step([0, 0])
        recorder: Any = vec._recorder
        which, now = recorder._last, recorder._ticks.now
        recorder.lose([1], 0, 0b10, vecenvs.VecEnvError("a worker has ended"))
        recorder.note_result(which, result, ())
        assert recorder._ticks.now == now + 1


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_death_whose_records_are_interrupted(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each episode has one record, and each step, whether it was received or not, is in it once."""

    def write(*args: Any) -> Any:
        if interrupted:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)
        return write_record(*args)

    with vecenvs.SubprocVecEnv([Bonus] * 2, 1, episode_seeds=True, record=tmp_path) as vec:
        vec.reset(seed=1)
        vec.send([0, 0])
        vec.recv(indices=[1])  # so that the row of env 0 has come
        os.kill(vec.stats()["workers"][0]["pid"], signal.SIGKILL)
        monkeypatch.setattr("vecenvs.pool.recorder.write_record", write)
        with contextlib.suppress(vecenvs.WorkerDied, KeyboardInterrupt):
            vec.send([0], [1])
            vec.recv(indices=[1])
        with pytest.raises(vecenvs.WorkerDied):
            vec.recv(indices=[1])
    found = read_all(tmp_path)
    assert [(record.slot, len(record.rewards)) for record in found] == [(0, 1), (1, 1)]


def test_an_envs_own_key_is_no_error(tmp_path: Path) -> None:
    class Own(CountingEnv):
        def step(self, action: Any) -> Any:
            if action:
                raise ValueError("now and then")
            return *super().step(action)[:4], {"env_error": None, "worker_restarted": 0}

    with vecenvs.DummyVecEnv([partial(Own, length=2)], episode_seeds=True, record=tmp_path) as vec:
        vec.reset()
        for _ in range(5):
            vec.step([0])
    assert not records_in(tmp_path)
    with vecenvs.DummyVecEnv([partial(Own, length=2)], on_error="reset", max_errors=1) as vec:
        vec.reset()
        for number in range(9):
            vec.step([number % 3 == 0])  # an error, and a whole episode
        assert vec.stats()["errors"] == 3
