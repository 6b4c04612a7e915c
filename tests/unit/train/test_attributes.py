"""Plain attributes of a model: whether forward() would still read what it read before."""

import pytest
import torch
from torch import nn

from springtide.train import attributes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.scale, self.names, self.table = 2.0, ["a"], torch.ones(3)


def test_nothing_has_changed_at_first_nor_by_training():
    net = Net()
    seen = attributes.look(net)
    net.eval()
    net.inner.weight.data.zero_()
    net.scale = 4.0 / 2  # another object, the same number
    net.register_forward_hook(lambda *given: None)
    assert attributes.changed(seen) == ""


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda net: setattr(net, "scale", 3.0), "self.scale"),
        (lambda net: net.names.append("b"), "self.names"),
        (lambda net: setattr(net, "table", torch.ones(3)), "self.table"),
        (lambda net: net.table.add_(1), "self.table"),
        (lambda net: delattr(net, "scale"), "self.scale"),
        (lambda net: setattr(net, "later", 1), "self.later"),
        (lambda net: setattr(net.inner, "out_features", 5), "self.inner.out_features"),
    ],
)
def test_a_change_is_told_by_its_name(change, name):
    net = Net()
    seen = attributes.look(net)
    change(net)
    assert attributes.changed(seen) == name
