"""`get_state` and `set_state`: envs go on bit for bit, in whichever VecEnv and slot."""

from __future__ import annotations

import copy
import pickle
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.batched import Batched
from vecenvs.errors import AlreadySteppingError, EnvError, StateError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import NESTED, CountingEnv, FailingEnv, SampledEnv
from vecenvs.testing.envs.batches import batched_fns
from vecenvs.testing.envs.states import HiddenStateEnv, OpaqueEnv, OwnStateEnv, StateBatch, StateEnv
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.vec_env import VecEnv

MODES = ["same_step", "next_step", "async", "disabled"]


def limited(make_env: Any = StateEnv, length: int = 9, **kwargs: Any) -> Any:
    """Return an env in a wrapper that has a state, too."""
    return TimeLimit(make_env(**kwargs), length)


def newer() -> Any:
    """Return an env of the same class, whose states have another form."""
    vars_of_class = {"state_version": 2, "__module__": StateEnv.__module__, "__qualname__": StateEnv.__qualname__}
    return limited(type("StateEnv", (StateEnv,), vars_of_class))


def narrower() -> Any:
    """Return an env of the same class with another action space."""
    env = limited()
    env.unwrapped.action_space = Discrete(3)
    return env


def named() -> Any:
    """Return an env of the same class that was registered under an id."""
    env = limited()
    env.unwrapped.spec = EnvSpec("Other-v3", "toys:StateEnv")
    return env


def sampled() -> SampledEnv:
    """Return an env that samples from its space, whose generator is a part of its state."""
    return SampledEnv(copy.deepcopy(NESTED), end=0.2)


def row_of(batch: Any, j: int) -> Any:
    """Return row j of a batch of observations."""
    if isinstance(batch, dict):
        return {key: row_of(part, j) for key, part in batch.items()}
    return tuple(row_of(part, j) for part in batch) if isinstance(batch, tuple) else batch[j]


def played(vec: VecEnv, count: int, script: list[list[int]]) -> list[list[Any]]:
    """Step all envs until each has some rows from its next transition on; those that repeat others do not count.

    Args:
        vec: the VecEnv.
        count: the number of rows.
        script: the actions of each env, in their order.

    Returns:
        The rows of each env.
    """
    n = vec.num_envs
    rows: list[list[Any]] = [[] for _ in range(n)]
    taken, ended = [0] * n, np.zeros(n, bool)
    while min(map(len, rows)) < count:
        if ended.any():
            slots = np.flatnonzero(ended)
            obs = vec.reset(slots)
            for j, slot in enumerate(slots.tolist()):
                rows[slot].append((row_of(obs, j), dict(vec.reset_infos[slot])))
        actions = [script[slot][taken[slot]] for slot in range(n)]
        obs, rewards, dones, infos = vec.step(actions)
        active = vec.active
        for slot in range(n):
            taken[slot] += int(active[slot])
            if active[slot] or (rows[slot] and not infos[slot].get("resetting")):
                rows[slot].append((row_of(obs, slot), rewards[slot], dones[slot], infos[slot]))
        ended = dones & (vec.autoreset == "disabled")
    if ended.any():
        vec.reset(np.flatnonzero(ended))
    return [each[:count] for each in rows]


def script_of(n: int, length: int = 400) -> list[list[int]]:
    """Return random actions for each of n envs."""
    return [[random.randrange(3) for _ in range(length)] for _ in range(n)]


