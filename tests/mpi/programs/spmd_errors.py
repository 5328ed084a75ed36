"""What one rank alone gets wrong in the helpers of vecenvs.mpi: the same error on every rank, and all can go on."""

import numpy as np
from mpi4py import MPI

import vecenvs.mpi as spmd
from vecenvs.errors import VecEnvError

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
odd = rank == 1  # the one that is wrong
FIXED = np.zeros(3)
FIXED.flags.writeable = False


def same(error, function, *args):
    """Return the text of the error, which every rank must raise alike. Collective calls still work after it."""
    try:
        function(*args)
    except Exception as exc:
        found = type(exc).__name__, str(exc)
    else:
        found = None, ""
    everywhere = world.allgather(found)
    assert everywhere == [(error.__name__, everywhere[0][1])] * size, everywhere
    assert spmd.mean_of_dicts({"rank": rank}) == {"rank": (size - 1) / 2}
    return found[1]


def broken(array):
    """Arrays from an iterable that raises on the odd rank."""
    yield array
    if odd:
        raise KeyError("of the caller's own")


# Shapes behind the first axis. The number of rows is each rank's own.
rows = np.ones((rank + 2, 3))
for values in (np.ones((2, 4)), [], np.ones(3), np.ones((2, 3, 1))):
    shape = np.shape(values)[1:]
    for function in (spmd.moments, spmd.RunningMeanStd((3,)).update):
        expected = VecEnvError if function is spmd.moments else ValueError
        text = same(expected, function, values if odd else rows)
        assert "rank 1: " in text, text
        assert str(shape if function is spmd.moments else np.shape(values)) in text, text
assert "rank 0, 2: (3,); rank 1: (4,)" in same(VecEnvError, spmd.moments, np.ones((1, 4)) if odd else rows)
unlike = spmd.RunningMeanStd((4,) if odd else (3,))
assert "rank 1: values of shape (3, 3)" in same(ValueError, unlike.update, rows)
assert "rank 1: (4,)" in same(VecEnvError, unlike.update, np.ones((1, 4)) if odd else rows)
assert unlike.count == 1e-4
assert spmd.moments(np.empty((0, 3)) if odd else rows).count == sum(r + 2 for r in range(size) if r != 1)
assert "rank 1: a single number" in same(ValueError, spmd.moments, 1.0 if odd else rows)
assert "moments: rank 1: could not convert" in same(ValueError, spmd.moments, ["x"] if odd else rows)

# Arrays that cannot be written to, or that MPI does not carry.
for function in (spmd.sync_from_root, spmd.average_gradients):
    mine = np.full(3, float(rank))
    wrong = [FIXED, np.zeros(3, object), np.zeros(3, "U4"), np.zeros(3, "M8[s]"), np.zeros(3, ">f4"), [0.0] * 3, None]
    for one in wrong:
        error = ValueError if one is FIXED else TypeError
        assert f"{function.__name__}: rank 1: " in same(error, function, [mine, one if odd else np.zeros(3)])
    assert mine.tolist() == [rank] * 3
    same(TypeError, function, [np.zeros(3, object)])  # all of them

    assert "rank 1: KeyError: " in same(VecEnvError, function, broken(mine))
    assert mine.tolist() == [rank] * 3
assert "rank 1: " in same(TypeError, spmd.assert_synced, ["x" if odd else FIXED])
spmd.assert_synced([FIXED, np.zeros(3, "U4"), np.zeros(3, "M8[s]")])  # which travel as digests

# Weights and values.
for weight in (-1.0, float("nan"), float("inf")):
    text = same(ValueError, spmd.average_gradients, [np.zeros(2)], weight if odd else 1.0)
    assert f"rank 1: weight must be a number from 0 on, not {weight!r}" in text
    assert "rank 1: 'ret' has the weight" in same(
        ValueError, spmd.mean_of_dicts, {"ret": (1.0, weight if odd else 1.0)}
    )
same(TypeError, spmd.average_gradients, [np.zeros(2)], "heavy" if odd else 1.0)
same(TypeError, spmd.average_gradients, [np.zeros(2, int if odd else float)])
for value in (None, "x", (1.0,), [1.0, 2.0], (1.0, None)):
    text = same(TypeError, spmd.mean_of_dicts, {"ret": value if odd else 1.0})
    assert "rank 1: 'ret' is " in text, text
same(TypeError, spmd.mean_of_dicts, None if odd else {})
assert "rank 1: " in same(VecEnvError, spmd.mean_of_dicts, {(lambda: 0) if odd else "ret": 1.0})
assert "mean_of_dicts: rank 0-2: 'r' has the weight -1" in same(ValueError, spmd.mean_of_dicts, {"r": (1.0, -1)})

# Helpers in another order than elsewhere.
function = spmd.assert_synced if odd else spmd.sync_from_root
assert "rank 0, 2: sync_from_root; rank 1: assert_synced" in same(VecEnvError, function, [np.zeros(2)])
print("all errors agree", flush=True)
