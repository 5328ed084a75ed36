"""Infos and attributes of batched envs, which travel as columns, equal those of the same envs as single ones."""

from __future__ import annotations

import copy
import functools
import json
import pickle
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.batch.info_arrays import info_columns
from vecenvs.batched import Batched
from vecenvs.errors import EnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import NESTED, CountingEnv, counting_fns
from vecenvs.testing.envs.batches import KINDS, ArrayBatch, batched_fns
from vecenvs.testing.handed_out import ATTRIBUTES, MutableEnv, check_handed_out
from vecenvs.testing.info_checks import assert_columns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.batched import both_ways, lengthy_fns


class OwnKeysEnv(CountingEnv):
    """An env whose own infos have the keys that a VecEnv adds, and dicts without keys."""

    def reset(self, **given: Any) -> Any:
        obs, info = super().reset(**given)
        return obs, {**info, "nested": {"empty": {}}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *row, info = super().step(action)
        own: dict[Any, Any] = {
            3: 0.5,
            ("k", 1): [self.t],
            "terminal_observation": "own",
            "episode_start": "own",
            "TimeLimit.truncated": "own",
            "empty": {},
        }
        return *row, {**info, **own, "nested": {"empty": {}, "tag": self.tag}}  # type: ignore[return-value]


class PlainInfosBatch(ArrayBatch):
    """Its infos are those of the step on every row, also where it resets an env."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        *rows, _ = super().step(actions)
        return *rows, {"success": rows[2]}


class LooseInfosBatch(ArrayBatch):
    """Its infos have lists of unequal items, a dict without masks which some envs have, and values for the batch."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        *rows, _ = super().step(actions)
        some = np.arange(self.num_envs) % 2 == 1
        return *rows, {
            "lists": [[0] * k for k in range(self.num_envs)],
            "some": {"k": np.arange(3)},
            "_some": some,
            "log": {"mean": 0.5, "n": np.int64(3)},
            "steps": 7,
        }


class KeptInfosBatch(ArrayBatch):
    """It writes into the arrays and lists of its infos at each step."""

    def __init__(self, env_fns: Sequence[Any]) -> None:
        super().__init__(env_fns)
        n = self.num_envs
        self.infos = {"score": np.zeros(n), "goal": np.zeros((n, 2)), "path": [[] for _ in range(n)],
                      "some": np.zeros(n), "_some": np.arange(n) % 2 == 1, "deep": {"k": np.zeros(n)}}  # fmt: skip

    def step(self, actions: Any) -> tuple[Any, ...]:
        *rows, _ = super().step(actions)
        for values in (self.infos["score"], self.infos["goal"], self.infos["some"], self.infos["deep"]["k"]):
            values += 1
        for path in self.infos["path"]:
            path.append(len(path))
        return *rows, self.infos


class WrongMaskBatch(ArrayBatch):
    """Its infos have a mask of another length than the batch."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        *rows, _ = super().step(actions)
        return *rows, {"score": np.arange(self.num_envs), "_score": np.ones(self.num_envs + 1, bool)}


class ListInfosBatch:
    """A batched env as SuperSuit's: its infos are a list of dicts, which it keeps and fills anew, as in SB3.

    The info that ends an episode has the last observation in "terminal_observation"; every info may have that key.
    """

    def __init__(self, env_fns: Sequence[Any], mode: AutoresetMode | None = None) -> None:
        self._envs = [make() for make in env_fns]
        self.num_envs = len(self._envs)
        self.observation_space, self.action_space = self._envs[0].observation_space, self._envs[0].action_space
        self.metadata: dict[str, Any] = {} if mode is None else {"autoreset_mode": mode}
        self._infos: list[dict[str, Any]] = [{"log": []} for _ in self._envs]

    def reset(self, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, list[dict[str, Any]]]:
        self._fill([{"begun": True} for _ in self._envs])
        return np.stack([env.reset()[0] for env in self._envs]), self._infos

    def step(self, actions: Any) -> tuple[Any, ...]:
        rows = [env.step(action) for env, action in zip(self._envs, actions, strict=True)]
        obs, over = [row[0] for row in rows], [row[2] or row[3] for row in rows]
        self._fill([row[4] for row in rows])
        for k, env in enumerate(self._envs):
            if over[k] and not self.metadata:
                self._infos[k]["terminal_observation"] = obs[k]
                obs[k] = env.reset()[0]
            elif over[k] or k == 0:
                self._infos[k]["terminal_observation"] = "own"
        return np.stack(obs), *(np.array([row[k] for row in rows]) for k in (1, 2, 3)), self._infos

    def _fill(self, infos: list[dict[str, Any]]) -> None:
        for kept, info in zip(self._infos, infos, strict=True):
            kept["log"].append(len(kept["log"]))
            log = kept["log"]
            kept.clear()
            kept.update(info, log=log)


class ShiftingEnv(CountingEnv):
    """An env whose attributes change their types and shapes in an episode, alike in all envs or in each by itself."""

    @property
    def grows(self) -> Any:
        return np.arange(self.t % 3 + 1)

    @property
    def apart(self) -> Any:
        return np.zeros(2 if self.t < 2 or self.tag % 2 else 3)

    @property
    def becomes(self) -> Any:
        return (1, 0.5, "a", None, 2**70, True)[self.t] if self.tag else 0

    @property
    def narrow(self) -> Any:
        return np.float64(0.1) if self.t == 2 else np.float32(self.t / 3)


class BatchedAttributeConformance(Conformance):
    """Infos, `info_attrs` and attributes of batched envs."""

    def test_infos_are_made_when_looked_at(self, make: Make) -> None:
        vec = make(batched_fns(counting_fns(4), (2, 2)))
        vec.reset(seed=0)
        *_, infos = vec.step([0] * 4)
        infos[1]["mine"] = 7
        assert infos[1] == {"tag": 1, "t": 1, "mine": 7, "TimeLimit.truncated": False}
        assert infos[-1]["tag"] == 3
        assert len(infos) == 4
        assert [info["tag"] for info in infos[1:3]] == [1, 2]
        with pytest.raises(IndexError):
            infos[4]

    @pytest.mark.parametrize("kind", ["same_step", "next_step"])
    def test_nothing_that_was_handed_out_is_shared(self, make: Make, kind: str) -> None:
        """Infos of which dicts are made late are those of their step, too."""
        for space in (Box(-1.0, 1.0, (3,), np.float32), NESTED):
            fns = batched_fns([functools.partial(MutableEnv, space)] * 5, (2, 0, 2), kind)
            common = {"autoreset": kind, "info_attrs": ATTRIBUTES}
            check_handed_out(lambda: make(fns, **common), [[0, 1], [3, 4, 2]])  # noqa: B023

    def test_infos_are_a_sequence_and_copies_of_them_a_list(self, make: Make) -> None:
        """They are no list, and what takes them for one gets one or an error: no row without its info."""
        vec = make(batched_fns(counting_fns(4), (2, 2)))
        vec.reset(seed=0)
        *_, infos = vec.step([0] * 4)
        told = [{"tag": tag, "t": 1, "TimeLimit.truncated": False} for tag in range(4)]
        begun = [{"tag": tag, "episode": 1, "episode_start": True} for tag in range(4)]
        vec.send([0] * 4)
        for given, expected in (
            (infos, told),
            (vec.reset_infos, begun),
            (vec.recv(indices=range(4)).infos, [{**t, "t": 2} for t in told]),
        ):
            assert isinstance(given, Sequence)
            assert not isinstance(given, list)
            with pytest.raises(TypeError):
                json.dumps(given)
            for copied in (pickle.loads(pickle.dumps(given)), copy.deepcopy(given), copy.copy(given)):
                assert type(copied) is list
                assert copied == given == expected
            assert copy.copy(given)[1] is given[1]
            assert given[1] != copy.deepcopy(given)[0]

    @pytest.mark.parametrize("kind", ["same_step", "next_step", "by_masks", "arrays", "vec_env"])
    def test_infos_of_an_envs_own(self, make: Make, kind: str) -> None:
        """An env's own keys are those of a single env: ours win on the rows which have them, no dict is lost."""
        both = both_ways(make, [functools.partial(OwnKeysEnv, tag, 3 + tag % 3) for tag in range(6)], (4, 0, 1), kind)
        both.reset()
        both.run(9)

    @pytest.mark.parametrize("kind", ["same_step", "next_step", "by_masks", "vec_env"])
    def test_infos_as_columns(self, make: Make, kind: str) -> None:
        fns = [functools.partial(OwnKeysEnv, tag, 3 + tag % 3) for tag in range(6)]
        vec = make(batched_fns(fns, (4, 0, 1), kind), autoreset=KINDS[kind][0])
        vec.reset()
        for _ in range(9):
            infos = vec.step([0] * 6)[3]
            infos[1]["mine"] = 5
            assert_columns(infos)
            assert info_columns(infos)["mine"].mask.tolist() == [False, True, False, False, False, False]

    def test_infos_of_an_env_without_last_infos(self, make: Make) -> None:
        vec = make([Batched(functools.partial(PlainInfosBatch, lengthy_fns(3)), 3)])
        vec.reset()
        for _ in range(3):
            dones, infos = vec.step([0] * 3)[2:]
        assert_columns(infos)
        assert [info["success"] for info in infos] == dones.tolist() == [True, False, False]
        assert infos[0]["episode_start"]
        assert "terminal_observation" not in infos[0]
        assert vec.reset_infos[0] == {"episode_start": True}

    def test_infos_that_are_a_list_of_dicts(self, make: Make) -> None:
        fns = [functools.partial(CountingEnv, tag, 2 + tag) for tag in range(3)]
        vec = make([Batched(functools.partial(ListInfosBatch, fns), 3)] * 2)
        vec.reset()
        assert [info["begun"] for info in vec.reset_infos] == [True] * 6
        seen = [vec.step([0] * 6)[2:] for _ in range(7)]  # looked at when the envs have filled theirs anew
        for slot in range(6):
            episode, t, tag = 1, 0, slot % 3
            for step, (dones, infos) in enumerate(seen, 1):
                t += 1
                expected: dict[str, Any] = {"tag": tag, "t": t, "log": [*range(step + 1)], "TimeLimit.truncated": False}
                assert dones[slot] == (t == 2 + tag)
                if dones[slot]:
                    expected |= {"terminal_observation": np.array([tag, episode, t]), "episode_start": True}
                    episode, t = episode + 1, 0
                elif tag == 0:
                    expected["terminal_observation"] = "own"
                assert_same(infos[slot], expected)

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
    def test_infos_that_are_a_list_in_other_modes(self, make: Make, mode: AutoresetMode) -> None:
        """The last observation is that of the row; the env's own "terminal_observation" there is another one."""
        fns = [functools.partial(CountingEnv, tag, 2) for tag in range(3)]
        name = "next_step" if mode is AutoresetMode.NEXT_STEP else "disabled"
        vec = make([Batched(functools.partial(ListInfosBatch, fns, mode), 3)] * 2, autoreset=name)
        vec.reset()
        vec.step([0] * 6)
        obs, *_, infos = vec.step([0] * 6)
        for slot in range(6):
            expected = {"tag": slot % 3, "t": 2, "log": [0, 1, 2], "TimeLimit.truncated": False}
            assert_same(infos[slot], {**expected, "terminal_observation": obs[slot]})

    @pytest.mark.parametrize("sizes", [(4,), (2, 2)], ids=str)
    def test_infos_that_a_batched_env_writes_into(self, make: Make, sizes: tuple[int, ...]) -> None:
        """Dicts that are made late have what their step had."""
        fns = counting_fns(4, length=99)
        vec = make([Batched(functools.partial(KeptInfosBatch, fns[:size]), size) for size in sizes])
        vec.reset()
        seen = [vec.step([0] * 4)[3] for _ in range(5)]
        for step, infos in enumerate(seen, 1):
            for slot in range(4):
                expected = {"score": float(step), "goal": np.full(2, float(step)), "path": [*range(step)]}
                expected |= {"deep": {"k": float(step)}, "TimeLimit.truncated": False}
                assert_same(infos[slot], expected | ({"some": float(step)} if slot % 2 else {}))

    def test_infos_of_lists_and_of_dicts_without_masks(self, make: Make) -> None:
        vec = make([Batched(functools.partial(LooseInfosBatch, counting_fns(3)), 3)])
        vec.reset()
        infos = vec.step([0] * 3)[3]
        assert_columns(infos)
        assert [info["lists"] for info in infos] == [[], [0], [0, 0]]
        assert [info.get("some") for info in infos] == [None, {"k": 1}, None]
        assert not any({"log", "steps"} & info.keys() for info in infos)

    def test_a_mask_of_the_wrong_length(self, make: Make) -> None:
        vec = make([Batched(functools.partial(WrongMaskBatch, counting_fns(3)), 3)])
        vec.reset()
        with pytest.raises(
            EnvError, match=r"infos\['_score'\] has shape \(4,\) and dtype bool: as the mask of .* 3 envs"
        ):
            vec.step([0] * 3)

    def test_functions_on_single_envs(self, make: Make) -> None:
        """They run where there are single envs; the names of others can be asked."""
        for kind in ("same_step", "vec_env"):
            vec = make(batched_fns(counting_fns(4), (3, 0), kind))
            assert vec.call(lambda env, more: env.tag + more, [3, 1], 5) == [8, 6]
        vec = make(batched_fns(counting_fns(4), (3, 0), "arrays"))
        with pytest.raises(EnvError, match="there is no env 1 on which to run"):
            vec.call(lambda env: env.tag, [1, 3])
        assert vec.has_attr("num_envs") is False  # the single env has none
        assert vec.get_attr("num_envs", [1]) == [3]

    def test_attributes_and_methods(self, make: Make) -> None:
        vec = make(batched_fns(counting_fns(5), (3, 0, 0)))
        vec.reset()
        assert vec.get_attr("tag", [4, 1]) == [4, 1]
        vec.set_attr("tag", 40, [1])
        assert vec.env_method("add", 2, times=3, indices=[1, 3]) == [46, 9]
        assert vec.has_attr("tag")
        assert not vec.has_attr("nothing")
        assert vec.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [False] * 5

    def test_attributes_of_the_whole_batch(self, make: Make) -> None:
        vec = make(batched_fns(counting_fns(5), (3, 2), "arrays"))
        vec.reset()
        assert vec.get_attr("speeds") == [0.0, 0.5, 1.0, 0.0, 0.5]
        vec.set_attr("speeds", 7.0, [1, 4])
        assert vec.get_attr("speeds") == [0.0, 7.0, 1.0, 0.0, 7.0]
        with pytest.raises(EnvError, match="steps all its envs at once"):
            vec.env_method("reset", indices=[0])

    def test_info_attrs(self, make: Make) -> None:
        vec = make(batched_fns(lengthy_fns(4), (3, 0), "by_masks"), info_attrs=["t", "episode"])
        vec.reset()
        for step in range(1, 8):
            _, _, dones, infos = vec.step([0] * 4)
            lengths = [3, 4, 5, 6]
            assert [info["t"] for info in infos] == [(step - 1) % length + 1 for length in lengths]
            assert_same(vec.info_array("episode"), np.array([(step - 1) // length + 1 for length in lengths]))
            for slot in np.flatnonzero(dones):
                assert vec.reset_infos[slot]["t"] == 0
                assert vec.reset_infos[slot]["episode"] == step // lengths[slot] + 1

    @pytest.mark.parametrize("kind", ["next_step", "by_masks"])
    @pytest.mark.parametrize("names", [("grows", "apart", "becomes", "narrow", "t"), ("narrow",)], ids=str)
    def test_info_attrs_that_change_their_types(self, make: Make, kind: str, names: tuple[str, ...]) -> None:
        """What a column does not hold arrives all the same, as with single envs."""
        fns = [functools.partial(ShiftingEnv, tag, 4 + tag % 2) for tag in range(5)]
        common: Any = {"autoreset": KINDS[kind][0], "info_attrs": names}
        vec, plain = make(batched_fns(fns, (2, 0, 2), kind), **common), DummyVecEnv(fns, **common)
        with plain:
            vec.reset()
            plain.reset()
            for step in range(12):
                for each in (vec, plain):
                    if step % 4 == 3:
                        each.send([0] * 5)
                infos, expected = (
                    each.recv(indices=range(5)).infos if step % 4 == 3 else each.step([0] * 5)[3]
                    for each in (vec, plain)
                )
                assert_same(list(infos), list(expected))
                assert_same(list(vec.reset_infos), list(plain.reset_infos))
                for name in names:
                    assert_same(vec.info_array(name), plain.info_array(name))
