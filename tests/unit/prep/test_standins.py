"""Tables stand aside while a program is captured: nobody is asked for rows, and afterwards the live tables are used."""

import copy

import pytest
import torch
from torch import nn

import springtide as st
from springtide.embedding.table_weight import TableWeight
from springtide.prep import leaves, standins
from springtide.prep.split import Split, split
from springtide.prep.untouched import same


class Mixed(nn.Module):
    """All kinds of tables at once, called in all ways."""

    def __init__(self):
        super().__init__()
        self.plain = nn.EmbeddingBag(100, 4, mode="mean")
        self.rows = nn.Embedding(100, 4, padding_idx=0)
        self.bag = st.EmbeddingBag(4, name="bag", init=("uniform", -1.0, 1.0))
        self.one = st.Embedding(4, name="one", init=("uniform", -1.0, 1.0))
        self.many = st.EmbeddingBags([4, 4], name="many", init=("uniform", -1.0, 1.0))
        self.named = st.EmbeddingBags({"a": 4, "b": 2}, name="named", init=("uniform", -1.0, 1.0))
        self.top = nn.Linear(4 * 5 + 8 + 6, 1)

    def forward(self, ids, offsets):
        hashed = ids * 31 % 97
        flat = hashed.reshape(-1)
        named = self.named({"a": hashed[:, :1], "b": (flat, offsets)})
        parts = [
            self.plain(hashed),
            self.plain(flat, offsets),
            self.rows(hashed[:, 0]),
            self.bag(hashed + 5, per_sample_weights=(hashed % 3).float()),
            self.one(hashed[:, 1]),
            self.many(hashed[:, :2]),
            named["a"],
            named["b"],
        ]
        return self.top(torch.cat(parts, 1)).squeeze(1)


def call(size, seed=0):
    draw = torch.Generator().manual_seed(seed + size)
    return (torch.randint(1, 10**6, (size, 3), generator=draw), torch.arange(0, size * 3, 3)), {}


@pytest.fixture(scope="module")
def served():
    torch.manual_seed(3)
    job = st.join()
    model = Mixed()
    data = torch.utils.data.TensorDataset(torch.zeros(4))
    model, _, _ = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    lookups = model.plain.springtide_binding.lookups
    before = lookups.hits, lookups.misses, dict(lookups._learnt)
    divided = split(model, *call(16), more=[call(16, 1), call(5, 2)])
    assert (lookups.hits, lookups.misses, dict(lookups._learnt)) == before, "nobody was asked"
    return model, divided


def test_a_split_of_served_tables_looks_up_the_live_rows(served):
    model, divided = served
    assert isinstance(divided, Split), divided.explanation.text()
    looked = [name for group in divided.explanation.stayed for name in group.operations if name == "table lookup"]
    assert len(looked) == 7
    for size in (16, 9):
        found, _ = leaves.flatten(call(size, 7))
        given = divided.rest(divided.crossing(found), found)
        assert same(given, model(*call(size, 7)[0])) and given.requires_grad


def test_stand_ins_are_gone_afterwards(served):
    model, _ = served
    assert all("forward" not in vars(part) for part in model.modules())
    assert isinstance(model.plain.weight, TableWeight) and isinstance(model.many.weight, TableWeight)


class Ranking(nn.Module):
    """Ids are hashed, and all rows of a table are scored: its weight is read whole."""

    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(97, 4), nn.Embedding(50, 4)

    def forward(self, ids):
        hashed = ((ids * 31 + 7) * 13 % 97 + ids // 97) % 97
        return (self.user(hashed).sum(1) @ self.item.weight.T).logsumexp(1)


def test_a_forward_that_reads_a_weight_is_split_and_reads_the_live_rows():
    torch.manual_seed(3)
    model = Ranking()
    plain, data = copy.deepcopy(model), torch.utils.data.TensorDataset(torch.zeros(4))
    model, _, _ = st.join().prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    (ids, _), _ = call(16)
    divided = split(model, (ids,), {}, more=[((call(9)[0][0],), {})])
    assert isinstance(divided, Split) and divided.explanation.moved, divided.explanation.text()
    given = divided.rest(divided.crossing([ids]), [ids])
    torch.testing.assert_close(given, plain(ids))
    given.sum().backward()
    plain(ids).sum().backward()
    by_row = [model.item.weight.grad, plain.item.weight.grad]  # ours in an order of its own
    torch.testing.assert_close(*(one.sort(0).values for one in by_row))


def test_made_up_rows_change_with_every_id_and_its_place():
    table = nn.EmbeddingBag(50, 4, mode="sum")
    ids = torch.arange(12).reshape(4, 3)
    with standins.standing_in([table]):
        rows = table(ids)
        assert rows.shape == (4, 4) and same(rows, table(ids.clone()))
        assert not torch.equal(rows, table(ids.flip(1))) and not torch.equal(rows, table(ids + (ids == 7)))
    assert not torch.equal(rows, table(ids))


@pytest.mark.filterwarnings("ignore")  # what TorchRec and FBGEMM warn about on import is theirs
@pytest.mark.extra("torchrec")
def test_torchrecs_collections_stay_whole_between_what_moves():
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    class Rec(nn.Module):
        def __init__(self):
            super().__init__()
            bag = [EmbeddingBagConfig(name=n, embedding_dim=4, num_embeddings=50, feature_names=[n]) for n in "ab"]
            row = [EmbeddingConfig(name="c", embedding_dim=4, num_embeddings=50, feature_names=["a"])]
            self.bags, self.rows = EmbeddingBagCollection(tables=bag), EmbeddingCollection(tables=row)
            self.top = nn.Linear(12, 1)

        def forward(self, ids, lengths):
            keyed = KeyedJaggedTensor(keys=["a", "b"], values=ids * 7 % 50, lengths=lengths)
            rows = self.rows(keyed)["a"].values().sum(0, keepdim=True)
            pooled = self.bags(keyed).values()
            return self.top(torch.cat([pooled, rows.expand(pooled.shape[0], 4)], 1))

    def features(size):
        return (torch.randint(0, 10**6, (size * 4,)), torch.full((size * 2,), 2)), {}

    model = Rec()
    divided = split(model, *features(8), more=[features(8), features(5)])
    assert isinstance(divided, Split), divided.explanation.text()
    assert "remainder" in {name for group in divided.explanation.moved for name in group.operations}
    args, kwargs = features(6)
    found, _ = leaves.flatten((args, kwargs))
    assert same(divided.rest(divided.crossing(found), found), model(*args))
