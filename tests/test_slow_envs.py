"""Which rows of a command travel together."""

from __future__ import annotations

from vecenvs.worker.slow_envs import REPLY_WINDOW, SlowEnvs


def test_envs_travel_together_until_one_was_slow() -> None:
    """Then it goes alone as long as it is slow, and the others do not."""
    portions = SlowEnvs()
    assert portions.before_slow(range(8)) == range(8)
    portions.measured(5, 10 * REPLY_WINDOW)
    for _ in range(3):
        left: range = range(8)
        sizes = []
        while left:
            portion = portions.before_slow(left)
            left = left[len(portion) :]
            portions.measured(portion[-1], 10 * REPLY_WINDOW if 5 in portion else REPLY_WINDOW)
            sizes.append(len(portion))
        assert sizes == [5, 1, 2]
    portions.measured(5, REPLY_WINDOW)
    assert portions.before_slow([3, 5, 7]) == [3, 5, 7]
