"""`info_attrs`: attributes of envs in every row's info, wherever the envs live."""

from __future__ import annotations

import enum
import functools
import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import Configuration
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from vecenvs.errors import EnvError, VecEnvError

matrix = "infos"

NAMES = ("t", "level", "vector", "label", "maybe", "story")


class Telling(gymnasium.Env[Any, Any]):
    """Has attributes of every sort: what they are at step t of an env is `told(tag, t)`. An episode has 4 steps.

    Action 1 deletes `level`, action 2 makes it a string, action 3 the vector a longer one.
    """

    def __init__(self, tag: int) -> None:
        self.observation_space, self.action_space = spaces.Discrete(1000), spaces.Discrete(4)
        self.tag = tag
        self.vector = np.zeros(2)
        self.story: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self._be(0)
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._be(self.t + 1)
        if action == 1:
            del self.level
        elif action == 2:
            self.level: Any = "high"
        elif action == 3:
            self.vector = np.arange(3.0)
        return self.t, 0.0, self.t == 4 and self.tag != 1, False, {}

    def _be(self, t: int) -> None:
        self.t = t
        self.level = self.tag + t / 2
        if len(self.vector) != 2:
            self.vector = np.zeros(2)
        self.vector[:] = self.tag, t  # always the same array
        self.label = f"{self.tag}:{t}"
        self.maybe = None if t % 2 else t
        self.story[t:] = [t]  # always the same list


def told(tag: int, t: int) -> dict[str, Any]:
    return {
        "t": t,
        "level": tag + t / 2,
        "vector": [tag, t],
        "label": f"{tag}:{t}",
        "maybe": None if t % 2 else t,
        "story": [*range(t + 1)],
    }


def as_told(info: dict[str, Any]) -> dict[str, Any]:
    return {name: info[name].tolist() if name == "vector" else info[name] for name in NAMES}


FNS = [functools.partial(Telling, tag) for tag in range(4)]


def test_every_row_has_the_values(configuration: Configuration) -> None:
    with configuration.make_vec(FNS, info_attrs=NAMES) as vec:
        vec.reset()
        assert [as_told(info) for info in vec.reset_infos] == [told(tag, 0) for tag in range(4)]
        kept = []
        for step in range(1, 10):
            infos = vec.step([0] * 4)[3]
            # Envs 0, 2 and 3 reset themselves after 4 steps; their last row has the ended episode's values.
            times = [(step - 1) % 4 + 1, step, (step - 1) % 4 + 1, (step - 1) % 4 + 1]
            assert [as_told(info) for info in infos] == [told(tag, t) for tag, t in enumerate(times)]
            assert type(infos[0]["t"]) is int
            assert type(infos[0]["level"]) is float
            if step == 4:
                assert [as_told(info)["t"] for info in vec.reset_infos] == [0, 0, 0, 0]
            assert vec.info_array("t").tolist() == times
            assert vec.info_array("vector").tolist() == [[tag, t] for tag, t in enumerate(times)]
            assert vec.info_array("label").tolist() == [f"{tag}:{t}" for tag, t in enumerate(times)]
            kept.append((infos, vec.info_array("t"), vec.info_array("story"), times))
        for infos, column, stories, times in kept:  # what was given out is the caller's own
            assert [as_told(info) for info in infos] == [told(tag, t) for tag, t in enumerate(times)]
            assert column.tolist() == times
            assert stories.tolist() == [[*range(t + 1)] for t in times]


@pytest.mark.parametrize("autoreset", ["next_step", "disabled", "async"])
def test_in_every_mode(configuration: Configuration, autoreset: str) -> None:
    with configuration.make_vec(FNS, info_attrs=NAMES, autoreset=autoreset) as vec:
        vec.reset()
        for step in range(1, 5):
            infos = vec.step([0] * 4)[3]
            assert [as_told(info) for info in infos] == [told(tag, step) for tag in range(4)]
        if autoreset == "disabled":
            vec.reset([0, 2, 3])
            assert vec.info_array("t").tolist() == [0, 4, 0, 0]
        for _ in range(100):
            infos = vec.step([0] * 4)[3]
            if all("resetting" not in info for info in infos):
                break
        for tag, info in enumerate(infos):
            t = info["t"]
            assert as_told(info) == told(tag, t)
            assert (t == 0) == ("episode_start" in info)


