"""Dense parameters on servers, in chunks of a table, and in this process; and the check for NaN."""

import pytest
import torch
from torch import nn

from springtide import errors
from springtide.embedding.lookup.table_client import TableClient
from springtide.worker.link.optimizer import JobOptimizer
from springtide.worker.step import dense
from springtide.worker.step.dense import CHUNK, DenseGroup, LocalDense, ServedDense
from springtide.worker.step.hyperparams import TableRates

RATE = 0.5


class Served:
    """Dense parameters of a model on tables in this process, each group with an SGD optimizer."""

    def __init__(self, *models, client=None, bounded=False, frozen=(), still=()):
        self.client = client or TableClient.local(slots=64, seed=0)
        self.own = [torch.optim.SGD(model.parameters(), lr=RATE) for model in models]
        groups = [
            DenseGroup(optimizer=own, index=0, members=tuple(model.named_parameters()))
            for own, model in zip(self.own, models, strict=True)
        ]
        self.rates = TableRates(self.own, [])
        self.held = dense.declare(self.client, groups, self.rates)
        self.still = dense.declare_still(self.client, still)
        self.dense = ServedDense(self.client, self.held, frozen=frozen, bounded=bounded, still=self.still)
        self.stepped = [JobOptimizer(own, lambda _: None, fixed=True) for own in self.own]
        self.count = 0

    def begin(self):
        self.dense.begin(lambda assign: assign())
        return self

    def push(self, stepped=None):
        stepped = self.stepped if stepped is None else stepped
        self.count += 1
        parts = self.dense.parts(stepped)
        ranges = [(1000, 0, self.count, 1)]
        self.client.push(parts, step=self.count, hyper=self.rates.now(stepped), batches=ranges).wait()
        return parts


def linear(inputs=2, outputs=3):
    torch.manual_seed(1)
    return nn.Linear(inputs, outputs)


def values(model):
    return [param.detach().clone() for param in model.parameters()]


def backward(model, factor=1.0):
    for param in model.parameters():
        param.grad = torch.full_like(param, factor)


# ---- the layout on servers ----


def test_each_parameter_gets_chunks_of_its_own():
    model = nn.ParameterDict({"big": torch.zeros(2 * CHUNK + 1), "even": torch.zeros(CHUNK), "none": torch.zeros(0)})
    places = {slot.name: (slot.first, slot.chunks) for slot in Served(model).held}
    assert places == {"big": (0, 3), "even": (3, 1), "none": (4, 1)}


def test_each_group_gets_a_table_after_those_of_the_model():
    client = TableClient.local(slots=64, seed=0)
    first = Served(linear(), linear(), client=client)
    assert [slot.table for slot in first.held] == [0, 0, 1, 1] and [spec.dim for spec in client.specs] == [CHUNK] * 2
    assert [slot.first for slot in first.held] == [0, 1, 0, 1]
    assert dense.next_id(client) == 2


def test_servers_keep_untrained_float_tensors_that_have_values():
    tensors = [
        ("mean", torch.zeros(CHUNK + 1)),
        ("count", torch.zeros(3, dtype=torch.int64)),
        ("empty", torch.zeros(0)),
    ]
    served = Served(linear(), still=[*tensors, ("var", torch.zeros(1))])
    assert [(slot.name, slot.table, slot.first, slot.chunks) for slot in served.still] == [
        ("mean", 1, 0, 2),
        ("var", 1, 2, 1),
    ]
    assert Served(linear(), still=tensors[1:]).still == []


def test_parameter_of_two_optimizers_is_refused():
    model, other = linear(), linear()
    group = DenseGroup(optimizer=None, index=0, members=tuple(model.named_parameters()))
    first = torch.optim.SGD(model.parameters(), lr=RATE)
    dense.refuse_shared([group], [first, torch.optim.SGD(other.parameters(), lr=RATE)])
    with pytest.raises(errors.BadInput, match="parameter 'bias' is in two optimizers"):
        dense.refuse_shared([group], [first, torch.optim.SGD([model.bias], lr=RATE)])
    # another engine trains tables: their weights may be in several optimizers here
    shared = nn.Parameter(torch.zeros(1))
    dense.refuse_shared([group], [torch.optim.SGD([shared], lr=RATE) for _ in range(2)])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_parameters_of_up_to_32_bits_go_to_servers(kind):
    dense.check_dtype("weight", torch.zeros(1, dtype=kind))


@pytest.mark.parametrize("kind", [torch.float64, torch.int32])
def test_parameters_of_other_types_are_refused(kind):
    with pytest.raises(errors.BadInput, match=f"parameter 'weight' is {kind}; servers keep"):
        dense.check_dtype("weight", torch.zeros(1, dtype=kind))


# ---- values and gradients on servers ----


def test_later_workers_get_the_first_workers_values():
    first, second = linear(40, 60), nn.Linear(40, 60)
    served, before = Served(first).begin(), values(first)
    Served(second, client=TableClient(served.client.backend)).begin()
    assert all(map(torch.equal, values(second), before)) and all(map(torch.equal, values(first), before))


