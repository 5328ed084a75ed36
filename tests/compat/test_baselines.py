"""vecenvs.compat.baselines: baselines' names and arguments."""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import re
import types
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import vecenvs
from vecenvs import wrappers
from vecenvs.backends.dummy import DummyVecEnv as CoreDummyVecEnv
from vecenvs.compat import baselines
from vecenvs.compat.baselines import (
    AlreadySteppingError,
    DummyVecEnv,
    NotSteppingError,
    ShmemVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvObservationWrapper,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
)
from vecenvs.errors import EnvError, SpaceMismatch, VecEnvError
from vecenvs.testing.compare import assert_same
from vecenvs.testing.envs import SPACES, CountingEnv, FailingEnv, RenderingEnv, SampledEnv, counting_fns
from vecenvs.views import as_gymnasium

CLASSES = {
    "dummy": DummyVecEnv,
    "subproc": functools.partial(SubprocVecEnv, context="fork"),
    "subproc-spawn": SubprocVecEnv,
    "subproc-series": functools.partial(SubprocVecEnv, context="fork", in_series=2),
    "shmem": functools.partial(ShmemVecEnv, context="fork"),
}


@pytest.mark.parametrize("make", CLASSES.values(), ids=CLASSES.keys())
def test_all_give_the_same_rows(make: Any) -> None:
    fns = [functools.partial(SampledEnv, SPACES["float64"]) for _ in range(4)]
    with make(fns) as venv, CoreDummyVecEnv(fns) as reference:
        assert isinstance(venv, VecEnv)
        for vec in (venv, reference):
            vec.seed(3)
        assert_same(venv.reset(), reference.reset())
        for step in range(20):
            actions = [(step + i) % 4 for i in range(4)]
            venv.step_async(actions)
            for ours, theirs in zip(venv.step_wait(), reference.step(actions), strict=True):
                assert_same(ours, theirs)


def test_processes() -> None:
    for venv, processes in (
        (SubprocVecEnv(counting_fns(4), None, "fork", 2), 2),
        (SubprocVecEnv(counting_fns(3), context="fork"), 3),
        (ShmemVecEnv(counting_fns(2), None, "fork"), 2),
    ):
        assert venv.stats()["num_workers"] == processes
        venv.close()
    with pytest.raises(ValueError, match="in_series=2"):
        SubprocVecEnv(counting_fns(3), in_series=2)


@pytest.mark.parametrize("cls", [SubprocVecEnv, ShmemVecEnv])
def test_arguments_it_does_not_have(cls: Any) -> None:
    for name in ("start_method", "num_workers", "speed"):
        with pytest.raises(TypeError, match=f"^{cls.__name__} has no argument '{name}'.*: it has env_fns, .*context"):
            cls(counting_fns(2), **{name: 1})
    for value in ("2", 1.0, 0):
        with pytest.raises((TypeError, ValueError), match="in_series must be"):
            SubprocVecEnv(counting_fns(2), in_series=value)


@pytest.mark.parametrize("cls", [SubprocVecEnv, ShmemVecEnv])
def test_given_spaces_are_checked(cls: Any) -> None:
    env = CountingEnv()
    cls(counting_fns(2), (env.observation_space, env.action_space), "fork").close()
    with pytest.raises(SpaceMismatch, match="argument `spaces`"):
        cls(counting_fns(2), spaces=(env.observation_space, spaces.Discrete(9)), context="fork")


def test_one_env_takes_a_bare_action() -> None:
    with DummyVecEnv(counting_fns(1)) as venv:
        venv.reset()
        for action in (2, np.int64(2), [2], np.array([2]), np.array(2)):
            assert venv.step(action)[1].shape == (1,)
    box = functools.partial(SampledEnv, SPACES["uint8"], spaces.Box(-1.0, 1.0, (3,), np.float32))
    with DummyVecEnv([box]) as venv:
        venv.reset()
        venv.step(np.zeros(3, np.float32))
        venv.step(np.zeros((1, 3), np.float32))


