"""Which batch leaves become model arguments, by identity, in any container."""

from dataclasses import dataclass
from typing import NamedTuple

import cloudpickle
import pytest
import torch

from springtide.dataworker.split.program import arguments
from springtide.domain.data.samples import Batch


class Pair(NamedTuple):
    ids: torch.Tensor
    labels: torch.Tensor


@dataclass
class Clicks:
    ids: torch.Tensor
    words: list[str]
    labels: torch.Tensor


def tensors(seed=0):
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(0, 9, (4, 3), generator=chance), torch.rand(4, generator=chance)


def in_a_batch(seed=0):
    return Batch(*tensors(seed))


def in_a_dict(seed=0):
    ids, labels = tensors(seed)
    return {"ids": ids, "labels": labels}


def in_a_named_tuple(seed=0):
    return Pair(*tensors(seed))


def in_a_dataclass(seed=0):
    ids, labels = tensors(seed)
    return Clicks(ids, ["a", "b", "c", "d"][seed:], labels)


CALLS = [
    (in_a_batch, lambda batch: ((batch.x,), {})),
    (in_a_batch, lambda batch: ((batch,), {})),
    (in_a_batch, lambda batch: ((), {"x": batch.x, "scale": 2.0, "deep": True})),
    (in_a_batch, lambda batch: ((batch.x[:, :2], batch.x[:, 2]), {})),
    (in_a_dict, lambda batch: ((batch,), {})),
    (in_a_dict, lambda batch: (({"other": batch["ids"], "twice": [batch["ids"], None]},), {})),
    (in_a_named_tuple, lambda batch: ((batch.ids,), {"weights": batch.labels})),
    (in_a_dataclass, lambda batch: ((batch,), {})),
    (in_a_dataclass, lambda batch: ((batch.ids, batch.words), {})),
]


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Clicks):
        return same(vars(one), vars(other))
    return one == other


@pytest.mark.parametrize(("make", "called"), CALLS)
def test_argument_paths_of_one_batch_fit_another(make, called):
    first, second = make(0), make(1)
    call = cloudpickle.loads(cloudpickle.dumps(arguments.trace(first, *called(first))))
    assert same(call.fill(second), called(second))
    assert call.fits(call.find(second), *called(second))


@pytest.mark.parametrize(("make", "called"), CALLS)
def test_arguments_of_another_batch_do_not_fit(make, called):
    first, second = make(0), make(0)
    call = arguments.trace(first, *called(first))
    assert not call.fits(call.find(first), *called(second))


def test_computed_argument_is_reported_by_its_position():
    batch = in_a_batch()
    with pytest.raises(arguments.Computed, match="argument 2"):
        arguments.trace(batch, (batch.x, batch.x + 1), {})
    with pytest.raises(arguments.Computed, match="argument scale"):
        arguments.trace(batch, (batch.x,), {"scale": torch.tensor(2.0)})
    with pytest.raises(arguments.Computed, match="argument 1, a Tower"):
        arguments.trace(batch, (type("Tower", (), {})(),), {})


def test_constant_arguments_and_keys_must_stay_unchanged():
    batch = in_a_dict()
    call = arguments.trace(batch, (batch["ids"], {"a": batch["ids"], "b": batch["labels"]}), {"scale": 2.0})
    other_order = {"b": batch["labels"], "a": batch["ids"]}
    assert call.fits(call.find(batch), (batch["ids"], other_order), {"scale": 2.0})
    assert not call.fits(call.find(batch), (batch["ids"], other_order), {"scale": 3.0})
    assert not call.fits(call.find(batch), (batch["ids"], {"a": batch["ids"]}), {"scale": 2.0})
    assert not call.fits(call.find(batch), (batch["ids"],), {"scale": 2.0})


def test_modified_view_does_not_fit():
    batch = in_a_batch()
    call = arguments.trace(batch, (batch.x[:, :2],), {})
    view = batch.x[:, :2]
    assert call.fits(call.find(batch), (view,), {})
    assert not call.fits(call.find(batch), (view.clone(),), {})


def test_batch_without_the_needed_leaf_is_reported():
    batch = in_a_dict()
    call = arguments.trace(batch, (batch["ids"],), {})
    with pytest.raises(arguments.Another, match=r"batch\['ids'\]"):
        call.fill({"labels": batch["labels"]})


def test_jagged_tensor_is_one_leaf():
    jagged = pytest.importorskip("torchrec").KeyedJaggedTensor

    def make(value):
        return {"sparse": jagged(["a"], torch.tensor([value, 2, 3]), lengths=torch.tensor([1, 2])), "y": torch.ones(2)}

    first, second = make(1), make(5)
    call = arguments.trace(first, (first["sparse"],), {})
    assert call.fill(second)[0][0] is second["sparse"]
    assert call.fits(call.find(second), (second["sparse"],), {}) and not call.fits(
        call.find(second), (first["sparse"],), {}
    )


def test_path_to_a_leaf_is_spelled_as_python():
    batch = Batch({"ids": [1, Clicks(None, [], None)]}, None)
    path = (("item", 0), ("item", "ids"), ("item", 1), ("attr", "words"))
    assert arguments.spelled(path, batch) == "batch.x['ids'][1].words"
    assert arguments.spelled(path) == "batch[0]['ids'][1].words"
