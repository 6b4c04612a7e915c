"""A split forward answers moved calls from crossings, computes locally otherwise, and can be removed."""

import copy
import inspect
import io
import types

import pytest
import torch

from springtide.dataworker.split.program import arguments
from springtide.worker.split import split_forward
from springtide.worker.split.received_batches import Absent
from springtide.worker.split.split_forward import SplitForward
from tests.unit.dataworker.recorded import sent, splitting
from tests.unit.worker.hashed import Hashed, make


def draw_inputs(rows, seed=1):
    raw = torch.randint(0, 10_000, (rows, 3), generator=torch.Generator().manual_seed(seed))
    return raw, torch.rand(rows, 2, generator=torch.Generator().manual_seed(seed + 1))


class Loop:
    """A model with a split forward and a current batch whose raw ids were not sent."""

    def __init__(self, *, absent=True, check=False, model=None):
        self.model = model or make()
        self.raw, self.dense = draw_inputs(6)
        self.read, self.told = 0, []
        raw = Absent((6, 3), torch.int64, self.reading, self.raw.clone) if absent else self.raw
        self.batch = (raw, self.dense)
        self.own = self.model(self.raw, self.dense)
        self.split = splitting(self.model, [(draw_inputs(6, seed), {}) for seed in (3, 5, 7)])
        call = arguments.trace(self.batch, self.batch, {})
        self.forward = SplitForward(
            self.model, call, self.split, sample=(self.raw, self.dense), on_difference=self.told.append
        )
        self.crossing = sent(self.split, (self.raw, self.dense))
        self.forward.hand_out(self.batch, self.crossing, check=check)

    def reading(self):
        self.read += 1
        return self.raw

    def check(self, out, *, split=0, whole=0):
        assert torch.equal(out, self.own)
        assert (self.forward.split_calls, self.forward.whole_calls) == (split, whole)


def test_split_forward_matches_the_own_forward_without_the_unsent_leaf():
    loop = Loop()
    loop.check(loop.model(*loop.batch), split=1)
    assert loop.read == 0


def test_second_call_with_a_batch_is_computed_once_then_served():
    loop = Loop(absent=False)
    loop.check(loop.model(*loop.batch), split=1)
    loop.check(loop.model(*loop.batch), split=1, whole=1)
    loop.forward.hand_out(loop.batch, loop.crossing)
    for calls in (2, 3):
        loop.check(loop.model(*loop.batch), split=calls, whole=1)


