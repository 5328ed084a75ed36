"""Env types and their preprocessing; the Atari parts on toy games, and on the real emulator."""

from __future__ import annotations

import functools
import itertools
import pickle
import subprocess
import sys
import types
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import vecenvs
from vecenvs.make.env_types import ENV_TYPES, check_env_type, find_spec, get_env_type
from vecenvs.make.preprocessing import Atari, Preprocessing, Retro, preprocessing, stack_frames
from vecenvs.wrappers import EpisodicLife, FireReset, Monitor, clip_action, clip_reward, scale_reward
from vecenvs.wrappers.atari import StochasticFrameSkip


@pytest.fixture
def registered():
    """Register ids, and import modules that do, for one test."""
    ids, modules = dict(gym.registry), set(sys.modules)
    yield gym.register
    gym.registry.clear()
    gym.registry.update(ids)
    for name in [name for name in sys.modules if name not in modules and name.startswith("zoo_")]:
        del sys.modules[name]


class TestTypes:
    @pytest.mark.parametrize(
        ("env_id", "env_type"),
        [
            ("CartPole-v1", "classic_control"),
            ("Pendulum-v1", "classic_control"),
            ("LunarLander-v3", "box2d"),
            ("HalfCheetah-v5", "mujoco"),
            ("FrozenLake-v1", "toy_text"),
            ("ALE/Pong-v5", "atari"),
            ("PongNoFrameskip-v4", "atari"),
        ],
    )
    def test_derived_from_the_id(self, env_id, env_type):
        assert get_env_type(env_id) == env_type
        assert get_env_type(find_spec(env_id)) == env_type
        assert env_type in ENV_TYPES

    def test_others_are_plain(self, registered):
        registered("Mine-v0", entry_point="gymnasium.envs.classic_control_of_mine:Env")
        registered("Function-v0", entry_point=lambda: None)
        assert get_env_type("Mine-v0") == get_env_type("Function-v0") == "plain"

    def test_none_is_derived(self):
        assert check_env_type(None, find_spec("CartPole-v1")) == "classic_control"
        assert check_env_type(None, None) == "plain"

    def test_plain_suits_every_env(self):
        assert check_env_type("plain", find_spec("ALE/Pong-v5")) == "plain"

    @pytest.mark.parametrize(("env_id", "name"), [("CartPole-v1", "cartpole"), ("ALE/Pong-v5", "ale_py")])
    def test_names_that_baselines_get_env_type_finds(self, env_id, name):
        assert check_env_type(name, find_spec(env_id)) == get_env_type(env_id)

    def test_an_env_of_ones_own_can_be_of_any_type(self, registered):
        registered("Mine-v0", entry_point="somewhere.my_envs:Env")
        assert check_env_type("mujoco", find_spec("Mine-v0")) == "mujoco"
        assert check_env_type("my_envs", find_spec("Mine-v0")) == "plain"

    def test_unknown(self):
        with pytest.raises(ValueError, match="unknown env_type 'arcade'.*atari, box2d, classic_control, mujoco"):
            check_env_type("arcade", find_spec("CartPole-v1"))
        with pytest.raises(ValueError, match="unknown env_type 3"):
            check_env_type(3, None)

    def test_wrong(self):
        with pytest.raises(ValueError, match="'atari', but CartPole-v1 is of type 'classic_control'"):
            check_env_type("atari", find_spec("CartPole-v1"))


