"""A forward whose torch calls are answered from crossings gives its own result."""

import copy
import gc
import threading

import pytest
import torch
from torch import nn

from springtide.dataworker.split.program.call_replay import ForwardReplay
from springtide.dataworker.split.program.lazy_values import Promise
from springtide.dataworker.split.recorder import pytree
from springtide.dataworker.split.recorder.bit_compare import same
from springtide.dataworker.split.split import Split
from tests.unit.dataworker.recorded import answered, sent, splitting


class Model(nn.Module):
    """`made`: the part that data workers compute from the ids; the rest is forward's own."""

    def __init__(self, made, then):
        super().__init__()
        self.made, self.then, self.step = made, then, 0
        self.weight = nn.Parameter(torch.full((3,), 0.5))
        self.register_buffer("edges", torch.tensor([3.0, 40.0]))

    def forward(self, ids):
        return self.then(self, ids, self.made(self, ids))


def call(rows, seed=0):
    return (torch.randint(0, 100, (rows, 3), generator=torch.Generator().manual_seed(seed)),), {}


def weighted_sum(model, ids, rows):
    return (rows * model.weight).sum()


def hashed(model, ids):
    return ((ids * 7 + 3) % 11).float()


def split_model(made, then=weighted_sum):
    model = Model(made, then).train()
    found = splitting(model, [call(16), call(16, 1), call(16, 2)])
    assert isinstance(found, Split), found.explanation.text()
    return model, found


def check(model, found, *calls, complete=True):
    """Whether it is equal to forward itself, on these calls; also when it is checked."""
    for one in calls or (call(8, 3), call(5, 4), call(1, 5)):
        for checked in (False, True):
            own, ours = copy.deepcopy(model), copy.deepcopy(model)
            own.edges, ours.edges = model.edges.clone(), model.edges.clone()
            wanted = own(*copy.deepcopy(one[0]))
            given, answers = answered(found, ours.forward, copy.deepcopy(one), check=checked)
            assert answers.complete is complete and not answers.differs, answers.why
            mine, theirs = pytree.flatten(wanted)[0], pytree.flatten(given)[0]
            assert all(
                type(two) is type(one) and (one == two if not isinstance(one, torch.Tensor) else same(one, two))
                for one, two in zip(mine, theirs, strict=True)
            )
            for each in (mine, theirs):
                torch.autograd.backward(
                    [one.sum() for one in each if isinstance(one, torch.Tensor) and one.requires_grad]
                )
            assert same(own.weight.grad, ours.weight.grad) and same(own.edges, ours.edges)


MADE = {
    "hashes": hashed,
    "unique": lambda model, ids: torch.unique(ids % 7, return_inverse=True)[1].reshape(ids.shape),
    "a buffer": lambda model, ids: torch.bucketize(ids.float(), model.edges),
    "a size": lambda model, ids: ids % 5 + torch.arange(ids.shape[0])[:, None],
    "a length": lambda model, ids: (ids % 5).expand(3, -1, -1).reshape(3 * ids.size(0), 3)[: ids.size(0)] * 2,
    "a named tuple": lambda model, ids: (ids % 5).sort(dim=1).values.long().contiguous(),
    "its own argument": lambda model, ids: (ids.long().contiguous() * 3).to(torch.int64) % 5,
    "a constant": lambda model, ids: ids * torch.tensor([3, 5, 7]) % 11,
    "a view": lambda model, ids: (ids * 3)[:, [2, 1, 0]].t().contiguous().t() % 7,
    "a list": lambda model, ids: torch.stack([(ids * 3)[:, at] for at in range(3)], 1) % 7,
    "memory written to": lambda model, ids: write_in_place(ids),
    "memory counted up": lambda model, ids: counted_up(ids),
    "a NumPy number": lambda model, ids: ids * torch.arange(3).numpy()[2] % 7,
}


def write_in_place(ids):
    own = (ids * 3).clone()
    own[own < 50] = 0
    return own % 11


def counted_up(ids):
    own = ids * 3
    own += 1
    own.mul_(2)
    return own % 11


@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
def test_replay_gives_the_result_of_forward(made):
    check(*split_model(made))


