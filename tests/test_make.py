"""make_vec_env, on one configuration of every kind of each chosen backend, and its parts without a VecEnv."""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

from vecenvs import DummyVecEnv, backends
from vecenvs.backends.mpi import job
from vecenvs.errors import EnvError, VecEnvError
from vecenvs.make import auto, rank
from vecenvs.make import make_vec_env as make
from vecenvs.make.make_vec_env import make_vec_env
from vecenvs.pool.recycling import Recycle
from vecenvs.testing.envs import CountingEnv, DyingEnv
from vecenvs.wrappers import Monitor, load_results

VECTOR = gym.make_vec("CartPole-v1", num_envs=2)


@pytest.fixture
def vec_env(configuration):
    """Make a VecEnv on the backend under test, and close it after the test."""
    made = []

    def make_on(env_id: Any, env_type: str | None = None, num_env: int = 3, *args: Any, **kwargs: Any):
        own = dict(configuration.kwargs)
        count = len(env_id) if isinstance(env_id, list) else num_env
        if "num_workers" in own:
            own["num_workers"] = min(own["num_workers"], count)
        made.append(make_vec_env(env_id, env_type, num_env, *args, backend=configuration.backend, **own, **kwargs))
        return made[-1]

    yield make_on
    for vec in made:
        vec.close()


@pytest.fixture
def registered():
    """Register ids, and import modules that do, for one test."""
    ids, modules = dict(gym.registry), set(sys.modules)
    yield gym.register
    gym.registry.clear()
    gym.registry.update(ids)
    for name in [name for name in sys.modules if name not in modules and name.startswith("zoo_")]:
        del sys.modules[name]


def mpi_of_rank(rank: int, initialized: bool = True, finalized: bool = False) -> Any:
    """Return a stand-in for mpi4py.MPI in a rank."""
    world = types.SimpleNamespace(Get_rank=lambda: rank)
    return types.SimpleNamespace(
        COMM_WORLD=world, Is_initialized=lambda: initialized, Is_finalized=lambda: finalized
    )  # fmt: skip


class Noted(gym.Wrapper):
    """Add a note to the info, in the order in which rewards pass the wrappers."""

    def __init__(self, env: gym.Env, note: str = "noted"):
        super().__init__(env)
        self.note = note

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {**info, "notes": (*info.get("notes", ()), (self.note, reward))}


class Bundle(gym.Env):
    """An env with Dict observations and a Box of actions; its infos have the actions."""

    def __init__(self, parts: dict[str, gym.Space] | None = None):
        self.observation_space = gym.spaces.Dict(
            parts or {"b": gym.spaces.Discrete(3), "a": gym.spaces.Box(0, 1, (2,))}
        )
        self.action_space = gym.spaces.Box(np.float32([-1, -2]), np.float32([1, 2]))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        return self._obs(), 4.0, False, False, {"action": action.copy()}

    def _obs(self):
        return {"a": np.float32([0.25, 0.5]), "b": 1, "mission": "get there"}


class Missions(gym.Space):
    """A space of a class that Gymnasium does not know."""

    def sample(self, mask=None, probability=None):
        return "get there"

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return type(other) is Missions

    __hash__ = None


LAUNCHERS_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def note_start(path: Path, mpi_rank: int, subrank: int) -> None:
    """Record, as an initializer, when and where it is called."""
    with path.open("a") as file:
        file.write(f"{os.getpid()} {mpi_rank} {subrank}\n")


def noting_env(path: Path) -> gym.Env:
    """Make an env, and record that, too."""
    with path.open("a") as file:
        file.write(f"{os.getpid()} env\n")
    return CountingEnv()


def test_positional_order_is_baselines():
    parameters = inspect.signature(make_vec_env).parameters
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [
        "env_id", "env_type", "num_env", "seed", "wrapper_kwargs", "env_kwargs", "start_index", "reward_scale",
        "flatten_dict_observations", "gamestate", "initializer", "force_dummy",
    ]  # fmt: skip
    keyword = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert keyword == [
        "num_envs", "backend", "num_workers", "autoreset", "vectorization", "monitor_dir", "monitor_kwargs",
        "wrapper_class", "info_attrs",
    ]  # fmt: skip


