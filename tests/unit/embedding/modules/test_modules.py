"""Tables without a row count."""

import copy
import functools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn

import springtide
from springtide import _native, errors
from springtide.domain.model import tables
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.modules import optimizers

BIG = torch.tensor([[2**62, -5], [-5, 7], [-(2**63), 2**63 - 1]])


def test_any_64_bit_id_has_a_row_and_bags_pool_it(make_served):
    served = make_served(nn.ModuleDict({"bag": springtide.EmbeddingBag(4), "row": springtide.Embedding(4)}))
    bag, row = served.model["bag"], served.model["row"]
    rows = torch.from_numpy(served.client.read("bag", BIG.flatten().numpy())).view(3, 2, 4)
    torch.testing.assert_close(bag(BIG), rows.sum(1))
    torch.testing.assert_close(
        bag(BIG.flatten(), torch.tensor([0, 2, 2])), torch.stack([rows[0].sum(0), torch.zeros(4), rows[1:].sum((0, 1))])
    )
    assert row(BIG).shape == (3, 2, 4)
    assert (row(BIG).std() > 0.001).item(), "rows start random"


def test_only_trained_rows_exist_and_the_state_dict_holds_them(make_served):
    served = make_served(nn.ModuleDict({"bag": springtide.EmbeddingBag(4, init="zeros")}))
    served.model["bag"](BIG).detach()
    assert served.model.state_dict()["bag.keys"].tolist() == []
    served.model["bag"](BIG[:2]).sum().backward()
    served.step()
    state = served.model.state_dict()
    assert state["bag.keys"].tolist() == [-5, 7, 2**62]
    torch.testing.assert_close(state["bag.rows"], torch.tensor([[-0.2], [-0.1], [-0.1]]).expand(3, 4))

    other = make_served(nn.ModuleDict({"bag": springtide.EmbeddingBag(4)}))
    other.model.load_state_dict(state)
    torch.testing.assert_close(other.model["bag"](BIG[:2]), served.model["bag"](BIG[:2]))


def test_open_table_counts_every_occurrence(make_served):
    served = make_served(nn.ModuleDict({"count": springtide.EmbeddingBag(1, init="zeros", lr=1.0)}), servers=3)
    torch.manual_seed(5)
    seen = torch.randint(0, 50, (20, 16, 3))
    for ids in seen:
        (-served.model["count"](ids)).sum().backward()
        served.step()
    keys, rows = served.client.scan("count")
    wanted = torch.bincount(seen.flatten())
    assert {int(key): round(float(row[0])) for key, row in zip(keys, rows, strict=True)} == {
        i: int(count) for i, count in enumerate(wanted) if count
    }


def test_collection_equals_its_single_tables(make_served):
    torch.manual_seed(2)
    together = make_served(nn.ModuleDict({"t": springtide.EmbeddingBags({"a": 4, "b": 8, "c": 3}, init="zeros")}))
    single = make_served(
        nn.ModuleDict(
            {f"t_{name}": springtide.EmbeddingBag(dim, init="zeros") for name, dim in (("a", 4), ("b", 8), ("c", 3))}
        )
    )
    scale = torch.randn(6, 15)
    for _ in range(3):
        ids = torch.randint(0, 9, (6, 3))
        out = together.model["t"](ids)
        parts = [single.model[f"t_{name}"](ids[:, i : i + 1]) for i, name in enumerate("abc")]
        torch.testing.assert_close(out, torch.cat(parts, 1))
        (out.sin() + out * scale).sum().backward()
        (torch.cat(parts, 1).sin() + torch.cat(parts, 1) * scale).sum().backward()
        norms = [nn.utils.clip_grad_norm_(s.model.parameters(), 1.0) for s in (together, single)]
        torch.testing.assert_close(norms[0], norms[1])
        together.step()
        single.step()
    for name in "abc":
        # not to the last bit: torch's own sine of a wide row may differ from that of its parts
        assert_allclose(together.client.scan(f"t.{name}")[1], single.client.scan(f"t_{name}")[1], rtol=1e-5, atol=1e-7)
    assert set(together.model.state_dict()) == {f"t.{name}.{what}" for name in "abc" for what in ("keys", "rows")}