THEN = {
    "what led there is read too": lambda model, ids, rows: weighted_sum(model, ids, rows) + (ids * 7 + 3).max(),
    "what led there is given out": lambda model, ids, rows: [weighted_sum(model, ids, rows), ids * 7, ids],
    "it is written to, and made again": lambda model, ids, rows: (
        weighted_sum(model, ids, rows.add_(1)) + weighted_sum(model, ids, hashed(model, ids))
    ),
    "a number of it": lambda model, ids, rows: weighted_sum(model, ids, rows) * (2 if rows.max().item() > 9 else 1),
    "its shape": lambda model, ids, rows: weighted_sum(model, ids, rows) * rows.shape[0] + rows.dim() + len(rows),
    "its type": lambda model, ids, rows: [
        weighted_sum(model, ids, rows),
        rows.dtype,
        rows.device,
        rows.is_floating_point(),
    ],
    "in NumPy": lambda model, ids, rows: weighted_sum(model, ids, torch.from_numpy(rows.numpy() * 2)),
    "under no_grad": lambda model, ids, rows: weighted_sum(model, ids, torch.no_grad()(torch.exp)(rows * 2)),
}


@pytest.mark.parametrize("then", THEN.values(), ids=THEN.keys())
def test_replay_gives_the_result_of_forward_for_any_use_of_the_crossing(then):
    check(*split_model(hashed, then))


def test_moved_calls_are_not_executed_during_replay(monkeypatch):
    model, found = split_model(hashed)
    one = call(8, 3)
    wanted, crossing = model(*one[0]), sent(found, one)
    monkeypatch.setattr(ForwardReplay, "_make", lambda *_: pytest.fail("made after all"))
    given, answers = answered(found, model.forward, one, crossing=crossing)
    assert same(given, wanted) and answers.used == 1


def test_wrong_crossing_is_detected_by_a_check():
    model, found = split_model(hashed)
    crossing = sent(found, call(8, 3))
    crossing[0][0, 0] += 1
    given, answers = answered(found, model.forward, call(8, 3), crossing=crossing, check=True)
    assert same(given, model(*call(8, 3)[0])), "the batch is trained by what is computed here"
    assert answers.differs.startswith("float of test_call_replay.py:") and "computes other bits" in answers.differs


CHANGES = {
    "a number": (
        lambda model: setattr(model, "made", lambda model, ids: ((ids * 7 + 4) % 11).float()),
        r"add of test_call_replay.py:\d+ is called with 4, not 3",
    ),
    "another path": (lambda model: setattr(model, "made", lambda model, ids: (ids % 11).float()), "called with 11"),
}


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES.keys())
def test_forward_on_another_path_is_computed_locally_with_a_reason(change, why):
    model, found = split_model(hashed)
    change(model)
    check(model, found, complete=False)
    _, answers = answered(found, model.forward, call(8, 3))
    assert answers.used == 0 and answers.why


def test_constant_is_compared_by_bits_after_any_kind_of_write():
    model, found = split_model(MADE["a buffer"])
    check(model, found)
    for write in (
        lambda: model.edges.data.add_(1),
        lambda: model.edges.numpy().__iadd__(1),
        lambda: model.edges.add_(1),
    ):
        write()
        check(model, found, complete=False)
        _, answers = answered(found, model.forward, call(8, 3))
        assert "reads a tensor whose values have changed" in answers.why
    model.edges.copy_(torch.tensor([3.0, 40.0]))
    check(model, found)


def test_input_requiring_gradient_ends_the_replay():
    model, found = split_model(lambda model, ids: ids.float() * 3)

    def asking(ids):
        return (ids.float().requires_grad_() * 3 * model.weight).sum()

    given, answers = answered(found, asking, call(8, 3))
    assert given.requires_grad and not answers.complete


def test_deferred_result_uses_the_input_values_at_its_call():
    def then(model, ids, rows):
        later = ids * 7 + 3
        ids.view(-1)[1:].add_(100)
        return weighted_sum(model, ids, rows + later) + (ids * 7 + 3).sum()

    check(*split_model(hashed, then), complete=True)


def test_write_to_viewed_memory_is_visible_in_the_view():
    def made(model, ids):
        own = ids * 3
        first = own[:, 0]
        own[own < 50] = 0
        first.add_(5)
        return own % 11

    check(*split_model(made))


