"""The helpers of vecenvs.mpi on torch tensors, on several ranks, against sums written out here."""

import torch
from mpi4py import MPI

import vecenvs.mpi as spmd
from vecenvs.errors import VecEnvError

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
ranks = torch.arange(size, dtype=torch.float64)


def raises(error, function, *args):
    try:
        function(*args)
    except error as exc:
        return str(exc)
    raise AssertionError(f"no {error.__name__}")


# Parameters, a tensor in another order of memory, and one without any dimension: overwritten where they are.
torch.manual_seed(rank)
model = torch.nn.Linear(3, 2)
turned = torch.full((2, 3), float(rank)).t()
scalar = torch.tensor(rank)
tensors = [*model.parameters(), turned, scalar]
places = [tensor.data_ptr() for tensor in tensors]
assert "of rank 1 differs" in raises(VecEnvError, spmd.assert_synced, tensors)
spmd.sync_from_root(tensors)
spmd.assert_synced(tensors)
torch.manual_seed(0)
assert torch.equal(model.weight, torch.nn.Linear(3, 2).weight)
assert turned.shape == (3, 2)
assert not turned.any()
assert scalar.item() == 0
assert [tensor.data_ptr() for tensor in tensors] == places
assert all(parameter.requires_grad for parameter in model.parameters())

# One last bit of one rank is enough to differ.
if rank == size - 1:
    with torch.no_grad():
        model.bias[0] = torch.nextafter(model.bias[0], torch.tensor(9.0))
assert f"array 1 of rank {size - 1}" in raises(VecEnvError, spmd.assert_synced, list(model.parameters()))

# Gradients: rank r has r everywhere, and its batch is of size r + 1; it has none of `bias` unless it is rank 0.
model.weight.grad = torch.full((2, 3), float(rank))
model.bias.grad = torch.ones(2) if rank == 0 else None
wide = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
wide.grad = torch.full((4,), float(rank), dtype=torch.float64)
nobody = torch.nn.Parameter(torch.zeros(2))
place = model.weight.grad.data_ptr()
spmd.average_gradients([*model.parameters(), wide, nobody], weight=rank + 1)
weights = ranks + 1
expected = float((ranks * weights).sum() / weights.sum())
torch.testing.assert_close(model.weight.grad, torch.full((2, 3), expected))
torch.testing.assert_close(model.bias.grad, torch.full((2,), float(1 / weights.sum())))
torch.testing.assert_close(wide.grad, torch.full((4,), expected, dtype=torch.float64))
assert nobody.grad is not None
assert not nobody.grad.any()
assert model.weight.grad.data_ptr() == place
assert model.weight.grad.dtype == torch.float32
spmd.assert_synced([parameter.grad for parameter in (*model.parameters(), wide)])

# Gradients in half precision, and tensors that are gradients themselves.
for dtype in (torch.float16, torch.bfloat16):
    half = torch.full((2,), float(rank), dtype=dtype)
    assert "of rank 1 differs" in raises(VecEnvError, spmd.assert_synced, [half])
    spmd.average_gradients([half])
    torch.testing.assert_close(half, torch.full((2,), float(ranks.mean()), dtype=dtype))
    spmd.sync_from_root([half])

# Frozen parameters have no gradient, and stay what they are.
frozen = torch.nn.Parameter(torch.full((2,), float(rank)), requires_grad=False)
spmd.average_gradients([frozen])
assert frozen.tolist() == [rank, rank]
assert frozen.grad is None

# Without a weight anywhere there is no mean; nobody's gradients are changed.
alone = torch.ones(2) * rank
assert "sum to nothing" in raises(ValueError, spmd.average_gradients, [alone], 0.0)
assert alone.tolist() == [rank, rank]

# Models that differ between ranks are an error on every rank, before anything is overwritten.
odd = torch.full((2 + (rank == 1),), float(rank))
for function in (spmd.sync_from_root, spmd.average_gradients, spmd.assert_synced):
    message = raises(VecEnvError, function, [torch.zeros(2), odd])
    assert "rank 1" in message, message
    assert odd.min() == odd.max() == rank
other = torch.zeros(2, dtype=torch.float64 if rank == 1 else torch.float32)
assert "rank 1" in raises(VecEnvError, spmd.sync_from_root, [other])
more = [torch.zeros(2)] * (1 + (rank == 1))
for function in (spmd.sync_from_root, spmd.average_gradients, spmd.assert_synced):
    assert "rank 1 has 2 arrays, rank 0 has 1" in raises(VecEnvError, function, more)

# What one rank cannot write into, nobody's is overwritten for; moments of tensors.
wide = torch.full((2,), float(rank)) if rank != 1 else torch.zeros(1).expand(2)
mine = torch.full((2,), float(rank))
assert "rank 1" in raises(ValueError, spmd.sync_from_root, [mine, wide])
assert mine.tolist() == [rank, rank]
assert spmd.moments(torch.full((1, 2), float(rank), requires_grad=True)).mean.tolist() == [float(ranks.mean())] * 2

# One step of training on every rank equals one step on all ranks' data at once.
torch.manual_seed(7)
data = [torch.randn(3 + r, 3) for r in range(size)]
learner, whole = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
whole.load_state_dict(learner.state_dict())
for net, batch in ((learner, data[rank]), (whole, torch.cat(data))):
    net(batch).square().mean().backward()
spmd.average_gradients(learner.parameters(), weight=len(data[rank]))
for ours, theirs in zip(learner.parameters(), whole.parameters(), strict=True):
    torch.testing.assert_close(ours.grad, theirs.grad)
print("torch helpers agree", flush=True)
