"""Attributes and methods of the envs, wherever they live."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from vecenvs import env_calls
from vecenvs.errors import AlreadySteppingError, EnvError, VecEnvError
from vecenvs.testing.envs import CountingEnv, FailingEnv, UnpicklableEnv, counting_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.wrappers import Monitor


def wrapped(tag: int, limit: int = 3) -> gymnasium.Env[Any, Any]:
    """Return a CountingEnv within a TimeLimit."""
    return TimeLimit(CountingEnv(tag), limit)


def monitored(tag: int) -> gymnasium.Env[Any, Any]:
    """Wrap an env as `gym.make` and make_vec_env do."""
    return Monitor(TimeLimit(OrderEnforcing(CountingEnv(tag, length=50)), 40))


class PassingOn(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper with the attributes of its env, like the wrappers of Gym."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.env, name)


def passed_on(tag: int) -> gymnasium.Env[Any, Any]:
    """Return a CountingEnv within two PassingOn wrappers."""
    return PassingOn(PassingOn(CountingEnv(tag, length=100)))


class Tasked(CountingEnv):
    """An env with a property that must be set before it can be read."""

    @property
    def task(self) -> str:
        found: str | None = vars(self).get("_task")
        if found is None:
            raise ValueError("set the task first")
        return found

    @task.setter
    def task(self, value: str) -> None:
        self._task = value.upper()


class Louder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that multiplies rewards by 100."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, 100 * float(reward), *rest


def patch_step(env: Any) -> None:
    """Replace the `step` of an env in mid-episode."""
    env.step = Louder(wrapped(env.get_wrapper_attr("tag"))).step
    env.step.__self__.reset()


WRAPPED = [functools.partial(wrapped, tag) for tag in range(4)]


class AttributeConformance(Conformance):
    """get_attr, set_attr, has_attr, env_method, env_is_wrapped."""

    def test_a_reset_by_env_method_counts(self, make: Make) -> None:
        """An env reset by `env_method` can be stepped, as with SB3. Its rows do not report that reset."""
        vec = make([functools.partial(FailingEnv, 0, "step", 2), CountingEnv, CountingEnv], autoreset="disabled")
        with pytest.raises(EnvError, match="has not been reset"):
            vec.step([0] * 3)
        vec.env_method("reset", seed=3, indices=[0, 2])
        with pytest.raises(EnvError, match="env 1 failed before") as caught:
            vec.step([0] * 3)
        assert [one.index for one in caught.value.errors] == [1]
        vec.env_method("reset", indices=1)
        with pytest.raises(EnvError, match="env 0 raised ToyError"):
            vec.step([0] * 3)
        vec.env_method("reset", indices=0)
        assert vec.step([0] * 3)[0][:, 2].tolist() == [1, 2, 3]

    def test_a_reset_by_env_method_is_not_the_autoreset(self, make: Make) -> None:
        vec = make(counting_fns(2, length=1), autoreset="next_step")
        vec.reset()
        vec.step([0, 0])
        vec.env_method("reset", indices=0)
        assert vec.step([0, 0])[0][:, 1:].tolist() == [[3, 0], [2, 0]]

    def test_a_step_that_a_call_exchanges(self, make: Make) -> None:
        """The new value counts from the next step on."""
        vec = make(WRAPPED)
        vec.reset()
        assert vec.step([0] * 4)[1].tolist() == [1 + tag / 8 for tag in range(4)]
        vec.call(patch_step, [1, 3])
        assert vec.step([0] * 4)[1].tolist() == [2.0, 100 * (1 + 1 / 8), 2 + 2 / 8, 100 * (1 + 3 / 8)]

    def test_get_attr(self, make: Make) -> None:
        vec = make(counting_fns(4))
        assert vec.get_attr("tag") == [0, 1, 2, 3]
        assert vec.get_attr("tag", [2]) == [2]
        assert vec.get_attr("tag", [3, 0]) == [3, 0]
        assert vec.get_attr("tag", np.array([False, True, True, False])) == [1, 2]
        assert vec.get_attr("tag", []) == []

    def test_set_attr(self, make: Make) -> None:
        vec = make(counting_fns(4))
        vec.set_attr("length", 50)
        vec.set_attr("length", 2, [1, 3])
        assert vec.get_attr("length") == [50, 2, 50, 2]
        vec.set_attr("brand_new", {"a": [1]}, [0])
        assert vec.get_attr("brand_new", [0]) == [{"a": [1]}]

    def test_has_attr(self, make: Make) -> None:
        vec = make(counting_fns(2))
        assert vec.has_attr("tag") is True
        assert vec.has_attr("nothing") is False
        vec.set_attr("only_here", 1, [1])
        assert vec.has_attr("only_here") is False, "not every env has it"

    def test_env_method(self, make: Make) -> None:
        vec = make(counting_fns(4))
        assert vec.env_method("add", 10) == [10, 11, 12, 13]
        assert vec.env_method("add", 10, times=2, indices=[3, 1]) == [23, 21]

    def test_wrappers_are_looked_through(self, make: Make) -> None:
        vec = make(WRAPPED)
        assert vec.get_attr("tag") == [0, 1, 2, 3]
        assert vec.env_method("add", 1) == [1, 2, 3, 4]
        vec.set_attr("length", 1, [2])
        vec.reset()
        assert vec.step([0] * 4)[2].tolist() == [False, False, True, False], "set where it is, inside"
        assert vec.has_attr("tag")

    def test_set_attr_reaches_the_env_through_wrappers_that_pass_on_all_names(self, make: Make) -> None:
        vec = make([functools.partial(passed_on, tag) for tag in range(2)])
        assert vec.get_attr("length") == [100, 100]
        vec.set_attr("length", 1, [1])
        vec.reset()
        assert vec.step([0] * 2)[2].tolist() == [False, True]
        assert vec.get_attr("length") == vec.get_attr("unwrapped.length") == [100, 1]

    def test_set_attr_of_a_property_that_cannot_be_read_yet(self, make: Make) -> None:
        vec = make([lambda: TimeLimit(Tasked(), 3)] * 2)
        with pytest.raises((ValueError, EnvError), match="set the task first"):
            vec.get_attr("task")
        vec.set_attr("task", "fly")
        assert vec.get_attr("task") == vec.get_attr("unwrapped.task") == ["FLY", "FLY"]

    def test_wrappers_keep_their_state(self, make: Make) -> None:
        vec = make([functools.partial(monitored, tag) for tag in range(3)])
        vec.reset()
        vec.step([0] * 3)
        vec.step([0] * 3)
        assert vec.get_attr("_elapsed_steps") == vec.get_attr("total_steps") == [2, 2, 2]
        vec.set_attr("_max_episode_steps", 3, [1])
        _, _, dones, infos = vec.step([0] * 3)
        assert dones.tolist() == [False, True, False]
        assert infos[1]["TimeLimit.truncated"] is True
        assert infos[1]["episode"]["l"] == 3
        assert vec.get_attr("_elapsed_steps") == [3, 0, 3]
        assert vec.get_attr("total_steps") == [3, 3, 3]
        assert vec.get_attr("episode_lengths") == [[], [3], []]

    def test_env_is_wrapped(self, make: Make) -> None:
        vec = make([*WRAPPED[:2], *counting_fns(2)])
        assert vec.env_is_wrapped(TimeLimit) == [True, True, False, False]
        assert vec.env_is_wrapped(TimeLimit, [3, 0]) == [False, True]
        assert vec.env_is_wrapped(gymnasium.wrappers.ClipReward) == [False] * 4

    def test_missing_attributes_name_the_env(self, make: Make) -> None:
        vec = make(counting_fns(3))
        with pytest.raises((AttributeError, EnvError), match="nothing"):
            vec.get_attr("nothing")
        with pytest.raises((AttributeError, EnvError), match="nothing"):
            vec.env_method("nothing")
        assert vec.get_attr("tag") == [0, 1, 2]

    def test_a_method_that_raises(self, make: Make) -> None:
        """The error names the env. No env needs a reset, and the methods of the other envs have run."""
        vec = make([functools.partial(FailingEnv, tag, "method" if tag == 1 else "never") for tag in range(3)])
        vec.reset()
        with pytest.raises(EnvError, match="env 1 failed in method") as caught:
            vec.env_method("add", 1)
        assert caught.value.index == 1
        assert vec.env_method("add", 1) == [1, 2, 3]
        vec.step([0] * 3)

    def test_values_that_do_not_pickle(self, make: Make) -> None:
        """They arrive where nothing is pickled. Elsewhere an error names the env, and the VecEnv stays usable."""
        vec = make([UnpicklableEnv if tag == 1 else functools.partial(CountingEnv, tag) for tag in range(3)])
        try:
            locks = vec.get_attr("lock", [1])
        except (VecEnvError, TypeError, AttributeError) as error:
            assert "1" in str(error) and "pickle" in str(error)  # noqa: PT018
        else:
            assert hasattr(locks[0], "acquire")
        try:
            vec.set_attr("lock", vec_lock())
        except (VecEnvError, TypeError, AttributeError) as error:
            assert "an argument of set_attr cannot be pickled" in str(error)
        lock = vec_lock()
        try:
            vec.call(lambda _: lock.locked(), [1])
        except (VecEnvError, TypeError, AttributeError) as error:
            assert "the function <lambda> cannot be pickled" in str(error)
        vec.reset()
        assert vec.step([0] * 3)[0][:, 2].tolist() == [1, 1, 1]

    def test_not_while_stepping(self, make: Make) -> None:
        """A call would run while envs are stepping."""
        vec = make(counting_fns(2))
        vec.reset()
        vec.step_async([0, 0])
        with pytest.raises(VecEnvError, match="step"):
            vec.get_attr("tag")
        assert vec.step_wait()[0][:, 2].tolist() == [1, 1]
        assert vec.get_attr("tag") == [0, 1]

    def test_nothing_else_during_a_call(self, make: Make) -> None:
        """This includes `recv`, which would take the replies of the call."""
        vec = make(counting_fns(2))
        vec.reset()
        vec.send([0], [1])
        vec.call_async(env_calls.get_attr, [0], "tag")
        for command in (vec.recv, vec.reset, lambda: vec.send([0], [0]), lambda: vec.get_attr("tag")):
            with pytest.raises(AlreadySteppingError):
                command()
        assert vec.call_wait() == [0]
        assert vec.recv().indices.tolist() == [1]

    def test_info_array_has_no_values_of_rows_that_are_due(self, make: Make) -> None:
        """Their worker may have written them already, or not yet."""
        vec = make(counting_fns(4), info_attrs=("t",))
        vec.reset()
        vec.step([0] * 4)
        vec.send([0, 0], [0, 3])
        with pytest.raises(AlreadySteppingError, match="info_array while"):
            vec.info_array("t")
        vec.recv(indices=[0, 3])
        assert vec.info_array("t").tolist() == [2, 1, 1, 2]
        vec.step_async([0] * 4)
        with pytest.raises(AlreadySteppingError, match="info_array while"):
            vec.info_array("t")
        vec.step_wait()
        assert vec.info_array("t").tolist() == [3, 2, 2, 3]


def vec_lock() -> Any:
    """Return an object that does not pickle."""
    import threading

    return threading.Lock()