def test_rows_of_recv_have_their_own_values(configuration: Configuration) -> None:
    """In whatever order they come."""
    with configuration.make_vec(FNS, info_attrs=NAMES) as vec:
        vec.reset()
        for step in range(1, 4):
            vec.send([0] * 4, [3, 1, 0, 2])
            batch = vec.recv(min_envs=4)
            assert [as_told(info) for info in batch.infos] == [told(int(tag), step) for tag in batch.indices]
        vec.send([0, 0], [3, 1])
        batch = vec.recv(min_envs=2)
        assert [as_told(info) for info in batch.infos] == [told(int(tag), 4) for tag in batch.indices]


@pytest.mark.parametrize("names", [NAMES, ("level", "vector")])
def test_a_value_that_no_longer_fits_its_column_comes_all_the_same(
    configuration: Configuration, names: tuple[str, ...]
) -> None:
    """Once: whether there is something else beside the columns or not, the next values are theirs again."""
    with configuration.make_vec(FNS, info_attrs=names) as vec:
        vec.reset()
        vec.step([0] * 4)
        infos = vec.step([0, 2, 0, 3])[3]
        assert [info["level"] for info in infos] == [1.0, "high", 3.0, 4.0]
        assert [info["vector"].tolist() for info in infos] == [[0, 2], [1, 2], [2, 2], [0, 1, 2]]
        assert vec.info_array("level").tolist() == [1.0, "high", 3.0, 4.0]
        infos = vec.step([0] * 4)[3]
        assert [info["level"] for info in infos] == [1.5, 2.5, 3.5, 4.5]
        assert [info["vector"].tolist() for info in infos] == [[tag, 3] for tag in range(4)]
        assert vec.info_array("level").tolist() == [1.5, 2.5, 3.5, 4.5]
        assert vec.info_array("level").dtype == np.float64


def test_an_attribute_that_vanishes_fails_its_env_alone(configuration: Configuration) -> None:
    with configuration.make_vec(FNS, info_attrs=NAMES) as vec:
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(EnvError, match="level") as caught:
            vec.step([0, 0, 1, 0])
        assert caught.value.index == 2
        assert caught.value.batch is not None
        assert [as_told(info) for info in caught.value.batch.infos] == [told(tag, 2) for tag in (0, 1, 3)]
        vec.reset([2])
        infos = vec.step([0] * 4)[3]
        assert [as_told(info) for info in infos] == [told(tag, t) for tag, t in enumerate([3, 3, 1, 3])]


def test_a_missing_attribute_is_named_with_its_env(configuration: Configuration) -> None:
    with (
        configuration.make_vec(FNS, info_attrs=("t", "height")) as vec,
        pytest.raises(EnvError, match="info_attrs names 'height', which env 0 .Telling. and its wrappers do not have"),
    ):
        vec.reset()


def test_wrappers_and_the_env_inside(configuration: Configuration) -> None:
    fns = [functools.partial(limited, tag) for tag in range(4)]
    with configuration.make_vec(fns, info_attrs=("t", "unwrapped.t", "unwrapped.vector.size")) as vec:
        vec.reset()
        infos = vec.step([0] * 4)[3]
        assert [info["t"] for info in infos] == ["of the wrapper"] * 4
        assert [info["unwrapped.t"] for info in infos] == [1] * 4
        assert vec.info_array("unwrapped.vector.size").tolist() == [2] * 4


def limited(tag: int) -> TimeLimit[Any, Any]:
    env = TimeLimit(Telling(tag), 100)
    env.t = "of the wrapper"  # type: ignore[attr-defined]
    return env


def test_info_array_of_what_was_not_asked_for(configuration: Configuration) -> None:
    with configuration.make_vec(FNS, info_attrs=("t",)) as vec:
        with pytest.raises(VecEnvError, match="'level' is none of info_attrs"):
            vec.info_array("level")
        with pytest.raises(VecEnvError, match="reset"):
            vec.info_array("t")


