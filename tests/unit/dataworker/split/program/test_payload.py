"""What is sent of a batch: results of the moved part, and the leaves a trainer still needs."""

import operator
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

from springtide.dataworker.split.program import arguments, payload
from springtide.domain.data.samples import Batch

IDS, LABELS = torch.arange(8).reshape(4, 2), torch.arange(4.0)


class Pair(NamedTuple):
    ids: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Clicks:
    ids: torch.Tensor
    labels: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        ((IDS, LABELS), (("item", 0),)),
        ([IDS, LABELS], (("item", 0),)),
        (Pair(IDS, LABELS), (("item", 0),)),
        (Clicks(IDS, LABELS), (("attr", "ids"),)),
        ({"ids": IDS, "labels": LABELS}, (("item", "ids"),)),
        (OrderedDict(ids=IDS, labels=LABELS), (("item", "ids"),)),
        (Batch({"sparse": [IDS, LABELS]}, LABELS), (("item", 0), ("item", "sparse"), ("item", 0))),
        (IDS, ()),
    ],
)
def test_left_leaf_is_replaced_and_the_other_leaves_kept(batch, path):
    stripped = payload.replaced(batch, {path: lambda leaf: payload.LeftTensor.of(5, leaf)})
    assert type(stripped) is type(batch) or not path
    before, after = _flat(batch), _flat(stripped)
    assert [leaf for leaf in after if leaf is not LABELS] == [payload.LeftTensor(5, (4, 2), "int64")]
    assert len(after) == len(before) and any(leaf is IDS for leaf in before)
    back = payload.filled(stripped, lambda left: IDS if left.number == 5 else None)
    assert type(back) is type(batch) and all(map(operator.is_, _flat(back), before))
    assert payload.filled(batch, lambda left: None) is batch


def _flat(tree):
    if isinstance(tree, payload.LeftTensor | torch.Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else vars(tree).values() if isinstance(tree, Clicks) else tree
    return [leaf for part in parts for leaf in _flat(part)]


def fetch(indices):
    return [IDS[indices], LABELS[indices]]


def doubled(leaves):
    return [leaves[0] * 2] if len(leaves[0]) > 1 else None


def first(**changes):
    batch = payload.FirstStage(fetch)(np.arange(4))["batch"]
    given = {
        "call": arguments.trace(batch, (batch.x,), {}),
        "run": doubled,
        "left": ((0, (("item", 0),)),),
    }
    return payload.FirstStage(fetch, **(given | changes))


def test_unsplit_batch_is_sent_in_the_loops_structure():
    assert type(payload.FirstStage(fetch)(np.arange(4))["batch"]) is Batch


def test_first_stage_runs_the_moved_part_and_keeps_leaves_only_it_reads():
    made = first()(np.arange(3))
    assert made["batch"].x == payload.LeftTensor(0, (3, 2), "int64") and torch.equal(made["batch"].y, LABELS[:3])
    assert torch.equal(made["crossing"][0], IDS[:3] * 2)


def test_requested_leaf_is_sent():
    made = first().keeping(np.arange(3), (0,))
    assert torch.equal(made["batch"].x, IDS[:3]) and "crossing" in made


def test_batch_of_another_structure_is_sent_whole():
    assert "crossing" not in (made := first()(np.arange(1))) and torch.equal(made["batch"].x, IDS[:1])


def test_error_of_the_moved_part_is_reported_and_the_batch_sent_whole():
    made = first(run=lambda leaves: leaves[0].no_such_thing)(np.arange(3))
    assert "no_such_thing" in made["unsplit"] and torch.equal(made["batch"].x, IDS[:3])


def test_dataset_error_is_passed_on():
    with pytest.raises(IndexError):
        first()(np.array([99]))


def test_later_stage_transforms_crossings_and_keeps_everything_else():
    made = first(run=None)(np.arange(3))
    assert torch.equal(made["crossing"][0], IDS[:3])
    further = payload.LaterStage(doubled)(made)
    assert torch.equal(further["crossing"][0], IDS[:3] * 2) and further["batch"] is made["batch"]
    whole = payload.FirstStage(fetch)(np.arange(3))
    assert payload.LaterStage(doubled)(whole) is whole
    assert "unsplit" in payload.LaterStage(doubled)(first(run=None)(np.arange(1)))