def test_buffers_are_the_first_workers_on_all_workers():
    mean, other = torch.arange(4.0), torch.zeros(4)
    served = Served(linear(), still=[("mean", mean)]).begin()
    Served(linear(), client=TableClient(served.client.backend), still=[("mean", other)]).begin()
    assert mean.tolist() == other.tolist() == [0, 1, 2, 3]


def test_model_misses_at_most_its_last_step():
    model = linear(40, 60)
    served, before = Served(model).begin(), values(linear(40, 60))
    backward(model)
    served.push()
    assert all(map(torch.equal, values(model), before))
    served.dense.update(served.stepped, [])
    assert all(map(torch.equal, values(model), before)), "these values were requested before the push"
    served.dense.update(served.stepped, [])
    assert all(torch.equal(now, old - RATE) for now, old in zip(values(model), before, strict=True))


def test_settled_model_has_all_its_steps():
    model = linear()
    served, before = Served(model).begin(), values(linear())
    backward(model)
    served.push()
    served.dense.settle()
    assert all(torch.equal(now, old - RATE) for now, old in zip(values(model), before, strict=True))


def test_bounded_worker_reads_values_only_when_it_may():
    model = linear()
    served, before = Served(model, bounded=True).begin(), values(linear())
    backward(model)
    served.push()
    for _ in range(2):
        served.dense.update(served.stepped, [])
    assert all(map(torch.equal, values(model), before))


def test_values_are_taken_once_for_each_request():
    model = linear()
    served = Served(model).begin()
    with torch.no_grad():
        model.bias.fill_(7.0)
    served.dense._take()
    assert model.bias.tolist() == [7.0] * 3, "there is no request under way"


def test_only_parameters_with_gradients_of_stepped_optimizers_are_pushed():
    first, second = linear(), linear()
    served = Served(first, second).begin()
    first.weight.grad, second.weight.grad = torch.ones(3, 2), torch.ones(3, 2)
    before = values(first)[1], *values(second)
    (part,) = served.push(served.stepped[:1])
    assert len(part.grads()) == CHUNK
    served.dense.settle()
    assert torch.equal(first.weight, linear().weight - RATE)
    assert all(map(torch.equal, (values(first)[1], *values(second)), before))


def test_step_without_dense_gradients_pushes_no_dense_part():
    model = linear()
    served = Served(model).begin()
    assert served.dense.parts(served.stepped) == []
    model.weight.grad = torch.ones(3, 2)
    assert served.dense.parts([]) == []


def test_model_without_dense_parameters_is_served():
    served = Served().begin()
    assert served.dense.parts([]) == []
    served.dense.update([], [])
    served.dense.settle()


def test_sparse_gradient_of_a_dense_parameter_is_pushed():
    model = nn.Embedding(4, 2, sparse=True)
    served, before = Served(model).begin(), values(model)
    model(torch.tensor([1, 1])).sum().backward()
    served.push()
    served.dense.settle()
    assert (values(model)[0] - before[0]).tolist() == [[0, 0], [-1, -1], [0, 0], [0, 0]]


def test_gradient_of_a_frozen_parameter_is_refused():
    frozen = nn.Parameter(torch.zeros(2))
    model = linear()
    served = Served(model, frozen=[("encoder", frozen)]).begin()
    backward(model)
    assert len(served.push()) == 1
    frozen.grad = torch.ones(2)
    with pytest.raises(errors.BadInput, match="parameter 'encoder' was frozen at job"):
        served.push()


def test_non_finite_gradient_on_its_way_to_servers_names_its_parameter():
    model = linear()
    served = Served(model).begin()
    backward(model)
    model.bias.grad[1] = float("inf")
    with pytest.raises(errors.NonFiniteGradient, match=r"parameter 'bias' has NaN or infinity in 1 of 3"):
        served.push()


def test_sum_of_large_finite_gradients_is_no_nan():
    model = linear()
    served = Served(model).begin()
    backward(model, 3e38)
    assert len(served.dense.parts(served.stepped)) == 1


def test_combinations_of_present_gradients_are_reused_and_bounded():
    model = nn.ParameterList([torch.zeros(1) for _ in range(7)])
    served = Served(model).begin()

    def rows(*present):
        for number, param in enumerate(model):
            param.grad = torch.ones(1) if number in present else None
        return served.dense.parts(served.stepped)[0]

    first = rows(0)
    assert rows(0) is first and rows(*range(7)) is served.dense._all._sent
    for number in range(2, 33):
        rows(*(bit for bit in range(7) if number >> bit & 1))
    assert len(served.dense._by_present) == 32 and rows(0) is first
    rows(0, 5)
    assert len(served.dense._by_present) == 32 and rows(0) is not first, "the oldest combination is dropped"


def test_wish_to_skip_is_the_workers_own():
    served = Served(linear())
    assert served.dense.agree(share=1.0, skip=True) and not served.dense.agree(share=1.0, skip=False)


# ---- values in this process ----