class Mortal(Telling):
    """Kills its process at the first step of action 3."""

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if action == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class TestRestart:
    """What a new worker tells of envs that have not been reset by it."""

    matrix = "workers with nodes"

    def test_the_lost_row_has_its_info(self, configuration: Configuration) -> None:
        fns = [functools.partial(Mortal, tag) for tag in range(4)]
        with configuration.make_vec(fns, info_attrs=("t", "tag", "label"), on_failure="restart") as vec:
            vec.reset()
            vec.step([0] * 4)
            infos = vec.step([3, 0, 0, 0])[3]
            assert infos[0]["worker_restarted"]
            assert (infos[0]["t"], infos[0]["tag"], infos[0]["label"]) == (None, 0, None), "it is not known any more"
            assert infos[3]["t"] == 2
            infos = vec.step([0] * 4)[3]
            assert [info["t"] for info in infos][::3] == [1, 3]
            assert infos[0]["label"] == "0:1"


class Widening(gymnasium.Env[Any, Any]):
    """Its attributes are of narrower types after a reset than they are later."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)
    values: tuple[Any, ...] = (np.float32(0), np.float32([0, 0]), np.int8(0), 0.5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.single, self.pair, self.small, self.number = self.values
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.single, self.pair, self.small, self.number = LATER
        return 0, 0.0, False, False, {}


LATER = (0.1, np.array([0.1, 1e40]), np.int64(300), 2**60 + 1)


def test_a_value_is_never_rounded_to_its_column(configuration: Configuration) -> None:
    with configuration.make_vec([Widening] * 3, info_attrs=("single", "pair", "small", "number")) as vec:
        vec.reset()
        for info in vec.step([0] * 3)[3]:
            assert (info["single"], info["small"], info["number"]) == (0.1, 300, 2**60 + 1)
            assert info["pair"].tolist() == [0.1, 1e40]


class Drifting(gymnasium.Env[Any, Any]):
    """Its attribute is an int after a reset; in env 1 it becomes a bool, in env 2 numpy's int."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def __init__(self, tag: int) -> None:
        self.tag = tag

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.count: Any = 0
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.count = (5, True, np.int64(7))[self.tag]
        return 0, 0.0, False, False, {}


def test_a_value_does_not_depend_on_its_neighbours(configuration: Configuration) -> None:
    """Neither its type: in one shard or another, by step or by recv."""
    with configuration.make_vec([functools.partial(Drifting, tag) for tag in range(3)], info_attrs=("count",)) as vec:
        vec.reset()
        infos = vec.step([0] * 3)[3]
        vec.send([0] * 3)
        rows = vec.recv(3)
        for found in (infos, [rows.infos[int(j)] for j in np.argsort(rows.indices)]):
            assert [(type(info["count"]), info["count"]) for info in found] == [(int, 5), (bool, True), (int, 7)]


class Gait(enum.IntEnum):
    STAND = 0
    WALK = 1


class Subtle(gymnasium.Env[Any, Any]):
    """Its attributes are numbers, and more: of subclasses, `late` only after the first step."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.gait, self.late, self.amplitude = Gait.STAND, 0, 1j
        self.masked, self.later = np.ma.masked_array([0.0, 1.0], [True, False]), np.zeros(2)
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.gait = self.late = Gait.WALK
        self.later = self.masked
        return 0, 0.0, False, False, {}


def test_values_of_subclasses_of_numbers_and_arrays_stay_what_they_are(configuration: Configuration) -> None:
    names = ("gait", "late", "amplitude", "masked", "later")
    with configuration.make_vec([Subtle] * 3, info_attrs=names) as vec:
        vec.reset()
        assert [info["gait"] for info in vec.reset_infos] == [Gait.STAND] * 3
        for _ in range(2):
            infos = vec.step([0] * 3)[3]
            assert {type(info[name]) for info in infos for name in ("gait", "late")} == {Gait}
            for info in infos:
                assert [info[name].mask.tolist() for name in ("masked", "later")] == [[True, False]] * 2
            assert vec.info_array("gait").tolist() == vec.info_array("late").tolist() == [Gait.WALK] * 3
            assert [value.mask.tolist() for value in vec.info_array("masked")] == [[True, False]] * 3
            assert vec.info_array("amplitude").dtype == complex


class Holder(gymnasium.Env[Any, Any]):
    """A bare env that has another one, of which it makes its own."""

    observation_space, action_space = spaces.Discrete(1000), spaces.Discrete(4)

    def __init__(self) -> None:
        self.env = TimeLimit(Telling(0), 3)
        self.level = "of the holder"

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        return self.env.reset(seed=seed)

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return self.env.step(action)

    def look(self) -> tuple[Any, Any, bool]:
        return self.level, self.env.unwrapped.level, hasattr(self.env.unwrapped, "new")


def test_an_env_of_the_bare_envs_own_is_none_of_its_wrappers(configuration: Configuration) -> None:
    with configuration.make_vec([lambda: TimeLimit(Holder(), 9)] * 3, info_attrs=("unwrapped.level", "level")) as vec:
        vec.reset()
        for info in (*vec.reset_infos, *vec.step([0] * 3)[3]):
            assert (info["unwrapped.level"], info["level"]) == ("of the holder",) * 2
        assert vec.get_attr("unwrapped.level") == vec.get_attr("level") == ["of the holder"] * 3
        assert not vec.has_attr("label")
        vec.set_attr("new", 1)
        vec.set_attr("level", 5)
        assert vec.env_method("look") == [(5, 0.5, False)] * 3
        assert vec.get_attr("new") == [1] * 3


class Alone:
    """What a VecEnv needs of an env, and no more: none of Gymnasium's classes."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, False, False, {}

    def close(self) -> None:
        pass