class TestFindSpec:
    def test_atari_ids_are_found_without_an_import(self):
        found = "from vecenvs.make.env_types import find_spec; print(find_spec('Pong-v4').id, find_spec('ALE/Pong').id)"
        done = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["Pong-v4", "ALE/Pong-v5"]

    def test_version_may_be_missing(self):
        assert find_spec("CartPole").id == "CartPole-v1"

    def test_id_without_version(self, registered):
        registered("Mine", entry_point="somewhere:Env")
        assert find_spec("Mine").id == "Mine"

    def test_module_is_imported(self, tmp_path, monkeypatch, registered):
        (tmp_path / "zoo_of_mine.py").write_text(
            "import gymnasium\ngymnasium.register('Zebra-v0', entry_point='zoo_of_mine:Zebra')\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        assert find_spec("zoo_of_mine:Zebra-v0").entry_point == "zoo_of_mine:Zebra"

    def test_unknown_module(self):
        for module in ("no_such_zoo", "no_such_zoo.africa"):
            with pytest.raises(ModuleNotFoundError, match="no_such_zoo.*or start in the directory where it is"):
                find_spec(f"{module}:Zebra-v0")

    @pytest.mark.parametrize(
        "env_id", ["CartPol-v1", "CartPole-v77", "CartPole v1", "Nowhere/Pong-v5", "", "ALE/Pog-v5"]
    )
    def test_unknown_ids_are_gymnasiums_errors(self, env_id):
        with pytest.raises(gym.error.Error):
            find_spec(env_id)

    @pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
    def test_atari_without_ale(self, env_id, monkeypatch, registered):
        for known in [known for known, spec in gym.registry.items() if "ale_py" in str(spec.entry_point)]:
            del gym.registry[known]
        monkeypatch.setitem(sys.modules, "ale_py", None)
        with pytest.raises(ImportError, match=r"pip install ale-py opencv"):
            find_spec(env_id)


class TestOptions:
    def test_baselines_defaults(self):
        made = preprocessing("atari")
        assert isinstance(made, Atari)
        assert (made.episode_life, made.clip_rewards, made.frame_stack, made.scale) == (True, True, False, False)

    def test_types_without_any(self):
        assert type(preprocessing("mujoco", {})) is Preprocessing
        with pytest.raises(TypeError, match=r"\['frame_stack'\] mean nothing to env_type 'mujoco'"):
            preprocessing("mujoco", {"frame_stack": True})

    def test_unknown_option(self):
        with pytest.raises(TypeError, match=r"\['frames'\]: env_type 'atari' takes episode_life, clip_rewards"):
            preprocessing("atari", {"frames": 4})

    @pytest.mark.parametrize("frame_stack", [-1, "4", None, 2.0])
    def test_bad_frame_stack(self, frame_stack):
        with pytest.raises(ValueError, match="frame_stack must be"):
            preprocessing("atari", {"frame_stack": frame_stack})

    @pytest.mark.parametrize("env_type", ENV_TYPES)
    def test_pickles(self, env_type):
        made = preprocessing(env_type)
        assert pickle.loads(pickle.dumps(made)) == made


class Game(gym.Env):
    """A game of lives: an action takes a turn; `plan` says after each turn how many lives are left (None: over).

    The observation is the number of turns and the game's number; the reward is 10 times the turn.
    """

    observation_space = gym.spaces.Box(0, 1000, (2,), np.int64)
    action_space = gym.spaces.Discrete(4)

    def __init__(
        self, plan: Any, lives: int = 3, meanings: Any = ("NOOP", "FIRE", "UP", "DOWN"), truncate: bool = False
    ):
        self.plan, self.start, self.meanings, self.truncate = plan, lives, list(meanings), truncate
        self.ale = types.SimpleNamespace(lives=lambda: self.lives)
        self.games, self.turn, self.lives = 0, 0, 0
        self.calls: list[Any] = []

    def get_action_meanings(self):
        return self.meanings

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.calls.append(("reset", seed, options))
        self.games, self.turn, self.lives = self.games + 1, 0, self.start
        return self._obs(), {"game": self.games}

    def step(self, action):
        self.calls.append(action)
        left = self.plan[self.turn]
        self.turn += 1
        self.lives = left or 0
        over = left is None
        return self._obs(), 10.0 * self.turn, over and not self.truncate, over and self.truncate, {"turn": self.turn}

    def _obs(self):
        return np.array([self.turn, self.games])


def advance(env: gym.Env, action: int = 3) -> tuple[bool, bool]:
    """Step; return the two flags."""
    return env.step(action)[2:4]


def two_lives() -> gym.Env:
    return EpisodicLife(Monitor(Game([2, 2, None])))


class TestEpisodicLife:
    def test_an_episode_per_life(self):
        game = Game([3, 2, 2, 1, None])
        env = EpisodicLife(game)
        env.reset(seed=1)
        assert [advance(env), advance(env)] == [(False, False), (True, False)]
        obs, info = env.reset()  # one no-op, the third turn, on the same game
        assert (obs.tolist(), info) == ([3, 1], {"turn": 3})
        assert advance(env) == (True, False)
        obs, info = env.reset()  # that no-op ends the game: a new one begins
        assert (obs.tolist(), info) == ([0, 2], {"game": 2})
        assert game.calls == [("reset", 1, None), 3, 3, 0, 3, 0, ("reset", None, None)]

    def test_the_last_life_ends_the_game(self):
        game = Game([None])
        env = EpisodicLife(game)
        env.reset()
        assert advance(env) == (True, False)
        assert env.reset()[0].tolist() == [0, 2]

    def test_truncation_ends_the_game(self):
        env = EpisodicLife(Game([None], truncate=True))
        env.reset()
        assert advance(env) == (False, True)
        assert env.reset()[0].tolist() == [0, 2]

    def test_no_lives_shown_before_the_end_is_no_loss(self):
        env = EpisodicLife(Game([1, 0, 0, None], lives=1))
        env.reset()
        assert [advance(env)[0] for _ in range(4)] == [False, False, False, True]

    def test_bonus_lives_count(self):
        env = EpisodicLife(Game([4, 3], lives=3))
        env.reset()
        assert [advance(env)[0] for _ in range(2)] == [False, True]

    @pytest.mark.parametrize("given", [{"seed": 5}, {"options": {"mode": 1}}])
    def test_a_reset_with_seed_or_options_begins_a_new_game(self, given):
        game = Game([2])
        env = EpisodicLife(game)
        env.reset()
        assert advance(env)[0]
        assert env.reset(**given)[0].tolist() == [0, 2]
        assert game.calls[-1] == ("reset", given.get("seed"), given.get("options"))

    def test_the_monitor_below_sees_whole_games(self):
        env = EpisodicLife(Monitor(Game([2, 2, None])))
        env.reset()
        _, _, terminated, _, info = env.step(3)
        assert (terminated, "episode" in info) == (True, False)
        env.reset()
        info = env.step(3)[4]
        assert (info["episode"]["r"], info["episode"]["l"]) == (60.0, 3)

    def test_a_masked_reset_as_in_gymnasium_begins_the_next_life(self):
        with vecenvs.DummyVecEnv([two_lives], autoreset="disabled") as vec:
            envs = vecenvs.as_gymnasium(vec)
            envs.reset(seed=1)
            assert envs.step(np.array([3]))[2].all()
            assert envs.reset(options={"reset_mask": np.array([True])})[0].tolist() == [[2, 1]]
            assert envs.step(np.array([3]))[4]["episode"]["l"].tolist() == [3]

    def test_only_atari(self):
        with pytest.raises(ValueError, match="is not an Atari env"):
            EpisodicLife(gym.make("CartPole-v1"))


class TestFireReset:
    def test_two_actions(self):
        game = Game([3] * 5)
        obs, info = FireReset(game).reset(seed=3, options={"a": 1})
        assert game.calls == [("reset", 3, {"a": 1}), 1, 2]
        assert (obs.tolist(), info) == ([2, 1], {"turn": 2})

    def test_a_game_that_ends_meanwhile_begins_anew(self):
        game = Game([3, None])
        obs, info = FireReset(game).reset(seed=3)
        assert game.calls == [("reset", 3, None), 1, 2, ("reset", None, None)]
        assert (obs.tolist(), info) == ([0, 2], {"game": 2})

    def test_needs_fire(self):
        with pytest.raises(ValueError, match="action 1 is FIRE.*UP"):
            FireReset(Game([3], meanings=("NOOP", "UP", "FIRE")))


class TestFrameStack:
    def test_newest_last_in_the_last_axis(self):
        env = stack_frames(Frames(), 3)
        assert env.observation_space == gym.spaces.Box(0, 255, (2, 5, 3), np.uint8)
        obs, _ = env.reset()
        assert obs[1, 4].tolist() == [0, 0, 0]
        obs = [env.step(0)[0] for _ in range(4)]
        assert [o[1, 4].tolist() for o in obs] == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
        assert obs[0] in env.observation_space

    @pytest.mark.parametrize("frame_stack", [False, 0, 1])
    def test_a_stack_of_one_adds_nothing(self, frame_stack):
        env = Frames()
        assert stack_frames(env, frame_stack) is env

    def test_true_is_four(self):
        assert stack_frames(Frames(), True).observation_space.shape == (2, 5, 4)

    def test_needs_images(self):
        with pytest.raises(TypeError, match="image observations"):
            stack_frames(gym.make("FrozenLake-v1"), 4)


class Frames(gym.Env):
    """An env whose pixels and rewards are the number of the step."""

    observation_space = gym.spaces.Box(0, 255, (2, 5), np.uint8)
    action_space = gym.spaces.Discrete(9)

    def __init__(self, length: int = 10**6, shape: Any = (2, 5)):
        self.length = length
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.actions: list[int] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.k = 0
        return self._obs(), {}

    def step(self, action):
        self.k += 1
        self.actions.append(action)
        return self._obs(), self.k, self.k >= self.length, False, {}

    def _obs(self):
        return np.full(self.observation_space.shape, self.k, np.uint8)


class TestAtari:
    def make(self, env_id: str = "BreakoutNoFrameskip-v4", **options: Any) -> gym.Env:
        made = Atari(**options)
        env = made.below_monitor(made.make(find_spec(env_id), {}))
        return made.clip(made.above_monitor(Monitor(env)))

    @pytest.mark.parametrize(
        ("options", "space"),
        [
            ({}, gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)),
            ({"frame_stack": True}, gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)),
            ({"frame_stack": 2, "scale": True}, gym.spaces.Box(0, 1, (84, 84, 2), np.float32)),
            ({"screen_size": (42, 30)}, gym.spaces.Box(0, 255, (30, 42, 1), np.uint8)),
        ],
    )
    def test_observations(self, options, space):
        env = self.make(**options)
        assert env.observation_space == space
        obs, _ = env.reset(seed=0)
        assert obs in space
        assert env.step(0)[0] in space
        env.close()

    def test_layers(self):
        env = self.make(frame_stack=True)
        names = [env.class_name()]
        while isinstance(env, gym.Wrapper):
            env = env.env
            names.append(env.class_name() if isinstance(env, gym.Wrapper) else type(env).__name__)
        assert names == [
            "TransformReward", "TransformObservation", "FrameStackObservation", "FireReset", "EpisodicLife", "Monitor",
            "AtariPreprocessing", "OrderEnforcing", "AtariEnv",
        ]  # fmt: skip

    def test_parts_can_be_left_out(self):
        env = self.make(episode_life=False, clip_rewards=False, fire_reset=False)
        assert isinstance(env, Monitor)
        env.close()

    def test_a_game_without_fire(self):
        env = self.make("FreewayNoFrameskip-v4")
        assert isinstance(env.env, EpisodicLife)
        env.close()

    @pytest.mark.parametrize(
        ("env_id", "sticky"), [("ALE/Pong-v5", 0.25), ("PongNoFrameskip-v4", 0.0), ("Pong-v4", 0.0)]
    )
    def test_the_emulators_frame_skip_is_one_and_stickiness_the_ids(self, env_id, sticky):
        env = Atari().make(find_spec(env_id), {})
        assert env.unwrapped._frameskip == 1
        assert env.spec.kwargs["repeat_action_probability"] == sticky
        env.close()

    def test_env_kwargs_win(self):
        with pytest.raises(ValueError, match="frame-skipping"):
            Atari().below_monitor(Atari().make(find_spec("ALE/Pong-v5"), {"frameskip": 4}))

    def test_raw_rewards_of_whole_games_are_monitored(self):
        """Three lives are three episodes with clipped rewards, but one monitored episode with the score."""
        env = self.make("SpaceInvadersNoFrameskip-v4")
        env.reset(seed=0)
        rng = np.random.default_rng(0)
        rewards, lives, game = [], 0, None
        while game is None:
            _, reward, terminated, truncated, info = env.step(int(rng.integers(6)))
            rewards.append(reward)
            game = info.get("episode")
            lives += terminated
            if terminated and game is None:
                assert info["lives"] > 0
                env.reset()
            assert not truncated
        assert lives == 3
        assert set(rewards) == {0.0, 1.0}
        assert game["r"] > 5 * sum(rewards)  # 5 to 30 points for each alien
        no_ops, fire = lives - 1, 2 * lives
        assert game["l"] == len(rewards) + no_ops + fire
        env.close()

    def test_not_an_atari_env(self):
        with pytest.raises(ValueError, match="CartPole.* is not an Atari env"):
            Atari().below_monitor(gym.make("CartPole-v1"))


