"""Monitor, its files, and load_results. Where a rule is Stable-Baselines3's or baselines', the test says so."""

from __future__ import annotations

import errno
import fcntl
import json
import pickle
import re
import subprocess
import sys
import threading
import types
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from vecenvs import SubprocVecEnv
from vecenvs.backends import backend_class
from vecenvs.errors import EnvError
from vecenvs.testing.envs import CountingEnv, FailingEnv, ToyError
from vecenvs.wrappers import LoadMonitorResultsError, Monitor, get_monitor_files, load_results
from vecenvs.wrappers.results import read_monitor_file
from vecenvs.wrappers.results_writer import ResultsWriter

DATA = Path(__file__).parent / "data" / "monitor"


class Script(gym.Env):
    """Return given rewards; the last one ends the episode. The info is always the same dict."""

    observation_space = gym.spaces.Discrete(100)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, rewards: Any = (1.0, 2.0, 3.5), infos: dict[str, Any] | None = None, truncate: bool = False):
        self.rewards, self.truncate = rewards, truncate
        self.info = dict(infos or {})
        self.seen: list[dict[str, Any]] = []
        self.k = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None, level: Any = None):
        super().reset(seed=seed)
        self.seen.append({"seed": seed, "options": options, "level": level})
        self.k = 0
        return 0, {}

    def step(self, action):
        reward = self.rewards[self.k]
        self.k += 1
        over = self.k == len(self.rewards)
        return self.k, reward, over and not self.truncate, over and self.truncate, self.info


def play(env: gym.Env, episodes: int = 1, **reset: Any) -> list[dict[str, Any]]:
    """Play whole episodes; return the last info of each."""
    lasts = []
    for _ in range(episodes):
        env.reset(**reset)
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(0)
            over = terminated or truncated
        lasts.append(info)
    return lasts