def test_a_missing_attribute_of_an_env_that_is_none_of_gymnasiums(configuration: Configuration) -> None:
    with configuration.make_vec([Alone] * 2, info_attrs=("charm",)) as vec:
        with pytest.raises(EnvError, match=r"'charm', which env 0 \(Alone\)"):
            vec.reset()
        with pytest.raises(EnvError, match="neither Alone nor its wrappers have an attribute 'charm'"):
            vec.get_attr("charm")


class Ambiguous(gymnasium.Env[Any, Any]):
    """The attribute `score` is 100 * episode + t; some give an info of that name, which is negative.

    It is a number until the "reset", until the first "step", or to the "end".
    """

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def __init__(self, gives: bool, number_until: str) -> None:
        self.gives, self.number_until = gives, number_until
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.episode, self.t = self.episode + 1, 0
        self.score: Any = 100 * self.episode
        if self.number_until == "reset":
            self.score = str(self.score)
        return 0, {"score": -1000, "other": 1} if self.gives else {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.score = 100 * self.episode + self.t
        if self.number_until != "end":
            self.score = str(self.score)
        return 0, 0.0, self.t == 2, False, {"score": -self.t, "other": 2} if self.gives else {}


@pytest.mark.parametrize("gives", [(True, True, True), (True, False, False)])
@pytest.mark.parametrize("number_until", ["reset", "step", "end"])
def test_a_name_that_infos_have_as_well(
    configuration: Configuration, gives: tuple[bool, ...], number_until: str
) -> None:
    """It is the attribute's, on every row and after every reset; the infos' other keys stay."""
    fns = [functools.partial(Ambiguous, given, number_until) for given in gives]
    after_reset: type = str if number_until == "reset" else int
    with configuration.make_vec(fns, info_attrs=("score",)) as vec:
        vec.reset()
        assert [info["score"] for info in vec.reset_infos] == [after_reset(100)] * 3
        vec.step([0] * 3)
        infos = vec.step([0] * 3)[3]
        last: Any = 102 if number_until == "end" else "102"
        assert [info["score"] for info in infos] == vec.info_array("score").tolist() == [last] * 3
        assert [info.get("other") for info in infos] == [2 if given else None for given in gives]
        assert [info["score"] for info in vec.reset_infos] == vec.get_attr("score") == [after_reset(200)] * 3
        assert [info.get("other") for info in vec.reset_infos] == [1 if given else None for given in gives]


class Keyworded(Telling):
    """Has an attribute whose name is a word of Python's, which code can name as text alone."""

    def _be(self, t: int) -> None:
        super()._be(t)
        setattr(self, "class", 10 * self.tag + t)


def test_names_that_are_words_of_python(configuration: Configuration) -> None:
    fns = [functools.partial(Keyworded, tag) for tag in range(3)]
    with configuration.make_vec(fns, info_attrs=("class", "t")) as vec:
        vec.reset()
        for t in (1, 2):
            assert [(info["class"], info["t"]) for info in vec.step([0] * 3)[3]] == [(t, t), (10 + t, t), (20 + t, t)]
            assert vec.info_array("class").tolist() == [t, 10 + t, 20 + t]
