"""Slot ownership after one server was lost: what survivors hold and what they only believed."""

import pytest

from springtide.job.rollcall import RollCall, ServerAnswer


def answered_call(said):
    """A call that these have answered, as {rank: (owned, doubts)}."""
    call = RollCall(0)
    call.begin()
    for _ in range(2):  # stop, then say
        for rank, (owned, doubts) in said.items():
            call.answer(rank, call.number, ServerAnswer(frozenset(owned), doubts), said)
    assert call.complete(said)
    return call


@pytest.mark.parametrize(
    ("record", "said", "now"),
    [
        (0, {0: ((), {0: 1}), 1: ((), {})}, {}),
        (0, {0: ((), {0: 3})}, {0: 3}),
        (0, {0: ((), {0: 1}), 1: ((0,), {})}, {0: 1}),
        (2, {0: ((), {0: 1}), 1: ((), {})}, {}),
        (1, {0: ((), {0: 1}), 1: ((), {})}, {0: 3}),
        (1, {0: ((), {0: 1}), 1: ((), {0: 2}), 2: ((), {})}, {}),
        (1, {0: ((), {0: 1}), 1: ((), {0: 3})}, {0: 3}),
    ],
    ids=[
        "in doubt between two who live: they will agree",
        "in doubt for the lost one: it may have been used there",
        "it has arrived",
        "it has arrived, gone on, and was lost there: the first source's doubt is old",
        "it has arrived, and was on its way to the lost one: the first source's doubt is old",
        "it has arrived, and is in doubt once more: the last source knows best",
        "it has arrived, and is in doubt for the lost one",
    ],
)
def test_slot_claim_counts_while_the_record_confirms_it(record, said, now):
    found = answered_call(said).changes((record,), living=said, heir=3)
    assert found == now
