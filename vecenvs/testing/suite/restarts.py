"""`on_failure="restart"`: a worker that died is replaced, and the other slots notice nothing."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from vecenvs.errors import WorkerDied
from vecenvs.testing.envs import counting_fns
from vecenvs.testing.oracle import PlainLoop
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT, dying_fns

ACTIONS = [0, 1, 2, 0]


class RestartConformance(Conformance):
    """A worker's slots return truncated rows and begin new episodes."""

    @PROMPT
    @pytest.mark.parametrize("how", ["exit", "kill"])
    def test_slots_begin_new_episodes(self, make: Make, how: str, tmp_path: Path) -> None:
        fns = dying_fns(at=3, how=how, lives_file=tmp_path / "lives")
        vec = make(fns, on_failure="restart")
        plain = PlainLoop(counting_fns(4))
        vec.reset(seed=0)
        plain.reset(seed=0)
        for _ in range(2):
            vec.step(ACTIONS)
            plain.step(ACTIONS)
        obs, rewards, dones, infos = vec.step(ACTIONS)
        rows = plain.step(ACTIONS)
        lost = [i for i, info in enumerate(infos) if info.get("worker_restarted")]
        assert 0 in lost
        assert 3 not in lost
        for i in range(4):
            assert vec.truncated[i] == dones[i] == (i in lost)
            assert not vec.terminated[i]
            if i in lost:
                assert obs[i].tolist() == [i, 1, 0], "first observation of a new env's first episode"
                assert np.isfinite(rewards[i])
                assert infos[i]["TimeLimit.truncated"] is True
                assert infos[i]["episode_start"] is True
                assert vec.reset_infos[i] == {"tag": i, "episode": 1, "episode_start": True}
            else:
                assert obs[i].tolist() == rows[i].obs.tolist()
                assert infos[i] == rows[i].info
        obs, *_ = vec.step(ACTIONS)
        assert obs[:, 2].tolist() == [1 if i in lost else 4 for i in range(4)]
        vec.reset(seed=5)
        assert [seeds[-1] for seeds in vec.get_attr("seeds")] == [5, 6, 7, 8]

    @PROMPT
    def test_raises_after_max_restarts(self, make: Make, tmp_path: Path) -> None:
        vec = make(dying_fns(lives_file=tmp_path / "lives", deaths=3), on_failure="restart", max_restarts=2)
        vec.reset()
        for _ in range(2):
            infos = vec.step(ACTIONS)[3]
            assert infos[0]["worker_restarted"] is True
        with pytest.raises(WorkerDied) as caught:
            vec.step(ACTIONS)
        assert 0 in caught.value.indices

    @PROMPT
    def test_a_death_in_a_reset(self, make: Make, tmp_path: Path) -> None:
        vec = make(dying_fns(where="reset", at=2, lives_file=tmp_path / "lives"), on_failure="restart")
        vec.reset()
        obs = vec.reset(seed=3)
        assert obs[:, 0].tolist() == [0, 1, 2, 3]
        assert obs[:, 2].tolist() == [0] * 4
        assert vec.step(ACTIONS)[0][:, 2].tolist() == [1] * 4

    @PROMPT
    def test_next_step_rows_end_where_they_were(self, make: Make, tmp_path: Path) -> None:
        """The truncated row comes first, the new episode's first observation after it."""
        fns = dying_fns(at=2, lives_file=tmp_path / "lives")
        vec = make(fns, on_failure="restart", autoreset="next_step")
        vec.reset()
        vec.step(ACTIONS)
        _, _, dones, infos = vec.step(ACTIONS)
        assert infos[0]["worker_restarted"] is True
        assert dones[0]
        assert "episode_start" not in infos[0]
        obs, rewards, dones, infos = vec.step(ACTIONS)
        assert obs[0].tolist() == [0, 1, 0]
        assert (rewards[0], bool(dones[0])) == (0.0, False)
        assert infos[0]["episode_start"] is True
        assert obs[3].tolist() == [3, 1, 3]

    def test_unknown_policy(self, make: Make) -> None:
        with pytest.raises(ValueError, match="on_failure.*restart"):
            make(counting_fns(2), on_failure="hope")

    @PROMPT
    def test_an_exception_is_no_death(self, make: Make) -> None:
        from vecenvs.errors import EnvError
        from vecenvs.testing.envs import FailingEnv

        vec = make([functools.partial(FailingEnv, tag, at=2 if tag else 99) for tag in range(4)], on_failure="restart")
        vec.reset()
        vec.step(ACTIONS)
        with pytest.raises(EnvError):
            vec.step(ACTIONS)