class TestRetro:
    def test_frames_held_and_the_old_one_sometimes_longer(self):
        env = StochasticFrameSkip(Frames(), 4, 0.25)
        env.reset(seed=0)
        for action in range(8):
            _, reward, *_ = env.step(action)
            assert reward == sum(range(4 * action + 1, 4 * action + 5))
        held = np.reshape(env.unwrapped.actions, (8, 4))
        assert (held[:, 1:] == np.arange(8)[:, None]).all()
        late = held[:, 0] != np.arange(8)
        assert 0 < late.sum() < 8
        assert not late[0]
        assert (held[late, 0] == np.flatnonzero(late) - 1).all()
        again = StochasticFrameSkip(Frames(), 4, 0.25)
        again.reset(seed=0)
        for action in range(8):
            again.step(action)
        assert again.unwrapped.actions == env.unwrapped.actions

    def test_of_one_frame_an_action_may_stick_for_long(self):
        env = StochasticFrameSkip(Frames(), 1, 0.9)
        env.reset(seed=0)
        for action in range(8):
            env.step(action)
        given = env.unwrapped.actions
        assert all(now in (action, before) for action, (before, now) in enumerate(itertools.pairwise(given), 1))
        assert any(now < action - 1 for action, now in enumerate(given))

    def test_the_end_ends_the_frame(self):
        env = StochasticFrameSkip(Frames(length=6), 4, 0.0)
        env.reset()
        assert env.step(0)[1:3] == (1 + 2 + 3 + 4, False)
        assert env.step(0)[1:3] == (5 + 6, True)

    def test_wiring(self, monkeypatch):
        asked: list[dict[str, Any]] = []

        def make(**kwargs):
            asked.append(kwargs)
            return Frames(shape=(224, 320, 3))

        fake = types.SimpleNamespace(make=make, Actions=types.SimpleNamespace(DISCRETE="discrete"))
        monkeypatch.setitem(sys.modules, "stable_retro", fake)
        made = Retro(frame_stack=4)
        env = made.clip(made.above_monitor(made.below_monitor(made.make("Game-v0", {"state": "Level1"}))))
        assert asked == [
            {"game": "Game-v0", "use_restricted_actions": "discrete", "render_mode": "rgb_array", "state": "Level1"}
        ]
        assert env.observation_space == gym.spaces.Box(0, 1, (84, 84, 4), np.float32)
        env.reset(seed=0)
        obs, reward, *_ = env.step(0)
        assert obs in env.observation_space
        np.testing.assert_allclose(obs[0, 0], [0, 0, 0, 4 / 255])
        assert reward == 1.0


