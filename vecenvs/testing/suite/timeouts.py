"""Envs that take too long: the error names them, and nothing is lost."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vecenvs import env_calls
from vecenvs.errors import AlreadySteppingError, EnvError, StepTimeout
from vecenvs.testing.envs import CountingEnv, GatedEnv, StubbornEnv, counting_fns
from vecenvs.testing.suite.base import Conformance, Make
from vecenvs.testing.suite.deaths import PROMPT
from vecenvs.testing.suite.interrupts import NappingEnv
from vecenvs.testing.suite.restarts import open_after


def gated_fns(gate: Path, num_envs: int = 4, **kwargs: Any) -> list[Any]:
    """Return env functions, of which env 0 waits for the gate as `kwargs` say."""
    return [
        functools.partial(GatedEnv, 0, gate, **kwargs),
        *(functools.partial(CountingEnv, i) for i in range(1, num_envs)),
    ]


class PatienceConformance(Conformance):
    """Cases without a timeout, on any engine."""

    @PROMPT
    def test_polling(self, make: Make) -> None:
        """Polling with timeout=0 makes progress, also with envs in the caller's process."""
        vec = make(counting_fns(4))
        vec.reset()

        def poll(ask: Callable[..., Any]) -> Any:
            while True:
                try:
                    return ask(timeout=0)
                except StepTimeout:
                    time.sleep(0.001)

        vec.step_async([0] * 4)
        assert poll(vec.step_wait)[0][:, 2].tolist() == [1] * 4
        vec.send([0] * 4)
        found: list[int] = []
        while len(found) < 4:
            found += poll(vec.recv).indices.tolist()
        assert sorted(found) == [0, 1, 2, 3]
        vec.call_async(env_calls.get_attr, None, "tag")
        assert poll(vec.call_wait) == [0, 1, 2, 3]

    def test_a_learner_that_takes_its_time(self, make: Make) -> None:
        """`step_timeout` is for envs: time that the caller spends between sending and waiting does not count."""
        vec = make(counting_fns(4), step_timeout=1.0, on_failure="restart")
        vec.reset()
        vec.step_async([0] * 4)
        time.sleep(1.2)
        assert vec.step_wait()[0][:, 2].tolist() == [1] * 4
        vec.send([0] * 4)
        time.sleep(1.2)
        assert vec.recv(4).obs[:, 2].tolist() == [2] * 4
        assert vec.stats()["restarts"] == 0

    def test_standing_in_line(self, make: Make) -> None:
        """An env does not time out because its worker steps other envs first."""
        vec = make([functools.partial(NappingEnv, tag) for tag in range(7)], step_timeout=1.1, on_failure="restart")
        vec.reset()
        vec.set_attr("nap", 0.3)
        vec.send([0] * 7)
        left = 7
        while left:
            left -= len(vec.recv())
        assert vec.stats()["restarts"] == 0


def wait_for_file(_: Any, path: Path) -> str:
    while not path.exists():
        time.sleep(0.01)
    return "there"