def rows(path: Path) -> list[str]:
    """Return the file's lines after the header."""
    return path.read_bytes().decode().split("\n")[1:-1]


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock by one that the test sets."""
    now = types.SimpleNamespace(time=100.0)
    monkeypatch.setattr("vecenvs.wrappers.monitor.time", types.SimpleNamespace(time=lambda: now.time))
    return now


class TestEpisode:
    def test_last_info_has_the_episode_and_no_other(self, clock):
        env = Monitor(Script())
        env.reset()
        infos = [env.step(0)[4] for _ in range(2)]
        clock.time = 102.1234567
        infos.append(env.step(0)[4])
        assert infos == [{}, {}, {"episode": {"r": 6.5, "l": 3, "t": 2.123457}}]

    def test_truncation_ends_an_episode_too(self):
        assert play(Monitor(Script(truncate=True)))[0]["episode"]["l"] == 3

    def test_rows_pass_through_unchanged(self):
        env = Monitor(Script((np.float32(0.1), 2)))
        env.reset()
        first, last = env.step(0), env.step(0)
        assert first == (1, np.float32(0.1), False, False, {})
        assert isinstance(first[1], np.float32)
        assert last[:4] == (2, 2, True, False)

    def test_the_envs_own_info_dict_is_left_alone(self):
        env = Script()
        play(Monitor(env), 2)
        assert env.info == {}

    def test_return_is_the_sum_of_python_floats(self):
        rewards = [0.1] * 1000 + [np.float32(0.3), np.array(0.7), 1, True]
        monitor = Monitor(Script(rewards))
        info = play(monitor)[0]
        exact = sum(float(r) for r in rewards)
        assert monitor.get_episode_rewards() == [exact]
        assert info["episode"]["r"] == round(exact, 6)

    @pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # by numpy before 2.4
    def test_rewards_in_arrays_of_one_as_vec_envs_take_them(self):
        assert play(Monitor(Script([np.array([0.5]), np.float32([[2.0]]), [1]])))[0]["episode"]["r"] == 3.5

    @pytest.mark.parametrize("reward", ["much", "1.5", None, [1.0, 2.0], []])
    def test_a_reward_that_is_no_number_is_an_error(self, reward):
        monitor = Monitor(Script([reward]))
        monitor.reset()
        with pytest.raises(TypeError, match=rf"the reward must be a number, not {re.escape(repr(reward))}"):
            monitor.step(0)

    def test_getters(self, clock):
        env = Monitor(Script())
        env.reset()
        env.step(0)
        assert (env.get_total_steps(), env.get_episode_lengths()) == (1, [])
        clock.time = 101.0000005
        play(env, 2)
        env.reset()
        env.step(0)
        assert env.get_total_steps() == env.total_steps == 1 + 3 + 3 + 1
        assert env.get_episode_rewards() == [6.5, 6.5]
        assert env.get_episode_lengths() == [3, 3]
        assert env.get_episode_times() == [101.0000005 - 100.0] * 2
        env.get_episode_rewards().clear()
        assert len(env.get_episode_rewards()) == 2


class TestOrder:
    def test_step_before_reset_and_after_the_end(self):
        env = Monitor(Script())
        with pytest.raises(RuntimeError, match="reset it first"):
            env.step(0)
        play(env)
        with pytest.raises(RuntimeError, match="reset it first"):
            env.step(0)

    def test_early_reset_is_allowed_by_default_and_its_episode_forgotten(self):
        env = Monitor(Script())
        env.reset()
        env.step(0)
        assert play(env)[0]["episode"]["r"] == 6.5
        assert env.get_total_steps() == 4

    def test_early_reset_can_be_forbidden(self):
        env = Monitor(Script(), allow_early_resets=False)
        play(env, 2)
        env.reset()
        env.step(0)
        with pytest.raises(RuntimeError, match="after 1 steps.*allow_early_resets=True"):
            env.reset()
        env.step(0)
        assert env.step(0)[4]["episode"]["l"] == 3

    def test_a_reset_that_raises_can_be_repeated(self):
        class Refusing(Script):
            def reset(self, **kwargs):
                if kwargs.get("seed") == 13:
                    raise ValueError("13")
                return super().reset(**kwargs)

        env = Monitor(Refusing(), allow_early_resets=False)
        with pytest.raises(ValueError, match="13"):
            env.reset(seed=13)
        with pytest.raises(RuntimeError, match="reset it first"):
            env.step(0)
        play(env)

    def test_an_early_reset_that_raises_has_ended_the_episode(self):
        env = Monitor(FailingEnv(where="reset", at=2))
        env.reset()
        env.step(0)
        with pytest.raises(ToyError):
            env.reset()
        with pytest.raises(RuntimeError, match="reset it first"):
            env.step(0)


class TestKeywords:
    def test_info_keywords(self, tmp_path):
        env = Monitor(Script(infos={"success": True, "x": 1.5}), tmp_path / "a", info_keywords=("x", "success"))
        assert play(env)[0]["episode"].items() >= {"x": 1.5, "success": True}.items()
        env.close()
        assert rows(tmp_path / "a.monitor.csv")[0] == "r,l,t,x,success\r"
        assert rows(tmp_path / "a.monitor.csv")[1].endswith(",1.5,True\r")

    def test_missing_info_keyword_is_named(self):
        env = Monitor(Script(infos={"x": 0}), info_keywords=("success",))
        with pytest.raises(KeyError, match="success.*'x'"):
            play(env)

    def test_reset_keywords_as_arguments(self, tmp_path):
        script = Script()
        env = Monitor(script, str(tmp_path), reset_keywords=("level",))
        info = play(env, level=3)[0]
        assert info["episode"]["level"] == 3
        assert script.seen == [{"seed": None, "options": None, "level": 3}]
        env.close()
        assert rows(tmp_path / "monitor.csv")[0] == "r,l,t,level\r"
        assert rows(tmp_path / "monitor.csv")[1].endswith(",3\r")

    def test_reset_keywords_in_options(self):
        script = Script()
        info = play(Monitor(script, reset_keywords=("stage",)), seed=5, options={"stage": "two"})[0]
        assert info["episode"]["stage"] == "two"
        assert script.seen == [{"seed": 5, "options": {"stage": "two"}, "level": None}]

    def test_missing_reset_keyword_is_named_at_every_reset(self):
        env = Monitor(Script(), reset_keywords=("level",))
        for _ in range(2):
            with pytest.raises(ValueError, match="level"):
                env.reset(seed=1)
            play(env, level=1)

    @pytest.mark.parametrize("name", ["info_keywords", "reset_keywords"])
    def test_bad_keywords(self, name):
        with pytest.raises(TypeError, match=name):
            Monitor(Script(), **{name: "success"})
        with pytest.raises(TypeError, match=name):
            Monitor(Script(), **{name: (1,)})
        with pytest.raises(ValueError, match=f"{name} has 'r'"):
            Monitor(Script(), **{name: ("r",)})


class TestFile:
    @pytest.mark.parametrize("given", ["run", "run.monitor.csv", "new/deep/run"])
    def test_path(self, tmp_path, given):
        Monitor(Script(), str(tmp_path / given)).close()
        expected = given if given.endswith(".csv") else f"{given}.monitor.csv"
        assert (tmp_path / expected).is_file()

    def test_a_directory_that_is_not_there_yet(self, tmp_path):
        Monitor(Script(), f"{tmp_path}/new/deep/").close()
        assert [p.relative_to(tmp_path) for p in tmp_path.rglob("*.csv")] == [Path("new/deep/monitor.csv")]

    def test_directory(self, tmp_path):
        Monitor(Script(), tmp_path).close()
        assert [p.name for p in tmp_path.iterdir()] == ["monitor.csv"]

    def test_bytes_are_those_that_sb3_and_baselines_write(self, tmp_path, clock):
        env = Monitor(gym.make("CartPole-v1"), tmp_path)
        env.reset(seed=0)
        clock.time = 100.5
        while not env.step(0)[2]:
            pass
        env.close()
        expected = b'#{"t_start": 100.0, "env_id": "CartPole-v1"}\nr,l,t\r\n8.0,8,0.5\r\n'
        length = env.get_episode_lengths()[0]
        expected = expected.replace(b"8.0,8", b"%d.0,%d" % (length, length))
        assert (tmp_path / "monitor.csv").read_bytes() == expected

    def test_rows_are_on_disk_at_once(self, tmp_path):
        env = Monitor(Script(), tmp_path)
        for episodes in range(3):
            assert len(rows(tmp_path / "monitor.csv")) == 1 + episodes
            play(env)
        env.close()

    def test_header_of_an_env_without_spec(self, tmp_path):
        Monitor(Script(), tmp_path).close()
        header = json.loads((tmp_path / "monitor.csv").read_text().splitlines()[0][1:])
        assert header.keys() == {"t_start", "env_id"}
        assert header["env_id"] is None

    def test_an_existing_file_is_overridden_by_default(self, tmp_path):
        for _ in range(2):
            env = Monitor(Script(), tmp_path)
            play(env)
            env.close()
        assert len(rows(tmp_path / "monitor.csv")) == 2

    def test_append(self, tmp_path, clock):
        for start, end in ((100.0, 101.0), (200.0, 203.0)):
            clock.time = start
            env = Monitor(Script(), tmp_path, override_existing=False)
            clock.time = end
            play(env)
            env.close()
        assert rows(tmp_path / "monitor.csv") == ["r,l,t\r", "6.5,3,1.0\r", "6.5,3,103.0\r"]
        np.testing.assert_array_equal(load_results(tmp_path).t, [1.0, 103.0])

    @pytest.mark.parametrize(("tail", "kept"), [("1.0,2", []), ("1.0,2,", []), ("1.0,2,3.5", [1.0])])
    def test_append_to_a_file_cut_short(self, tmp_path, tail, kept):
        path = tmp_path / "monitor.csv"
        path.write_bytes(b'#{"t_start": 5.0, "env_id": null}\nr,l,t\r\n0.5,2,1.0\r\n' + tail.encode())
        env = Monitor(Script(), path, override_existing=False)
        play(env)
        env.close()
        assert load_results(tmp_path).r.tolist() == [0.5, *kept, 6.5]

    @pytest.mark.parametrize("tail", ['"a', '"a\n', '"a\r\nb', '"a""', "é".encode()[:1]])
    def test_append_to_a_file_cut_within_quotes_or_a_character(self, tmp_path, tail):
        path = tmp_path / "monitor.csv"
        tail = tail if isinstance(tail, bytes) else tail.encode()
        path.write_bytes(
            b'#{"t_start": 5.0}\nr,l,t,word\r\n0.5,2,1.0,"' + b"\xc3\xa9" * 40 + b' ""b"""\r\n1.5,2,3.5,' + tail
        )
        assert load_results(tmp_path)["word"].tolist() == ["é" * 40 + ' "b"']
        env = Monitor(Script(infos={"word": "new"}), path, info_keywords=("word",), override_existing=False)
        play(env, 2)
        env.close()
        results = load_results(tmp_path)
        assert results.r.tolist() == [0.5, 6.5, 6.5]
        assert results["word"].tolist() == ["é" * 40 + ' "b"', "new", "new"]

    def test_append_after_rows_whose_characters_take_several_bytes(self, tmp_path):
        path = tmp_path / "monitor.csv"
        path.write_text(
            '#{"t_start": 5.0}\nr,l,t,word\r\n0.5,2,1.0,ééééééééé\r\n1.5,2,3.5,"é', encoding="utf-8", newline=""
        )
        env = Monitor(Script(infos={"word": "new"}), path, info_keywords=("word",), override_existing=False)
        play(env)
        env.close()
        assert load_results(tmp_path)["word"].tolist() == ["ééééééééé", "new"]

    def test_several_begin_to_append_at_once(self, tmp_path):
        """None overwrites another's header or rows, whichever has made the file."""
        path, together = tmp_path / "monitor.csv", threading.Barrier(8, timeout=30)

        def append(number: int) -> None:
            together.wait()
            writer = ResultsWriter(path, {"t_start": 1.0}, ("word",), override_existing=False)
            for length in range(50):
                writer.write_row({"r": float(number), "l": length, "t": 1.0, "word": "x" * 500})
            writer.close()

        threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results = load_results(tmp_path)
        assert sorted(zip(results.r, results.l, strict=True)) == [(r, k) for r in range(8) for k in range(50)]
        assert set(results["word"]) == {"x" * 500}
        assert [p.name for p in tmp_path.iterdir()] == ["monitor.csv"]

    def test_append_where_there_are_no_locks(self, tmp_path, monkeypatch):
        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOTSUP, "no locks here")

        monkeypatch.setattr(fcntl, "flock", refuse)
        for _ in range(2):
            env = Monitor(Script(), tmp_path, override_existing=False)
            play(env)
            env.close()
        assert load_results(tmp_path).r.tolist() == [6.5, 6.5]

    def test_append_to_other_columns_is_refused(self, tmp_path):
        Monitor(Script(), tmp_path, info_keywords=("x",)).close()
        before = (tmp_path / "monitor.csv").read_bytes()
        with pytest.raises(ValueError, match=r"columns r, l, t, x, .* writes r, l, t\..*override_existing=True"):
            Monitor(Script(), tmp_path, override_existing=False)
        assert (tmp_path / "monitor.csv").read_bytes() == before

    def test_append_to_something_else_is_refused(self, tmp_path):
        (tmp_path / "monitor.csv").write_text("my diary\n")
        with pytest.raises(LoadMonitorResultsError, match="header"):
            Monitor(Script(), tmp_path, override_existing=False)
        assert (tmp_path / "monitor.csv").read_text() == "my diary\n"

    def test_close_closes_both_and_twice(self, tmp_path):
        class Closing(Script):
            def close(self):
                raise OSError("stuck")

        env = Monitor(Closing(), tmp_path)
        with pytest.raises(OSError, match="stuck"):
            env.close()
        with pytest.raises(ValueError, match="closed"):
            env.results_writer.write_row({"r": 1, "l": 1, "t": 1})
        env = Monitor(Script(), tmp_path)
        env.close()
        env.close()


