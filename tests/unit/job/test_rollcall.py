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


NOTHING = ServerAnswer(frozenset(), {})


def test_call_has_two_numbers_one_to_stop_and_one_to_report():
    call = RollCall(4)
    assert not call.answer(0, 4, NOTHING, {0}), "no server is lost yet"
    call.begin()
    assert (call.number, call.open) == (5, True)
    assert not call.answer(0, 5, NOTHING, {0, 1})
    assert call.answer(1, 5, NOTHING, {0, 1}) and call.number == 6
    assert not call.complete({0, 1}), "all have stopped, and none has reported its slots since"
    assert not call.answer(0, 5, NOTHING, {0, 1}) and not call.answer(1, 5, NOTHING, {0, 1})
    assert not call.complete({0, 1}), "they said this before all had stopped"
    assert not call.answer(0, 6, NOTHING, {0, 1})
    assert call.answer(1, 6, NOTHING, {0, 1}) and call.complete({0, 1}) and call.number == 6


def test_call_that_waits_for_a_server_goes_on_when_that_server_is_lost():
    call = RollCall(0)
    call.begin()
    assert not call.answer(0, 1, NOTHING, {0, 1})
    assert not call.complete({0}) and call.number == 2
    assert call.answer(0, 2, NOTHING, {0})


def test_second_loss_restarts_the_roll_call():
    call = answered_call({0: ((), {}), 1: ((), {})})
    before = call.number
    call.begin()
    assert call.number == before + 1 and not call.complete({0})
    assert call.answer(0, call.number, NOTHING, {0}), "stop"
    assert not call.complete({0})
    assert call.answer(0, call.number, NOTHING, {0}) and call.complete({0})


def test_closed_roll_call_accepts_no_answer():
    call = RollCall(0)
    call.begin()
    call.close()
    assert not call.answer(0, call.number, NOTHING, {0})
    assert call.complete({0}) and call.number == 1