class TimeoutConformance(Conformance):
    """StepTimeout."""

    def test_a_call_beside_a_row_that_is_due(self, make: Make, tmp_path: Path) -> None:
        """The envs of the call are named, and no others. It goes on, as does the step."""
        gate = tmp_path / "gate"
        vec = make(gated_fns(gate, at=1))
        vec.reset()
        vec.send([0], [0])
        vec.call_async(wait_for_file, [2], gate)
        with pytest.raises(StepTimeout) as caught:
            vec.call_wait(timeout=0.2)
        assert list(caught.value.indices) == [2]
        gate.touch()
        assert vec.call_wait() == ["there"]
        assert vec.recv().indices.tolist() == [0]

    def test_step_wait(self, make: Make, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        vec = make(gated_fns(gate, at=2))
        vec.reset()
        vec.step([0] * 4)
        vec.step_async([0] * 4)
        for timeout in (1.0, 0.1):  # the others have answered by the first one
            with pytest.raises(StepTimeout) as caught:
                vec.step_wait(timeout=timeout)
            assert 0 in caught.value.indices
            assert 3 not in caught.value.indices
            assert "0" in str(caught.value)
        with pytest.raises(AlreadySteppingError):
            vec.step_async([0] * 4)
        gate.touch()
        obs, rewards, dones, _ = vec.step_wait()
        assert obs[:, 2].tolist() == [2] * 4, "the rows of that very step"
        assert rewards.tolist() == [2.0, 2.125, 2.25, 2.375]
        assert not dones.any()
        assert vec.step([0] * 4)[0][:, 2].tolist() == [3] * 4

    def test_step_timeout_of_the_constructor(self, make: Make, tmp_path: Path) -> None:
        """A second wait has the full timeout again, or its own."""
        gate, other_gate = tmp_path / "gate", tmp_path / "other gate"
        fns = gated_fns(gate)
        fns[2] = functools.partial(GatedEnv, 2, other_gate, at=2)
        vec = make(fns, step_timeout=1.0)
        vec.reset()
        with pytest.raises(StepTimeout) as caught:
            vec.step([0] * 4)
        assert 0 in caught.value.indices
        timer = open_after(0.1, gate)
        assert vec.step_wait()[0][:, 2].tolist() == [1] * 4
        timer.join()
        vec.step_async([0] * 4)
        timer = open_after(1.3, other_gate)
        assert vec.step_wait(timeout=30.0)[0][:, 2].tolist() == [2] * 4
        timer.join()

    def test_an_env_that_has_just_begun_is_not_late(self, make: Make, tmp_path: Path) -> None:
        """The timeout of one env does not depend on another env that is late."""
        gate = tmp_path / "gate"
        fns = gated_fns(gate)
        fns[2] = functools.partial(GatedEnv, 2, gate)
        vec = make(fns, step_timeout=2.0)
        vec.reset()
        vec.send([0], [0])
        time.sleep(1.9)
        vec.send([0], [2])
        with pytest.raises(StepTimeout) as caught:
            vec.recv(2)
        assert list(caught.value.indices) == [0]
        gate.touch()
        assert sorted(vec.recv(2, timeout=30.0).indices.tolist()) == [0, 2]

    @pytest.mark.parametrize("limits", [{"step_timeout": 0.5}, {"step_timeout": 60.0, "reset_timeout": 0.5}])
    def test_a_reset_that_takes_too_long(self, make: Make, tmp_path: Path, limits: dict[str, float]) -> None:
        gate = tmp_path / "gate"
        vec = make(gated_fns(gate, where="reset"), **limits)
        with pytest.raises((StepTimeout, EnvError)) as caught:
            vec.reset()
        late = caught.value if isinstance(caught.value, StepTimeout) else caught.value.__cause__
        assert isinstance(late, StepTimeout)
        assert 0 in late.indices
        assert late.seconds == 0.5
        assert "reset within 0.5 s" in str(late)
        gate.touch()

    @pytest.mark.parametrize("where", ["reset", "step"])
    def test_resets_and_steps_have_limits_of_their_own(self, make: Make, tmp_path: Path, where: str) -> None:
        gate = tmp_path / "gate"
        limits = {"reset_timeout": 0.4} if where == "step" else {"step_timeout": 0.4, "reset_timeout": 30.0}
        vec = make(gated_fns(gate, where=where), **limits)
        timer = open_after(1.2, gate)
        assert vec.reset()[:, 2].tolist() == [0] * 4
        assert vec.step([0] * 4)[0][:, 2].tolist() == [1] * 4
        timer.join()

    @PROMPT
    def test_close_does_not_wait_for_them(self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`close` asks, terminates and kills, so it also ends a process that ignores SIGTERM."""
        monkeypatch.setattr("vecenvs.pool.pool_base.CLOSE_GRACE", 1.0)  # rather than 5 s
        fns = gated_fns(tmp_path / "never")
        fns[0] = functools.partial(StubbornEnv, 0, tmp_path / "never")
        fns[2] = functools.partial(GatedEnv, 2, tmp_path / "never")  # an env of another worker, where there are several
        vec = make(fns)
        vec.reset()
        vec.step_async([0] * 4)
        vec.close()
        assert vec.closed
        vec.close()

    @pytest.mark.parametrize("timeout", [-1.0, "soon"])
    def test_wrong_timeouts(self, make: Make, timeout: Any) -> None:
        vec = make([CountingEnv] * 2)
        vec.reset()
        vec.step_async([0, 0])
        with pytest.raises((ValueError, TypeError), match="timeout"):
            vec.step_wait(timeout=timeout)
        vec.step_wait()
        with pytest.raises((ValueError, TypeError), match="timeout"):
            make([CountingEnv] * 2, step_timeout=timeout)