def test_spec_records_the_arguments():
    env = Monitor(gym.make("CartPole-v1"), info_keywords=("a",))
    wrapper = env.spec.additional_wrappers[-1]
    assert (wrapper.name, wrapper.kwargs["info_keywords"]) == ("Monitor", ("a",))
    assert isinstance(gym.make(env.spec), Monitor)


class TestLoadResults:
    def test_all_dialects_together(self):
        results = load_results(DATA)
        assert len(results) == 4
        assert [Path(f).name for f in results.files] == ["baselines.monitor.csv", "sb3.monitor.csv"]
        # In the order of their ends; t counts from the earliest t_start.
        np.testing.assert_array_equal(results.r, [10.0, -3.25, 12.5, -1.0])
        np.testing.assert_array_equal(results.l, [10, 50, 13, 50])
        np.testing.assert_array_equal(results.file_index, [1, 0, 1, 0])
        np.testing.assert_array_equal(results.row, [0, 0, 1, 1])
        np.testing.assert_array_equal(np.diff(results.t), [1.75, 0.5, 0.5])
        assert (results.r.dtype, results.l.dtype, results.t.dtype) == (np.float64, np.int64, np.float64)
        np.testing.assert_array_equal(results.columns["is_success"], [1.0, np.nan, 0.0, np.nan])
        assert results.headers[0]["gym_version"] == "0.9.1"

    def test_one_file(self):
        results = load_results(DATA / "sb3.monitor.csv")
        assert results.columns["is_success"].dtype == np.bool_
        assert results.columns["is_success"].tolist() == [True, False]

    def test_reads_ours(self, tmp_path):
        infos = {"n": 3, "x": 0.5, "won": True, "word": 'a, "b"\nc', "none": None, "label": "1_0"}
        for name in ("0.0", "0.1"):
            env = Monitor(Script(infos=infos), tmp_path / name, info_keywords=tuple(infos))
            play(env, 2)
            env.close()
        results = load_results(tmp_path)
        assert {name: column.dtype.kind for name, column in results.columns.items()} == {
            "r": "f", "l": "i", "t": "f", "n": "i", "x": "f", "won": "b", "word": "O", "none": "f", "label": "O"
        }  # fmt: skip
        assert results.columns["word"].tolist() == [infos["word"]] * 4
        assert np.isnan(results.columns["none"]).all()
        assert (np.diff(results.t) >= 0).all()

    def test_numbers_missing_in_one_file_are_nan(self, tmp_path):
        for name, keywords in (("a", ()), ("b", ("n",))):
            env = Monitor(Script(infos={"n": 3}), tmp_path / name, info_keywords=keywords)
            play(env)
            env.close()
        assert sorted(load_results(tmp_path).columns["n"], key=str) == pytest.approx([3.0, np.nan], nan_ok=True)

    def test_no_episodes_yet(self, tmp_path):
        Monitor(Script(), tmp_path).close()
        results = load_results(tmp_path)
        assert len(results) == 0
        assert (results.r.dtype, results.l.dtype, results.t.dtype) == (np.float64, np.int64, np.float64)

    @pytest.mark.parametrize("tail", ["4.0", "4.0,2", "4.0,2,", "-"])
    def test_a_last_row_cut_short_is_left_out(self, tmp_path, tail):
        (tmp_path / "monitor.csv").write_text('#{"t_start": 1.0}\nr,l,t\n1.0,2,3.0\n' + tail)
        assert load_results(tmp_path).r.tolist() == [1.0]

    def test_a_whole_row_before_half_a_character_stays(self, tmp_path):
        (tmp_path / "monitor.csv").write_bytes(b'#{"t_start": 1.0}\nr,l,t\n1.0,2,3.0\n\xc3')
        assert load_results(tmp_path).r.tolist() == [1.0]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "header"),
            ("r,l,t\n1,2,3\n", "header"),
            ("#{broken\n", "header"),
            ('#{"env_id": null}\nr,l,t\n', "header"),
            ("#[]\nr,l,t\n", "header"),
            ('#{"t_start": 1.0}\nr,l\n1,2\n', "without t"),
            ('#{"t_start": 1.0}\nr,l,t\n1,2\n1,2,3\n', r"row 1 is \['1', '2'\]"),
            ('#{"t_start": 1.0}\nr,l,t\n1,2,3\n1,2,soon\n', "row 2 .*soon"),
            ('#{"t_start": 1.0}\nr,l,t\n1,2,3,4\n', "row 1"),
            ('#{"t_start": 1.0}\nr,l,t\n1,nan,3\n', "row 1 .*nan"),
            ('#{"t_start": 1.0}\nr,l,t\n1,2.5,3\n', r"row 1 .*2\.5"),
            ('#{"t_start": 1.0}\nr,l,t\nnan,2,nan\n', "row 1 .*nan"),
            ('#{"t_start": NaN}\nr,l,t\n1,2,3\n', "header"),
            ('#{"t_start": 1.0}\nr,l,t,k\n1,2,3,\udce9a\n1,2,3,b\n', "decode byte 0xe9"),
            ('#{"t_start": 1.0}\nr,l,t,k\n1,2,3,' + "a" * 200_000 + "\n", "field larger than"),
            ("\udce9\n", "header"),
        ],
    )
    def test_malformed_files_are_named(self, tmp_path, text, message):
        (tmp_path / "0.7.monitor.csv").write_text(text, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(LoadMonitorResultsError, match=message) as caught:
            load_results(tmp_path)
        assert "0.7.monitor.csv" in str(caught.value)

    def test_no_files(self, tmp_path):
        with pytest.raises(LoadMonitorResultsError, match="no monitor files"):
            load_results(tmp_path)
        with pytest.raises(LoadMonitorResultsError, match="no monitor files"):
            load_results(tmp_path / "nowhere")

    def test_what_is_no_path(self, tmp_path):
        for wrong in (None, 0, 5):  # numbers would be open files
            for function in (load_results, get_monitor_files):
                with pytest.raises(TypeError, match="path must be a path, not"):
                    function(wrong)
        Monitor(Script(), tmp_path).close()
        assert load_results(str(tmp_path).encode()).files == (str(tmp_path / "monitor.csv"),)

    def test_get_monitor_files_takes_the_path_literally(self, tmp_path):
        odd = tmp_path / "run[1]*"
        odd.mkdir()
        Monitor(Script(), odd / "0.0").close()
        assert get_monitor_files(odd) == [str(odd / "0.0.monitor.csv")]

    def test_columns_by_name(self):
        results = load_results(DATA / "sb3.monitor.csv")
        assert results["r"] is results.r
        with pytest.raises(KeyError, match="no column 'reward': there are r, l, t"):
            results["reward"]

    def test_to_pandas_gives_the_columns_of_sb3s_frame(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=dict))
        frame = load_results(DATA / "sb3.monitor.csv").to_pandas()
        assert list(frame) == ["index", "r", "l", "t", "is_success"]
        assert frame["index"].tolist() == [0, 1]

    def test_to_pandas_without_pandas(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError, match="pip install pandas"):
            load_results(DATA).to_pandas()


