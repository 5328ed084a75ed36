"""The examples with several agents: they run, and learn."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def test_one_policy_for_all_agents() -> None:
    from examples import agents_sb3

    before, after = agents_sb3.main(["--num-envs", "8", "--total-timesteps", "120000"])
    assert after > before


def test_two_policies() -> None:
    from examples import agents_two_policies

    means = agents_two_policies.main(["--num-envs", "8", "--total-timesteps", "2000"])
    assert set(means) == {"adversary", "agent"}
    assert all(np.isfinite(values).all() and len(values) == 10 for values in means.values())


def test_self_play() -> None:
    from examples import agents_self_play

    before, after = agents_self_play.main(["--num-envs", "16", "--total-timesteps", "21600"])
    assert after > before
