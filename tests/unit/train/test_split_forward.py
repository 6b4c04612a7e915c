"""A forward in two: the rest runs where that is right, the user's own everywhere else, and it can be undone."""

import copy
import inspect
import io
import types

import pytest
import torch

from springtide.prep import arguments
from springtide.train.absent import Absent
from springtide.train.split_forward import SplitForward
from tests.unit.train.hashed import HandMade, Hashed, Hashing, make


class Loop:
    """A model with a split forward and a batch in hand, whose raw ids stayed behind."""

    def __init__(self, *, absent=True):
        self.model = make()
        self.raw = torch.randint(0, 10_000, (6, 3), generator=torch.Generator().manual_seed(1))
        self.dense = torch.rand(6, 2, generator=torch.Generator().manual_seed(2))
        self.read = 0
        raw = Absent((6, 3), torch.int64, self.reading) if absent else self.raw
        self.batch = (raw, self.dense)
        self.split = HandMade(self.model)
        self.own = self.model(self.raw, self.dense)
        self.forward = SplitForward(self.model, arguments.trace(self.batch, self.batch, {}), self.split)
        self.forward.hand_out(self.batch, Hashing(self.model.salt)([self.raw]))

    def reading(self):
        self.read += 1
        return self.raw

    def check(self, out, *, split=0, whole=0):
        assert torch.equal(out, self.own)
        assert (self.forward.split_calls, self.forward.whole_calls) == (split, whole)


def test_the_rest_gives_what_the_own_forward_gives_without_the_leaf_that_stayed_behind():
    loop = Loop()
    loop.check(loop.model(*loop.batch), split=1)
    loop.check(loop.model(*loop.batch), split=2)
    assert loop.read == 0


def test_gradients_are_the_same():
    loop, plain = Loop(), make()
    loop.model(*loop.batch).sum().backward()
    plain(loop.raw, loop.dense).sum().backward()
    for ours, theirs in zip(loop.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize(
    "change",
    [
        lambda loop: loop.dense.mul_(1.0),
        lambda loop: loop.batch[0].add_(0),
        lambda loop: setattr(loop.split, "reason", "a buffer has changed"),
        lambda loop: setattr(loop.model, "note", "new"),
    ],
)
def test_whatever_has_changed_since_runs_the_own_forward(change):
    loop = Loop()
    change(loop)
    loop.check(loop.model(*loop.batch), whole=1)


def test_an_attribute_that_the_moved_part_was_made_with_counts_as_it_is_now():
    loop = Loop()
    loop.model.salt = 8
    assert torch.equal(loop.model(*loop.batch), HandMade(loop.model).rest([Hashing(8)([loop.raw])[0]], loop.batch))


def test_other_arguments_evaluation_and_no_batch_run_the_own_forward():
    loop = Loop()
    loop.check(loop.model(loop.raw, loop.dense), whole=1)
    loop.check(loop.model.eval()(*loop.batch), whole=1)
    loop.model.train()
    loop.forward.hand_out(loop.batch, None)
    loop.check(loop.model(*loop.batch), whole=1)
    assert loop.read == 1


def test_hooks_on_the_model_see_its_calls():
    loop = Loop()
    seen = []
    loop.model.register_forward_pre_hook(lambda module, args: seen.append(args))
    loop.model.register_forward_hook(lambda module, args, out: out * 2)
    assert torch.equal(loop.model(*loop.batch), loop.own * 2) and seen[0][0] is loop.batch[0]
    assert loop.forward.split_calls == 1


def test_state_dict_and_signature_are_as_before():
    loop = Loop()
    assert list(loop.model.state_dict()) == list(make().state_dict())
    assert inspect.signature(loop.model.forward) == inspect.signature(make().forward)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: torch.load(saved(model), weights_only=False)])
def test_a_copy_of_the_model_has_its_own_forward(how):
    loop = Loop()
    twin = how(loop.model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(*loop.batch).any()
    loop.check(loop.model(*loop.batch), split=1)


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


def test_removal_leaves_nothing():
    loop = Loop()
    loop.forward.remove()
    assert "forward" not in vars(loop.model) and loop.model.forward.__func__ is Hashed.forward
    loop.check(loop.model(*loop.batch))


def test_a_forward_of_the_instance_comes_back():
    model = make()
    model.forward = types.MethodType(lambda self, raw, dense: Hashed.forward(self, raw, dense) + 1, model)
    own = model.forward
    forward = SplitForward(model, arguments.trace((), (), {}), HandMade(model))
    assert copy.deepcopy(model).forward is not forward
    forward.remove()
    assert model.forward is own


def test_a_compiled_model_runs_its_own_forward():
    loop = Loop(absent=False)
    compiled = torch.compile(loop.model, backend="eager")
    assert torch.equal(compiled(*loop.batch), loop.own) and loop.forward.split_calls == 0