class Reducer:
    """A group that adds nothing. `verdict` is whether the group skips the step."""

    def __init__(self, verdict=False):
        self.verdict, self.calls = verdict, []

    def load(self, *, share, skip):
        self.calls.append(("load", share, skip))

    def reduce(self):
        self.calls.append("reduce")
        return self.verdict

    def follow(self, own):
        self.calls.append(("follow", own))


def local(model, reducer=None, on_device=None):
    own = torch.optim.SGD(model.parameters(), lr=RATE)
    held = LocalDense(list(model.named_parameters()), reducer, [own], on_device)
    return held, JobOptimizer(own, lambda _: None, fixed=False)


@pytest.mark.parametrize("verdict", [False, True])
def test_group_decides_whether_a_step_is_skipped(verdict):
    reducer = Reducer(verdict)
    held, optimizer = local(linear(), reducer)
    assert held.agree(share=0.25, skip=not verdict) is verdict
    assert reducer.calls == [("load", 0.25, not verdict), "reduce", ("follow", [optimizer.own])]
    assert held.agree(share=0.25, skip=False, again=True) is verdict
    assert reducer.calls[3:] == ["reduce", ("follow", [optimizer.own])], "the repeated sum is of the same gradients"


def test_skipped_step_may_have_infinite_gradients():
    model = linear()
    held, _ = local(model)
    backward(model, float("inf"))
    assert held.agree(share=1.0, skip=True)
    with pytest.raises(errors.NonFiniteGradient, match="parameter 'weight' has NaN or infinity in 6 of 6"):
        held.agree(share=1.0, skip=False)


def test_update_steps_the_users_optimizer_without_the_tables():
    model, table = linear(), nn.Parameter(torch.zeros(2))
    held, optimizer = local(model)
    optimizer.own.param_groups[0]["params"].append(table)
    before = values(model)
    backward(model)
    table.grad = torch.ones(2)
    table.springtide_grad = kept = torch.full((2,), 3.0)
    held.update([optimizer], [table])
    assert all(torch.equal(now, old - RATE) for now, old in zip(values(model), before, strict=True))
    assert table.tolist() == [0, 0] and table.grad is kept


def test_optimizer_of_tables_alone_takes_no_step_here():
    table = nn.Parameter(torch.zeros(2))
    held, optimizer = local(nn.ParameterList([table]))
    table.grad = torch.ones(2)
    optimizer.own.step = lambda: pytest.fail("there is nothing to train here")
    held.update([optimizer], [table])
    assert table.grad is not None
    assert held.parts([optimizer]) == []


def test_optimizer_has_work_if_a_step_can_change_more_than_tables():
    table, param = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    own = torch.optim.SGD([table, param], lr=RATE)
    table.grad = torch.ones(2)
    assert not dense.has_work(own, {id(table)})
    param.grad = torch.ones(2)
    assert dense.has_work(own, {id(table)})
    assert not dense.has_work(own, {id(table), id(param)})


def test_optimizer_that_is_watched_or_foreign_always_has_work():
    param = nn.Parameter(torch.zeros(2))
    own = torch.optim.SGD([param], lr=RATE)
    own.register_step_post_hook(lambda *_: None)
    assert dense.has_work(own, set())

    class Foreign(torch.optim.SGD):
        pass

    assert dense.has_work(Foreign([param], lr=RATE), set())


# ---- tables on a GPU ----


class Flags:
    """Stands for the tables of a GPU; this machine's tensors are on the CPU."""

    def __init__(self):
        self.polls = []

    def poll(self, *, wait=False):
        self.polls.append(wait)


def test_gradients_on_a_gpu_are_checked_every_few_steps_and_at_the_end():
    flags, model = Flags(), linear()
    held, _ = local(model, on_device=flags)
    backward(model)
    for _ in range(2 * dense.STEPS_A_CHECK):
        assert held.agree(share=1.0, skip=False) is False
    assert flags.polls == [False, False]
    held.settle()
    assert flags.polls == [False, False, False, True]
    backward(model, float("nan"))
    with pytest.raises(errors.NonFiniteGradient):  # those on the CPU at every step
        held.agree(share=1.0, skip=False)


def test_settling_without_a_gpu_waits_for_nothing():
    held, _ = local(linear())
    held.settle()


# ---- the check for NaN ----


def named(*grads):
    params = [nn.Parameter(torch.zeros(2)) for _ in grads]
    for param, grad in zip(params, grads, strict=True):
        param.grad = None if grad is None else torch.tensor(grad)
    return [(f"parameter {number}", param) for number, param in enumerate(params)]


def test_check_names_the_first_bad_gradient():
    dense.check_finite([])
    dense.check_finite(named(None, [1.0, 2.0]))
    with pytest.raises(errors.NonFiniteGradient, match="gradient of parameter 2 has NaN or infinity in 1 of 2 places"):
        dense.check_finite(named(None, [1.0, 2.0], [float("nan"), 0.0], [float("inf")] * 2))


def test_gradients_whose_norm_overflows_are_finite():
    dense.check_finite(named([3e38, 3e38], [1.0, 1.0]))


def test_sparse_gradients_are_left_to_the_check_of_rows():
    param = nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([1.0, float("nan")]).to_sparse()
    dense.check_finite([("parameter 0", param)])
