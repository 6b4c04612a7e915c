"""How long forward() takes before it needs a parameter, by a clock that the model turns itself."""

import warnings

import torch
from torch import nn

from springtide.worker.split.prefix_timer import EVERY, Leading


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Hashing(nn.Module):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.tower = nn.Sequential(nn.Identity(), nn.Linear(2, 2), nn.Linear(2, 1))

    def forward(self, x):
        self.clock.now += 3.0
        out = self.tower(x)
        self.clock.now += 5.0
        return out


def hooks(model):
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_one_batch_of_many_is_measured_and_counts_for_all():
    clock = Clock()
    model = Hashing(clock)
    leading = Leading(model, clock)
    for _ in range(EVERY + 1):
        leading.hand_out()
        model(torch.ones(1, 2))
        leading.taken_back()
    assert leading.seconds == 2 * EVERY * 3.0 and hooks(model) == 0


def test_evaluation_is_not_measured():
    clock = Clock()
    model = Hashing(clock).eval()
    leading = Leading(model, clock)
    leading.hand_out()
    model(torch.ones(1, 2))
    assert leading.seconds == 0.0


def test_compiled_parts_get_no_hooks():
    inner = nn.Linear(1, 1)
    inner._compiled_call_impl = lambda *given: None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch is about to leave it behind
        script = torch.jit.script(nn.Linear(1, 1))
    model = nn.Sequential(nn.Linear(1, 1), inner, script)
    leading = Leading(model)
    leading.hand_out()
    assert hooks(model) == 2 and not inner._forward_pre_hooks
    whole = torch.compile(nn.Sequential(nn.Linear(1, 1)), backend="eager")
    Leading(whole).hand_out()
    assert hooks(whole) == 0