class TestSeeds:
    matrix = "contract"

    @pytest.mark.parametrize("start_index", [0, 5])
    def test_env_i_is_that_of_a_plain_loop(self, vec_env, start_index):
        vec = vec_env("CartPole-v1", None, 3, 11, start_index=start_index)
        envs = [gym.make("CartPole-v1") for _ in range(3)]
        obs = vec.reset()
        for i, env in enumerate(envs):
            np.testing.assert_array_equal(obs[i], env.reset(seed=11 + start_index + i)[0])
        rng = np.random.default_rng(0)
        for _ in range(60):
            actions = rng.integers(2, size=3)
            obs, rewards, dones, _ = vec.step(actions)
            for i, env in enumerate(envs):
                first, reward, terminated, truncated, _ = env.step(actions[i])
                assert (rewards[i], dones[i]) == (reward, terminated or truncated)
                np.testing.assert_array_equal(obs[i], env.reset()[0] if dones[i] else first)

    def test_applied_once(self, vec_env):
        vec = vec_env(CountingEnv, None, 2, 4)
        vec.reset()
        vec.reset()
        assert vec.get_attr("seeds") == [[4, None], [5, None]]

    def test_every_reset_is_seeded(self, vec_env):
        vec = make_vec_env(CountingEnv, None, 2, 4, start_index=3, episode_seeds=True, force_dummy=True)
        vec.reset()
        vec.reset()
        seeds = [int(np.random.SeedSequence(7 + i, spawn_key=(i, 1)).generate_state(1)[0]) for i in range(2)]
        assert vec.get_attr("seeds") == [[7, seeds[0]], [8, seeds[1]]]

    def test_none_seeds_nothing(self, vec_env):
        vec = vec_env(CountingEnv, None, 2)
        vec.reset()
        assert vec.get_attr("seeds") == [[None], [None]]

    def test_action_spaces_are_seeded(self, vec_env):
        vec = vec_env("CartPole-v1", None, 3, 11)
        samples = [[space.sample() for _ in range(20)] for space in vec.get_attr("action_space")]
        for i, sample in enumerate(samples):
            expected = gym.spaces.Discrete(2, seed=11 + i)
            assert sample == [expected.sample() for _ in range(20)]

    def test_rank_counts_where_mpi_is_loaded(self, vec_env, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi_of_rank(3))
        vec = vec_env(CountingEnv, None, 2, 4, monitor_dir=tmp_path, start_index=1)
        vec.reset()
        assert vec.get_attr("seeds") == [[30_005], [30_006]]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["3.1.monitor.csv", "3.2.monitor.csv"]

    @pytest.mark.parametrize("variable", LAUNCHERS_RANKS)
    @pytest.mark.parametrize("mpi", [None, mpi_of_rank(0, initialized=False)])
    def test_rank_counts_where_a_launcher_tells_it(self, monkeypatch, variable, mpi):
        monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
        if mpi is not None:
            monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
        monkeypatch.setenv(variable, "2")
        assert rank.spmd_rank() == 2

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({"RANK": "3", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}, 3),
            ({"RANK": "3", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none", "PMI_RANK": "1", "SLURM_PROCID": "1"}, 3),
            ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, 2),
            ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 0),
            ({"SLURM_PROCID": "2"}, 0),
            ({"RANK": "3"}, 0),  # anybody's variable
        ],
    )
    def test_rank_counts_under_torchrun_and_srun(self, monkeypatch, environment, expected):
        monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
        for variable in (*LAUNCHERS_RANKS, "RANK", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_NTASKS"):
            monkeypatch.delenv(variable, raising=False)
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        assert rank.spmd_rank() == expected

    @pytest.mark.parametrize(
        "mpi", [None, mpi_of_rank(3, initialized=False), mpi_of_rank(3, finalized=True), mpi_of_rank(0)]
    )
    def test_rank_is_zero_otherwise(self, monkeypatch, mpi):
        monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
        if mpi is not None:
            monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
        for variable in LAUNCHERS_RANKS:
            monkeypatch.delenv(variable, raising=False)
        assert rank.spmd_rank() == 0

    def test_learners_on_several_ranks_with_workers_of_their_own(self, monkeypatch):
        """Each has a communicator of its own."""
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi_of_rank(3))
        monkeypatch.setitem(backends.BACKENDS, "mpi", backends.BACKENDS["dummy"])
        with make_vec_env(CountingEnv, None, 1, 4, backend="mpi") as vec:
            vec.reset()
            assert vec.get_attr("seeds") == [[30_004]]

    def test_mpi_is_never_imported(self):
        code = "import sys, vecenvs.make.rank as m; m.spmd_rank(); sys.exit('mpi4py' in sys.modules)"
        assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


