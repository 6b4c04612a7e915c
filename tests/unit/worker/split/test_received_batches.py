"""Placeholders of leaves that were not sent: free metadata, and real values on any use."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.nn import functional

from springtide import errors
from springtide.data.source import SampleSource
from springtide.dataworker.split.program.payload import LeftTensor
from springtide.dataworker.split.recorder.reachable_state import ReachableState
from springtide.embedding.lookup import id_routes
from springtide.worker.split.received_batches import Absent, ReceivedBatches

REAL = torch.arange(12).reshape(4, 3)


class Counted:
    def __init__(self):
        self.reads = 0

    def make(self, real=REAL):
        def read():
            self.reads += 1
            return real.clone()

        return Absent(tuple(real.shape), real.dtype, read)


def test_absent_leaf_has_shape_and_dtype_without_a_read():
    counted = Counted()
    leaf = counted.make()
    assert isinstance(leaf, torch.Tensor) and torch.is_tensor(leaf)
    assert (leaf.shape, leaf.dtype, leaf.device, leaf.ndim) == (REAL.shape, torch.int64, torch.device("cpu"), 2)
    assert (len(leaf), leaf.size(0), leaf.dim(), leaf.numel(), leaf.stride()) == (4, 4, 2, 12, (3, 1))
    assert not leaf.requires_grad and not leaf.is_floating_point() and {leaf: 1}[leaf] == 1
    assert counted.reads == 0


def test_noop_conversion_returns_the_same_absent_leaf():
    counted = Counted()
    leaf = counted.make()
    for same in (leaf.to("cpu"), leaf.to(torch.int64), leaf.to("cpu", non_blocking=True), leaf.cpu(), leaf.long()):
        assert same is leaf
    assert counted.reads == 0
    assert torch.equal(leaf.to(torch.float32), REAL.float()) and counted.reads == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda leaf: leaf + 1,
        lambda leaf: leaf[:, 1],
        lambda leaf: torch.from_numpy(leaf.numpy()),
        lambda leaf: torch.tensor(leaf.tolist()),
        lambda leaf: torch.from_numpy(np.asarray(leaf)),
        lambda leaf: torch.cat([leaf, REAL]),
        lambda leaf: torch.ones(4, 3) * leaf,
        lambda leaf: pickle.loads(pickle.dumps(leaf)),
        copy.deepcopy,
        lambda leaf: functional.embedding(leaf, torch.ones(12, 2)),
        lambda leaf: torch.stack(list(leaf)),
        lambda leaf: torch.ops.aten.add(leaf, 1),
        lambda leaf: leaf.add_(1),
        lambda leaf: torch.tensor(leaf.sum().item()),
    ],
)
def test_any_use_of_an_absent_leaf_equals_the_real_tensor(use):
    counted = Counted()
    leaf = counted.make()
    assert torch.equal(use(leaf), use(REAL.clone()))
    use(leaf)
    assert counted.reads == 1


def test_write_to_an_absent_leaf_is_detected():
    leaf = Counted().make()
    assert not leaf.changed
    leaf.sum()
    assert not leaf.changed
    leaf.add_(1)
    assert leaf.changed and torch.equal(leaf.clone(), REAL + 1)


def test_absent_leaf_is_not_used_for_id_paths():
    counted = Counted()
    batch = (counted.make(), REAL)
    assert id_routes.find(batch, REAL[:, 1]) == id_routes.Route((("item", 1),), ("select", 1, 1))
    assert id_routes.Route((("item", 0),), ("select", 1, 1)).follow(batch) is None
    assert counted.reads == 0


def test_materialized_leaf_acts_as_the_real_tensor():
    real = torch.ones(4)
    leaf = Absent((4,), torch.float32, lambda: real)
    leaf.requires_grad_()
    (leaf * 2).sum().backward()
    assert leaf.requires_grad and leaf.grad.tolist() == [2.0] * 4
    other = Counted().make()
    other.unsqueeze_(0)
    assert other.shape == (1, 4, 3) and len(other) == 1


class Scaled:
    def __init__(self):
        self.factor = 1

    def fetch(self, indices):
        return REAL[indices] * self.factor


class Receiving:
    """A worker whose batches come from a copy of its data set, without their leaf."""

    def __init__(self):
        self.data, self.ended = Scaled(), False
        source = SampleSource(batch_size=len(REAL), samples=len(REAL), fetch=self.data.fetch)
        self.received = ReceivedBatches(source, 1, every=64)
        self.received.paths, self.received.data = [()], ReachableState({"dataset": source.fetch})

    def ask(self, indices, name, leaves):
        return None if self.ended else {"batch": REAL.clone()}

    def receive(self):
        tree = {"batch": LeftTensor.of(0, REAL), "crossing": []}
        return self.received.receive(tree, np.arange(len(REAL)), ask=self.ask).batch


def test_missing_leaf_has_the_values_from_before_the_data_set_changed():
    receiving = Receiving()
    leaf = receiving.receive()
    receiving.data.factor = 2
    assert torch.equal(leaf + 0, REAL)


def test_missing_leaves_are_requested_before_data_workers_end():
    receiving = Receiving()
    earlier = receiving.receive()
    receiving.data.factor = 2
    now = receiving.receive()
    receiving.ended = True
    assert receiving.received.wrong and torch.equal(now, REAL * 2)
    assert torch.equal(earlier.add_(1), REAL + 1) and torch.equal(earlier.springtide_fresh(), REAL)


def test_missing_leaf_of_a_changed_data_set_is_refused_if_no_data_worker_can_send_it():
    receiving = Receiving()
    leaf = receiving.receive()
    receiving.ended = True
    receiving.data.factor = 2
    with pytest.raises(errors.BadInput, match=r"changed since \(dataset.factor\)"):
        leaf.sum()


def test_missing_leaf_of_an_unchanged_data_set_is_read_here_without_data_workers():
    receiving = Receiving()
    leaf = receiving.receive()
    receiving.ended = True
    assert torch.equal(leaf + 0, REAL)