def test_render_modes() -> None:
    fns = [functools.partial(RenderingEnv, tag) for tag in range(2)]
    with DummyVecEnv(fns) as venv:
        venv.reset()
        image = venv.render(mode="rgb_array")
        assert image is not None
        assert_same(image, venv.render())
        with pytest.raises(VecEnvError, match="render_mode='ansi'"):
            venv.render(mode="ansi")
        assert len(venv.get_images()) == 2


@pytest.mark.parametrize("wrap", [lambda venv: venv, VecNormalize, functools.partial(VecFrameStack, nstack=2)])
def test_render_takes_a_mode_everywhere(wrap: Any) -> None:
    """Also over the classes that `make_vec_env` returns, which are not those of compat."""
    with wrap(CoreDummyVecEnv([functools.partial(RenderingEnv, tag) for tag in range(2)])) as venv:
        venv.reset()
        assert_same(venv.render("rgb_array"), venv.render())
        with pytest.raises(VecEnvError, match="make them with .*render_mode='ansi'"):
            venv.render("ansi")


def test_the_envs_themselves() -> None:
    """Code for one process reads `envs[0]`, also through wrappers."""
    with VecFrameStack(DummyVecEnv(counting_fns(2)), 2) as venv:
        venv.reset()
        assert [env.tag for env in venv.envs] == [0, 1]
        assert venv.envs[1].unwrapped is venv.unwrapped.envs[1]
        venv.envs[0].length = 77
        assert venv.get_attr("length")[0] == 77
    assert venv.envs == []
    with VecFrameStack(SubprocVecEnv(counting_fns(2), context="fork"), 2) as venv:
        assert not hasattr(venv, "envs")
        with pytest.raises(AttributeError, match="'SubprocVecEnv' .* to be asked by get_attr, set_attr"):
            _ = venv.envs


def test_errors_of_stepping() -> None:
    with DummyVecEnv(counting_fns(2)) as venv:
        venv.reset()
        with pytest.raises(NotSteppingError):
            venv.step_wait()
        venv.step_async([0, 0])
        with pytest.raises(AlreadySteppingError):
            venv.step_async([0, 0])
        venv.step_wait()


class Halved(VecEnvObservationWrapper):
    """An observation wrapper as in a program for baselines."""

    def __init__(self, venv: VecEnv) -> None:
        VecEnvObservationWrapper.__init__(self, venv, observation_space=spaces.Box(-1, 500_000, (3,), np.float64))

    def process(self, obs: Any) -> Any:
        return obs / 2


class Summed(VecEnvWrapper):
    """A wrapper as in a program for baselines."""

    def reset(self) -> Any:  # type: ignore[override]
        return self.venv.reset().sum(axis=1)

    def step_wait(self) -> Any:  # type: ignore[override]
        obs, rewards, dones, infos = self.venv.step_wait()
        return obs.sum(axis=1), rewards, dones, infos


def test_wrappers() -> None:
    with Halved(SubprocVecEnv(counting_fns(2), context="fork")) as venv:
        assert venv.observation_space.dtype == np.float64
        assert venv.action_space == spaces.Discrete(3)
        assert_same(venv.reset(), np.array([[0.0, 0.5, 0.0], [0.5, 0.5, 0.0]]))
        assert_same(venv.step([0, 0])[0], np.array([[0.0, 0.5, 0.5], [0.5, 0.5, 0.5]]))
        venv.send([0], [1])
        assert_same(venv.recv().obs, np.array([[0.5, 0.5, 1.0]]))
    with Summed(DummyVecEnv(counting_fns(2))) as venv:
        assert_same(venv.reset(), np.array([1, 2]))
        assert_same(venv.step([0, 0])[0], np.array([2, 3]))
        assert venv.unwrapped is venv.venv