class TestEnvIds:
    def test_id(self, vec_env):
        vec = vec_env("CartPole-v1")
        assert (vec.num_envs, vec.spec.id) == (3, "CartPole-v1")
        assert vec.reset().shape == (3, 4)

    def test_no_checker(self, vec_env):
        assert not any(vec_env("CartPole-v1").env_is_wrapped(gym.wrappers.PassiveEnvChecker))

    def test_env_kwargs(self, vec_env):
        vec = vec_env("CartPole-v1", env_kwargs={"render_mode": "rgb_array", "max_episode_steps": 7})
        assert vec.render_mode == "rgb_array"
        assert vec.spec.max_episode_steps == 7

    def test_the_checker_can_be_had(self, vec_env):
        vec = vec_env("CartPole-v1", env_kwargs={"disable_env_checker": False})
        assert all(vec.env_is_wrapped(gym.wrappers.PassiveEnvChecker))

    def test_id_registered_at_run_time(self, vec_env, registered):
        registered("Mine-v0", entry_point="vecenvs.testing.envs:CountingEnv", kwargs={"tag": 4})
        vec = vec_env("Mine-v0", env_kwargs={"length": 9})
        assert vec.get_attr("tag") == [4] * 3
        assert vec.get_attr("length") == [9] * 3

    def test_id_registered_with_a_function_of_the_script(self, vec_env, registered):
        registered("Mine-v0", entry_point=lambda tag: CountingEnv(tag))
        assert vec_env("Mine-v0", env_kwargs={"tag": 6}).get_attr("tag") == [6] * 3

    def test_module_and_id(self, vec_env, registered, tmp_path, monkeypatch):
        (tmp_path / "zoo_for_make.py").write_text(
            "import gymnasium\n"
            "from vecenvs.testing.envs import CountingEnv\n"
            "gymnasium.register('Zebra-v0', entry_point='zoo_for_make:CountingEnv', kwargs={'tag': 8})\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        vec = vec_env("zoo_for_make:Zebra-v0")
        assert vec.get_attr("tag") == [8] * 3

    def test_spec(self, vec_env):
        assert vec_env(gym.spec("Acrobot-v1")).reset().shape == (3, 6)

    @pytest.mark.parametrize("env_id", [CountingEnv, functools.partial(CountingEnv, 0), lambda **kw: CountingEnv(**kw)])
    def test_function(self, vec_env, env_id):
        vec = vec_env(env_id, env_kwargs={"length": 2})
        assert vec.get_attr("length") == [2] * 3
        assert all(vec.env_is_wrapped(Monitor))

    def test_iterators_of_functions(self, configuration):
        """As in Gymnasium, by every class."""
        cls = backends.backend_class(configuration.backend)
        fns = {tag: functools.partial(CountingEnv, tag) for tag in range(3)}
        for make_one in (cls, functools.partial(make_vec_env, backend=configuration.backend)):
            for given in (iter(fns.values()), (fn for fn in fns.values()), fns.values(), tuple(fns.values())):
                with make_one(given) as vec:
                    assert vec.get_attr("tag") == [0, 1, 2]
            with pytest.raises(ValueError, match="empty"):
                make_one(iter(()))
            with pytest.raises(TypeError, match=r"\[0\]"):
                make_one({5: CountingEnv})

    @pytest.mark.parametrize("num_env", [1, 4])
    def test_list_of_functions(self, vec_env, num_env):
        vec = vec_env([functools.partial(CountingEnv, tag) for tag in range(4)], None, num_env)
        assert vec.num_envs == 4
        assert vec.get_attr("tag") == [0, 1, 2, 3]


class TestTypes:
    matrix = "contract"

    def test_atari_by_id(self, vec_env):
        vec = vec_env("PongNoFrameskip-v4", None, 2, 0, {"frame_stack": True})
        obs = vec.reset()
        assert (obs.shape, obs.dtype) == ((2, 84, 84, 4), np.uint8)
        assert all(vec.env_is_wrapped(gym.wrappers.AtariPreprocessing))

    def test_atari_plain(self, vec_env):
        assert vec_env("ALE/Pong-v5", "plain", 1).observation_space.shape == (210, 160, 3)

    def test_atari_from_a_function(self, vec_env):
        import ale_py

        gym.register_envs(ale_py)
        make_game = functools.partial(gym.make, gym.spec("ALE/Pong-v5"), frameskip=1)
        assert vec_env(make_game, "atari", 1).observation_space.shape == (84, 84, 1)

    def test_mujoco(self, vec_env):
        vec = vec_env("HalfCheetah-v5", "mujoco", 2)
        assert vec.reset().shape == (2, 17)

    def test_retro_needs_its_library(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "stable_retro", None)
        with pytest.raises(ImportError, match="pip install stable-retro"):
            make_vec_env("Airstriker-Genesis-v0", "retro")

    def test_retro(self, monkeypatch):
        def make_game(game, state, use_restricted_actions, render_mode):
            assert (game, state) == ("Game-v0", "Level2")
            return gym.make("ale_py:ALE/Pong-v5", frameskip=1)

        fake = types.SimpleNamespace(make=make_game, Actions=types.SimpleNamespace(DISCRETE=1), __spec__=None)
        monkeypatch.setitem(sys.modules, "stable_retro", fake)
        with make_vec_env("Game-v0", "retro", 1, 0, gamestate="Level2") as vec:
            assert vec.reset().shape == (1, 84, 84, 1)
        with pytest.raises(ValueError, match="once per process.*num_workers=2"):
            make_vec_env("Game-v0", "retro", 2, force_dummy=True)
        with pytest.raises(ValueError, match="once per process.*num_workers=4"):
            make_vec_env("Game-v0", "retro", 4, num_workers=2)


class TestLayers:
    matrix = "contract"

    def test_flattened_by_default(self, vec_env):
        obs = vec_env(Bundle).reset()
        np.testing.assert_array_equal(obs, [[0.25, 0.5, 0, 1, 0]] * 3)

    def test_not_flattened(self, vec_env):
        obs = vec_env(Bundle, flatten_dict_observations=False).reset()
        np.testing.assert_array_equal(obs["a"], [[0.25, 0.5]] * 3)

    def test_what_has_no_fixed_size_is_not_flattened(self):
        env_id = functools.partial(Bundle, {"s": gym.spaces.Sequence(gym.spaces.Discrete(2))})
        with make_vec_env(env_id) as vec:
            assert isinstance(vec.observation_space, gym.spaces.Dict)

    @pytest.mark.parametrize("as_id", [False, True])
    def test_what_gymnasium_does_not_know_is_not_flattened(self, registered, as_id):
        """MiniGrid's missions are texts of a Space class of its own, without the methods that are not abstract."""
        parts = {"mission": Missions(), "a": gym.spaces.Box(0, 1, (2,))}
        env_id: Any = functools.partial(Bundle, parts)
        if as_id:
            registered("Missions-v0", env_id)
            env_id = "Missions-v0"
        with make_vec_env(env_id, num_env=2, backend="dummy") as vec:
            obs = vec.reset()
            assert obs["mission"].tolist() == ["get there"] * 2
            np.testing.assert_array_equal(obs["a"], [[0.25, 0.5]] * 2)

    def test_monitor_sees_raw_rewards_then_user_then_scale(self, vec_env):
        vec = vec_env(Noisy, wrapper_class=[Noted, functools.partial(Noted, note="second")], reward_scale=0.5)
        vec.reset()
        _, rewards, _, infos = vec.step([0, 0, 0])
        assert rewards.tolist() == [3.0] * 3
        for info in infos:
            assert info["episode"]["r"] == 6.0
            assert info["notes"] == (("noted", 6.0), ("second", 6.0))

    def test_rewards_of_atari_are_clipped_above_the_users_wrapper(self):
        with make_vec_env("SpaceInvadersNoFrameskip-v4", None, 1, 0, wrapper_class=Noted, reward_scale=0.5) as vec:
            vec.reset()
            rewards, noted = [], []
            while len(rewards) < 20:
                _, reward, _, infos = vec.step([1])
                if reward[0]:
                    rewards.append(reward[0])
                    noted.append(infos[0]["notes"][0][1])
        assert set(rewards) == {0.5}
        assert min(noted) >= 5

    def test_actions_are_clipped(self, vec_env):
        vec = vec_env(Bundle)
        vec.reset()
        actions = np.float32([[5, 0.5], [-5, -5], [0, 2]])
        infos = vec.step(actions)[3]
        assert [info["action"].tolist() for info in infos] == [[1, 0.5], [-1, -2], [0, 2]]
        assert vec.action_space == Bundle().action_space

    def test_info_attrs_arrive(self, vec_env):
        vec = vec_env(CountingEnv, info_attrs=("steps",))
        vec.reset()
        assert [info["steps"] for info in vec.step([0, 0, 0])[3]] == [1, 1, 1]

    def test_autoreset_and_backend_arguments_arrive(self, vec_env):
        vec = vec_env(CountingEnv, autoreset="disabled", step_timeout=30, env_kwargs={"length": 1})
        vec.reset()
        vec.step([0, 0, 0])
        with pytest.raises(VecEnvError):
            vec.step([0, 0, 0])


class Noisy(gym.Env):
    """Each step is an episode of reward 6."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 6.0, True, False, {}


class TestMonitor:
    matrix = "contract"

    def test_no_files_by_default(self, vec_env, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        vec = vec_env(CountingEnv, env_kwargs={"length": 1})
        vec.reset()
        assert vec.step([0, 0, 0])[3][0]["episode"]["l"] == 1
        assert list(tmp_path.iterdir()) == []

    def test_files(self, vec_env, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        vec = vec_env(CountingEnv, start_index=2, monitor_dir="new/logs", env_kwargs={"length": 2})
        vec.reset()
        for _ in range(4):
            vec.step([0, 0, 0])
        results = load_results(tmp_path / "new" / "logs")
        assert [Path(f).name for f in results.files] == [f"0.{i}.monitor.csv" for i in (2, 3, 4)]
        assert len(results) == 6

    def test_arguments(self, vec_env, tmp_path):
        vec = vec_env(
            CountingEnv, monitor_dir=tmp_path, monitor_kwargs={"info_keywords": ("tag",), "allow_early_resets": False}
        )
        vec.reset()
        for _ in range(5):
            infos = vec.step([0, 0, 0])[3]
        assert [info["episode"]["tag"] for info in infos] == [0, 0, 0]
        assert load_results(tmp_path).columns["tag"].tolist() == [0, 0, 0]
        vec.step([0, 0, 0])
        with pytest.raises(EnvError, match="allow_early_resets=True"):
            vec.reset()

    def test_a_second_run_overrides_or_appends(self, tmp_path):
        for kwargs, expected in ({}, 2), ({}, 2), ({"override_existing": False}, 4):
            with make_vec_env(Noisy, None, 2, force_dummy=True, monitor_dir=tmp_path, monitor_kwargs=kwargs) as vec:
                vec.reset()
                vec.step([0, 0])
            assert len(load_results(tmp_path)) == expected

    def test_a_restarted_worker_goes_on_with_its_file(self, tmp_path):
        env_id = functools.partial(DyingEnv, at=6, length=2, lives_file=tmp_path / "lives")
        logs = tmp_path / "logs"
        for _ in range(2):  # the second run finds files of the first, which it overrides
            (tmp_path / "lives").unlink(missing_ok=True)
            with make_vec_env(
                env_id, None, 2, backend="subproc", num_workers=1, on_failure="restart", monitor_dir=logs
            ) as vec:
                vec.reset()
                for _ in range(5):
                    vec.step([0, 0])
                assert vec.step([0, 0])[3][0]["worker_restarted"]
                for _ in range(2):
                    vec.step([0, 0])
            results = load_results(logs)
            assert np.bincount(results.file_index).tolist() == [3, 3]


class TestInitializer:
    def test_in_the_worker_before_its_env(self, vec_env, tmp_path):
        log = tmp_path / "log"
        vec = vec_env(
            noting_env, initializer=functools.partial(note_start, log), start_index=4, env_kwargs={"path": log}
        )
        lines = [line.split() for line in log.read_text().splitlines()]
        starts = [line for line in lines if line[1] != "env"]
        assert all(pid != str(os.getpid()) and rank == "0" for pid, rank, _ in starts)
        in_workers = [line for line in lines if line[1] == "env" and line[0] != str(os.getpid())]
        assert len(starts) == len(in_workers)
        for pid in {line[0] for line in starts}:
            own = [line[1:] for line in lines if line[0] == pid]
            assert [entry for entry in own if entry == ["env"]] == own[1::2]
        subranks = sorted(int(line[2]) for line in starts)
        assert subranks == list(range(4, 4 + len(subranks)))
        vec.close()

    def test_not_in_the_caller(self, tmp_path):
        with make_vec_env(
            CountingEnv, None, 2, initializer=functools.partial(note_start, tmp_path / "log"), force_dummy=True
        ):
            assert not (tmp_path / "log").exists()

    def test_its_exception_is_the_envs(self, tmp_path):
        def refuse(mpi_rank, subrank):
            raise OSError(f"no room for {subrank}")

        with pytest.raises(EnvError, match="no room for 0"):
            make_vec_env(CountingEnv, None, 2, initializer=refuse, backend="subproc")


class TestBackend:
    @pytest.mark.parametrize(
        ("num_env", "kwargs", "caller_steps"),
        [
            (1, {}, None),
            (2, {}, True),
            (2, {"force_dummy": True}, None),
            (2, {"backend": "dummy"}, None),
            (2, {"backend": "dummy", "force_dummy": True}, None),
            (1, {"backend": "subproc"}, False),
            (2, {"backend": "subproc"}, False),
            (1, {"num_workers": 2}, None),
            (2, {"num_workers": 1}, False),
            (2, {"num_workers": 2, "max_restarts": 3}, True),
            (2, {"start_method": "fork"}, False),
            (2, {"caller_steps": False}, False),
            (2, {"step_timeout": 60.0}, False),
            (2, {"on_failure": "restart"}, False),
            (2, {"autoreset": "async"}, False),
            (2, {"initializer": str}, False),
            (1, {"start_method": "fork"}, False),
            (1, {"pin_workers": True}, False),
            (1, {"step_timeout": 60.0}, False),
            (1, {"recycle": Recycle(episodes=9), "episode_seeds": True}, False),
            (1, {"step_timeout": 60.0, "force_dummy": True}, None),
        ],
    )
    def test_rule(self, monkeypatch, num_env, kwargs, caller_steps):
        """In process; or in workers, where the caller steps a share unless an argument needs a worker for each env."""
        monkeypatch.setattr(auto, "worker_cores", lambda: 2)
        if kwargs.get("initializer"):
            kwargs = {"initializer": lambda **_: None}
        with make_vec_env(CountingEnv, None, num_env, **kwargs) as vec:
            assert vec.stats().get("caller_steps") == caller_steps
            assert type(vec).__name__ == ("DummyVecEnv" if caller_steps is None else "SubprocVecEnv")

    @pytest.mark.parametrize(
        ("env_id", "num_env", "kwargs", "name"),
        [
            ("CartPole-v1", 16, {}, "DummyVecEnv"),
            ("FrozenLake-v1", 2, {"env_kwargs": {"is_slippery": False}}, "DummyVecEnv"),
            ("CartPole-v1", 17, {}, "SubprocVecEnv"),
            ("CartPole-v1", 2, {"num_workers": 2}, "SubprocVecEnv"),
            ("CartPole-v1", 2, {"step_timeout": 60.0}, "SubprocVecEnv"),
            ("CartPole-v1", 2, {"wrapper_class": gym.Wrapper}, "SubprocVecEnv"),
            ("CartPole-v1", 2, {"env_kwargs": {"render_mode": "rgb_array"}}, "SubprocVecEnv"),
            (functools.partial(gym.make, "CartPole-v1"), 2, {}, "SubprocVecEnv"),
        ],
    )
    def test_a_few_cheap_envs_need_no_workers(self, monkeypatch, env_id, num_env, kwargs, name):
        monkeypatch.setattr(auto, "worker_cores", lambda: 2)
        with make_vec_env(env_id, None, num_env, **kwargs) as vec:
            assert type(vec).__name__ == name

    def test_it_never_chooses_mpi(self, monkeypatch):
        monkeypatch.setattr(auto, "worker_cores", lambda: 2)
        monkeypatch.setattr(auto, "_serves_by_mpi", lambda: True)
        with make_vec_env(CountingEnv, None, 2) as vec:
            assert type(vec).__name__ == "SubprocVecEnv"

    def test_num_workers(self):
        with make_vec_env(CountingEnv, None, 3, num_workers=3) as vec:
            assert vec.stats()["num_workers"] == 3
            vec.reset()


class TestAuto:
    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch):
        """On two cores, without a launcher."""
        for variable in (*auto._RANKS, *auto._LOCAL_RANKS):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
        monkeypatch.setattr(auto, "worker_cores", lambda: 2)

    @pytest.mark.parametrize(
        ("num_env", "cores", "kwargs", "chosen"),
        [
            (1, 8, {}, ("dummy", {})),
            (8, 1, {}, ("dummy", {})),
            (2, 8, {}, ("subproc", {"num_workers": 2, "caller_steps": True})),
            (64, 8, {}, ("subproc", {"num_workers": 8, "caller_steps": True})),
            (64, 8, {"num_workers": 3}, ("subproc", {"num_workers": 3, "caller_steps": True})),
            (64, 8, {"num_workers": 1}, ("subproc", {"num_workers": 1, "caller_steps": False})),
            (64, 8, {"keep_caller_free": True}, ("subproc", {"num_workers": 8, "caller_steps": False})),
            (4, 1, {"own_processes": True}, ("subproc", {})),
        ],
    )
    def test_rule(self, monkeypatch, num_env, cores, kwargs, chosen):
        monkeypatch.setattr(auto, "worker_cores", lambda: cores)
        choice = auto.choose(num_env, **kwargs)
        assert (choice.backend, choice.options) == chosen

    def test_ranks_share_the_cores_of_their_node(self, monkeypatch):
        monkeypatch.setattr(auto, "worker_cores", lambda: 8)
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4")
        assert auto.choose(64).options["num_workers"] == 2
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "8")
        assert auto.choose(64).backend == "dummy"

    @pytest.mark.parametrize("variable", auto._RANKS)
    def test_ranks_that_wait_are_used(self, monkeypatch, variable):
        monkeypatch.setenv(variable, "1")
        assert auto.choose(4).backend == "subproc"
        monkeypatch.setenv(variable, "3")
        assert auto.choose(4).backend == "mpi"
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi_of_rank(1))  # each rank has a learner of its own
        assert auto.choose(4).backend == "subproc"
        monkeypatch.setattr(job, "_known", [object()])
        assert auto.choose(4).backend == "subproc", "of the process that this one is a fork of"
        monkeypatch.setattr(job, "_pid", os.getpid())
        assert auto.choose(4).backend == "mpi"
        monkeypatch.delenv(variable)  # as with srun --mpi=pmix
        assert auto.choose(4).backend == "mpi"

    def test_a_daemon_starts_no_processes(self):
        code = (
            "import multiprocessing as m; from vecenvs.make import auto\n"
            "def tell(queue): queue.put(auto.choose(4).backend)\n"
            "if __name__ == '__main__':\n"
            "  c = m.get_context('fork'); q = c.SimpleQueue(); p = c.Process(target=tell, args=(q,), daemon=True)\n"
            "  p.start(); print(q.get()); p.join()"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout.strip() == "dummy"

    @pytest.mark.parametrize("flatten", [True, False])
    def test_flattened_dicts_are_told(self, flatten, caplog):
        with (
            caplog.at_level("INFO", logger="vecenvs"),
            make_vec_env(Bundle, None, 2, force_dummy=True, flatten_dict_observations=flatten),
        ):
            assert ("flatten_dict_observations=False keeps the dicts" in caplog.text) == flatten

    def test_it_is_told(self, caplog):
        with caplog.at_level("INFO", logger="vecenvs"), make_vec_env(CountingEnv, None, 2, backend="auto") as vec:
            assert vec.stats()["backend"] == "SubprocVecEnv"
        assert "backend='auto': subproc, num_workers=2, caller_steps=True (2 envs, 2 cores)" in caplog.text

    def test_trajectories_are_those_of_any_backend(self):
        actions = np.random.default_rng(0).integers(2, size=(50, 3))
        seen = []
        for backend in ("auto", "dummy"):
            with make_vec_env("CartPole-v1", None, 3, 11, backend=backend) as vec:
                seen.append([vec.reset(), *(part for row in actions for part in vec.step(row)[:3])])
        for one, other in zip(*seen, strict=True):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize(
        "kwargs",
        [{"on_failure": "restart"}, {"step_timeout": 5.0}, {"autoreset": "async"}, {"initializer": print}],
    )
    def test_the_caller_steps_nothing_it_should_not(self, monkeypatch, kwargs):
        seen: dict[str, Any] = {}
        fake = type("Fake", (DummyVecEnv,), {"__init__": lambda self, env_fns, **options: seen.update(options)})
        monkeypatch.setattr(make, "backend_class", lambda name: fake if name == "subproc" else DummyVecEnv)
        monkeypatch.setattr(make, "_check_arguments", lambda *_: None)
        make_vec_env(CountingEnv, None, 4, backend="auto", **kwargs)
        assert seen["caller_steps"] is False

    def test_force_dummy(self):
        with make_vec_env(CountingEnv, None, 2, backend="auto", force_dummy=True) as vec:
            assert type(vec).__name__ == "DummyVecEnv"

    def test_workers_it_cannot_have_have_no_effect(self):
        with make_vec_env(CountingEnv, None, 1, backend="auto", num_workers=2) as vec:
            assert type(vec).__name__ == "DummyVecEnv"


class TestEnvFns:
    def fns(self, monkeypatch, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the env functions that a backend gets."""
        kept: list[Any] = []
        fake = type("Fake", (), {"__init__": lambda self, env_fns, **common: kept.extend(env_fns)})
        monkeypatch.setattr(make, "backend_class", lambda name: fake)
        make_vec_env(*args, backend="dummy", **kwargs)
        return kept

    def test_they_pickle_plainly(self, monkeypatch, tmp_path):
        fns = self.fns(
            monkeypatch, "CartPole-v1", None, 2, wrapper_class=Noted, monitor_dir=tmp_path, reward_scale=2,
            initializer=functools.partial(note_start, tmp_path / "log"),
        )  # fmt: skip
        for fn in pickle.loads(pickle.dumps(fns)):
            env = fn()
            env.reset()
            assert env.step(0)[1] == 2.0
            env.close()

    def test_they_pickle_by_value(self, monkeypatch):
        fns = self.fns(monkeypatch, lambda: CountingEnv(3), None, 2, wrapper_class=lambda env: Noted(env))
        for fn in cloudpickle.loads(cloudpickle.dumps(fns)):
            assert fn().unwrapped.tag == 3

    def test_they_are_small(self, monkeypatch):
        fns = self.fns(monkeypatch, "CartPole-v1", None, 1000)
        assert len(pickle.dumps(fns)) < 100_000

    def test_an_env_is_closed_if_a_wrapper_fails(self, monkeypatch, tmp_path):
        def refuse(env):
            raise OSError("no")

        fns = self.fns(
            monkeypatch, CountingEnv, env_kwargs={"closed_file": tmp_path / "closed"}, wrapper_class=refuse
        )  # fmt: skip
        with pytest.raises(OSError, match="no"):
            fns[0]()
        assert (tmp_path / "closed").exists()

    def test_an_env_is_closed_if_a_wrapper_gives_none(self, monkeypatch):
        closed = []

        class Around:
            def __init__(self, env):
                self.close = functools.partial(closed.append, env)

        fns = self.fns(monkeypatch, CountingEnv, wrapper_class=Around)
        with pytest.raises(TypeError, match="wrapper_class .* gave a Around"):
            fns[0]()
        assert len(closed) == 1


NO_ENV = "an env"


class TestBadArguments:
    @pytest.mark.parametrize(
        ("kwargs", "error", "message"),
        [
            ({"env_id": 3}, TypeError, "env_id must be an env id, a function .* or a list of such, not 3"),
            ({"env_id": None}, TypeError, "env_id must be"),
            ({"env_id": []}, ValueError, "env_id is an empty list"),
            ({"env_id": [CountingEnv, "CartPole-v1"]}, TypeError, r"env_id\[1\] must be a function .* 'CartPole-v1'"),
            ({"env_id": [CountingEnv] * 2, "num_env": 3}, ValueError, "num_envs is 3, but env_id has 2 functions"),
            ({"env_id": "CartPol-v1"}, gym.error.Error, "CartPol"),
            ({"env_id": "no_such_zoo:CartPole-v1"}, ModuleNotFoundError, "no_such_zoo"),
            ({"env_type": "arcade"}, ValueError, "unknown env_type 'arcade'.*classic_control"),
            ({"env_type": "atari"}, ValueError, "of type 'classic_control'"),
            ({"env_type": 4}, TypeError, "env_type must be a name or None, not 4: the number of envs is num_envs=4"),
            ({"env_type": np.arange(3)}, TypeError, "env_type must be a name or None, not array"),
            ({"env_type": ["plain"]}, TypeError, "env_type must be a name or None, not "),
            ({"num_env": 0}, ValueError, "num_env must be at least 1, not 0"),
            ({"num_env": 2**63}, ValueError, "num_env must be at most [0-9]+, not 9223372036854775808"),
            ({"num_env": 10**12}, ValueError, "num_env must be at most"),
            ({"backend": np.array(["dummy", "x"])}, ValueError, "unknown backend array"),
            ({"force_dummy": np.arange(3)}, TypeError, "force_dummy must be True or False, not array"),
            ({"flatten_dict_observations": np.arange(3)}, TypeError, "flatten_dict_observations must be True or False"),
            ({"info_attrs": np.arange(3)}, TypeError, "info_attrs must be a tuple of attribute names"),
            ({"reward_scale": 10**400}, ValueError, "reward_scale is too large a number"),
            ({"autoreset": np.arange(3)}, ValueError, "autoreset array.* is none of"),
            ({"env_id": np.array("CartPole-v1")}, TypeError, "env_id must be an env id, a function"),
            ({"num_env": -2}, ValueError, "num_env must be at least 1"),
            ({"num_env": 2.0}, TypeError, "num_env must be an int, not 2.0"),
            ({"num_env": True}, TypeError, "num_env must be an int"),
            ({"num_envs": 0}, ValueError, "num_envs must be at least 1, not 0"),
            ({"num_env": 2, "num_envs": 2}, TypeError, "num_env=2 and num_envs=2 name the same argument"),
            ({"seed": -1}, ValueError, "seed must be at least 0"),
            ({"seed": "7"}, TypeError, "seed must be an int"),
            ({"start_index": -1}, ValueError, "start_index must be at least 0"),
            ({"start_index": 0.5}, TypeError, "start_index must be an int"),
            ({"wrapper_kwargs": [1]}, TypeError, "wrapper_kwargs must be a dict"),
            ({"wrapper_kwargs": {"frame_stack": True}}, TypeError, "mean nothing to env_type 'classic_control'"),
            ({"env_kwargs": "fast"}, TypeError, "env_kwargs must be a dict"),
            ({"env_kwargs": {3: 4}}, TypeError, "env_kwargs must be a dict"),
            ({"reward_scale": "2"}, TypeError, "reward_scale must be a number"),
            ({"reward_scale": float("nan")}, ValueError, "reward_scale must be finite"),
            ({"gamestate": "Level1"}, ValueError, "gamestate='Level1' is for env_type='retro' only"),
            ({"initializer": 3}, TypeError, "initializer must be a function"),
            ({"backend": "threads"}, ValueError, "unknown backend 'threads': there are dummy, subproc, .*auto"),
            ({"backend": "subproc", "force_dummy": True}, ValueError, "force_dummy contradicts backend='subproc'"),
            ({"backend": "dummy", "num_workers": 2}, ValueError, "'dummy' has no workers"),
            ({"backend": "subproc", "num_workers": 0}, ValueError, "num_workers must be at least 1"),
            ({"num_workers": "all"}, TypeError, "num_workers must be an int"),
            ({"monitor_dir": 3}, TypeError, "monitor_dir must be a path"),
            ({"monitor_dir": __file__}, NotADirectoryError, "monitor_dir .* is a file"),
            ({"monitor_kwargs": {"filename": "x"}}, TypeError, "unknown monitor_kwargs 'filename': there are"),
            ({"wrapper_class": 3}, TypeError, "wrapper_class must be"),
            ({"wrapper_class": [Noted, 3]}, TypeError, "wrapper_class must be .* not 3"),
            ({"backend": "SubprocVecEnv"}, ValueError, r"did you mean 'subproc'\?"),
            ({"backend": "async"}, ValueError, r"did you mean 'subproc'\?"),
            ({"backend": "dumy"}, ValueError, r"did you mean 'dummy'\?"),
            ({"backend": "mpi4py"}, ValueError, r"did you mean 'mpi'\?"),
            ({"env_id": VECTOR}, TypeError, "from_gymnasium makes a VecEnv of it"),
            ({"env_id": [VECTOR]}, TypeError, "from_gymnasium makes a VecEnv of it"),
            ({"n_envs": 3}, TypeError, r"no argument 'n_envs' \(did you mean .*'num_envs'.*: it has .*step_timeout"),
            ({"vec_env_cls": 3}, TypeError, r"no argument 'vec_env_cls' \(did you mean 'backend'\?\)"),
            ({"backend": "subproc", "context": "fork"}, TypeError, r"'context' \(did you mean 'start_method'\?\)"),
            ({"backend": "dummy", "caller_steps": True}, TypeError, "backend 'dummy' has no argument 'caller_steps'"),
            ({"backend": "subproc", "fast": 1}, TypeError, "backend 'subproc' has no argument 'fast': .*caller_step"),
            ({"backend": "auto", "caller_steps": True}, TypeError, "backend 'auto' has no argument 'caller_steps'"),
            ({"backend": "auto", "num_workers": 0, "num_env": 2}, ValueError, "num_workers must be at least 1"),
            ({"env_fns": []}, TypeError, "no argument 'env_fns'"),
            ({"autoreset": "sometimes"}, ValueError, "sometimes"),
        ],
    )  # fmt: skip
    def test_named(self, kwargs, error, message):
        with pytest.raises(error, match=message):
            make_vec_env(**{"env_id": "CartPole-v1", **kwargs})

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"env_id": lambda: NO_ENV}, "env_id gave a str, which is no gymnasium.Env"),
            ({"wrapper_class": lambda env: None}, "wrapper_class .* gave a NoneType"),
            ({"env_id": lambda: object()}, "without 'reset', 'step', 'close', 'observation_space', 'action_space': it"),
            ({"env_id": lambda: VECTOR}, "gave a CartPoleVectorEnv, which steps several .*from_gymnasium makes"),
            ({"env_id": lambda: DummyVecEnv([CountingEnv])}, "gave a DummyVecEnv, .*it is a VecEnv already"),
            ({"env_kwargs": {"gravitas": 3}}, "gravitas"),
            ({"monitor_kwargs": {"info_keywords": "success"}}, "info_keywords should be a sequence"),
            ({"env_id": CountingEnv, "env_type": "atari"}, "CountingEnv.* is not an Atari env"),
        ],
    )
    @pytest.mark.parametrize("num_env", [1, 2])
    def test_found_only_while_the_env_is_made(self, kwargs, message, num_env):
        with pytest.raises(EnvError, match=message) as caught:
            make_vec_env(**{"env_id": "CartPole-v1", "num_env": num_env, **kwargs})
        assert caught.value.index == 0