class TestReward:
    def test_clipped_to_the_sign(self):
        env = clip_reward(Script([5, -0.25, 0, np.float32(3), float("nan")]))
        assert [env.step(0)[1] for _ in range(4)] == [1.0, -1.0, 0.0, 1.0]
        assert np.isnan(env.step(0)[1])

    def test_scaled(self):
        env = scale_reward(Script([5, 0.5, np.float32(1)]), 0.1)
        assert [env.step(0)[1] for _ in range(2)] == [0.5, 0.05]

    def test_a_scale_of_one_adds_nothing(self):
        env = Script([1])
        assert scale_reward(env, 1) is env

    @pytest.mark.parametrize(
        ("scale", "error"), [("2", TypeError), (None, TypeError), (True, TypeError), (np.inf, ValueError)]
    )
    def test_bad_scale(self, scale, error):
        with pytest.raises(error, match="reward_scale must be"):
            scale_reward(Script([1]), scale)

    def test_specs_pickle(self):
        env = scale_reward(clip_action(clip_reward(gym.make("Pendulum-v1"))), 2)
        assert len(pickle.loads(pickle.dumps(env.spec)).additional_wrappers) == 3


class TestClipAction:
    def test_clipped_to_bounds_that_stay(self):
        below = Script([0, 0], action_space=gym.spaces.Box(np.float32([-1, 0]), np.float32([1, np.inf])))
        env = clip_action(below)
        assert env.action_space == below.action_space
        given = np.float32([-3, 7])
        env.step(given)
        assert below.seen[0].tolist() == [-1, 7]
        assert below.seen[0].dtype == np.float32
        assert given.tolist() == [-3, 7]

    def test_nan_stays(self):
        below = Script([0], action_space=gym.spaces.Box(-1, 1, (1,)))
        clip_action(below).step(np.float32([np.nan]))
        assert np.isnan(below.seen[0]).all()

    @pytest.mark.parametrize("space", [gym.spaces.Discrete(3), gym.spaces.Box(-np.inf, np.inf, (2,))])
    def test_nothing_to_clip(self, space):
        env = Script([0], action_space=space)
        assert clip_action(env) is env


class Script(gym.Env):
    """Return given rewards; record the actions."""

    observation_space = gym.spaces.Discrete(2)

    def __init__(self, rewards: Any, action_space: gym.Space = gym.spaces.Discrete(2)):  # noqa: B008
        self.rewards, self.action_space = iter(rewards), action_space
        self.seen: list[Any] = []

    def step(self, action):
        self.seen.append(action)
        return 0, next(self.rewards), False, False, {}


def test_callables_are_made_with_their_arguments():
    made = Preprocessing().make(functools.partial(Game, [3]), {"lives": 7})
    assert made.start == 7
