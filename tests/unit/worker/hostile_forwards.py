"""Programs whose forward() has a backward of its own, draws, counts or keeps something."""

import copy
import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.unit.worker.hostile_programs import CALLS, ROWS, TEACHER, Net, Program, net, program

SCALE = 3


class Through(torch.autograd.Function):
    """Straight through: rounds, with the gradient of doing nothing."""

    @staticmethod
    def forward(ctx, x):
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx, grad):
        return grad


class Reversed(torch.autograd.Function):
    """The gradient turned round."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.scale * grad, None


class Mixed(torch.autograd.Function):
    """A function with inputs with and without gradients."""

    @staticmethod
    def forward(ctx, hashed, weight):
        ctx.save_for_backward(hashed)
        return hashed.float() * weight

    @staticmethod
    def backward(ctx, grad):
        (hashed,) = ctx.saved_tensors
        return None, (grad * hashed).sum() * 0.5


@program
class StraightThrough(Program):
    net = net(
        forward=lambda self, raw, dense: self.top(
            torch.cat([Through.apply(self.bag(self.ids(raw))), self.features(dense)], 1)
        ).squeeze(1)
    )


@program
class GradientReversal(Program):
    net = net(
        forward=lambda self, raw, dense: self.top(
            torch.cat([Reversed.apply(self.bag(self.ids(raw)), 0.5), self.features(dense)], 1)
        ).squeeze(1)
    )


class MixedNet(Net):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, raw, dense):
        hashed = self.ids(raw)
        mixed = Mixed.apply(hashed, self.gain).mean(1)
        return super().forward(raw, dense) + 0.01 * mixed + 0.01 * Through.apply(hashed.float() * 0.3).mean(1)


@program
class AutogradFunctionOfMovedAndTrained(Program):
    net = MixedNet


@program
class HookInForward(Program):
    def hooked(self, raw, dense):
        rows = self.bag(self.ids(raw))
        rows.register_hook(lambda grad: grad * 0.1)
        return self.top(torch.cat([rows, self.features(dense)], 1)).squeeze(1)

    net = net(forward=hooked)


class Shared(Net):
    """A buffer that shares memory with a trained weight."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mirror", self.top.bias.data)

    def features(self, dense):
        return dense + self.mirror


@program
class BufferOfTrainedWeight(Program):
    net = Shared


class Taught(Net):
    def features(self, dense):
        return torch.tanh(dense * TEACHER[0][0]) if TEACHER else dense


@program
class TeacherOutside(Program):
    """An average of weights, kept in a global and updated in place."""

    net = Taught

    def before(self, number):
        if not TEACHER:
            TEACHER.append(torch.ones(1, 2))
        if number % 3 == 0:
            TEACHER[0].data.mul_(0.9).add_(self.model.top.weight.data[:, :2] * 0.1)


class TaughtByANetwork(Net):
    """A teacher module in a list, so that it is not a submodule."""

    def __init__(self):
        super().__init__()
        self.teacher = [copy.deepcopy(self.top).requires_grad_(False)]

    def features(self, dense):
        with torch.no_grad():
            taught = torch.log1p(dense) * self.teacher[0].weight[:, :2] + self.teacher[0].bias
        return dense + taught


@program
class TeacherNetworkInAList(Program):
    """An average of weights, updated by `.data`."""

    net = TaughtByANetwork

    def after(self, number):
        for own, trained in zip(self.model.teacher[0].parameters(), self.model.top.parameters(), strict=True):
            own.data.lerp_(trained.data, 0.1)

    def outside(self):
        return [one.detach().clone() for one in self.model.teacher[0].parameters()]


@program
class RareBranchOnChance(Program):
    net = net(ids=lambda self, raw: (raw + 1) % ROWS if random.random() < 0.1 else (raw * 31) % ROWS)


@program
class NumpyChance(Program):
    net = net(ids=lambda self, raw: (raw * 31 + (np.random.rand() < 0.2)) % ROWS)


def counted(self, raw):
    CALLS.count += 1
    return (raw * 31 + CALLS.count // 10) % ROWS


@program
class CountsCallsElsewhere(Program):
    net = net(ids=counted)


def counted_global(self, raw):
    global SCALE
    SCALE += 1
    return (raw * 31 + SCALE // 12) % ROWS


@program
class CountsCallsInAGlobal(Program):
    net = net(ids=counted_global)


class Remembers(Net):
    def ids(self, raw):
        hashed = (raw * 31) % ROWS
        self.last = hashed
        return hashed


@program
class KeepsWhatItMade(Program):
    net = Remembers

    def loss(self, model, batch):
        return super().loss(model, batch) + 0.001 * model.last.float().mean()


class Accumulates(Net):
    def __init__(self):
        super().__init__()
        self.seen = []

    def ids(self, raw):
        hashed = (raw * 31) % ROWS
        self.seen.append(int(hashed.max()))
        return (hashed + len(self.seen) // 9) % ROWS


@program
class KeepsAList(Program):
    net = Accumulates


class Dropping(Net):
    def features(self, dense):
        return functional.dropout(dense, 0.3, self.training) + torch.rand_like(dense)


@program
class TorchChance(Program):
    net = Dropping
