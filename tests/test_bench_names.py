"""The benchmark's workloads and backends, by name."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from vecenvs.backends import BACKENDS
from vecenvs.bench import candidates, workloads
from vecenvs.bench.monitored import from_make_vec_env, monitored
from vecenvs.errors import BackendUnavailable
from vecenvs.testing.envs import CountingEnv
from vecenvs.wrappers.monitor import Monitor


def counting(tag: int) -> CountingEnv:
    return CountingEnv(tag)


class TestWorkloads:
    def test_a_gym_env_is_bare(self) -> None:
        env = workloads.workload("CartPole-v1")()
        assert "PassiveEnvChecker" not in str(env)
        assert not isinstance(env, Monitor)

    def test_env_kwargs_reach_the_env(self) -> None:
        env = workloads.workload("CartPole-v1", {"sutton_barto_reward": True})()
        env.reset(seed=0)
        assert env.step(0)[1] == 0.0

    @pytest.mark.parametrize("name", ["spin:20us", "rows:8x8x2", "nested:0us", "sleep:1ms", "ALE/Pong-v5"])
    def test_keeps_gymnasiums_contract(self, name: str) -> None:
        env = pickle.loads(pickle.dumps(workloads.workload(name)))()
        obs, _ = env.reset(seed=3)
        assert env.observation_space.contains(obs)
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(obs)
        assert not terminated
        assert not truncated
        env.close()

    def test_rows_have_the_shape_asked_for(self) -> None:
        space = workloads.workload("rows:84x84x4")().observation_space
        assert (space.shape, space.dtype) == ((84, 84, 4), np.uint8)

    def test_episodes_end_after_the_steps_in_the_name(self) -> None:
        env = workloads.workload("spin:0us,episode=3")()
        for _ in range(2):
            env.reset()
            assert [env.step(0)[2] for _ in range(3)] == [False, False, True]

    def test_work_is_a_number_of_iterations_in_proportion_to_the_time(self) -> None:
        once, ten = (workloads.workload(f"spin:{us}us") for us in (10, 100))
        assert isinstance(once, workloads.Synthetic)
        assert isinstance(ten, workloads.Synthetic)
        assert once.iterations > 0
        assert ten.iterations == pytest.approx(10 * once.iterations, abs=6)  # both are rounded

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("spin:100", "no time"),
            ("spin:", "no time"),
            ("rows:84x", "shape"),
            ("rows:0x4", "shape"),
            ("spin:1us,episode=0", "episode=STEPS"),
            ("spin:1us,steps=3", "episode=STEPS"),
            ("CartPol-v1", "CartPol-v1"),
            ("CartPole-v77", "CartPole-v77"),
            ("no_such_module:Env-v0", "no_such_module"),
            (f"{__name__}:no_such_env", "has no 'no_such_env'"),
            ("os:name", "not a class or function"),
        ],
    )
    def test_errors_of_bad_names_are_one_line(self, name: str, says: str) -> None:
        with pytest.raises(workloads.BadRequest, match=says) as caught:
            workloads.workload(name)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["CountingEnv", "counting"])
    def test_a_class_or_function(self, name: str) -> None:
        env = pickle.loads(pickle.dumps(workloads.workload(f"{__name__}:{name}", {"tag": 7})))()
        assert (type(env), env.tag) == (CountingEnv, 7)

    def test_synthetic_envs_take_no_kwargs(self) -> None:
        with pytest.raises(workloads.BadRequest, match="no env kwargs"):
            workloads.workload("spin:1us", {"a": 1})


class TestBackendSyntax:
    @pytest.mark.parametrize(
        ("text", "options"),
        [
            ("subproc", {}),
            ("subproc:caller", {"caller_steps": True}),
            ("subproc:w=3,spawn", {"num_workers": 3, "start_method": "spawn"}),
            ("subproc:num_workers=1,caller_steps=true", {"num_workers": 1, "caller_steps": True}),
            ("subproc:autoreset=next_step,step_timeout=2.5", {"autoreset": "next_step", "step_timeout": 2.5}),
            ("dummy:step_timeout=none,copy=false", {"step_timeout": None, "copy": False}),
            ("subproc:w=none,step_timeout=2", {"num_workers": None, "step_timeout": 2}),
            ("dummy:info_attrs=['lives']", {"info_attrs": ["lives"]}),
        ],
    )
    def test_reads(self, text: str, options: dict[str, Any]) -> None:
        backend = candidates.parse(text)
        assert (backend.name, backend.backend, backend.options) == (text, text.partition(":")[0], options)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("subprocess", "unknown backend 'subprocess' .did you mean 'subproc'.*: there are dummy, subproc"),
            ("subproc+caller", "options follow a colon"),
            ("subproc:fast", "'fast' is neither"),
            ("dummy:w=2", "dummy has no option 'num_workers'; it has .*autoreset"),
        ],
    )
    def test_refuses(self, text: str, says: str) -> None:
        with pytest.raises(workloads.BadRequest, match=says):
            candidates.parse(text)

    def test_by_default_takes_neither_mpi_nor_ray_and_those_with_caller_steps_twice(self) -> None:
        chosen, unavailable = candidates.choose(None)
        assert [backend.name for backend in chosen] == ["dummy", "subproc", "subproc:caller"]
        assert not unavailable

    def test_joins_a_ray_only_if_asked(self) -> None:
        addresses = [candidates.parse(text).options["ray_init_kwargs"]["address"] for text in ("ray", "ray:cluster")]
        assert addresses == ["local", "auto"]

    def test_lists_what_is_not_installed_with_its_remedy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        backend_class = candidates.backend_class

        def without_ray(name: str) -> Any:
            if name == "ray":
                raise BackendUnavailable("no ray: pip install ray")
            return backend_class(name)

        monkeypatch.setattr(candidates, "backend_class", without_ray)
        monkeypatch.setattr(candidates, "BACKENDS", {**BACKENDS, "ray": "nowhere:Ray"})
        chosen, unavailable = candidates.choose(["dummy", "ray"])
        assert [backend.name for backend in chosen] == ["dummy"]
        assert list(unavailable) == ["ray"]


class TestCandidates:
    @pytest.mark.parametrize("text", ["dummy", "subproc:w=2,fork", "subproc:caller,fork"])
    @pytest.mark.parametrize("env", ["CartPole-v1", "nested:0us"])
    def test_every_step_counts_for_all_envs(self, text: str, env: str) -> None:
        make_vec = candidates.from_env_fn(workloads.workload(env))
        stepper = candidates.VecCandidate(candidates.parse(text), make_vec).make(3)
        try:
            assert [stepper.step(5), stepper.step(300)] == [15, 900]  # more batches than were drawn
        finally:
            stepper.close()

    def test_rows_that_are_no_transitions_do_not_count(self) -> None:
        make_vec = candidates.from_env_fn(workloads.workload("spin:0us,episode=2"))
        stepper = candidates.VecCandidate(candidates.parse("dummy:autoreset=next_step"), make_vec).make(3)
        try:
            assert stepper.step(9) == 3 * 6
        finally:
            stepper.close()

    @pytest.mark.parametrize(
        "space",
        [
            gym.spaces.Discrete(3, start=1),
            gym.spaces.Box(-1, 1, (2, 3)),
            gym.spaces.Dict({"a": gym.spaces.MultiBinary(2), "b": gym.spaces.Tuple([gym.spaces.Discrete(2)])}),
            gym.spaces.Text(4),
        ],
    )
    def test_draws_batches_of_the_space(self, space: gym.Space[Any]) -> None:
        batch = candidates.draw_actions(space, 5)[0]
        if isinstance(space, gym.spaces.Text):
            assert all(map(space.contains, batch))
        else:
            assert gym.vector.utils.batch_space(space, 5).contains(batch)

    def test_monitor_is_around_the_envs_of_both_sides(self) -> None:
        workload = workloads.workload("CartPole-v1")
        vec = from_make_vec_env(workload)(2, candidates.parse("dummy"))
        try:
            assert vec.env_is_wrapped(Monitor) == [True, True]
            ours = str(monitored(workload)())
            assert "Monitor" in ours
            assert vec.get_attr("step.__self__.__str__")[0]() == ours  # the same wrappers in the same order
        finally:
            vec.close()


@pytest.mark.parametrize(
    ("entry_point", "there"), [("gymnasium.envs.classic_control:A", True), ("gymnasium.envs.mujoco:B", False)]
)
def test_a_simulator_is_imported_for_its_own_envs_alone(
    entry_point: str, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is imported")

    monkeypatch.setattr(workloads, "import_module", refuse)
    monkeypatch.setattr(workloads, "find_module", lambda name: object() if there else None)
    with workloads._quiet(entry_point):
        pass
