"""A split forward gives what the user's own gives, bit by bit, and trying it changes nothing."""

import copy
import pickle

import cloudpickle
import pytest
import torch
from torch import nn

from springtide.prep import leaves
from springtide.prep.split import Split, Unsplit, split
from springtide.prep.untouched import same
from tests.unit.prep import programs_to_split as programs
from tests.unit.prep.programs_to_split import batch

CALLS = [batch(64, 1), batch(64, 2), batch(17, 3), batch(1, 4)]


def splitting(model, calls=CALLS, **options):
    (args, kwargs), *more = calls
    return split(model, args, kwargs, more=more, **options)


def forward(divided, call):
    """The split's two parts, with a message's copy between them."""
    found, _ = leaves.flatten(call)
    crossing = divided.crossing(found)
    assert crossing is not None
    kept = [leaf if at in divided.needs else None for at, leaf in enumerate(found)]
    return divided.rest([one.clone() for one in crossing], kept)


@pytest.fixture(scope="module")
def crosses():
    torch.manual_seed(5)
    model = programs.Crosses().train()
    model(*batch(8)[0], **batch(8)[1])["loss"].backward()
    before = everything(model)
    divided = splitting(model)
    return model, divided, before, everything(model)


def everything(model):
    """All that a user could see of a model, by name: tensors as (object, copy), anything else as it is."""
    found = {"chance": (0, torch.get_rng_state())}
    for path, part in model.named_modules():
        found |= {f"{path} {name}": value for name, value in vars(part).items() if not isinstance(value, dict)}
        for name, one in (*part._parameters.items(), *part._buffers.items()):
            found[f"{path} {name}"] = (one, None if one is None else one.detach().clone())
            found[f"{path} {name} grad"] = None if one is None or one.grad is None else (one.grad, one.grad.clone())
    return found


def test_trying_leaves_nothing_behind(crosses):
    _, _, before, after = crosses
    assert before.keys() == after.keys()
    for name, was in before.items():
        if isinstance(was, tuple) and isinstance(was[1], torch.Tensor):
            assert was[0] is after[name][0] and same(was[1], after[name][1]), name
        else:
            assert was == after[name], name


def test_hashes_crosses_buckets_and_unique_move_out_of_the_middle_of_a_module(crosses):
    _, divided, *_ = crosses
    assert isinstance(divided, Split), divided.explanation.text()
    moved = {name for group in divided.explanation.moved for name in group.operations}
    assert {"remainder", "bucketize", "_unique2", "cat", "index_put_", "log1p"} <= moved
    stayed = {name for group in divided.explanation.stayed for name in group.operations}
    assert {"table lookup", "linear", "dropout", "batch_norm"} <= stayed
    assert divided.explanation.rung == "torch.export" and divided.explanation.verified >= 2
    assert divided.needs == {2}, "labels alone are still read"


def test_batches_of_any_size_give_the_same_bits(crosses):
    model, divided, *_ = crosses
    for size in (2, 3, 63, 64, 65, 333, 1000):
        own, call = copy.deepcopy(model), batch(size, 7)
        torch.manual_seed(size)
        wanted = own(*call[0], **call[1])
        live = {name: one.clone() for name, one in model.named_buffers()}
        torch.manual_seed(size)
        given = forward(divided, call)
        assert same(wanted["score"], given["score"]) and same(wanted["loss"], given["loss"])
        for (name, one), (_, other) in zip(own.named_buffers(), model.named_buffers(), strict=True):
            assert same(one, other), name
        for name, one in model.named_buffers():
            one.copy_(live[name])


class Squeezing(programs.Base):
    def forward(self, ids, dense, *, label):
        return self.table(ids % 1000).sum(1) * (dense.sum(1).squeeze() * 3 + 1).sin() + label.mean()


