"""`weight` of a served table gives the whole table like plain PyTorch, or the read is refused."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import springtide as st
from springtide import errors
from springtide.embedding.modules import table_weight

ROWS, DIM = 30, 4


class TwoTowers(nn.Module):
    """Scores users against items, as recommender repositories do."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.user = nn.Embedding(7, DIM)
        self.item = nn.Embedding(ROWS, DIM, padding_idx=0, dtype=dtype)

    def forward(self, users, items):
        return (self.user(users) * self.item(items).float()).sum(1)


def train(pair, steps=3):
    for seed in range(steps):
        torch.manual_seed(seed)
        users, items = torch.randint(0, 7, (5,)), torch.randint(0, 12, (5,))
        pair.train(lambda model, users=users, items=items: model(users, items).sigmoid().sum())


@pytest.fixture
def pair(make_pair):
    """Trained a little: the step's rows are a few of the table's."""
    torch.manual_seed(1)
    made = make_pair(TwoTowers(), servers=2)
    train(made)
    return made


IDS = torch.tensor([3, 29, 3, 0])


def saved(value):
    torch.save(value, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=True)


READS = {
    "full ranking": lambda m: m.user(torch.arange(7)) @ m.item.weight.T,
    "transposed": lambda m: torch.mm(torch.ones(2, DIM), m.item.weight.t()),
    "linear": lambda m: functional.linear(torch.ones(2, DIM), m.item.weight),
    "as an embedding": lambda m: functional.embedding(IDS, m.item.weight),
    "as a bag": lambda m: functional.embedding_bag(IDS.view(2, 2), m.item.weight),
    "by index": lambda m: m.item.weight[IDS],
    "a row": lambda m: m.item.weight[29],
    "a slice": lambda m: m.item.weight[3:9, 1],
    "index_select": lambda m: m.item.weight.index_select(0, IDS),
    "data": lambda m: m.item.weight.data,
    "rows of data": lambda m: m.item.weight.data[IDS].cpu(),
    "detached": lambda m: m.item.weight.detach().clone(),
    "in a list": lambda m: torch.cat([m.item.weight, m.user.weight]),
    "by keyword": lambda m: torch.add(input=m.item.weight, other=1),
    "foreach": lambda m: torch._foreach_norm([m.item.weight])[0],
    "an operator": lambda m: torch.ops.aten.mul.Tensor(m.item.weight, m.item.weight),
    "comparison": lambda m: m.item.weight > 0,
    "cast": lambda m: m.item.weight.to(torch.float64),
    "from named parameters": lambda m: dict(m.named_parameters())["item.weight"].norm(),
    "as a vector": lambda m: nn.utils.parameters_to_vector(m.parameters()),
    "row by row": lambda m: torch.stack([*m.item.weight]),
    "numpy": lambda m: torch.from_numpy(m.item.weight.detach().numpy()),
    "asarray": lambda m: torch.from_numpy(np.asarray(m.item.weight.data)),
    "tolist": lambda m: torch.tensor(m.item.weight.tolist()),
    "copied": lambda m: copy.deepcopy(m.item.weight).data,
    "pickled": lambda m: pickle.loads(pickle.dumps(m.item.weight)).data,
    "saved": lambda m: saved({"it": m.item.weight})["it"].data,
    "data saved": lambda m: saved({"it": m.item.weight.data})["it"],
    "data copied": lambda m: copy.deepcopy(m.item.weight.data),
    "written to another": lambda m: torch.zeros(ROWS, DIM).copy_(m.item.weight),
    "state dict": lambda m: m.state_dict()["item.weight"],
    "with itself": lambda m: m.item.weight.data - 3 * (m.item.weight.detach() + m.item.weight.detach()) / 7 + 1,
    "times itself": lambda m: m.item.weight.data * m.item.weight.data,
    "divided": lambda m: m.item.weight.data / 3,
    "a plain copy": lambda m: nn.Embedding.from_pretrained(m.item.weight.data)(IDS),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_way_to_read_a_weight_sees_the_whole_table(pair, read, mode):
    with mode():
        ours, theirs = read(pair.served.model), read(pair.plain)
    torch.testing.assert_close(ours, theirs, check_layout=True)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype


def test_weight_is_read_at_its_current_value(pair):
    for _ in range(2):
        torch.testing.assert_close(pair.served.model.item.weight.detach(), pair.plain.item.weight.detach())
        train(pair)


DESCRIPTIONS = {
    "shape": lambda w: w.shape,
    "size": lambda w: (w.size(), w.size(0), w.size(-1)),
    "numel": lambda w: (w.numel(), torch.numel(w), w.nelement()),
    "dim": lambda w: (w.dim(), w.ndim),
    "len": len,
    "dtype": lambda w: (w.dtype, w.is_floating_point(), w.element_size()),
    "device": lambda w: (w.device, w.is_cuda, w.is_cpu, w.get_device()),
    "leaf": lambda w: (w.is_leaf, w.grad_fn, w.requires_grad),
    "kind": lambda w: (isinstance(w, nn.Parameter), w.layout, w.is_sparse, w.is_meta),
    "like": lambda w: [torch.zeros_like(w).sum(), torch.full_like(w, 2.0), w.new_zeros(3), torch.empty_like(w).shape],
    "bytes": lambda w: w.numel() * w.element_size(),
    "frozen and back": lambda w: [w.requires_grad_(False).requires_grad, w.requires_grad_(True).requires_grad],
}


@pytest.mark.parametrize("describe", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_size_and_dtype_need_no_read(make_served, describe, dtype):
    served = make_served(TwoTowers(dtype))
    served.client.whole_table_bytes = 0  # no read is allowed
    ours, theirs = describe(served.model.item.weight), describe(TwoTowers(dtype).item.weight)
    torch.testing.assert_close(ours, theirs) if isinstance(ours, list) else None
    assert isinstance(ours, list) or ours == theirs


def test_parameters_are_counted_as_in_plain_pytorch(pair):
    count = [sum(one.numel() for one in model.parameters()) for model in (pair.served.model, pair.plain)]
    assert count[0] == count[1] == (7 + ROWS) * DIM


def test_weight_is_printed_without_a_read(make_served):
    served = make_served(TwoTowers())
    served.client.whole_table_bytes = 0
    said = repr(served.model.item.weight)
    assert "table 'item', 30 rows of 4 float32, on servers" in said and f"{served.model.item.weight}" == said


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
LOSSES = {
    "a tied output layer": lambda m: functional.cross_entropy(
        m.user(torch.arange(5)) @ m.item.weight.T, torch.arange(5)
    ),
    "tied, and looked up": lambda m: (m.item(IDS) @ m.item.weight.t()).logsumexp(1).sum(),
    "an embedding by hand": lambda m: functional.embedding(IDS, m.item.weight).sin().sum() + m.item.weight.sum(),
    "a penalty": lambda m: m(torch.arange(5), torch.arange(5)).sum() + sum(p.pow(2).sum() for p in m.parameters()),
    "a norm": lambda m: m(torch.arange(5), torch.arange(5)).sum() + sum(torch.norm(p) for p in m.parameters()),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_loss_on_the_weight_trains_every_row_like_plain_pytorch(make_pair, optimizer, loss):
    torch.manual_seed(3)
    pair = make_pair(TwoTowers(), optimizer, servers=2)
    with torch.no_grad():  # all rows have a gradient: torch's dense Adam would move the others by momentum alone
        everywhere = lambda m: loss(m) + 0.1 * (m.user.weight.sum() + m.item.weight.sin().sum())  # noqa: E731
    for _ in range(3):
        ours, theirs = pair.train(everywhere)
        torch.testing.assert_close(ours, theirs)
    pair.assert_same()


def test_tables_larger_than_a_request_are_read_and_trained_in_parts(make_pair, monkeypatch):
    monkeypatch.setattr("springtide.embedding.lookup.table_client.READ_CHUNK_BYTES", 7 * 4 * DIM)
    pair = make_pair(TwoTowers(), servers=2)
    for _ in range(2):
        pair.train(LOSSES["a tied output layer"])
        torch.testing.assert_close(pair.served.model.item.weight.detach(), pair.plain.item.weight.detach())
    pair.assert_same()


def test_frozen_weight_is_read_without_gradients(make_pair):
    model = TwoTowers()
    model.item.requires_grad_(False)
    pair = make_pair(model, lambda p: torch.optim.SGD([one for one in p if one.requires_grad], lr=0.1))
    assert not (pair.served.model.item.weight * 2).requires_grad
    pair.train(lambda m: (m.user(torch.arange(5)) @ m.item.weight.T).exp().sum())
    pair.assert_same()


WRITES = {
    "zero_": lambda w: w.zero_(),
    "of data": lambda w: w.data.zero_(),
    "of a row of data": lambda w: w.data[0].zero_(),
    "item of data": lambda w: w.data.__setitem__(0, 0.0),
    "item": lambda w: w.__setitem__(0, 0.0),
    "of a row": lambda w: w[0].fill_(0),
    "of rows in turn": lambda w: next(iter(w)).fill_(0),
    "copy_": lambda w: w.copy_(torch.zeros(ROWS, DIM)),
    "data": lambda w: setattr(w, "data", torch.zeros(ROWS, DIM)),
    "init": lambda w: nn.init.normal_(w),
    "xavier": lambda w: nn.init.xavier_uniform_(w.data),
    "detached": lambda w: w.detach().mul_(2),
    "transposed": lambda w: w.T.mul_(2),
    "operator": lambda w: w.__imul__(2),
    "out": lambda w: torch.add(torch.zeros(ROWS, DIM), 1, out=w),
    "foreach": lambda w: torch._foreach_mul_([torch.zeros(2), w], 2.0),
    "clamp_ of data": lambda w: w.data.clamp_(-1, 1),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_write_to_a_served_weight_is_refused(pair, write):
    with (
        torch.no_grad(),
        pytest.raises(errors.BadInput, match=r"writes to the weight of table 'item'.*before job\.prep"),
    ):
        write(pair.served.model.item.weight)
    torch.testing.assert_close(pair.served.model.item.weight.detach(), pair.plain.item.weight.detach())


@pytest.mark.parametrize(
    "ask",
    [
        lambda m: torch.autograd.grad(m(IDS[:2] * 0, IDS[:2]).sum(), m.item.weight, allow_unused=True),
        lambda m: m.item.weight.register_hook(lambda grad: grad),
        lambda m: m.item.weight.register_post_accumulate_grad_hook(lambda p: None),
    ],
)
def test_gradients_impossible_under_autograd_are_refused(pair, ask):
    with pytest.raises(errors.BadInput, match=r"on the weight of table 'item': servers get its gradient"):
        ask(pair.served.model)


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_existing_hooks_on_a_weight_are_refused(make_served, hook):
    model = TwoTowers()
    getattr(model.item.weight, hook)(lambda _: None)
    with pytest.raises(errors.BadInput, match=r"'item' has a hook on its weight"):
        make_served(model)


@pytest.mark.parametrize("kind", [st.EmbeddingBag, st.Embedding, lambda dim: st.EmbeddingBags([dim])])
@pytest.mark.parametrize("read", [lambda w: w.T @ w, lambda w: w.data.clone(), lambda w: w.sum(), lambda w: w[0]])
def test_open_table_cannot_be_read_whole(make_served, kind, read):
    model = make_served(nn.Sequential(kind(DIM))).model
    with (
        torch.no_grad(),
        pytest.raises(errors.BadInput, match=r"table '0[.0]*' is read, but the table has no row count"),
    ):
        read(model[0].weight)
    with pytest.raises(errors.BadInput, match=r"set weight_decay=2 \* l2 in the table"):
        sum(param.pow(2).sum() for param in model.parameters()).backward()


def test_table_over_the_whole_read_limit_is_refused_with_advice(make_served):
    served = make_served(TwoTowers())
    served.client.whole_table_bytes = ROWS * DIM * 4 - 1
    says = r"all of its 30 rows: 480 bytes, more than whole_table_bytes=479.*Call the module.*whole_table_bytes=480"
    for mode in (torch.no_grad, torch.enable_grad):
        with mode(), pytest.raises(errors.BadInput, match=says):
            served.model.item.weight.T  # noqa: B018
    assert served.model.state_dict()["item.weight"].shape == (ROWS, DIM)
    served.client.whole_table_bytes += 1
    assert served.model.item.weight.detach().shape == (ROWS, DIM)


@pytest.mark.parametrize("move", [lambda m: m.to("cpu"), nn.Module.half, nn.Module.double, nn.Module.share_memory])
def test_moving_or_casting_the_model_leaves_tables_unchanged(pair, move):
    before = pair.served.model.item.weight
    moved = move(pair.served.model)
    assert moved.item.weight is before and before.dtype == torch.float32 and list(moved.item._parameters) == ["weight"]
    train(pair)
    pair.assert_same()


def test_detached_weight_follows_the_table_and_its_copy_does_not(pair):
    live, copied = pair.served.model.item.weight.detach(), pair.served.model.item.weight.data.clone()
    train(pair)
    torch.testing.assert_close(live + 0, pair.plain.item.weight.detach())
    assert not torch.equal(live, copied) and type(copied) is torch.Tensor
    with pytest.raises(errors.BadInput, match=r"requires_grad_\(\) on the weight of table 'item'"):
        live.requires_grad_()
    assert copied.requires_grad_().requires_grad


@pytest.mark.parametrize("how", [{}, {"multi_avg_fn": get_ema_multi_avg_fn(0.5)}, {"use_buffers": True}])
def test_averaged_model_shares_the_tables_without_reading_them(make_pair, how):
    pair = make_pair(nn.Sequential(nn.EmbeddingBag(ROWS, DIM), nn.BatchNorm1d(DIM), nn.Linear(DIM, 1)))
    averaged, plain = AveragedModel(pair.served.model, **how), AveragedModel(pair.plain, **how)
    pair.served.client.whole_table_bytes = 0
    for seed in range(4):
        ids = torch.randint(0, ROWS, (6, 3), generator=torch.Generator().manual_seed(seed))
        pair.train(lambda model, ids=ids: model(ids).pow(2).sum())
        averaged.update_parameters(pair.served.model)
        plain.update_parameters(pair.plain)
    torch.testing.assert_close(averaged.module[2].weight, plain.module[2].weight)
    assert averaged.module[0].weight is pair.served.model[0].weight
    torch.testing.assert_close(averaged.module.state_dict()["0.weight"], pair.plain[0].weight.detach())


def test_weight_gradients_are_those_of_the_steps_rows(make_served):
    served = make_served(TwoTowers())
    served.model(torch.tensor([1, 1]), torch.tensor([5, 29])).sum().backward()
    grads = [one.grad for one in served.model.parameters()]
    assert [tuple(one.shape) for one in grads] == [(1, DIM), (3, DIM)], "ids of the step, and the padding"
    nn.utils.clip_grad_norm_(served.model.parameters(), 1.0)
    assert float(torch.stack([one.norm() for one in grads]).norm()) == pytest.approx(1.0)
    served.model.item.weight.grad = served.model.item.weight.grad * 0
    before = served.model.item.weight.detach()
    served.step()
    assert served.model.item.weight.grad is None and torch.equal(served.model.item.weight.detach(), before)


def test_weight_read_bypassing_python_is_nan(pair):
    with torch._C.DisableTorchFunctionSubclass():
        assert torch.isnan(pair.served.model.item.weight).all()


def test_compiled_model_reads_the_whole_weight(make_pair):
    class Tied(TwoTowers):
        def forward(self, users):
            assert self.item.weight.shape[0] == ROWS
            scores = self.user(users).tanh() @ self.item.weight.T
            return scores.logsumexp(1) + 0.1 * torch.sum(self.item.weight**2)

    pair = make_pair(Tied())
    compiled = torch.compile(pair.served.model, backend="eager")
    users = torch.tensor([1, 5])
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(compiled(users), pair.plain(users))
        pair.train(lambda m: (compiled if m is pair.served.model else m)(users).sum())
    pair.assert_same()


def test_served_weight_keeps_its_parameter_identity(make_served):
    model = TwoTowers()
    before = [id(one) for one in model.parameters()]
    served = make_served(model)
    assert [id(one) for one in served.model.parameters()] == before
    assert all(isinstance(one, table_weight.TableWeight) for one in served.model.parameters())