class Negated(VecEnvWrapper):
    """A wrapper whose methods take none of the contract's arguments."""

    def __init__(self, venv: VecEnv) -> None:
        space = spaces.Box(-np.inf, np.inf, venv.observation_space.shape, np.float64)
        VecEnvWrapper.__init__(self, venv, observation_space=space)

    def reset(self) -> Any:  # type: ignore[override]
        return -1.0 * self.venv.reset()

    def step_wait(self) -> Any:  # type: ignore[override]
        obs, rewards, dones, infos = self.venv.step_wait()
        return -1.0 * obs, rewards + 1, dones, infos


def test_a_wrapper_without_our_arguments_under_what_gives_them() -> None:
    actions = np.array([1, 2])
    with DummyVecEnv(counting_fns(2)) as plain, VecFrameStack(Negated(DummyVecEnv(counting_fns(2))), 2) as venv:
        assert_same(venv.reset()[:, 3:], -1.0 * plain.reset())
        expected, rewards, *_ = plain.step(actions)
        obs, more, *_ = venv.step(actions)
        assert_same(obs[:, 3:], -1.0 * expected)
        assert_same(more, rewards + 1)
    fns = [functools.partial(SampledEnv, SPACES["float64"]) for _ in range(2)]
    with (
        DummyVecEnv(fns) as plain,
        contextlib.closing(as_gymnasium(Negated(SubprocVecEnv(fns, context="fork")))) as view,
    ):
        for seed in (7, [5, None], None):
            first, _ = view.reset(seed=seed, options={"as": "given"})
            assert_same(first, -1.0 * plain.reset(seed=seed, options={"as": "given"}))
        assert_same(view.step(actions)[0], -1.0 * plain.step(actions)[0])
    with Negated(Negated(DummyVecEnv(fns))) as venv, DummyVecEnv(fns) as plain:
        assert_same(venv.reset(seed=3), 1.0 * plain.reset(seed=3))
        with pytest.raises(VecEnvError, match=r"Negated.reset resets all envs at once: .*write it as reset\(self, ind"):
            venv.reset([1])
        venv.step_async(actions)
        with pytest.raises(VecEnvError, match="Negated.step_wait takes no timeout: write it as"):
            venv.step_wait(timeout=1.0)
        assert_same(venv.step_wait()[1], plain.step(actions)[1] + 2)
        view = as_gymnasium(VecNormalize(venv))
        for call in (lambda: venv.send([1], [0]), venv.reset_async, venv.recv, view.reset_async):
            with pytest.raises(VecEnvError, match="Negated has a step_wait or reset of its own, but no recv"):
                call()
        assert_same(venv.reset(seed=3), 1.0 * plain.reset(seed=3))  # nothing had been sent


class First(VecEnvObservationWrapper):
    """Keep the first number of an observation, or the first entry of a Dict."""

    def __init__(self, venv: VecEnv) -> None:
        space = venv.observation_space
        shown = spaces.Box(0, 99, (1,), np.int64) if isinstance(space, spaces.Box) else next(iter(space.values()))
        super().__init__(venv, observation_space=shown)

    def process(self, obs: Any) -> Any:
        return next(iter(obs.values())) if isinstance(obs, dict) else obs[:, :1]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_last_observations_of_episodes_are_processed(autoreset: str) -> None:
    """Otherwise a wrapper around it would get observations of two shapes."""
    with (
        VecFrameStack(First(DummyVecEnv(counting_fns(3), autoreset=autoreset)), 2) as venv,
        DummyVecEnv(counting_fns(3), autoreset=autoreset) as plain,
    ):
        venv.reset()
        plain.reset()
        ends = 0
        for _ in range(15):
            for ours, theirs in zip(venv.step([0] * 3)[3], plain.step([0] * 3)[3], strict=True):
                assert ("terminal_observation" in ours) == ("terminal_observation" in theirs)
                if "terminal_observation" in ours:
                    ends += 1
                    assert_same(ours["terminal_observation"][1:], theirs["terminal_observation"][:1])
        assert ends > 5
    parts = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (3,), np.float32), "b": spaces.Discrete(4)})
    fns = [functools.partial(SampledEnv, parts) for _ in range(2)]
    with VecNormalize(First(DummyVecEnv(fns))) as venv:
        venv.reset(seed=0)
        infos = [info for _ in range(40) for info in venv.step([1, 1])[3] if "terminal_observation" in info]
        assert infos
        assert all(info["terminal_observation"] in venv.observation_space for info in infos)