class StateConformance(Conformance):
    """States of envs."""

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(
        "case", [limited, sampled, partial(limited, OwnStateEnv)], ids=["wrapped", "spaces", "own"]
    )
    def test_another_vec_env_goes_on(self, make: Make, mode: str, case: Any) -> None:
        """In this engine, in another one, and here once more after other episodes."""
        n, script = 4, script_of(4)
        vec = make([case] * n, autoreset=mode, episode_seeds=random.random() < 0.5)
        vec.reset(seed=random.randrange(2**30))
        played(vec, random.randrange(1, 40), script_of(n))
        states = pickle.loads(pickle.dumps(vec.get_state()))
        expected = played(vec, 30, script)
        seeded = states[0].stream is not None
        others = [make([case] * n, autoreset=mode, episode_seeds=seeded), vec]
        others.append(DummyVecEnv([case] * n, autoreset=mode, episode_seeds=seeded))
        for other in others:
            other.set_state(states)
            assert_same(played(other, 30, script), expected, f"{other}")
        others[-1].close()

    @pytest.mark.parametrize("mode", MODES)
    def test_the_rows_are_the_last_ones(self, make: Make, mode: str) -> None:
        n = 3
        vec = make([sampled] * n, autoreset=mode)
        obs = vec.reset(seed=5)
        infos = [dict(info) for info in vec.reset_infos]
        other = make([sampled] * n, autoreset=mode)
        assert_same(other.set_state(vec.get_state()), obs, "first rows")
        assert_same([dict(info) for info in other.reset_infos], infos, "reset infos")
        assert other.stats()["resets"] == n
        rows = vec.step([0] * n)
        if mode != "async" or not rows[2].any():
            assert_same(other.set_state(vec.get_state([1]), [2]), _one(rows[0], 1), "rows of a step")

    def test_any_slot_and_one_state_for_all(self, make: Make) -> None:
        n, script = 5, script_of(1) * 5
        vec = make([limited] * n)
        vec.reset(seed=3)
        played(vec, 7, script_of(n))
        states = vec.get_state()
        expected = played(vec, 20, script)
        vec.set_state(states[::-1])
        assert_same(played(vec, 20, script), expected[::-1], "the other way round")
        vec.set_state(states[3])
        assert_same(played(vec, 20, script), [expected[3]] * n, "one for all")
        vec.set_state(states[1:3], [4, 0])
        found = played(vec, 20, script)
        assert_same([found[4], found[0]], expected[1:3], "some")

    @pytest.mark.parametrize("mode", MODES)
    def test_an_episode_is_replayed(self, make: Make, mode: str) -> None:
        n, script = 4, script_of(4)
        fns = [partial(limited, OpaqueEnv)] * n
        vec = make(fns, autoreset=mode, episode_seeds=True)
        vec.set_options({"sum": 100})
        vec.reset(seed=random.randrange(2**30))
        played(vec, random.randrange(1, 40), script_of(n))
        states = vec.get_state()
        assert {state.way for state in states} == {"replay"}
        expected = played(vec, 30, script)
        other = make(fns, autoreset=mode, episode_seeds=True)
        other.set_state(states)
        again = other.get_state()
        for _ in range(2):
            assert_same(played(other, 30, script), expected, "replayed")
            other.set_state(again)

    def test_what_cannot_be_read_is_named(self, make: Make) -> None:
        vec = make([partial(limited, OpaqueEnv)] * 3)
        vec.reset()
        with pytest.raises(
            StateError, match=r"env 1: OpaqueEnv, attribute 'numbers': a builtins:list_iterator"
        ) as caught:
            vec.get_state([1])
        assert caught.value.index == 1
        vec.step([0, 0, 0])

    def test_a_call_in_an_episode_that_is_replayed(self, make: Make) -> None:
        vec = make([partial(limited, OpaqueEnv)] * 2, episode_seeds=True)
        vec.reset()
        vec.get_attr("sum")
        vec.set_attr("sum", 7, [1])
        assert vec.get_state([0])[0].way == "replay"
        with pytest.raises(StateError, match="env 1: .*in which set_attr was called"):
            vec.get_state()
        vec.reset()
        assert len(vec.get_state()) == 2

    def test_seeds_and_options_for_the_next_reset(self, make: Make) -> None:
        vec, other = (make([limited] * 3) for _ in range(2))
        vec.reset(seed=1)
        vec.seed(70)
        vec.set_options({"sum": 50})
        other.set_state(vec.get_state())
        script = script_of(3)
        assert_same(played(other, 20, script), played(vec, 20, script), "rows")
        other.set_state(vec.get_state())
        assert_same(other.reset(), vec.reset(), "a reset without a seed")

    @pytest.mark.parametrize("mode", ["next_step", "disabled"])
    def test_an_episode_that_has_ended(self, make: Make, mode: str) -> None:
        vec, other = (
            make([partial(CountingEnv, tag=slot, length=2) for slot in range(3)], autoreset=mode) for _ in range(2)
        )
        vec.reset()
        vec.step([0] * 3)
        obs, _, dones, _ = vec.step([0] * 3)
        assert dones.all()
        assert_same(other.set_state(vec.get_state()), obs, "terminal observations")
        if mode == "next_step":
            assert_same(other.step([1] * 3)[0], vec.step([1] * 3)[0], "first rows")
        else:
            with pytest.raises(EnvError, match="env 0 has ended its episode"):
                other.step([1] * 3)
            assert_same(other.reset(), vec.reset(), "first rows")

    def test_what_has_no_state(self, make: Make) -> None:
        vec = make([limited] * 3)
        with pytest.raises(StateError, match=r"env 0 has not been reset, so .*: reset\(\[0\]\) it first"):
            vec.get_state()
        vec.reset()
        vec.send([0], [2])
        with pytest.raises(AlreadySteppingError):
            vec.get_state()
        with pytest.raises(AlreadySteppingError, match=r"set_state while envs 2 have a command: recv first"):
            vec.set_state(vec.get_state([0]), [2])
        assert len(vec.get_state([0])) == 1
        vec.recv()

    def test_an_env_that_has_raised(self, make: Make) -> None:
        vec = make([partial(FailingEnv, tag=slot) for slot in range(2)])
        vec.reset()
        with pytest.raises(EnvError):
            vec.step([0, 0])
        with pytest.raises(StateError, match="env 0 failed before"):
            vec.get_state()

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (lambda make: make([StateEnv] * 2), "class is .*:StateEnv, in the state it is .*:StateEnv in .*TimeLimit"),
            (
                lambda make: make([limited] * 2, autoreset="disabled"),
                "autoreset is disabled, in the state it is same_step",
            ),
            (lambda make: make([limited] * 2, episode_seeds=True), "episode_seeds is True, in the state it is False"),
            (lambda make: make([newer] * 2), "state_version is 2, in the state it is None"),
            (lambda make: make([narrower] * 2), r"action space is Discrete\(3\), in the state it is Discrete\(4\)"),
            (lambda make: make([named] * 2), "id is Other-v3, in the state it is None"),
        ],
        ids=["class", "mode", "seeds", "version", "space", "id"],
    )
    def test_the_state_of_another_kind(self, make: Make, wrong: Any, message: str) -> None:
        vec = make([limited] * 2)
        vec.reset()
        other = wrong(make)
        with pytest.raises(StateError, match=f"env 0: it is the state of another kind of env: {message}"):
            other.set_state(vec.get_state())
        other.reset()
        other.step([0, 0])

    def test_states_that_are_none(self, make: Make) -> None:
        vec = make([limited] * 2)
        vec.reset()
        states = vec.get_state()
        with pytest.raises(ValueError, match="2 states for 1 envs"):
            vec.set_state(states, [0])
        given: Any = [states[0], 3]
        with pytest.raises(TypeError, match="not 3"):
            vec.set_state(given)
        vec.step([0, 0])

    def test_verify_finds_what_a_state_lacks(self, make: Make) -> None:
        vec = make(
            [partial(HiddenStateEnv, end=0.0)] * 2, on_error="renew"
        )  # so that functions are there on any engine
        vec.reset()
        vec.step([3, 3])
        assert len(vec.get_state([1], verify=True)) == 1
        with pytest.raises(
            StateError, match=r"env 1: the state of HiddenStateEnv that .* is not whole: .* differs in step 1"
        ):
            vec.step([1, 1])
        vec.reset([1])
        vec.step([1, 1])

    @pytest.mark.parametrize("case", [StateEnv, OwnStateEnv, OpaqueEnv])
    def test_verify_changes_nothing(self, make: Make, case: Any) -> None:
        rows = []
        script = script_of(3)
        for verify in (False, True):
            fns = [partial(limited, case, length=30, end=0.02)] * 3
            vec = make(fns, episode_seeds=True, on_error="renew")
            vec.reset(seed=11)
            played(vec, 5, [[1] * 400] * 3)
            vec.get_state(verify=verify)
            rows.append(played(vec, 50, script))
        assert_same(rows[1], rows[0], "rows")

    def test_a_batched_env_without_the_pair(self, make: Make) -> None:
        vec = make(batched_fns([CountingEnv] * 4, [2, 2]))
        vec.reset()
        with pytest.raises(StateError, match=r"env 0 is part of a SyncVectorEnv.*give it get_state\(indices\)"):
            vec.get_state()

    @pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
    def test_batched_envs_go_on(self, make: Make, mode: str) -> None:
        """In other batches, in this engine and in another one, all of them or some."""
        n, script, seeded = 4, script_of(4), mode == "disabled" and random.random() < 0.5

        def fns(sizes: list[int]) -> list[Any]:
            host = partial(StateBatch, autoreset_mode=AutoresetMode[mode.upper()])
            return [Batched(partial(host, [StateEnv] * size), size) for size in sizes]

        vec = make(fns([3, 1]), autoreset=mode, episode_seeds=seeded)
        vec.reset(seed=random.randrange(2**30))
        played(vec, random.randrange(1, 40), script_of(n))
        states = pickle.loads(pickle.dumps(vec.get_state()))
        with pytest.raises(StateError, match="no verify"):
            vec.get_state([1], verify=True)
        expected = played(vec, 30, script)
        others = [make(fns([2, 2]), autoreset=mode, episode_seeds=seeded), vec]
        others.append(DummyVecEnv(fns([4]), autoreset=mode, episode_seeds=seeded))
        for other in others:
            for some in random.choice([[[3, 0, 1, 2]], [[2, 0], [3, 1]]]):
                other.set_state([states[slot] for slot in some], some)
            assert_same(played(other, 30, script), expected, f"{other}")
        others[-1].close()


def _one(obs: Any, j: int) -> Any:
    if isinstance(obs, dict):
        return {key: _one(part, j) for key, part in obs.items()}
    return tuple(_one(part, j) for part in obs) if isinstance(obs, tuple) else obs[j : j + 1]
