"""Arguments of the wrong type: the error names them before anything is sent, and nothing is lost."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from vecenvs.errors import VecEnvError
from vecenvs.testing.envs import counting_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.vec_env import VecEnv

SEEDS = ["x", 1.5, True, [1.5, 2, 3, 4], ["a", 1, 2, 3], {1: 2}, np.array(5), b"1234"]
OPTIONS = ["x", 5, [{}, 5, {}, {}], ("a", "b", "c", "d"), {1, 2}]
INDICES = ["a", 1.5, {0}, {0: 1}, object(), [None], [[0], [1, 2]], slice(0, 2), b"1", np.zeros((2, 0))]
NAMES = [5, None, "", ["tag"]]
TIMEOUTS = ["2", [1], 1j, True]
NUMBERS = ["2", 1.5, None, [1], True]


def refuses(call: Any, *args: Any, match: str, **kwargs: Any) -> None:
    """Check that a call is refused with an error of this package."""
    with pytest.raises(TypeError, match=match) as caught:
        call(*args, **kwargs)
    assert re.search("must be|cannot", str(caught.value))


class ArgumentConformance(Conformance):
    """TypeErrors that name the argument and what it must be."""

    def test_of_resets(self, make: Make) -> None:
        vec: Any = make(counting_fns(4))
        vec.reset()
        for seed in SEEDS:
            for call in (vec.reset, vec.reset_async, vec.seed):
                refuses(call, seed=seed, match="seed must be an int")
        for options in OPTIONS:
            for call in (vec.reset, vec.reset_async, vec.set_options):
                refuses(call, options=options, match=r"options(\[\d\])? must be a mapping")
        for indices in INDICES:
            for call in (vec.reset, vec.reset_async):
                refuses(call, indices, match="indices must be ints or a bool mask of length 4")
            refuses(vec.send, [0], indices, match="indices must be ints or a bool mask of length 4")
        nothing_was_sent(vec)

    def test_of_waits(self, make: Make) -> None:
        vec: Any = make(counting_fns(4))
        vec.reset()
        vec.send([0] * 4)
        for number in NUMBERS:
            refuses(vec.recv, number, match="min_envs must be an int, not ")
            if number is not None:
                refuses(vec.recv, 1, number, match="max_envs must be an int, not ")
        for timeout in TIMEOUTS:
            refuses(vec.recv, timeout=timeout, match="timeout must be seconds or None, not ")
        assert len(vec.recv(np.int64(4), np.int64(4))) == 4
        vec.step_async([0] * 4)
        for timeout in TIMEOUTS:
            refuses(vec.step_wait, timeout, match="timeout must be seconds or None, not ")
        assert vec.step_wait()[0][:, 2].tolist() == [2] * 4
        vec.call_async(tag_of, None)
        for timeout in TIMEOUTS:
            refuses(vec.call_wait, timeout, match="timeout must be seconds or None, not ")
        assert vec.call_wait() == [0, 1, 2, 3]
        nothing_was_sent(vec)

    def test_of_questions(self, make: Make) -> None:
        vec: Any = make(counting_fns(4))
        vec.reset()
        for name in NAMES:
            for call in (vec.get_attr, vec.has_attr, vec.env_method, vec.info_array):
                refuses(call, name, match="name must be the name of an attribute")
            refuses(vec.set_attr, name, 1, match="name must be the name of an attribute")
        for function in (5, None, "get_attr"):
            for call in (vec.call, vec.call_async):
                refuses(call, function, None, match="function must be a function of an env")
        refuses(vec.env_is_wrapped, "Monitor", match="wrapper_class must be a class")
        nothing_was_sent(vec)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"info_attrs": 5}, "info_attrs must be a tuple of attribute names, not 5"),
            ({"info_attrs": ["tag", 5]}, "info_attrs must be a tuple of attribute names, not .'tag', 5."),
            ({"step_timeout": 1j}, "step_timeout must be seconds or None, not 1j"),
            ({"max_restarts": "3"}, "max_restarts must be an int, not '3'"),
            ({"info_attrs": np.array("tag")}, "info_attrs must be a tuple of attribute names, not "),
            ({"copy": np.arange(3)}, "copy must be True or False, not "),
        ],
    )
    def test_of_constructors(self, make: Make, wrong: dict[str, Any], message: str) -> None:
        refuses(make, counting_fns(4), match=message, **wrong)

    @pytest.mark.parametrize("name", ["autoreset", "on_failure", "observation_mode"])
    @pytest.mark.parametrize("wrong", ["no", 5, np.arange(3), np.array([]), np.array(["same", "x"])], ids=repr)
    def test_of_choices(self, make: Make, name: str, wrong: Any) -> None:
        with pytest.raises(ValueError, match=rf"^{name} .* is none of [\w, ]+$"):
            make(counting_fns(4), **{name: wrong})

    def test_numbers_too_large(self, make: Make) -> None:
        with pytest.raises(ValueError, match="step_timeout is too large a number"):
            make(counting_fns(4), step_timeout=10**400)

    def test_a_callable_without_a_name(self, make: Make) -> None:
        """An exception of the argument is reported as the env's error, with its class."""
        vec: Any = make(counting_fns(4))
        vec.reset()
        with pytest.raises(VecEnvError, match="ValueError in Nameless"):
            vec.call(Nameless(), None)
        nothing_was_sent(vec)


class Nameless:
    """A callable that raises."""

    def __call__(self, env: Any) -> None:
        raise ValueError("no")


def tag_of(env: Any) -> Any:
    return env.tag


def nothing_was_sent(vec: VecEnv) -> None:
    assert vec.get_attr("episode") == [1] * 4
    vec.reset()
    assert vec.step([0] * 4)[0][:, 2].tolist() == [1] * 4