def test_deferred_results_that_outlive_forward_are_computed():
    kept = []
    model, found = split_model(hashed, lambda model, ids, rows: weighted_sum(model, ids, rows))
    original = model.made

    def keeping(model, ids):
        kept.append(ids * 7)
        return original(model, ids)

    model.made = keeping
    one = call(8, 3)
    answered(found, model.forward, one)
    one[0][0].zero_()
    (ids,) = call(8, 3)[0]
    assert isinstance(kept[0], Promise) and torch.equal(kept[0] + 0, ids * 7)
    answered(found, model.forward, call(8, 4))
    assert torch.equal(kept[0] + 0, ids * 7), "it is not given out again"


class Doubled(torch.autograd.Function):
    """Keeps its inputs for its backward."""

    @staticmethod
    def forward(ctx, rows, weight):
        ctx.save_for_backward(rows, weight)
        return rows * weight

    @staticmethod
    def backward(ctx, grad):
        rows, _ = ctx.saved_tensors
        return None, (2 * grad * rows).sum(0)


class Same(torch.autograd.Function):
    """Gives back its input, with a gradient of its own."""

    @staticmethod
    def forward(ctx, rows, weight):
        ctx.mark_dirty(rows)
        return rows.mul_(2), weight * 1

    @staticmethod
    def backward(ctx, grad, other):
        return grad, other * 3


@pytest.mark.parametrize(
    "then",
    [
        lambda model, ids, rows: (
            Doubled.apply(rows, model.weight).sum() + Doubled.apply((ids * 7).float(), model.weight).sum()
        ),
        lambda model, ids, rows: sum(one.sum() for one in Same.apply((ids * 7 + 3).float(), model.weight)),
    ],
    ids=["saves what it is given", "writes to what it is given"],
)
def test_custom_autograd_functions_get_real_tensors_and_are_not_traced(then):
    check(*split_model(hashed, then), complete=True)


def test_replay_is_off_under_autocast():
    model, found = split_model(hashed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = model(*call(8, 3)[0])
        given, answers = answered(found, model.forward, call(8, 3))
    assert same(given, wanted) and not answers.used


def test_changed_default_dtype_is_detected():
    model, found = split_model(lambda model, ids: ids / 3)
    torch.set_default_dtype(torch.float64)
    try:
        wanted = model(*call(8, 3)[0])
        given, answers = answered(found, model.forward, call(8, 3))
    finally:
        torch.set_default_dtype(torch.float32)
    assert same(given, wanted) and not answers.used


def test_another_thread_using_a_deferred_result_gets_the_tensor():
    def then(model, ids, rows):
        seen = []
        thread = threading.Thread(target=lambda scaled=ids * 7: seen.append((scaled + 1).sum()))
        thread.start()
        thread.join()
        return weighted_sum(model, ids, rows) + seen[0]

    check(*split_model(hashed, then))


def test_raising_forward_leaves_no_state():
    model, found = split_model(hashed)
    made = model.made

    def raising(model, ids):
        made(model, ids)
        raise ValueError("of the user's own")

    model.made = raising
    with pytest.raises(ValueError, match="of the user's own"):
        answered(found, model.forward, call(8, 3))
    model.made = made
    check(model, found)
    assert found.answering.calls.running is None


def test_containers_of_inputs_stay_the_same_objects():
    class Popping(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, batch):
            ids = batch.pop("ids")
            batch["made"] = (ids * 7) % 11
            batch["rest"].append(ids)
            return (batch["made"] * self.weight).sum()

    model = Popping()
    calls = [(({"ids": call(8, seed)[0][0], "rest": [torch.ones(2)]},), {}) for seed in range(4)]
    found = splitting(model, copy.deepcopy(calls[:3]))
    assert isinstance(found, Split), found.explanation.text()
    crossing = sent(found, calls[3])
    batch = copy.deepcopy(calls[3])[0][0]
    ids = batch["ids"]
    rest = batch["rest"]
    answered(found, model.forward, ((batch,), {}), crossing=crossing)
    assert "ids" not in batch and torch.equal(batch["made"], ids * 7 % 11)
    assert batch["rest"] is rest and torch.equal(rest[1] + 0, ids)


def test_replay_keeps_no_reference_to_a_batch():
    model, found = split_model(hashed)
    one = call(8, 3)
    answered(found, model.forward, one)
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is ForwardReplay]
