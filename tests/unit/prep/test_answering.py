"""A forward whose calls of torch's are answered from what crossed gives what it gives by itself, whatever it does."""

import contextlib
import copy
import pickle

import pytest
import torch
from torch import nn

from springtide.prep import answering, hearing, leaves
from springtide.prep.capture import Call
from springtide.prep.captured import find_state
from springtide.prep.hearing import Wanted
from springtide.prep.promises import Pool, Promise, Promised
from springtide.prep.statefulness import Refused


class Model(nn.Module):
    """`made`: what data workers would make of the ids; the rest is forward's own."""

    def __init__(self, made, then):
        super().__init__()
        self.made, self.then = made, then
        self.weight = nn.Parameter(torch.full((3,), 0.5))
        self.register_buffer("edges", torch.tensor([3.0, 40.0]))

    def forward(self, ids):
        return self.then(self, ids, self.made(self, ids))


def call(rows, seed=0):
    return Call((torch.randint(0, 100, (rows, 3), generator=torch.Generator().manual_seed(seed)),), {})


def answered(model, *calls, wanted=None):
    """Over calls, of which the first graph's values cross."""
    crossings = [leaves.flatten(model.made(model, *one.args))[0] for one in calls]
    wanted = wanted or [Wanted("", "")] * len(crossings[0])
    held = [find_state(model, "edges", "buffer")]
    aside = contextlib.nullcontext()
    return hearing.find(model, calls, crossings, wanted, held, aside, ["cpu"] * len(wanted))


def check(model, *calls):
    """Whether it is equal to forward itself, on these calls and on one of another size."""
    found = answered(model, *calls)
    for one in (*calls, call(5, 9)):
        (ids,) = one.args
        crossing = [part.clone() if isinstance(part, torch.Tensor) else part
                    for part in leaves.flatten(model.made(model, ids))[0]]  # fmt: skip
        own = copy.deepcopy(model)
        wanted = own(ids.clone())
        for _ in range(2):  # the second time by the tape
            given = found([one.clone() if isinstance(one, torch.Tensor) else one for one in crossing], [ids.clone()])
            ours, theirs = leaves.flatten(wanted)[0], leaves.flatten(given)[0]
            assert all(type(two) is type(one) and torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))
        model.weight.grad = None
        torch.autograd.backward([one.sum() for one in theirs if one.requires_grad])
        torch.autograd.backward([one.sum() for one in ours if one.requires_grad])
        assert torch.equal(model.weight.grad, own.weight.grad)
    return found


def weighed(model, ids, rows):
    return (rows * model.weight).sum()


HASHED = lambda model, ids: ((ids * 7 + 3) % 11).float()  # noqa: E731


def test_the_calls_before_what_crosses_are_not_made(monkeypatch):
    model = Model(HASHED, weighed)
    found = check(model, call(8), call(4, 1))
    monkeypatch.setattr(Promised, "part", lambda *_: pytest.fail("made after all"))
    (ids,) = call(8).args
    wanted = model(ids)
    assert torch.equal(found([HASHED(model, ids)], [object()]), wanted), "the ids themselves may stay behind"


def test_what_stayed_behind_is_missed_where_it_is_read():
    model = Model(HASHED, lambda model, ids, rows: weighed(model, ids, rows) + ids.sum())
    found = answered(model, call(8))
    with pytest.raises(Refused, match="input 0 itself"):
        found([HASHED(model, call(8).args[0])], [object()])


@pytest.mark.parametrize(
    ("made", "then"),
    [
        (lambda model, ids: torch.unique(ids % 7, return_inverse=True)[1].reshape(ids.shape), weighed),
        (lambda model, ids: torch.bucketize(ids.float(), model.edges), weighed),
        (lambda model, ids: ids % 5 + torch.arange(len(ids))[:, None], weighed),
        (lambda model, ids: (ids % 5).sort(dim=1).values.long().contiguous(), weighed),
        (HASHED, lambda model, ids, rows: weighed(model, ids, rows) + (ids * 7 + 3).max()),
        (HASHED, lambda model, ids, rows: [weighed(model, ids, rows), ids * 7]),
        (HASHED, lambda model, ids, rows: weighed(model, ids, rows.add_(1)) + weighed(model, ids, HASHED(model, ids))),
    ],
    ids=["unique", "a buffer", "a size", "a named tuple", "read again", "given out", "written, and made again"],
)
def test_it_gives_what_forward_gives(made, then):
    check(Model(made, then), call(8), call(8, 1), call(5, 2))


def written_meanwhile(model, ids):
    scaled = ids * 7
    return scaled, (scaled + 3) % 11


def test_a_promise_is_of_what_was_there_when_it_was_given():
    def then(model, ids, made):
        scaled, hashed = made
        later = scaled + 3
        scaled.add_(100)
        return weighed(model, ids, hashed.float() + later)

    check(Model(written_meanwhile, then), call(8), call(4, 1))


def test_a_number_crosses_too():
    def made(model, ids):
        hashed = ids % 11
        return hashed, hashed.max().item()

    def then(model, ids, made):
        return weighed(model, ids, made[0].float()) * (2 if made[1] > 9 else 1)

    found = check(Model(made, then), call(8), call(4, 1))
    assert {name.rpartition(".")[2] for name, *_ in found.known} == {"remainder", "max", "item"}


def test_a_part_of_forward_in_other_types_is_left_alone():
    def then(model, ids, rows):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = (ids * 7).float() @ torch.ones(3, 1)
        return weighed(model, ids, rows) + product.float().sum()

    check(Model(HASHED, then), call(8), call(4, 1))


def test_what_is_not_heard_in_forward_is_refused_with_its_line():
    model = Model(HASHED, weighed)
    wanted = [Wanted("model.py:3", "mod")]
    with pytest.raises(Refused, match=r"mod of model.py:3 is not seen"):
        answered(model, call(8), wanted=wanted)


def test_it_is_written_down_without_what_this_process_has_seen():
    found = check(Model(HASHED, weighed), call(8))
    again = pickle.loads(pickle.dumps((found.known, found.answers, found.tape)))
    assert again[:2] == (found.known, found.answers) and found.tape.entries and not again[2].entries


def test_a_promise_that_somebody_holds_is_not_given_out_again():
    pool, giver = Pool(), Promised(torch.ones, (2,), {})
    held, _ = pool.take(giver, 0), pool.take(giver, 0)
    pool.settle()
    again = [pool.take(giver, 0) for _ in range(3)]
    assert all(one is not held for one in again) and torch.equal(held + 0, torch.ones(2))
    assert isinstance(held, Promise) and held.keep().shape == (2,)


def test_under_autocast_nothing_is_answered():
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(Refused, match="autocast"):
        answered(Model(HASHED, weighed), call(8))
    assert not answering.casts()
