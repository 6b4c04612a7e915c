"""`st.serving` builds embeddings without memory; their rows start as the script's initialization says."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import springtide as st
from springtide import errors

ROWS, DIM = 2000, 4


def build(kind=nn.EmbeddingBag, rows=ROWS, **options):
    with st.serving():
        return nn.Sequential(kind(rows, DIM, **options), nn.Linear(DIM, 1))


def rows_of(served):
    return served.model.state_dict()["0.weight"]


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_table_built_while_serving_starts_as_torch_would_draw_it(make_served, kind):
    rows = rows_of(make_served(build(kind, padding_idx=3)))
    assert abs(float(rows.mean())) < 0.05 and abs(float(rows.std()) - 1) < 0.05
    assert (rows[3] == 0).all()


def test_only_embeddings_are_built_without_memory():
    with st.serving():
        model = nn.ModuleList(
            [nn.Embedding(10**12, 8), nn.Linear(3, 2), nn.Embedding.from_pretrained(torch.ones(2, 2))]
        )
    after = nn.Embedding(5, 2)
    assert "in no process" in repr(model[0].weight) and "in no process" in f"{model[0].weight}"
    assert model[0].weight.shape == (10**12, 8) and model[0].weight.device.type == "cpu"
    assert all(torch.isfinite(weight).all() for weight in (model[1].weight, model[2].weight, after.weight))


@pytest.mark.parametrize("device", [torch.device("meta"), "meta", None])
def test_device_of_the_module_does_not_matter_while_serving(make_served, device):
    model = build(device=device)
    assert model[0].weight.device.type == "cpu" and torch.isfinite(rows_of(make_served(model))).all()


class Small(nn.Embedding):
    def reset_parameters(self):
        nn.init.constant_(self.weight, 0.5)


def test_subclass_with_its_own_initialization_is_served(make_served):
    served = make_served(build(Small))
    assert isinstance(served.model[0], Small) and (rows_of(served) == 0.5).all()


def test_serving_ends_with_its_block_also_after_an_error():
    with pytest.raises(ZeroDivisionError), st.serving(), st.serving():
        raise ZeroDivisionError
    assert type(nn.Embedding(2, 2).weight) is type(nn.EmbeddingBag(2, 2).weight) is nn.Parameter


def test_model_moves_to_a_gpu_before_it_is_prepared():
    model = build()[:1].to("cuda:1")
    assert str(model[0].weight.device) == "cuda:1" and model[0].weight.is_cuda and not model[0].weight.is_cpu
    assert str(model.to("cpu")[0].weight.device) == "cpu"


@pytest.mark.filterwarnings("ignore:for 0.weight")
@pytest.mark.parametrize(
    "change",
    [
        lambda model: nn.init.xavier_uniform_(model[0].weight),
        lambda model: model.load_state_dict({"0.weight": torch.ones(5, DIM)}),
    ],
    ids=["init", "load"],
)
def test_values_that_torch_ignores_on_the_meta_device_are_refused(make_served, change):
    model = nn.Sequential(nn.Embedding(5, DIM, padding_idx=0, device="meta"))
    change(model)
    with pytest.raises(errors.BadInput, match=r"'0' is on the meta device, where torch ignores.*st.serving"):
        make_served(model)


INITS = {
    "normal": lambda weight: nn.init.normal_(weight, 1.0, 0.01),
    "uniform": lambda weight: nn.init.uniform_(weight, -1.0, 3.0),
    "constant": lambda weight: nn.init.constant_(weight, 0.25),
    "zeros": nn.init.zeros_,
    "ones": nn.init.ones_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": lambda weight: nn.init.kaiming_uniform_(weight, a=math.sqrt(5)),
    "kaiming_normal": nn.init.kaiming_normal_,
    "on data": lambda weight: weight.data.uniform_(-0.5, 0.5),
    "without a gradient": lambda weight: torch.no_grad()(weight.normal_)(0.0, 0.1),
    "scaled": lambda weight: weight.data.normal_(2.0, 1.0).mul_(-0.5).add_(3.0),
    "operators": lambda weight: weight.data.__imul__(2.0).__itruediv__(4.0).__iadd__(1.0).__isub__(0.5),
}


@pytest.mark.parametrize("init", INITS.values(), ids=INITS)
def test_rows_have_the_distribution_that_the_script_asks_of_torch(make_served, init):
    torch.manual_seed(1)
    plain, model = nn.EmbeddingBag(ROWS, DIM), build()
    init(plain.weight)
    init(model[0].weight)
    rows, like = rows_of(make_served(model)), plain.weight.detach()
    at = torch.tensor([0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
    torch.testing.assert_close(rows.quantile(at), like.quantile(at), rtol=0, atol=0.12 * float(like.std()) + 1e-6)


def test_rows_that_the_script_sets_start_with_its_values(make_served):
    plain, model = nn.EmbeddingBag(ROWS, DIM), build()
    for module in (plain, model[0]):
        nn.init.zeros_(module.weight)
        module.weight.data[0] = 1.0
        module.weight.data[-1, :] = torch.arange(4.0)
        module.weight.data[3:9:2].fill_(2.0)
        module.weight.data[[10, 11]] = torch.tensor([[3.0], [4.0]]).expand(2, DIM)
        with torch.no_grad():
            module.weight[5].zero_()
            module.weight[7].copy_(torch.ones(DIM))
    torch.testing.assert_close(rows_of(make_served(model)), plain.weight.detach())


def test_later_initialization_replaces_an_earlier_one(make_served):
    model = build()
    model[0].weight.data[1] = 5.0
    nn.init.constant_(model[0].weight, 2.0)
    assert (rows_of(make_served(model)) == 2.0).all()


def give_by_load(model, state):
    model.load_state_dict(state)


def give_by_data(model, state):
    model[0].weight.data = state["0.weight"]


def give_by_copy(model, state):
    with torch.no_grad():
        model[0].weight.copy_(state["0.weight"])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("give", [give_by_load, give_by_data, give_by_copy])
def test_loaded_weight_goes_to_the_servers_without_a_copy(make_served, give, tmp_path):
    plain = nn.Sequential(nn.EmbeddingBag(ROWS, DIM), nn.Linear(DIM, 1))
    torch.save(plain.state_dict(), tmp_path / "model.pt")
    state, model = torch.load(tmp_path / "model.pt", mmap=True), build()
    give(model, state)
    served = make_served(model)
    assert served.tables[0].initial.data_ptr() == state["0.weight"].data_ptr()
    assert torch.equal(rows_of(served), plain[0].weight.detach())


def test_loaded_weight_may_be_changed_by_rows_and_as_a_whole(make_served):
    model, given = build(), torch.ones(ROWS, DIM)
    model[0].weight.data.copy_(given).mul_(3.0)
    model[0].weight.data[4] = 0.0
    rows = rows_of(make_served(model))
    assert (rows[4] == 0).all() and (rows[5] == 3).all() and (given == 1).all()


def test_loaded_weight_that_changes_before_prepare_is_refused(make_served):
    model, given = build(), torch.ones(ROWS, DIM)
    model[0].weight.data.copy_(given)
    given.zero_()
    with pytest.raises(errors.BadInput, match=r"loaded into '0' has been changed in place since.*\.clone"):
        make_served(model)


def test_state_of_another_unprepared_model_is_taken_as_its_initialization(make_served):
    model, other = build(), build()
    nn.init.constant_(other[0].weight, 7.0)
    model.load_state_dict(other.state_dict())
    nn.init.zeros_(other[0].weight)
    assert (rows_of(make_served(model)) == 7.0).all()


def test_wrong_shape_in_a_state_dict_is_refused_as_by_torch():
    model = build()
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight"):
        model.load_state_dict({**build(rows=5).state_dict(), "0.weight": torch.zeros(5, DIM)})
    with pytest.raises(errors.BadInput, match=r"shape \(5, 4\).*expected \(2000, 4\)"):
        model[0].weight.data = torch.zeros(5, DIM)


def test_copies_of_an_unprepared_model_are_initialized_apart(make_served):
    model = build()
    twin = copy.deepcopy(model)
    nn.init.zeros_(model[0].weight)
    nn.init.ones_(twin[0].weight)
    assert (rows_of(make_served(model)) == 0).all() and (rows_of(make_served(twin)) == 1).all()


def test_weight_keeps_its_identity_and_follows_casts(make_served):
    model = build()
    weight = model[0].weight
    model.to(torch.float64).half().cpu().requires_grad_(False)
    assert model[0].weight is weight and weight.dtype is torch.float16 and not weight.requires_grad
    served = make_served(model.float().requires_grad_(True))
    assert model[0].weight is weight and served.client.specs[0].dtype == "float32"


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda model: model(torch.tensor([[1]])), "has no rows yet: call .*job.prepare"),
        (lambda model: model[0].weight.sum(), r"sum\(\) needs the values"),
        (lambda model: model[0].weight.data.numpy(), r"numpy\(\) needs the values"),
        (lambda model: nn.init.trunc_normal_(model[0].weight), "not with nn.init.trunc_normal_"),
        (lambda model: model[0].weight[:2].normal_(), r"normal_\(\) on a part"),
        (lambda model: model[0].weight.data[ROWS], "row 2000 of an embedding with 2000 rows"),
        (lambda model: torch.save(model.state_dict(), "/dev/null"), "cannot be pickled or saved"),
        (lambda model: torch.zeros(ROWS, DIM).copy_(model[0].weight), r"copy_\(\) needs the values"),
    ],
    ids=["forward", "sum", "numpy", "truncated", "part", "outside", "saved", "copied"],
)
def test_use_of_values_that_no_process_holds_is_refused_with_advice(use, words):
    with pytest.raises(errors.BadInput, match=words):
        use(build())


OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "fused Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1, fused=True),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.1),
    "fused Adam": lambda params: torch.optim.Adam(params, lr=0.1, fused=True),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1, weight_decay=0.0),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.1),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizer_of_an_unprepared_model_needs_no_memory_for_tables(make_pair, make_optimizer, sparse):
    model = build(mode="sum", sparse=sparse)
    held = [value for state in make_optimizer(model[:1].parameters()).state.values() for value in state.values()]
    assert all(value.numel() == 1 or value.is_meta for value in held)
    plain = nn.Sequential(nn.EmbeddingBag(ROWS, DIM, mode="sum"), nn.Linear(DIM, 1))
    model.load_state_dict(plain.state_dict())
    pair = make_pair(plain, make_optimizer)
    pair.served = type(pair.served)(model, make_optimizer)
    ids = torch.randint(0, ROWS, (16, 3))
    pair.train(lambda model: model(ids).square().mean())
    pair.assert_same()


def test_sparse_adam_takes_a_table_that_no_process_holds(make_served):
    model = build(sparse=True)[:1]
    nn.init.zeros_(model[0].weight)
    served = make_served(model, lambda params: torch.optim.SparseAdam(params, lr=0.1))
    (model(torch.tensor([[1]])).sum()).backward()
    served.step()
    assert torch.allclose(rows_of(served)[1], torch.full((DIM,), -0.1)) and (rows_of(served)[2] == 0).all()


def test_state_dict_of_a_huge_table_is_refused_instead_of_filling_the_memory(make_served):
    served = make_served(build(rows=500_000_000))
    with pytest.raises(errors.BadInput, match=r"all 500000000 rows of table '0': 8000000000 bytes.*springtide export"):
        served.model.state_dict()


def test_large_weight_is_assigned_in_parts(make_served, monkeypatch):
    monkeypatch.setattr("springtide.embedding.lookup.tables.FIRST_FLOATS", 100)
    plain = nn.EmbeddingBag(ROWS, DIM)
    values = plain.weight.detach().clone()
    served = make_served(nn.Sequential(plain))
    parts = list(served.tables[0].first_rows())
    assert len(parts) == ROWS * DIM // 100 and sum(len(keys) for keys, _ in parts) == ROWS
    assert np.array_equal(rows_of(served).numpy(), values.numpy())