def test_collection_takes_ragged_bags_by_name(make_served):
    served = make_served(nn.ModuleDict({"t": springtide.EmbeddingBags({"a": 4, "b": 8}, mode="mean")}))
    ids, offsets = torch.tensor([3, 4, 5]), torch.tensor([0, 1])
    out = served.model["t"]({"b": (ids, offsets), "a": torch.tensor([[1, 2]])})
    assert {name: tuple(value.shape) for name, value in out.items()} == {"b": (2, 8), "a": (1, 4)}
    rows = torch.from_numpy(served.client.read("t.b", ids.numpy()))
    torch.testing.assert_close(out["b"], torch.stack([rows[0], rows[1:].mean(0)]))
    with pytest.raises(errors.UnknownName, match="no table named 'c'"):
        served.model["t"]({"c": ids})
    with pytest.raises(errors.BadInput, match=r"expected \[batch, 2\], a column a table"):
        served.model["t"](torch.zeros(3, 4, dtype=torch.int64))


def test_list_output_gives_one_tensor_per_table(make_served):
    served = make_served(nn.ModuleDict({"t": springtide.EmbeddingBags([4, 8], output="list")}))
    outs = served.model["t"](torch.tensor([[1, 2], [3, 4]]))
    assert [tuple(out.shape) for out in outs] == [(2, 4), (2, 8)]


def test_padding_is_ignored_and_never_stored(make_served):
    served = make_served(nn.ModuleDict({"bag": springtide.EmbeddingBag(4, padding_idx=0)}))
    served.model["bag"](torch.tensor([[0, 1], [0, 0]])).sum().backward()
    served.step()
    assert served.client.scan("bag")[0].tolist() == [1]


def test_unbound_modules_say_what_to_call():
    with pytest.raises(errors.BadInput, match=r"EmbeddingBag has no tables yet: call .*job.prepare"):
        springtide.EmbeddingBag(4)(torch.tensor([[1]]))
    with pytest.raises(errors.BadInput, match="no tables yet"):
        nn.Sequential(springtide.Embedding(4)).state_dict()


def test_unbound_modules_can_be_copied():
    module = nn.Sequential(springtide.EmbeddingBag(4, optimizer="ftrl"))
    other = copy.deepcopy(module)
    assert other[0].weight is not module[0].weight and other[0].request == module[0].request


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: springtide.EmbeddingBag(0), "EmbeddingBag: dim=0: expected a whole number"),
        (lambda: springtide.Embedding(-1), "Embedding: dim=-1: expected a whole number"),
        (lambda: springtide.EmbeddingBag(8.0), "dim=8.0: expected a whole number"),
        (lambda: springtide.EmbeddingBag(True), "dim=True: expected a whole number"),
        (lambda: springtide.EmbeddingBags({"user": "8"}), "EmbeddingBags 'user': dim='8': expected"),
        (lambda: springtide.EmbeddingBag(4, optimizer="rowise_adagrad"), "Did you mean 'rowwise_adagrad'"),
        (lambda: springtide.EmbeddingBag(4, init="unifrom"), "Did you mean 'uniform'"),
        (lambda: springtide.EmbeddingBag(4, init=("normal", 1, 2, 3)), "has 3 numbers; expected 2"),
        (lambda: springtide.EmbeddingBag(4, init=("uniform", 1, -1)), "table 'EmbeddingBag'.* the low end first"),
        (lambda: springtide.EmbeddingBag(4, init=("normal", 0, -1)), "a standard deviation of 0 or more"),
        (lambda: springtide.EmbeddingBag(4, init=("normal", float("nan"))), "expected finite numbers, as in init="),
        (lambda: springtide.EmbeddingBag(4, init=("normal", "a")), "expected numbers after 'normal', as in init="),
        (lambda: springtide.EmbeddingBag(4, init=()), "no init"),
        (lambda: springtide.EmbeddingBag(4, init=0.1), "no init"),
        (lambda: springtide.EmbeddingBag(4, optimizer=torch.optim.SGD), "expected the name of a table optimizer"),
        (lambda: springtide.EmbeddingBag(4, lr=-1), "lr=-1: expected a number, 0 or more"),
        (lambda: springtide.EmbeddingBag(4, lr=float("nan")), "lr=nan: expected a number"),
        (lambda: springtide.EmbeddingBag(4, lr="fast"), "lr='fast': expected a number"),
        (lambda: springtide.EmbeddingBag(4, capacity=2.5), "capacity=2.5: expected a whole number"),
        (lambda: springtide.EmbeddingBag(4, ttl=-1), "ttl=-1: expected a whole number"),
        (lambda: springtide.EmbeddingBag(4, min_count=2**40), "below 2\\^32"),
        (lambda: springtide.EmbeddingBag(4, dtype="float64"), "no dtype"),
        (lambda: springtide.EmbeddingBag(4, mode="men"), "Did you mean 'mean'"),
        (lambda: springtide.EmbeddingBag(4, padding_idx="0"), "padding_idx='0': expected a 64-bit id"),
        (lambda: springtide.Embedding(4, padding_idx=2**63), "padding_idx=9223372036854775808: expected a 64-bit id"),
        (lambda: springtide.Embedding(4, name=3), "Embedding: name=3: expected a text"),
        (lambda: springtide.EmbeddingBags([4], name=3), "EmbeddingBags: name=3: expected a text"),
        (lambda: springtide.EmbeddingBags({}), "at least one table"),
        (lambda: springtide.EmbeddingBags(8), "EmbeddingBags\\(8\\): expected at least one table"),
        (lambda: springtide.EmbeddingBags([4], output="dict"), "no output named 'dict'"),
        (lambda: springtide.Embedding(4, optimizer=tables.OptimSpec(kind="adm")), "Did you mean 'adam'"),
    ],
)
def test_invalid_module_options_are_refused(make, says):
    with pytest.raises(errors.BadInput, match=says):
        make()


