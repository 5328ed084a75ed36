"""After a worker's death: rows of the other workers in the same step, and the replacement."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from vecenvs import env_calls
from vecenvs.errors import AlreadySteppingError, VecEnvError, WorkerDied
from vecenvs.pool.pool_vec_env import PoolVecEnv
from vecenvs.testing.envs import CountingEnv, DyingEnv, GatedEnv, counting_fns
from vecenvs.testing.envs.ill import EXIT_CODE
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT, dying_fns
from vecenvs.testing.suite.interrupts import interrupted
from vecenvs.testing.suite.restarts import ACTIONS, gated_fns


class LeavingEnv(CountingEnv):
    """An env that ends its process by `env_method`, once a file exists."""

    def leave(self, gate: Path) -> None:
        (gate.parent / "entered").touch()
        while not gate.exists():
            time.sleep(0.005)
        os._exit(EXIT_CODE)


class UnhurriedEnv(GatedEnv):
    """A GatedEnv with slow resets."""

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        if self.episode:
            time.sleep(0.1)
        return super().reset(**given)


class AftermathConformance(Conformance):
    """No row of a step in which a worker died comes twice or at the wrong time."""

    @PROMPT
    @pytest.mark.parametrize("way", ["send", "step"])
    def test_rows_of_the_others(self, make: Make, way: str, tmp_path: Path) -> None:
        """`recv` returns them when they come. The death is reported once."""
        gate = tmp_path / "gate"
        fns = dying_fns()
        fns[2] = functools.partial(GatedEnv, 2, gate)
        vec = make(fns)
        vec.reset()
        with pytest.raises(WorkerDied):
            if way == "step":
                vec.step([0] * 4)
            else:
                vec.send([0] * 4, [3, 2, 1, 0])
                vec.recv(4)
        gate.touch()
        left = {2, 3}
        while left:
            left -= set(vec.recv(timeout=30).indices.tolist())
        vec.send([0], [2])
        with pytest.raises(AlreadySteppingError):
            vec.send([0], [2])
        assert vec.recv().obs.tolist() == [[2, 1, 2]]
        assert vec.get_attr("tag", [2]) == [2]
        assert vec.reset([2]).tolist() == [[2, 2, 0]]

    @PROMPT
    @pytest.mark.parametrize("come", [False, True])
    def test_a_reset_instead_of_such_a_row(self, make: Make, come: bool, tmp_path: Path) -> None:
        """The reset returns its own row, whether or not the row of the step has come by then."""
        gate = tmp_path / "gate"
        fns = dying_fns(at=2)
        fns[2] = functools.partial(UnhurriedEnv, 2, gate, at=2)
        vec = make(fns)
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(WorkerDied):
            vec.step([0] * 4)
        gate.touch()
        assert not come or vec.get_attr("t", [2]) == [2]
        assert vec.reset([2]).tolist() == [[2, 2, 0]]

    @PROMPT
    def test_beside_an_async_reset(self, make: Make, tmp_path: Path) -> None:
        """`recv` returns a row of the step, and later the first row of the env under reset."""
        gate = tmp_path / "gate"
        fns = dying_fns(at=2)
        fns[2] = functools.partial(GatedEnv, 2, gate, "reset", at=2, length=1)
        vec = make(fns, autoreset="async")
        vec.reset()
        vec.step([0] * 4)
        with pytest.raises(WorkerDied):
            vec.step([0] * 4)
        found: list[int] = []
        while 3 not in found:
            found += vec.recv(timeout=30).indices.tolist()
        assert 2 not in found
        gate.touch()
        while 2 not in found:
            batch = vec.recv(timeout=30)
            found += batch.indices.tolist()
        assert [2, 2, 0] in batch.obs.tolist()

    @PROMPT
    def test_a_replacement_is_seeded_anew(self, make: Make, tmp_path: Path) -> None:
        """Seeds after restarts derive from the seed given before, a different one each time: no episode is repeated."""
        once, twice = self.seeds_after_deaths(2, make, tmp_path / "lives")
        assert once is not None
        assert once not in (5, twice)
        assert self.seeds_after_deaths(1, make, tmp_path / "other lives") == [once]

    def seeds_after_deaths(self, deaths: int, make: Make, lives: Path) -> list[Any]:
        """Return the seed of env 0 after each of its deaths, if it was seeded with 5."""
        fns = [functools.partial(DyingEnv, 0, lives_file=lives, deaths=deaths), *counting_fns(4)[1:]]
        vec = make(fns, on_failure="restart")
        vec.reset(seed=5)
        seeds = []
        for _ in range(deaths):
            assert vec.step(ACTIONS)[3][0]["worker_restarted"]
            seeds += vec.get_attr("seeds", [0])[0]
        return seeds

    @PROMPT
    def test_one_that_never_starts(self, make: Make, tmp_path: Path) -> None:
        """The start fails after `start_timeout`."""
        vec = make(gated_fns(tmp_path), on_failure="restart", max_restarts=1, start_timeout=20.0)
        vec.reset()
        vec.step(ACTIONS)
        cast(PoolVecEnv, vec.unwrapped)._workers.start_timeout = 0.3  # noqa: SLF001  now that the others stand
        with pytest.raises(VecEnvError, match=r"did not start within 0\.3 s"):
            vec.step(ACTIONS)
        assert vec.get_attr("tag", [3]) == [3]

    @PROMPT
    def test_a_ctrl_c_before_it(self, make: Make, tmp_path: Path) -> None:
        """The reply of an interrupted call is lost with the worker. The next reply is from the new worker."""
        gate = tmp_path / "gate"
        vec = make([functools.partial(LeavingEnv, tag) for tag in range(4)], on_failure="restart")
        vec.reset()
        with interrupted(tmp_path):
            vec.env_method("leave", gate, indices=[0])
        gate.touch()
        with pytest.raises(WorkerDied, match="Another worker takes its place"):
            vec.get_attr("tag", [0])
        vec.call_async(env_calls.get_attr, [0], "tag")
        assert vec.call_wait(timeout=30) == [0]
