"""Which modules become served tables, their names, and refusals."""

import copy

import pytest
import torch
from torch import nn

import springtide
from springtide import errors
from springtide.embedding.lookup import table_client
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.modules import convert


def converted(model):
    return convert.convert(model, Lookups(table_client.TableClient.local(slots=64)))


def test_tables_are_named_by_their_module_path_and_numbered_in_order():
    served = converted(
        nn.ModuleDict(
            {
                "a": nn.Embedding(5, 2),
                "b": nn.Sequential(nn.Linear(2, 2), nn.EmbeddingBag(7, 3)),
                "c": springtide.EmbeddingBag(4),
            }
        )
    )
    assert [(table.name, table.spec.id, table.spec.dim, table.request.rows) for table in served] == [
        ("a", 0, 2, 5),
        ("b.1", 1, 3, 7),
        ("c", 2, 4, 0),
    ]
    assert [table.initial is None for table in served] == [False, False, True]


def test_module_used_twice_is_one_table():
    shared = nn.Embedding(5, 2)
    (table,) = converted(nn.ModuleDict({"a": shared, "b": shared}))
    assert table.name == "a"


def test_modules_sharing_a_weight_are_one_table(make_pair):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Embedding(6, 4)
            self.b = nn.EmbeddingBag(6, 4, mode="sum")
            self.b.weight = self.a.weight

        def forward(self, ids):
            return self.a(ids).sum(1) * self.b(ids)

    pair = make_pair(Tied())
    assert [table.name for table in pair.served.tables] == ["a"]
    for seed in range(3):
        ids = torch.randint(0, 6, (4, 2), generator=torch.Generator().manual_seed(seed))
        pair.train(lambda model, ids=ids: model(ids).sum())
    pair.assert_same()


def test_open_tables_of_one_name_are_refused_unless_one_module():
    with pytest.raises(errors.BadInput, match="table 'u' is declared twice: dim 4 at 'a', dim 8 at 'b'"):
        converted(nn.ModuleDict({"a": springtide.EmbeddingBag(4, name="u"), "b": springtide.EmbeddingBag(8, name="u")}))
    with pytest.raises(errors.BadInput, match="use one module in both places"):
        converted(nn.ModuleDict({"a": springtide.EmbeddingBag(4, name="u"), "b": springtide.EmbeddingBag(4, name="u")}))
    with pytest.raises(errors.BadInput, match="different options: ttl=0 at 'a', ttl=3 at 'b'; give both"):
        converted(
            nn.ModuleDict({"a": springtide.EmbeddingBag(4, name="u"), "b": springtide.EmbeddingBag(4, name="u", ttl=3)})
        )


def test_unsupported_modules_are_refused():
    with pytest.raises(errors.BadInput, match=r"'0' has max_norm=1.0"):
        converted(nn.Sequential(nn.Embedding(5, 2, max_norm=1.0)))
    with pytest.raises(errors.BadInput, match="scale_grad_by_freq"):
        converted(nn.Sequential(nn.EmbeddingBag(5, 2, scale_grad_by_freq=True)))
    with pytest.raises(errors.BadInput, match=r"the weight of '0' is float64; servers keep float32.* call \.float\(\)"):
        converted(nn.Sequential(nn.EmbeddingBag(5, 2, dtype=torch.float64)))


def test_model_is_prepared_once():
    model = nn.Sequential(nn.Embedding(5, 2))
    converted(model)
    with pytest.raises(errors.BadInput, match="is already served"):
        converted(model)


def test_subclasses_are_served_unless_they_override_forward(make_pair, caplog):
    class Named(nn.EmbeddingBag):
        label = "mine"

    class Doubled(nn.Embedding):
        def forward(self, ids):
            return nn.functional.embedding(ids, self.weight) * 2

    pair = make_pair(nn.ModuleList([Named(5, 2, mode="sum"), Doubled(5, 2)]))
    assert [table.name for table in pair.served.tables] == ["0"]
    assert pair.served.model[0].label == "mine"
    (told,) = caplog.messages
    assert "'1' is not served" in told and "it is an nn.Embedding with its own forward() (Doubled)" in told
    ids = torch.tensor([[1, 2], [4, 4]])
    pair.train(lambda model: model[0](ids).sum() + model[1](ids).sum())
    pair.assert_same()


def test_weight_read_whole_by_another_layer_becomes_a_dense_parameter(make_pair, caplog):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Embedding(6, 4)
            self.other = nn.Embedding(6, 4)
            self.top = nn.Linear(4, 6, bias=False)
            self.top.weight = self.rows.weight

        def forward(self, ids):
            return self.top(self.rows(ids).sum(1) * self.other(ids).sum(1))

    pair = make_pair(Tied())
    assert [table.name for table in pair.served.tables] == ["other"]
    (told,) = caplog.messages
    assert "'rows' is not served" in told and "'top' (Linear) has the same weight" in told
    ids = torch.tensor([[1, 2], [4, 4]])
    pair.train(lambda model: model(ids).pow(2).sum())
    pair.assert_same()


def test_computed_weight_is_not_served(caplog):
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Embedding(5, 2)))
    assert converted(model) == []
    assert "its weight is not a parameter but computed" in caplog.text
    assert model(torch.tensor([1])).shape == (1, 2)


def test_state_dicts_equal_those_of_pytorch(make_pair):
    pair = make_pair(nn.Sequential(nn.EmbeddingBag(6, 4, mode="sum"), nn.Linear(4, 1)))
    pair.assert_same()
    other = nn.Sequential(nn.EmbeddingBag(6, 4, mode="sum"), nn.Linear(4, 1))
    pair.served.model.load_state_dict(other.state_dict())
    ids = torch.tensor([[1, 2], [4, 4]])
    torch.testing.assert_close(pair.served.model(ids), other(ids))
    other.load_state_dict(pair.served.model.state_dict())
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight"):
        pair.served.model.load_state_dict({**other.state_dict(), "0.weight": torch.zeros(5, 4)})
    with pytest.raises(RuntimeError, match="Missing key"):
        pair.served.model.load_state_dict({"1.weight": other[1].weight, "1.bias": other[1].bias})


def test_copy_of_a_served_model_reads_the_same_tables(make_served):
    served = make_served(nn.Sequential(nn.EmbeddingBag(6, 4, mode="sum"), nn.Linear(4, 1)))
    ids = torch.tensor([[1, 2]])
    torch.testing.assert_close(copy.deepcopy(served.model)(ids), served.model(ids))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_meta_device_table_is_initialized_like_torch(make_served, kind):
    served = make_served(nn.Sequential(kind(2000, 4, padding_idx=3, device="meta")))
    rows = served.model.state_dict()["0.weight"]
    assert abs(float(rows.mean())) < 0.05 and abs(float(rows.std()) - 1) < 0.05
    assert (rows[3] == 0).all()
    assert served.client.specs[0].init.kind == "normal", "made by servers, and never in the memory of a worker"