def test_a_batch_of_one_which_a_program_may_treat_otherwise_is_left_to_the_models_own_forward():
    model = Squeezing().train()
    divided = splitting(model)
    assert isinstance(divided, Split), divided.explanation.text()
    assert divided.crossing(leaves.flatten(batch(1))[0]) is None
    for size in (2, 7):
        call = batch(size, 3)
        assert same(forward(divided, call), model(*call[0], **call[1]))


def test_steps_of_adam_end_at_the_same_parameters_and_buffers(crosses):
    made, divided, *_ = crosses
    own = copy.deepcopy(made)
    before = copy.deepcopy(made.state_dict())
    try:
        for model, one in ((own, lambda call: own(*call[0], **call[1])), (made, lambda call: forward(divided, call))):
            torch.manual_seed(11)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
            for step in range(6):
                optimizer.zero_grad()
                one(batch(20 + step, step))["loss"].backward()
                optimizer.step()
        for (name, one), other in zip(own.state_dict().items(), made.state_dict().values(), strict=True):
            assert same(one, other), name
        assert not same(before["top.weight"], made.state_dict()["top.weight"])
    finally:
        made.load_state_dict(before)


def test_a_stage_runs_in_a_process_that_has_no_model(crosses):
    _, divided, *_ = crosses
    stages = pickle.loads(cloudpickle.dumps(divided.stages))
    found, _ = leaves.flatten(batch(33, 5))
    wanted, given = divided.crossing(found), stages[0].run(found)
    assert len(wanted) == len(given) and all(same(one, other) for one, other in zip(wanted, given, strict=True))


def test_a_batch_of_another_kind_is_not_for_the_stage(crosses):
    _, divided, *_ = crosses
    (ids, dense), kwargs = batch(8)
    assert divided.crossing([ids.int(), dense, kwargs["label"]]) is None
    assert divided.crossing([ids, dense[:, :2], kwargs["label"]]) is None
    assert divided.crossing([ids, dense[:4], kwargs["label"]]) is None
    assert divided.crossing([ids, dense, kwargs["label"]]) is not None


def test_a_constant_that_travelled_is_noticed_when_it_changes(crosses):
    model, divided, *_ = crosses
    assert divided.stale() == "" and divided.explanation.constants == ("edges",)
    model.edges.add_(0)
    assert divided.stale() == "", "written, but equal"
    model.edges[0] -= 1
    assert "edges has changed" in divided.stale()
    model.edges[0] += 1
    assert divided.stale() == ""


def test_the_trainers_part_uses_what_the_model_holds_now_and_sees_its_modes():
    model = programs.OneHot().train()
    divided = splitting(model, [batch(64, 1), batch(9, 2)])
    assert isinstance(divided, Split)
    model.load_state_dict({name: one * 2 for name, one in model.state_dict().items()}, assign=True)
    call = batch(12, 3)
    torch.manual_seed(1)
    wanted = copy.deepcopy(model)(*call[0], **call[1])
    torch.manual_seed(1)
    assert same(forward(divided, call)["loss"], wanted["loss"])
    model.norm.eval()
    assert "eval mode" in divided.stale()


def test_a_result_that_is_cheaper_to_make_than_to_send_stays():
    model = programs.OneHot().train()
    divided = splitting(model, [batch(512, 1), batch(17, 2)])
    assert isinstance(divided, Split)
    assert divided.explanation.cut_bytes < 3 * divided.explanation.raw_bytes < 512 * 1000 * 4
    stayed = {group.why for group in divided.explanation.stayed if "one_hot" in group.operations}
    assert len(stayed) == 1 and "cheaper to make than to send" in stayed.pop()
    assert "minimum cut" in divided.explanation.why


class Uniques(programs.Base):
    def forward(self, ids, dense, *, label):
        unique, inverse = torch.unique(ids % 1000, return_inverse=True)
        return self.score(self.table((unique * 31 % 1000)[inverse]), dense, label)


