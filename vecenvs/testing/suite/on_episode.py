"""`on_episode`: a function of the caller's is called once for each episode that ends."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from vecenvs.testing.envs import CountingEnv, counting_fns
from vecenvs.testing.envs.batches import batched_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.episode_seeds import MODES


class OnEpisodeConformance(Conformance):
    """Each episode is told once, with the info of its last row."""

    @pytest.mark.parametrize("mode", MODES)
    def test_every_episode_is_told_once(self, make: Make, mode: str) -> None:
        told: list[dict[str, Any]] = []
        fns = [functools.partial(CountingEnv, tag, 1 + tag) for tag in range(4)]
        vec = make(fns, autoreset=mode, on_episode=told.append)
        vec.reset()
        expected: list[dict[str, Any]] = []
        for _ in range(12):
            _, _, dones, infos = vec.step([0] * 4)
            expected += [infos[slot] for slot in np.flatnonzero(dones)]
            assert [(info["tag"], info["t"]) for info in told] == [(info["tag"], info["t"]) for info in expected]
            if mode == "disabled" and dones.any():
                vec.reset(np.flatnonzero(dones))
        vec.reset()
        vec.send([0, 0], [0, 3])
        infos = vec.recv(2).infos
        assert told[len(expected) :] == [info for info in infos if info["tag"] == 0]
        assert all("terminal_observation" in info for info in told)

    def test_one_that_raises_loses_no_rows(self, make: Make) -> None:
        told: list[int] = []

        def tell(info: dict[str, Any]) -> None:
            told.append(info["tag"])
            if info["tag"] == 1:
                raise KeyError("of the caller")

        vec = make(counting_fns(3, length=1), on_episode=tell)
        vec.reset()
        vec.step_async([0] * 3)
        with pytest.raises(KeyError, match="of the caller"):
            vec.step_wait()
        assert vec.step_wait()[2].all()
        assert told == [0, 1, 2]
        vec.send([0] * 3)
        with pytest.raises(KeyError, match="of the caller"):
            vec.recv(3)
        assert len(vec.recv()) == 3
        assert sorted(told[3:]) == [0, 1, 2]  # the first ready first

    def test_batched_envs_and_wrong_arguments(self, make: Make) -> None:
        told: list[int] = []
        vec = make(batched_fns(counting_fns(4, length=2), (3, 0)), on_episode=lambda info: told.append(info["tag"]))
        vec.reset()
        for _ in range(4):
            vec.step([0] * 4)
        assert told == [0, 1, 2, 3] * 2
        with pytest.raises(TypeError, match="on_episode must be a function"):
            make(counting_fns(2), on_episode="print")
