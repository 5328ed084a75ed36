"""`render("human")`: a window with the images of all envs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from later import Later

from vecenvs import BackendUnavailable, DummyVecEnv, SubprocVecEnv, VecEnvError, VecMonitor, from_gymnasium
from vecenvs.testing.envs import RenderingEnv, counting_fns

pygame = Later("pygame")
FNS = [functools.partial(RenderingEnv, tag + 1) for tag in range(4)]


@pytest.fixture(autouse=True)
def display(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    yield
    pygame.display.quit()


@pytest.mark.parametrize(
    "make",
    [
        DummyVecEnv,
        functools.partial(SubprocVecEnv, num_workers=2, start_method="fork"),
        lambda fns: VecMonitor(DummyVecEnv(fns)),
        lambda fns: from_gymnasium(gym.vector.SyncVectorEnv(fns, autoreset_mode="SameStep")),
    ],
    ids=["dummy", "subproc", "wrapper", "from_gymnasium"],
)
def test_all_envs_are_in_one_window(make: Any) -> None:
    vec = make(FNS)
    vec.reset()
    for step in range(2):
        assert vec.render("human") is None
        surface = pygame.display.get_surface()
        assert surface.get_size() == (12, 8)
        colours = [surface.get_at((6 * (k % 2), 4 * (k // 2)))[0] for k in range(4)]
        assert colours == [10 * k + 10 + step for k in range(4)]
        vec.step([0] * 4)
    assert vec.render() is not None, "the mode of the envs is another one still"
    vec.close()
    assert pygame.display.get_surface() is None


def test_a_window_that_the_user_closes_stays_closed() -> None:
    with DummyVecEnv(FNS) as vec:
        vec.reset()
        vec.render("human")
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        vec.render("human")
        assert pygame.display.get_surface() is None
        vec.render("human")
        assert pygame.display.get_surface() is None


def test_errors_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with DummyVecEnv(FNS) as vec:
        vec.reset()
        monkeypatch.setenv("SDL_VIDEODRIVER", "no such driver")
        with pytest.raises(VecEnvError, match=r"can open no window \(.*\): use the image that render\(\) returns"):
            vec.render("human")
    with DummyVecEnv(FNS) as vec, monkeypatch.context() as patch:
        vec.reset()
        patch.setitem(sys.modules, "pygame", None)
        with pytest.raises(BackendUnavailable, match="pip install pygame-ce"):
            vec.render("human")
    with DummyVecEnv(counting_fns(2)) as vec, pytest.raises(VecEnvError, match="render_mode='human'"):
        vec.render("human")