class TestInAVecEnv:
    """As a worker, which resets the env right after the step that ended an episode."""

    @pytest.fixture(params=["dummy", "subproc"])
    def make(self, request):
        return partial(backend_class(request.param))

    def test_episodes_and_getters(self, make, tmp_path):
        paths = [tmp_path / f"0.{i}" for i in range(3)]
        with make([partial(_monitored, path, (1.0,) * (i + 1)) for i, path in enumerate(paths)]) as vec:
            vec.reset()
            for step in range(1, 7):
                infos = vec.step([0, 0, 0])[3]
                for i, info in enumerate(infos):
                    over = step % (i + 1) == 0
                    assert ("episode" in info) == over
                    if over:
                        assert (info["episode"]["r"], info["episode"]["l"]) == (i + 1, i + 1)
            assert vec.env_method("get_episode_lengths") == [[1] * 6, [2] * 3, [3] * 2]
            assert vec.env_method("get_total_steps") == [6, 6, 6]
            assert vec.env_is_wrapped(Monitor) == [True] * 3
        assert sorted(load_results(tmp_path).l) == [1] * 6 + [2] * 3 + [3] * 2

    def test_a_missing_keyword_is_the_envs_error(self, make):
        with make([partial(_monitored, None, (1.0,), ("success",))]) as vec:
            vec.reset()
            with pytest.raises(EnvError, match="success"):
                vec.step([0])


