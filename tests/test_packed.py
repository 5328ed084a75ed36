"""Messages with rows packed in them: each row arrives in its place, with whichever columns of infos are in use."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st

from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.transport.encoding import decode, encode
from vecenvs.transport.frames import Frames
from vecenvs.transport.protocol import Answer, Command, address, rows_of, slots_of

N = 9
SHARD = range(2, 7)
OBSERVATIONS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (3, 5), np.uint8),
        "nothing": spaces.Box(0, 1, (0,), np.float32),
        "number": spaces.Discrete(9),
        "text": spaces.Text(9),
    }
)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


def columns(width: int = 0) -> BatchColumns:
    batch = BatchColumns(OBSERVATIONS, ACTIONS, N, Allocator(), finals=False)
    batch.use_info_numbers(SHARD.start, width)
    return batch


def arrays(batch: BatchColumns, kind: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a message of this kind is about, by name."""
    if kind in (Command.STEP, Command.STEP_SOME):
        return {f"action {k}": array for k, array in enumerate(batch.actions.arrays)}
    found = {f"observation {k}": a for k, a in enumerate(batch.observations.arrays) if a.dtype != object}
    found |= {"rewards": batch.rewards, "flags": batch.flags}
    return found | {"marks": batch.info_marks.T, "numbers": batch.info_numbers[: batch.info_width].T}


def fill(batch: BatchColumns, kind: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for array in arrays(batch, kind).values():
        array[...] = rng.integers(0, 100, array.shape)


@given(
    kind=st.sampled_from([Command.STEP, Command.STEP_SOME, Answer.ROWS, Answer.SOME_ROWS]),
    some=st.lists(st.sampled_from(SHARD), min_size=1, unique=True),
    width=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
@example(kind=Command.STEP, some=[2], width=2, seed=1)
@example(kind=Answer.ROWS, some=[2], width=2, seed=1)
def test_rows_arrive_in_their_places(kind: int, some: list[int], width: int, seed: int) -> None:
    """With as many columns of infos as the sender uses. Rows of others stay as they are."""
    there, here = columns(width), columns(random.Random(seed).randrange(4))
    fill(there, kind, seed)
    fill(here, kind, seed + 1)
    before = {name: array.copy() for name, array in arrays(here, kind).items()}
    commands = kind in (Command.STEP, Command.STEP_SOME)
    if commands:
        there.info_numbers[...] = 7
    numbers = here.info_numbers.copy()
    whole = kind in (Command.STEP, Answer.ROWS)
    slots = SHARD if whole else slots_of(some)
    tag, body = (int(kind), None) if whole else address(kind, slots)
    make = Frames.of_commands if commands else Frames.of_answers
    sender_end, receiver_end = (make(batch, {1: SHARD}) for batch in (there, here))
    (run,) = receiver_end.unpack(memoryview(sender_end.pack([(1, 7, tag, encode(body))])))
    assert (run.members, run.number, run.tag) == (range(1, 2), 7, tag)
    assert decode(tag, run.data) == body
    if commands:
        np.testing.assert_array_equal(here.info_numbers, numbers, err_msg="commands have none")
    sent = arrays(there, kind)
    for name, array in arrays(here, kind).items():
        expected = before[name]
        if name == "numbers":
            count = min(width, array.shape[1])
            expected[rows_of(slots), :count] = sent[name][rows_of(slots), :count]
        elif name in sent:
            expected[rows_of(slots)] = sent[name][rows_of(slots)]
        np.testing.assert_array_equal(array, expected, err_msg=name)
    for j in set(range(N)) - set(slots):
        for name, array in arrays(here, kind).items():
            np.testing.assert_array_equal(array[j], before[name][j], err_msg=name)


@pytest.mark.parametrize("second", [range(2, 4), range(5, 8)])
@pytest.mark.parametrize("width", [0, 2])
def test_a_frame_of_several_shards(second: range, width: int) -> None:
    """Adjacent or not, the rows of both arrive, with their numbers."""
    shards = {1: range(2), 2: second}
    there, here = columns(width), columns(width)
    fill(there, Answer.ROWS, 1)
    sender, receiver = Frames.of_answers(there, shards), Frames.of_answers(here, shards)
    entries = [(member, 7, int(Answer.ROWS), encode(None)) for member in shards]
    runs = receiver.unpack(memoryview(sender.pack(entries)))
    assert [member for run in runs for member in run.members] == [1, 2]
    rows = [*range(2), *second]
    sent = arrays(there, Answer.ROWS)
    for name, array in arrays(here, Answer.ROWS).items():
        np.testing.assert_array_equal(array[rows], sent[name][rows], err_msg=name)


@pytest.mark.parametrize("kind", [Answer.REPLY, Answer.MADE, Command.CALL])
def test_a_message_that_is_about_no_rows(kind: int) -> None:
    batch = columns(2)
    fill(batch, Answer.ROWS, 1)
    before = batch.rewards.copy()
    data = encode({"a": 1})
    frame = Frames.of_answers(columns(), {1: SHARD}).pack([(1, 7, int(kind), data)])
    assert Frames.of_answers(batch, {1: SHARD}).unpack(memoryview(frame)) == [(range(1, 2), 7, kind, data)]
    np.testing.assert_array_equal(batch.rewards, before)