def test_moved_nodes_are_grouped_by_device_into_stages():
    model = Uniques().train()

    def label(node):
        return "cuda" if node.name.startswith(("_unique2", "getitem", "sym_size", "ge", "_assert")) else "cpu"

    divided = splitting(model, [batch(32, 1), batch(9, 2)], label=label)
    assert isinstance(divided, Split), divided.explanation.text()
    assert [stage.device for stage in divided.stages] == ["cpu", "cuda", "cpu"]
    call = batch(21, 9)
    torch.manual_seed(3)
    wanted = copy.deepcopy(model)(*call[0], **call[1])
    torch.manual_seed(3)
    assert same(forward(divided, call)["score"], wanted["score"])
    again = splitting(model, [batch(32, 21), batch(9, 22)], label=label)
    assert isinstance(again, Split) and again.digest == divided.digest, "equal on all workers"


class Refusing(programs.Base):
    def __init__(self, how):
        super().__init__()
        self.how, self.steps = how, 0

    def forward(self, ids, dense, *, label):
        hashed = ids % 1000
        if self.how == "attribute":
            self.steps += 1
        if self.how == "input":
            dense.clamp_(-1, 1)
        return self.score(self.table(hashed), dense, label)


def test_what_a_captured_program_would_not_do_is_refused_with_its_reason():
    calls = [batch(16, 1), batch(5, 2)]
    counted = splitting(Refusing("attribute").train(), calls)
    assert isinstance(counted, Unsplit) and "writes attributes of modules: steps" in counted.explanation.why
    hooked = Refusing("").train()
    hooked.top.register_forward_hook(lambda *_: None)
    assert "hook on top (Linear)" in splitting(hooked, calls).explanation.why
    grad = batch(16)
    grad[0][1].requires_grad_()
    assert "requires grad" in splitting(Refusing("").train(), [grad]).explanation.why


def test_a_forward_that_writes_into_its_inputs_is_refused_and_the_line_told():
    refused = splitting(Refusing("input").train(), [batch(16, 1), batch(5, 2)])
    assert isinstance(refused, Unsplit)
    told = refused.explanation.refusals[0]
    assert "writes into its inputs" in told.why and told.text == "dense.clamp_(-1, 1)"


class Reading(programs.Base):
    def forward(self, ids, dense, *, label):
        hashed = (ids * 31 % 1000).clone()
        hashed[hashed < 5] = 0
        hashed.float()  # read by nobody
        return self.score(self.table(hashed), dense, label)


def test_what_nobody_reads_of_memory_that_is_written_is_no_hindrance():
    divided = splitting(Reading().train(), [batch(16, 1), batch(5, 2)])
    assert isinstance(divided, Split), divided.explanation.text()
    assert "index_put_" in {name for group in divided.explanation.moved for name in group.operations}


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


class Reversing(programs.Base):
    def forward(self, ids, dense, *, label):
        return self.score(Reverse.apply(self.table(ids * 3 % 1000)), dense, label)


def test_a_gradient_of_the_users_own_making_to_a_table_is_not_lost_unnoticed():
    model = Reversing().train()
    divided = splitting(model, [batch(16, 1), batch(5, 2)])
    assert "gradients are not equal" in divided.explanation.refusals[0].why
    if isinstance(divided, Split):  # by a tracer that keeps the user's backward
        call, own = batch(9, 3), copy.deepcopy(model)
        torch.manual_seed(1)
        own(*call[0], **call[1])["loss"].backward()
        torch.manual_seed(1)
        divided.rest(divided.crossing(leaves.flatten(call)[0]), leaves.flatten(call)[0])["loss"].backward()
        assert same(own.table.weight.grad, model.table.weight.grad)


def test_a_model_without_anything_stateless_says_so():
    refused = split(nn.Linear(3, 1), (torch.ones(4, 3),), {}, more=[((torch.ones(2, 3),), {})])
    assert isinstance(refused, Unsplit) and "nothing can move" in refused.explanation.why