def test_split_forward_gives_the_same_gradients():
    loop, plain = Loop(), make()
    loop.model(*loop.batch).sum().backward()
    plain(loop.raw, loop.dense).sum().backward()
    for ours, theirs in zip(loop.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


WRITES = {
    "in place": lambda loop: loop.batch[0].add_(0),
    "by data": lambda loop: loop.batch[0].data.fill_(7),
    "by NumPy": lambda loop: loop.batch[0].numpy().fill(7),
    "to a part of it": lambda loop: loop.batch[0][:, 1].add_(1),
}


@pytest.mark.parametrize("absent", [True, False])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_modified_batch_is_computed_locally(write, absent):
    loop = Loop(absent=absent)
    write(loop)
    wanted = make()(loop.raw, loop.dense)
    assert torch.equal(loop.model(*loop.batch), wanted) and loop.forward.split_calls == 0


@pytest.mark.parametrize("absent", [True, False])
def test_input_requiring_gradient_is_computed_locally(absent):
    class Real(Hashed):
        def forward(self, raw, dense):
            return super().forward(raw.long(), torch.log1p(dense).square() + raw.sum(1, keepdim=True) * 0)

    torch.manual_seed(0)
    loop = Loop(absent=absent, model=Real())
    loop.dense.requires_grad_()
    loop.model(*loop.batch).sum().backward()
    assert loop.dense.grad.abs().sum() > 0 and loop.forward.split_calls == 0


def test_changed_constant_of_the_moved_part_is_recomputed_locally(caplog):
    loop, plain = Loop(), make()
    loop.model.salt = plain.salt = 8
    assert torch.equal(loop.model(*loop.batch), plain(loop.raw, loop.dense)) and loop.read
    assert "is called with 8, not 7" in caplog.text and not loop.told


def test_split_made_for_another_program_is_dropped(monkeypatch):
    monkeypatch.setattr(split_forward, "STALE", 3)
    loop, plain = Loop(absent=False), make()
    loop.model.salt = plain.salt = 8
    for _ in range(4):
        loop.forward.hand_out(loop.batch, loop.crossing)
        assert torch.equal(loop.model(*loop.batch), plain(loop.raw, loop.dense))
    (why,) = loop.told
    assert why.startswith("3 batches in a row, add of hashed.py:")


def test_other_arguments_evaluation_or_no_batch_use_the_own_forward():
    loop = Loop()
    loop.check(loop.model(loop.raw, loop.dense), whole=1)
    loop.check(loop.model.eval()(*loop.batch), whole=1)
    loop.model.train()
    loop.forward.hand_out(loop.batch, None)
    loop.check(loop.model(*loop.batch), whole=1)
    assert loop.read == 1


def test_checked_batch_is_computed_locally_and_a_mismatch_ends_the_split():
    loop = Loop(check=True)
    loop.check(loop.model(*loop.batch), split=1)
    assert loop.forward.checked == 1 and not loop.told
    loop.forward.hand_out(loop.batch, [one + 1 for one in loop.crossing], check=True)
    assert torch.equal(loop.model(*loop.batch), loop.own), "trained by what is computed here"
    (why,) = loop.told
    assert why.startswith("remainder of hashed.py:") and "computes other bits than the data worker sent" in why
    loop.forward.hand_out(loop.batch, [one + 1 for one in loop.crossing])
    assert torch.equal(loop.model(*loop.batch), loop.own), "and so are all that come after it"


def test_changed_thread_count_is_detected_where_sums_depend_on_it():
    loop = Loop()
    object.__setattr__(loop.split, "threads", torch.get_num_threads() + 1)
    loop.check(loop.model(*loop.batch), whole=1)


def test_model_hooks_see_split_calls():
    loop = Loop()
    seen = []
    loop.model.register_forward_pre_hook(lambda module, args: seen.append(args))
    loop.model.register_forward_hook(lambda module, args, out: out * 2)
    assert torch.equal(loop.model(*loop.batch), loop.own * 2) and seen[0][0] is loop.batch[0]
    assert loop.forward.split_calls == 1


def test_split_keeps_state_dict_and_signature():
    loop = Loop()
    assert list(loop.model.state_dict()) == list(make().state_dict())
    assert inspect.signature(loop.model.forward) == inspect.signature(make().forward)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda model: torch.load(saved(model), weights_only=False)])
def test_model_copy_has_its_own_forward(how):
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


def test_removed_split_restores_the_class_forward():
    loop = Loop()
    loop.forward.remove()
    assert "forward" not in vars(loop.model) and loop.model.forward.__func__ is Hashed.forward
    loop.check(loop.model(*loop.batch))


def test_removed_split_restores_an_instance_forward():
    model = make()
    model.forward = types.MethodType(lambda self, raw, dense: Hashed.forward(self, raw, dense) + 1, model)
    own = model.forward
    loop = Loop(model=model)
    loop.check(loop.model(*loop.batch), split=1)
    assert copy.deepcopy(model).forward is not loop.forward
    loop.forward.remove()
    assert model.forward is own


def test_compiled_model_uses_its_own_forward():
    loop = Loop(absent=False)
    compiled = torch.compile(loop.model, backend="eager")
    try:
        assert torch.equal(compiled(*loop.batch), loop.own) and loop.forward.split_calls == 0
        loop.check(loop.model(*loop.batch), whole=1)
    finally:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
