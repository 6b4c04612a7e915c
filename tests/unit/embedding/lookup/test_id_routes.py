"""Where ids come from is found again in the next batch."""

import dataclasses
from typing import Any

import pytest
import torch

from springtide.domain.data.samples import Batch
from springtide.embedding.lookup import id_routes


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
def test_a_view_of_a_leaf_is_found_in_a_batch_of_another_size(shape, view):
    learnt, later = shapes(4)[shape], shapes(7)[shape]
    route = id_routes.find(learnt, VIEWS[view](leaf(shape, learnt)))
    assert route is not None
    assert id_routes.key_of(route.follow(later)) == id_routes.key_of(VIEWS[view](leaf(shape, later)))


def test_computed_ids_have_no_route():
    a, b = tensors(4)
    assert id_routes.find((a, b), a + 1) is None
    assert id_routes.find((a, b), a[:, ::2]) is None
    assert id_routes.find((a, b), a[1:3]) is None


def test_a_batch_of_another_kind_gives_nothing():
    a, b = tensors(4)
    route = id_routes.find((b, a), a[:, 5])
    assert route is not None
    assert route.follow({"x": a}) is None
    assert route.follow((b, a[:, :2])) is None
    assert route.follow((b,)) is None


def test_a_tensor_changed_in_place_is_another_one():
    a, _ = tensors(4)
    before = id_routes.key_of(a[:, 1])
    assert id_routes.key_of(a[:, 1]) == before
    a[0, 0] = 9
    assert id_routes.key_of(a[:, 1]) != before