def _monitored(path: Any, rewards: Any, info_keywords: tuple[str, ...] = ()) -> gym.Env:
    return Monitor(Script(rewards), path, info_keywords=info_keywords)


def test_a_monitor_without_file_pickles():
    env = Monitor(Script())
    env.reset()
    env.step(0)
    for copy in (pickle.loads(pickle.dumps(env)), cloudpickle.loads(cloudpickle.dumps(env))):
        copy.step(0)
        assert copy.step(0)[4]["episode"]["r"] == 6.5

    @pytest.mark.timeout(60)
    def test_another_process_writes_it(self, tmp_path):
        """Its rows are not lost: a new file would be written over it. Once it has ended nobody minds."""
        program = (
            "import sys; from vecenvs.wrappers.results_writer import ResultsWriter as W\n"
            "w = W(sys.argv[1], {'t_start': 1.0}); w.write_row(dict(r=1.0, l=1, t=1.0)); print(flush=True); input()"
        )
        arguments = [sys.executable, "-c", program, str(tmp_path)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            other.stdout.readline()
            with pytest.raises(ValueError, match="written by another process that runs"):
                Monitor(Script(), tmp_path)
            env = Monitor(Script(), tmp_path, override_existing=False)
            play(env)
            env.close()
            assert load_results(tmp_path).r.tolist() == [1.0, 6.5]
            other.kill()
        env = Monitor(Script(), tmp_path)
        Monitor(Script(), tmp_path).close()  # in one process the last one made has the file, as in SB3
        play(env)
        env.close()
        assert len((tmp_path / "monitor.csv").read_text().splitlines()) == 3


def test_a_closed_file_is_free_whatever_was_forked_meanwhile(tmp_path: Path) -> None:
    """Workers have its descriptor, and with it the lock."""
    writer = ResultsWriter(tmp_path / "a", {"t_start": 0.0})
    with SubprocVecEnv([CountingEnv], start_method="fork"):
        writer.close()
        ResultsWriter(tmp_path / "a", {"t_start": 0.0}).close()


def test_a_file_that_has_its_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "0.monitor.csv"
    path.write_text('#{"t_start": 5.0, "env_id": null}\n')
    writer = ResultsWriter(path, {"t_start": 7.0}, ("x",), override_existing=False)
    writer.write_row({"r": 1.0, "l": 10, "t": 2.5, "x": 3})
    writer.close()
    found = read_monitor_file(path)
    assert (found.names, found.header["t_start"], len(found.rows)) == (("r", "l", "t", "x"), 5.0, 1)