class Sequence(nn.Module):
    """Two readers of one table, of which the first reads id 0 as padding."""

    def __init__(self, optimizer):
        super().__init__()
        options = {"name": "items", "optimizer": optimizer, "init": ("uniform", 0.5, 1.0)}
        self.padded = springtide.Embedding(4, padding_idx=0, **options)
        self.plain = springtide.Embedding(4, **options)
        self.plain.weight = self.padded.weight


class Padded:
    """A served Sequence, with or without a row cache as in a bsp group."""

    def __init__(self, make_served, optimizer, *, cached):
        self.served = make_served(
            Sequence(optimizer), lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1)
        )
        self.cache = None
        if cached:
            self.cache = self.served.client.backend
            self.cache.cache_tables([spec.id for spec in self.served.client.specs])
            self.scheduler = _native.Scheduler(workers=1, capacity_rows=100, seed=1)
            self.served.client.push = functools.partial(self.served.client.push, bsp=True)

    def train(self, padded=(), plain=()):
        """Train a step on ids of the first and of the second reader."""
        served, step = self.served, self.served.steps + 1
        given = [torch.tensor(ids, dtype=torch.int64) for ids in (padded, plain)]
        if self.cache is not None:
            table, ids = served.client.table("items").id, torch.cat(given).numpy()
            self.cache.set_plan(step, self.scheduler.schedule([(table, ids, None)], len(ids)).plans[0])
            served.lookups.after_step = served.steps
        readers = served.model.padded, served.model.plain
        outputs = [reader(ids) for reader, ids in zip(readers, given, strict=True) if len(ids)]
        sum(output.square().sum() for output in outputs).backward()
        served.step()

    def rows(self, *ids):
        if self.cache is not None:
            self.cache.flush_next()
            self.train(plain=[99])
            self.scheduler.flushed(self.served.steps)
        return torch.from_numpy(self.served.client.read("items", np.array(ids)))


@pytest.fixture(params=["a store", "a row cache"])
def make_padded(request, make_served, monkeypatch):
    cached, local = request.param == "a row cache", TableClient.local
    if cached:
        monkeypatch.setattr(
            TableClient, "local", lambda **how: TableClient(_native.CachedBackend(local(**how).backend))
        )
    return lambda optimizer: Padded(make_served, optimizer, cached=cached)


@pytest.mark.parametrize("optimizer", sorted(optimizers.NAMED))
def test_reading_the_padding_row_changes_neither_the_row_nor_its_optimizer_state(make_padded, optimizer):
    one, other = make_padded(optimizer), make_padded(optimizer)
    before = one.rows(0, 1), other.rows(0, 1)
    for _ in range(3):
        one.train(padded=[0, 1, 0])
        other.train(plain=[1])
    one.train(padded=[0, 0])
    other.train(plain=[98])
    after = one.rows(0, 1), other.rows(0, 1)
    assert torch.equal(after[0][0], before[0][0]) and torch.equal(after[0], after[1])
    assert not torch.equal(after[0][1], before[0][1])
    one.train(plain=[0])
    other.train(plain=[0])
    assert torch.equal(one.rows(0), other.rows(0)), "the optimizer's state of the row is that of a new row"
    assert not torch.equal(one.rows(0)[0], before[0][0])


def test_a_padding_row_is_trained_if_another_lookup_trains_it(make_padded):
    one, other = make_padded("ftrl"), make_padded("ftrl")
    for _ in range(3):
        one.train(padded=[0, 2], plain=[0, 1])
        other.train(padded=[2], plain=[0, 1])
    assert torch.equal(one.rows(0, 1, 2), other.rows(0, 1, 2))
