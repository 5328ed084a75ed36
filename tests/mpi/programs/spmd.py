"""Every helper of vecenvs.mpi, on several ranks, against numpy on the whole data."""

import numpy as np
from mpi4py import MPI

import vecenvs.mpi as spmd
from vecenvs.errors import VecEnvError

world = MPI.COMM_WORLD
rank, size = world.rank, world.size


def raises(error, function, *args):
    try:
        function(*args)
    except error as exc:
        return str(exc)
    raise AssertionError(f"no {error.__name__}")


assert spmd.rank_seed(7) == 7 + 10000 * rank

arrays = [np.full((2, 3), rank, np.float32), np.arange(4)[::2] + rank]
assert "of rank 1" in raises(VecEnvError, spmd.assert_synced, arrays)
spmd.sync_from_root(arrays)
assert arrays[0].max() == 0
assert arrays[1].tolist() == [0, 2]
spmd.assert_synced(arrays)
raises(TypeError, spmd.sync_from_root, [[1.0]])

data = [np.random.default_rng(r).normal(1e6, 1.0, (5 * r, 3)) for r in range(size)]  # rank 0 has none
whole = np.concatenate(data)
found = spmd.moments(data[rank])
assert found.count == len(whole)
np.testing.assert_allclose(found.mean, whole.mean(axis=0), rtol=1e-14)
np.testing.assert_allclose(found.var, whole.var(axis=0), rtol=1e-9)
raises(ValueError, spmd.moments, np.empty((0, 3)))

running = spmd.RunningMeanStd((3,), epsilon=0.0)
running.update(data[rank][:3])
running.update(data[rank][3:])
np.testing.assert_allclose(running.mean, whole.mean(axis=0), rtol=1e-12)
np.testing.assert_allclose(running.std, whole.std(axis=0), rtol=1e-6)
spmd.assert_synced([running.mean, running.var])

gradients = [np.full(3, float(rank), np.float32), np.full((2, 2), 10.0 * rank)]
spmd.average_gradients(gradients, weight=rank)
expected = sum(r * r for r in range(size)) / sum(range(size))
np.testing.assert_allclose(gradients[0], expected, rtol=1e-6)
np.testing.assert_allclose(gradients[1], 10 * expected, rtol=1e-6)
assert gradients[0].dtype == np.float32
nothing_learned = [np.full(3, np.nan if rank == 0 else rank, np.float32)]  # the gradients of an empty batch
spmd.average_gradients(nothing_learned, weight=0.0 if rank == 0 else 1.0)
np.testing.assert_allclose(nothing_learned[0], sum(range(1, size)) / (size - 1), rtol=1e-6)
raises(ValueError, spmd.average_gradients, [np.zeros(1)], 0.0)

odd = [np.zeros(2), np.zeros(2 + (rank == 1))]
for function in (spmd.sync_from_root, spmd.average_gradients, spmd.assert_synced):
    assert "array 1 of rank 1" in raises(VecEnvError, function, odd)
assert "rank 1 has 0 arrays, rank 0 has 2" in raises(VecEnvError, spmd.average_gradients, odd[: 2 * (rank != 1)])

means = spmd.mean_of_dicts({"all": float(rank), "weighted": (rank, rank), f"only{rank}": 5.0})
assert means["all"] == sum(range(size)) / size
assert abs(means["weighted"] - expected) < 1e-12
assert means["only1"] == 5.0

half = world.Split(rank % 2)
nothing = float("nan"), 0  # the mean of no episode
assert spmd.mean_of_dicts({"ret": (2.0, 3) if rank == 0 else nothing, "none": nothing}) == {"ret": 2.0}
refused = False
try:
    spmd.mean_of_dicts({"ret": (1.0, -1.0 if rank == 0 else 1.0)})
except ValueError:
    refused = True
assert refused, "a negative weight, on every rank"
assert spmd.mean_of_dicts({"x": float(rank % 2)}, half) == {"x": float(rank % 2)}
print("all helpers agree", flush=True)
