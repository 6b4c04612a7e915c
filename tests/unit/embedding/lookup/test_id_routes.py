"""The origin of ids in one batch is found again in the next."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from springtide.domain.data.samples import Batch
from springtide.embedding.lookup import id_routes
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.modules import convert


@dataclasses.dataclass
class Click:
    user: Any
    items: Any


def tensors(size):
    return torch.arange(size * 6).reshape(size, 6), torch.arange(size * 4).reshape(size, 2, 2)


def shapes(size):
    a, b = tensors(size)
    return {
        "tensor": a,
        "tuple": (b, a),
        "nested": {"x": [b, {"y": a}]},
        "dataclass": Click(user=b, items=(a,)),
        "named": Batch(a, b),
    }


def leaf(name, batch):
    return {
        "tensor": lambda: batch,
        "tuple": lambda: batch[1],
        "nested": lambda: batch["x"][1]["y"],
        "dataclass": lambda: batch.items[0],
        "named": lambda: batch.x,
    }[name]()


VIEWS = {
    "whole": lambda t: t,
    "column": lambda t: t[:, 3],
    "thin column": lambda t: t[:, 3:4],
    "column and a dimension": lambda t: t[:, 2].unsqueeze(1),
    "slice": lambda t: t[:, 1:5],
    "flat": lambda t: t.flatten(),
    "reshaped": lambda t: t.view(-1, 3),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", shapes(2))
def test_view_of_a_leaf_is_found_in_a_batch_of_another_size(shape, view):
    learnt, later = shapes(4)[shape], shapes(7)[shape]
    route = id_routes.find(learnt, VIEWS[view](leaf(shape, learnt)))
    assert route is not None
    assert id_routes.key_of(route.follow(later)) == id_routes.key_of(VIEWS[view](leaf(shape, later)))


def test_computed_ids_have_no_route():
    a, b = tensors(4)
    assert id_routes.find((a, b), a + 1) is None
    assert id_routes.find((a, b), a[:, ::2]) is None
    assert id_routes.find((a, b), a[1:3]) is None


def test_batch_of_another_structure_gives_no_ids():
    a, b = tensors(4)
    route = id_routes.find((b, a), a[:, 5])
    assert route is not None
    assert route.follow({"x": a}) is None
    assert route.follow((b, a[:, :2])) is None
    assert route.follow((b,)) is None


def test_tensor_changed_in_place_has_another_key():
    a, _ = tensors(4)
    before = id_routes.key_of(a[:, 1])
    assert id_routes.key_of(a[:, 1]) == before
    a[0, 0] = 9
    assert id_routes.key_of(a[:, 1]) != before


ROWS, DIM, FIELDS = 40, 3, 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(ROWS, DIM, mode="sum") for _ in range(FIELDS)])
        self.rows = nn.Embedding(ROWS, DIM)

    def forward(self, batch):
        found = [bag(batch["ids"][:, i : i + 1]) for i, bag in enumerate(self.bags)]
        return torch.cat([*found, self.rows(batch["more"])], dim=1)


@pytest.fixture
def served_model():
    torch.manual_seed(0)
    model, plain = Model(), Model()
    plain.load_state_dict(model.state_dict())
    client = TableClient.local(slots=64)
    lookups = Lookups(client)
    tables = convert.convert(model, lookups)
    client.declare([table.spec for table in tables])
    for table in tables:
        client.assign(table.name, np.arange(ROWS), table.initial.numpy())
    return model, plain, lookups


def make(rng, size, *, transposed=False):
    ids = torch.from_numpy(rng.integers(0, ROWS, (size, FIELDS)))
    if transposed:
        ids = ids.t().contiguous().t()
    return {"ids": ids, "more": torch.from_numpy(rng.integers(0, ROWS, size))}


def look_up(served, batch):
    """Compare looked-up rows with plain PyTorch; return how many calls were prefetched."""
    model, plain, lookups = served
    before = lookups.hits
    lookups.begin(lookups.prefetch(batch))
    torch.testing.assert_close(model(batch), plain(batch))
    return lookups.hits - before


def test_batches_of_one_layout_are_recalled(served_model, rng):
    hits = [look_up(served_model, make(rng, 8)) for _ in range(4)]
    assert hits == [0, FIELDS + 1, FIELDS + 1, FIELDS + 1]
    assert served_model[2]._replays[False].recall(make(rng, 8)) is not None


def test_short_batch_or_other_strides_are_analysed_once(served_model, rng):
    for _ in range(2):
        look_up(served_model, make(rng, 8))
    for other in (make(rng, 5), make(rng, 8, transposed=True)):
        assert served_model[2]._replays[False].recall(other) is None
        assert look_up(served_model, other) == FIELDS + 1
    assert served_model[2]._replays[False].recall(make(rng, 5)) is not None


def test_ids_changed_after_the_prefetch_are_looked_up_again(served_model, rng):
    model, plain, lookups = served_model
    for _ in range(3):
        look_up(served_model, make(rng, 8))
    batch = make(rng, 8)
    lookups.begin(lookups.prefetch(batch))
    batch["ids"].add_(1).remainder_(ROWS)
    torch.testing.assert_close(model(batch), plain(batch))


def test_changed_model_path_is_learned_again(served_model, rng):
    model, plain, _ = served_model
    for _ in range(3):
        look_up(served_model, make(rng, 8))
    for bags in (model.bags, plain.bags):
        bags.append(bags[0])
    wide = [make(rng, 8) for _ in range(3)]
    for batch in wide:
        batch["ids"] = torch.cat([batch["ids"], batch["ids"][:, :1]], dim=1)
    assert [look_up(served_model, batch) for batch in wide][-1] >= FIELDS + 1