class Own(CountingEnv):
    """An env with a key "terminal_observation" of its own on every row, which is no observation."""

    def step(self, action: Any) -> Any:
        *row, info = super().step(action)
        return (*row, {**info, "terminal_observation": "soon"})


def test_an_envs_own_key_ends_no_episode() -> None:
    with First(DummyVecEnv([functools.partial(Own, 0, 2)])) as venv:
        venv.reset()
        found = [venv.step([0])[3][0]["terminal_observation"] for _ in range(4)]
        assert [given if isinstance(given, str) else given.tolist() for given in found] == ["soon", [0], "soon", [0]]


def test_rows_beside_an_exception_do_not_bypass_a_wrapper() -> None:
    """They are not given at all: `step_wait` of the wrapper would have changed them."""
    fns = [*counting_fns(1), functools.partial(FailingEnv, 1), functools.partial(FailingEnv, 2, "reset", at=2)]
    with VecMonitor(Summed(DummyVecEnv(fns))) as venv:
        venv.reset()
        for call in (lambda: venv.step([0, 0, 0]), venv.reset):
            with pytest.raises(EnvError) as raised:
                call()
            assert raised.value.batch is None
        assert venv.reset().tolist() == [3, 4, 4]


class Cut(VecEnvWrapper):
    """A wrapper that leaves terminal observations as they are."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv, spaces.Box(0, 99, (1,), np.int64))

    def reset(self) -> Any:  # type: ignore[override]
        return self.venv.reset()[:, :1]

    def step_wait(self) -> Any:  # type: ignore[override]
        obs, rewards, dones, infos = self.venv.step_wait()
        return obs[:, :1], rewards, dones, infos


@pytest.mark.parametrize("wrap", [VecNormalize, functools.partial(VecFrameStack, nstack=3)])
def test_last_observations_that_a_wrapper_has_forgotten(wrap: Any) -> None:
    """Three numbers must not be taken for three frames of one number."""
    with wrap(Cut(DummyVecEnv(counting_fns(2)))) as venv:
        venv.reset()
        with pytest.raises(VecEnvError, match=r"has shape \(3,\), but observations have \(1,\): a wrapper below"):
            _ = [venv.step([0, 0]) for _ in range(20)]


class Passing(VecEnvWrapper):
    """A wrapper that passes all keyword arguments on."""

    def reset(self, **kwargs: Any) -> Any:
        return -self.venv.reset(**kwargs)

    def step_wait(self, **kwargs: Any) -> Any:
        return self.venv.step_wait(**kwargs)


class Seeded(VecEnvWrapper):
    """A wrapper whose reset takes a seed first, as the reset of an env might."""

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return -self.venv.reset(seed=seed)


def test_wrappers_get_what_they_take() -> None:
    with VecMonitor(Passing(DummyVecEnv(counting_fns(2)))) as venv, DummyVecEnv(counting_fns(2)) as plain:
        assert_same(venv.reset([1], seed=[4]), -plain.reset([1], seed=[4]))
        venv.reset()
        plain.reset()
        venv.step_async([1, 1])
        assert_same(venv.step_wait(timeout=60.0)[1], plain.step([1, 1])[1])
    fns = [functools.partial(SampledEnv, SPACES["float64"]) for _ in range(2)]
    with VecMonitor(Seeded(DummyVecEnv(fns))) as venv, DummyVecEnv(fns) as plain:
        assert_same(venv.reset(seed=4), -plain.reset(seed=4))
        with pytest.raises(VecEnvError, match="Seeded.reset resets all envs at once"):
            venv.reset([1])


class Ending(VecEnvWrapper):
    """End an episode of env 0 at every step."""

    def reset(self) -> Any:  # type: ignore[override]
        return self.venv.reset()

    def step_wait(self) -> Any:  # type: ignore[override]
        obs, rewards, dones, infos = self.venv.step_wait()
        return obs, rewards, dones | [True, False], infos


class Terminating(Ending):
    """End it in `terminated`, too."""

    @property
    def terminated(self) -> Any:
        return super().terminated | [True, False]


def test_ends_that_a_wrapper_has_changed() -> None:
    """Gymnasium has no dones, so they would be lost."""
    with contextlib.closing(as_gymnasium(Ending(DummyVecEnv(counting_fns(2))))) as view:
        view.reset()
        with pytest.raises(VecEnvError, match="a wrapper changes dones.* properties terminated and truncated"):
            view.step(np.array([0, 0]))
    with contextlib.closing(as_gymnasium(Terminating(DummyVecEnv(counting_fns(2))))) as view:
        view.reset()
        assert view.step(np.array([0, 0]))[2].tolist() == [True, False]


def test_wrappers_of_this_library_are_baselines_wrappers() -> None:
    with VecNormalize(DummyVecEnv(counting_fns(1))) as venv:
        assert isinstance(venv, VecEnvWrapper)
    with wrappers.VecNormalize(DummyVecEnv(counting_fns(1))) as venv:
        assert isinstance(venv, vecenvs.VecEnvWrapper)
        assert not isinstance(venv.venv, vecenvs.VecEnvWrapper)


@pytest.mark.parametrize("base", [VecFrameStack, vecenvs.VecEnvWrapper])
def test_bases_of_wrappers_without_our_arguments(base: Any) -> None:
    class Narrow(base):  # type: ignore[misc]
        def reset(self) -> Any:
            return -super().reset()

    inner = Narrow(DummyVecEnv(counting_fns(2)), **({"nstack": 1} if base is VecFrameStack else {}))
    with wrappers.VecMonitor(inner) as venv, DummyVecEnv(counting_fns(2)) as plain:
        assert_same(venv.reset(seed=3), -plain.reset(seed=3))
        with pytest.raises(VecEnvError, match="Narrow.reset resets all envs at once"):
            venv.reset([1])


@pytest.mark.parametrize("saved_by", [VecNormalize, wrappers.VecNormalize])
def test_files_of_vec_normalize(saved_by: Any, tmp_path: Path) -> None:
    path = tmp_path / "statistics"
    with saved_by(DummyVecEnv(counting_fns(2)), gamma=0.5) as venv:
        venv.norm_reward = False
        venv.reset()
        venv.save(path)
        with DummyVecEnv(counting_fns(2)) as other:
            loaded = VecNormalize.load(path, other)
            assert type(loaded) is VecNormalize
            assert (loaded.gamma, loaded.norm_reward) == (0.5, False)
            assert_same(loaded.ob_rms.mean, venv.obs_rms.mean)
            merge = wrappers.MergeOverRanks(types.SimpleNamespace(allgather=lambda value: [value, value]))
            merged = VecNormalize.load(path, other, merge=merge)
            merged.reset()
            assert merged.ob_rms.count == venv.obs_rms.count + 4


def test_wrappers_of_this_library_by_baselines_arguments(tmp_path: Path) -> None:
    """In its order and by its names. The rows are those of `vecenvs.wrappers`."""
    with (
        VecNormalize(DummyVecEnv(counting_fns(2)), True, False, 5.0, 4.0, 0.9, 1e-6) as venv,
        wrappers.VecNormalize(CoreDummyVecEnv(counting_fns(2)), True, True, False, 5.0, 4.0, 0.9, 1e-6) as reference,
    ):
        for given, expected in ((venv.reset(), reference.reset()), (venv.step([0, 1]), reference.step([0, 1]))):
            assert_same(given, expected)
        assert (venv.clip_obs, venv.clip_reward, venv.gamma, venv.epsilon) == (5.0, 4.0, 0.9, 1e-6)
        assert_same(venv.ob_rms.mean, reference.obs_rms.mean)
        assert (venv.clipob, venv.cliprew) == (5.0, 4.0)
        assert venv.ret is venv.returns
        with VecNormalize(DummyVecEnv(counting_fns(1))) as evaluation:
            evaluation.training = False
            evaluation.ob_rms = venv.ob_rms
            assert evaluation.obs_rms is venv.obs_rms
            evaluation.ob_rms = None
            assert not evaluation.norm_obs
    with VecNormalize(DummyVecEnv(counting_fns(2)), ob=False, cliprew=0.5) as venv:
        assert venv.ob_rms is None
        venv.reset()
        assert abs(venv.step([1, 1])[1]).max() <= 0.5
    for wrong, error in ((-1, ValueError), ("3", TypeError)):
        with DummyVecEnv(counting_fns(2)) as venv, pytest.raises(error, match="keep_buf"):
            VecMonitor(venv, keep_buf=wrong)
    with DummyVecEnv(counting_fns(2)) as venv, pytest.raises(ValueError, match="use_tf"):
        VecNormalize(venv, use_tf=True)
    with VecFrameStack(DummyVecEnv(counting_fns(2)), nstack=2) as venv:
        assert venv.reset().shape == (2, 6)
        assert venv.nstack == 2
    with VecMonitor(DummyVecEnv(counting_fns(2)), str(tmp_path / "all"), 3) as venv:
        venv.reset()
        ended = [info["episode"] for _ in range(30) for info in venv.step([1, 1])[3] if "episode" in info]
        assert len(ended) > 3
        assert list(venv.epret_buf) == [episode["r"] for episode in ended[-3:]]
        assert list(venv.eplen_buf) == [episode["l"] for episode in ended[-3:]]
    fns = [functools.partial(RenderingEnv, tag) for tag in range(2)]
    with VecVideoRecorder(DummyVecEnv(fns), directory=tmp_path, record_video_trigger=lambda step: step == 0,
                          video_length=2) as venv:  # fmt: skip
        venv.reset()
        for _ in range(3):
            venv.step([0, 0])
        assert Path(str(venv.video_path)).parent == tmp_path


def test_what_other_vec_envs_have() -> None:
    """The error says what to use instead, `hasattr` is False, and a property's own error stays."""
    with SubprocVecEnv(counting_fns(2), context="fork") as venv, VecFrameStack(venv, 2) as stacked:
        for vec in (venv, stacked):
            for name, words in (
                ("remotes", r"get_attr, set_attr, env_method and call\(function, indices\)"),
                ("ps", r"stats\(\) tells of them"),
                ("viewer", r"render\('human'\) shows images in a window"),
                ("state", r"what its envs have is read by get_attr\('state'\)"),
            ):
                assert not hasattr(vec, name)
                with pytest.raises(AttributeError, match=f"'{type(vec).__name__}' .* no attribute '{name}': .*{words}"):
                    getattr(vec, name)
            with pytest.raises(AttributeError, match="no attribute 'envs': its envs are in other processes"):
                _ = vec.envs
            with pytest.raises(AttributeError, match="no attribute '_hidden'$"):
                _ = vec._hidden


# The public names of baselines' modules, by what programs import from.
UPSTREAM = {
    "common.cmd_util": "make_vec_env make_env make_mujoco_env make_robotics_env arg_parser common_arg_parser "
    "mujoco_arg_parser robotics_arg_parser atari_arg_parser parse_unknown_args",
    "bench": "Monitor load_results",
    "bench.monitor": "ResultsWriter get_monitor_files LoadMonitorResultsError",
    "common": "set_global_seeds",
    "common.atari_wrappers": "NoopResetEnv FireResetEnv EpisodicLifeEnv MaxAndSkipEnv ClipRewardEnv WarpFrame "
    "FrameStack ScaledFloatFrame LazyFrames make_atari wrap_deepmind",
    "common.vec_env": "AlreadySteppingError NotSteppingError VecEnv VecEnvWrapper VecEnvObservationWrapper "
    "CloudpickleWrapper",
    "common.vec_env.vec_env": "clear_mpi_env_vars",
    "common.vec_env.dummy_vec_env": "DummyVecEnv",
    "common.vec_env.subproc_vec_env": "SubprocVecEnv",
    "common.vec_env.shmem_vec_env": "ShmemVecEnv",
    "common.vec_env.vec_frame_stack": "VecFrameStack",
    "common.vec_env.vec_normalize": "VecNormalize",
    "common.vec_env.vec_monitor": "VecMonitor",
    "common.vec_env.vec_remove_dict_obs": "VecExtractDictObs",
    "common.vec_env.vec_video_recorder": "VecVideoRecorder",
}
PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
ROWS = re.findall(r"^\| `(\.[\w.]+)? import ([\w, ]+)` \| `((?:from|import) [^`]+)`(.*) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("module", "names", "new", "more"), ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
def test_imports_as_docs_migrating_has_them(module: str, names: str, new: str, more: str) -> None:
    """The new import of each row works, and imports the same names where it has baselines' names."""
    found: dict[str, Any] = {}
    exec(new, found)  # noqa: S102
    told = [name for name in names.split(", ") if name in re.findall(r"\w+", new)]
    assert all(name in found for name in told)
    if "vecenvs.compat.baselines import" in new and not more:
        assert told == names.split(", ")
    if module == ".common.vec_env":
        assert set(found) - {"__builtins__"} <= {*baselines.__all__, "cloudpickle"}


def test_docs_migrating_has_every_import() -> None:
    there = {(module.lstrip("."), name) for module, names, *_ in ROWS for name in names.split(", ")}
    assert {(module, name) for module, names in UPSTREAM.items() for name in names.split()} <= there
    assert ("", "bench") in there


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_arguments_are_baselines() -> None:
    """Same names in the same positions; this library's arguments come after them."""
    envs = "reward_scale gamestate flatten_dict_observations wrapper_kwargs env_kwargs logger_dir initializer"
    vec_envs = "wrapper_kwargs env_kwargs start_index reward_scale flatten_dict_observations gamestate initializer"
    for function, names in (
        (baselines.make_vec_env, f"env_id env_type num_env seed {vec_envs} force_dummy"),
        (baselines.make_env, f"env_id env_type mpi_rank subrank seed {envs}"),
        (baselines.make_atari, "env_id max_episode_steps"),
        (baselines.wrap_deepmind, "env episode_life clip_rewards frame_stack scale"),
        (baselines.Monitor.__init__, "env filename allow_early_resets reset_keywords info_keywords"),
        (baselines.set_global_seeds, "i"),
    ):
        assert parameters(function)[: len(names.split())] == names.split()


def test_monitor_as_in_bench(tmp_path: Path) -> None:
    """A reset in mid-episode is an error, unlike with `vecenvs.wrappers.Monitor`."""
    env = baselines.Monitor(CountingEnv(length=3), str(tmp_path / "0"))
    env.reset()
    env.step(0)
    with pytest.raises(RuntimeError, match="allow_early_resets=True"):
        env.reset()
    for _ in range(2):
        info = env.step(0)[-1]
    env.close()
    assert info["episode"]["l"] == 3
    assert baselines.load_results(str(tmp_path)).l.tolist() == [3]
    for nothing in ("", None):
        assert baselines.Monitor(CountingEnv(), nothing).results_writer is None
    with DummyVecEnv([lambda: baselines.Monitor(CountingEnv(length=3), None)] * 2) as venv:
        venv.reset()
        for _ in range(3):
            infos = venv.step([0, 0])[-1]
        assert [info["episode"]["l"] for info in infos] == [3, 3]


def test_make_env_is_what_make_vec_env_has(tmp_path: Path) -> None:
    """The same wrappers, seed and file; the second reset continues from the first."""
    calls = []
    env = baselines.make_env(
        "CartPole-v1", "classic_control", 0, 2, 7, 0.5, logger_dir=tmp_path, initializer=lambda **kw: calls.append(kw)
    )
    assert calls == [{"mpi_rank": 0, "subrank": 2}]
    with baselines.make_vec_env("CartPole-v1", "classic_control", 1, 7, start_index=2, reward_scale=0.5) as venv:
        for _ in range(2):
            assert_same(env.reset()[0], venv.reset()[0])
            obs, reward, *_ = env.step(1)
            row = venv.step([1])
            assert_same(obs, row[0][0])
            assert reward == row[1][0] == 0.5
    assert env.reset(seed=3)[0].tolist() == gym.make("CartPole-v1").reset(seed=3)[0].tolist()
    env.close()
    assert [path.name for path in tmp_path.iterdir()] == ["0.2.monitor.csv"]
    with pytest.raises(ValueError, match="unknown env_type"):
        baselines.make_env("CartPole-v1", "arcade")


GAME = "BreakoutNoFrameskip-v4"


@pytest.mark.sparse
@pytest.mark.parametrize("frame_stack", [False, True])
def test_atari_as_make_vec_env_has_it(frame_stack: bool) -> None:
    """Rewards and ends are equal step by step, pixels up to rounding: here grey is computed from colours."""
    env = baselines.wrap_deepmind(baselines.make_atari(GAME), frame_stack=frame_stack)
    kwargs = {"frame_stack": frame_stack}
    with baselines.make_vec_env(GAME, "atari", 1, None, kwargs) as venv:
        assert env.observation_space == venv.observation_space
        rows = env.reset(seed=5)[0], venv.reset(seed=5)[0]
        rng = np.random.default_rng(0)
        ends = 0
        for _ in range(250):
            assert rows[0].shape == rows[1].shape == (84, 84, 4 if frame_stack else 1)
            assert np.abs(rows[0].astype(int) - rows[1]).max() <= 3
            action = rng.integers(4)
            obs, reward, terminated, truncated, _ = env.step(action)
            row, rewards, dones, _ = venv.step([action])
            assert (reward, terminated or truncated) == (rewards[0], dones[0])
            if dones[0]:
                ends += 1
                obs = env.reset()[0]
            rows = obs, row[0]
        assert ends > 1


def test_make_atari_alone() -> None:
    env = baselines.make_atari(GAME, max_episode_steps=3)
    assert env.observation_space == spaces.Box(0, 255, (210, 160, 3), np.uint8)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]
    scaled = baselines.wrap_deepmind(env, scale=True)
    assert scaled.observation_space == spaces.Box(0.0, 1.0, (84, 84, 1), np.float32)
    obs = scaled.reset(seed=0)[0]
    assert scaled.observation_space.contains(obs)
    assert 0.0 < obs.max() <= 1.0
    with pytest.raises(ValueError, match="'classic_control'"):
        baselines.make_atari("CartPole-v1")


@pytest.mark.long
def test_set_global_seeds() -> None:
    import torch

    draws = []
    for seed in (3, 3, 4, None):
        baselines.set_global_seeds(seed)
        draws.append((random.random(), np.random.random(), torch.rand(1).item()))  # noqa: NPY002
    assert draws[0] == draws[1]
    for others in draws[2:]:
        assert all(one != other for one, other in zip(draws[0], others, strict=True))
