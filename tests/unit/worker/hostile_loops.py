"""Programs whose loop changes what forward() reads, after the split has arrived; and some that are fine."""

import argparse
import os
import types
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import springtide
from tests.unit.worker.hostile_programs import ROWS, SAMPLES, SETTINGS, Net, Program, at, net, program

SCALE = 3


@program
class DictItem(Program):
    net = net(ids=lambda self, raw: (raw * SETTINGS["shift"]) % ROWS)
    before = at(15, lambda self: SETTINGS.update(shift=11))


@program
class ListItem(Program):
    net = net(ids=lambda self, raw: (raw * SETTINGS["list"][1]) % ROWS)
    before = at(15, lambda self: SETTINGS["list"].__setitem__(1, 13))


@dataclass
class Config:
    temperature: float = 1.0
    shift: int = 3


class Configured(Net):
    def __init__(self):
        super().__init__()
        self.cfg = Config()
        self.space = types.SimpleNamespace(shift=2)
        self.args = argparse.Namespace(gain=1.0)

    def ids(self, raw):
        return (raw * self.cfg.shift + self.space.shift) % ROWS

    def features(self, dense):
        return torch.log1p(dense * self.cfg.temperature) * self.args.gain


@program
class DataclassAnnealed(Program):
    net = Configured

    def before(self, number):
        self.model.cfg.temperature *= 0.97


@program
class DataclassField(Program):
    net = Configured
    before = at(15, lambda self: setattr(self.model.cfg, "shift", 7))


@program
class NamespaceField(Program):
    net = Configured
    before = at(15, lambda self: setattr(self.model.space, "shift", 9))


@program
class ArgparseField(Program):
    net = Configured
    before = at(15, lambda self: setattr(self.model.args, "gain", 0.5))


@program
class NegativeZero(Program):
    net = net(features=lambda self, dense: torch.atan2(dense * self.zero, dense - 0.5), zero=0.0)
    before = at(15, lambda self: setattr(self.model, "zero", -0.0))


class OfClass(Net):
    shift = 3

    def ids(self, raw):
        return (raw * 31 + self.shift) % ROWS


@program
class ClassAttribute(Program):
    def __init__(self):
        OfClass.shift = 3
        super().__init__()

    net = OfClass
    before = at(15, lambda self: setattr(OfClass, "shift", 8))


@program
class Global(Program):
    net = net(ids=lambda self, raw: (raw * SCALE) % ROWS)
    before = at(15, lambda self: globals().__setitem__("SCALE", 7))


def closed_over():
    shift = [3, 0]
    number = 5

    def ids(self, raw):
        return (raw * number + shift[0]) % ROWS

    def change():
        nonlocal number
        number = 9
        shift[0] = 4

    return ids, change


@program
class Closure(Program):
    def __init__(self):
        ids, self.change = closed_over()
        self.net = net(ids=ids)
        super().__init__()

    before = at(15, lambda self: self.change())


def defaulted(self, raw, shift=[3]):  # noqa: B006
    return (raw * 31 + shift[0]) % ROWS


@program
class DefaultArgument(Program):
    def __init__(self):
        defaulted.__defaults__[0][0] = 3
        super().__init__()

    net = net(ids=defaulted)
    before = at(15, lambda self: defaulted.__defaults__[0].__setitem__(0, 6))


@program
class Environment(Program):
    net = net(ids=lambda self, raw: (raw * int(os.environ.get("HOSTILE", "3"))) % ROWS)
    before = at(15, lambda self: os.environ.__setitem__("HOSTILE", "11"))


class OfArray(Net):
    def __init__(self):
        super().__init__()
        self.array = np.linspace(0.1, 1, 5, dtype=np.float32)
        self.held = {"edges": [torch.linspace(0.1, 1, 5)]}

    def features(self, dense):
        return (
            dense + torch.bucketize(dense, torch.from_numpy(self.array)) + torch.bucketize(dense, self.held["edges"][0])
        )


@program
class ArrayWritten(Program):
    net = OfArray
    before = at(15, lambda self: self.model.array.__imul__(0.5))


@program
class TensorInAContainerReplaced(Program):
    net = OfArray
    before = at(15, lambda self: self.model.held["edges"].__setitem__(0, torch.linspace(0.3, 1, 5)))


@program
class TensorInAContainerWritten(Program):
    net = OfArray
    before = at(15, lambda self: self.model.held["edges"][0].numpy().__imul__(0.5))


@program
class BufferWrittenByData(Program):
    before = at(15, lambda self: self.model.edges.data.mul_(0.5))


@program
class BufferWritten(Program):
    before = at(15, lambda self: self.model.edges.mul_(0.5))


@program
class BufferReplaced(Program):
    before = at(15, lambda self: setattr(self.model, "edges", torch.linspace(0.2, 1, 5)))


@program
class BufferSwapped(Program):
    before = at(15, lambda self: setattr(self.model.edges, "data", torch.linspace(0.2, 1, 5)))


class Parts(Net):
    def __init__(self):
        super().__init__()
        self.hash = Hash(31)
        self.parts = nn.ModuleList([Hash(3), Hash(5)])

    def ids(self, raw):
        return (self.hash(raw) + self.parts[0](raw) + self.parts[1](raw)) % ROWS


class Hash(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, raw):
        return raw * self.factor % 1009


@program
class SubmoduleReplaced(Program):
    net = Parts
    before = at(15, lambda self: setattr(self.model, "hash", Hash(37)))


@program
class ModuleListItemReplaced(Program):
    net = Parts
    before = at(15, lambda self: self.model.parts.__setitem__(1, Hash(7)))


@program
class ForwardPatched(Program):
    net = Parts
    before = at(15, lambda self: setattr(self.model.hash, "forward", lambda raw: raw * 41 % 1009))


@program
class ForwardOfTheClassPatched(Program):
    def __init__(self):
        self.net = type("Patched", (Parts,), {"ids": lambda self, raw: (raw * 31) % ROWS})
        super().__init__()

    before = at(15, lambda self: setattr(type(self.model), "ids", lambda self, raw: (raw * 29) % ROWS))


@program
class WholeForwardPatched(Program):
    net = Parts
    before = at(
        15, lambda self: setattr(self.model, "forward", lambda raw, dense: Net.forward(self.model, raw * 2, dense))
    )


@program
class HookOnASubmodule(Program):
    net = Parts
    before = at(15, lambda self: self.model.hash.register_forward_hook(lambda module, given, made: made + 1))


@program
class GradientOfABuffer(Program):
    """A buffer is trained from some step on."""

    def start(self):
        self.model.edges.requires_grad_()

    net = net(features=lambda self, dense: dense * self.edges[:2])
    before = at(15, start)

    def after(self, number):
        edges = self.model.edges
        if edges.grad is not None:
            with torch.no_grad():
                edges.data.sub_(0.01 * edges.grad)
            edges.grad = None


@program
class GradientPenalty(Program):
    """Asks for the gradient of an input, in some steps."""

    def loss(self, model, batch):
        raw, dense, y = batch
        self.number = getattr(self, "number", 0) + 1
        if self.number > 15:
            dense.requires_grad_()
        score = model(raw, dense)
        loss = functional.mse_loss(score, y)
        if self.number > 15:
            (grad,) = torch.autograd.grad(score.sum(), dense, create_graph=True)
            loss = loss + grad.square().sum()
        return loss


@program
class GradientOfAnInputInForward(Program):
    def penalized(self, raw, dense):
        dense = dense.requires_grad_() if self.salt == 8 else dense
        score = Net.forward(self, raw, dense)
        if self.salt == 8:
            (grad,) = torch.autograd.grad(score.sum(), dense, create_graph=True)
            score = score + grad.square().sum(1)
        return score

    net = net(forward=penalized)
    before = at(15, lambda self: setattr(self.model, "salt", 8))


@program
class GradModeBranch(Program):
    net = net(ids=lambda self, raw: (raw * 31 + (0 if torch.is_grad_enabled() else 1)) % ROWS)

    def loss(self, model, batch):
        with torch.no_grad():
            teacher = model(batch[0], batch[1])
        return super().loss(model, batch) + 0.1 * functional.mse_loss(model(batch[0], batch[1]), teacher)


@program
class CalledTwice(Program):
    def loss(self, model, batch):
        return super().loss(model, batch) + functional.mse_loss(model(batch[0], batch[1]), batch[2] * 0.5)


@program
class WritesToWhatItMade(Program):
    def masked(self, raw):
        hashed = (raw * 31) % 1009
        column = hashed[:, 0]
        hashed[hashed < self.salt * 10] = 0
        column.add_(1)
        return hashed % ROWS

    net = net(ids=masked)
    before = at(15, lambda self: setattr(self.model, "salt", 20))


@program
class ViewsAreWrittenTo(Program):
    def viewed(self, raw):
        hashed = (raw * 31) % 1009
        flat = hashed.view(-1)
        if self.salt > 7:
            flat.numpy()[::2] = 3
        return hashed % ROWS

    net = net(ids=viewed)
    before = at(15, lambda self: setattr(self.model, "salt", 20))


@program
class InputWrittenByData(Program):
    def loss(self, model, batch):
        raw, dense, y = batch
        raw = raw.clone() if raw is None else raw
        self.number = getattr(self, "number", 0) + 1
        if self.number > 15:
            dense.data.mul_(0.5)
            raw.data.add_(1)
        return functional.mse_loss(model(raw, dense), y)


@program
class InputWrittenByNumpy(Program):
    def loss(self, model, batch):
        raw, dense, y = batch
        self.number = getattr(self, "number", 0) + 1
        if self.number > 15:
            dense.numpy()[:] *= 0.5
            raw.numpy()[:] += 1
        return functional.mse_loss(model(raw, dense), y)


@program
class InputWrittenInForward(Program):
    def writing(self, raw, dense):
        before = raw * 3
        if self.salt == 8:
            raw.view(-1)[0] = 5
            raw[:, 1] += 1
        return Net.forward(self, raw + before, dense)

    net = net(forward=writing)
    before = at(15, lambda self: setattr(self.model, "salt", 8))


@program
class DefaultType(Program):
    net = net(features=lambda self, dense: (dense * 3).long() / 3 + dense)

    def before(self, number):
        torch.set_default_dtype(torch.float64 if number == 20 else torch.float32)

    def loss(self, model, batch):
        try:
            return functional.mse_loss(model(batch[0], batch[1].float()).float(), batch[2])
        except RuntimeError:
            return self.model.top.bias.sum() * 0
        finally:
            torch.set_default_dtype(torch.float32)


@program
class Autocast(Program):
    def loss(self, model, batch):
        self.number = getattr(self, "number", 0) + 1
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.number > 15):
            return functional.mse_loss(model(batch[0], batch[1]).float(), batch[2])


@program
class Modes(Program):
    class net(Net):
        def __init__(self):
            super().__init__()
            self.norm = nn.Dropout(0.0)

        def features(self, dense):
            return torch.log1p(dense) if self.training and self.norm.training else torch.sqrt(dense)

    before = at(15, lambda self: self.model.norm.eval())


class Vocabulary(Net):
    """A function that the user has marked reads a dict."""

    def __init__(self):
        super().__init__()
        self.words = {number: number * 31 % 97 for number in range(10_000)}

    @springtide.stateless
    def ids(self, raw):
        return torch.tensor([[self.words[one] for one in row] for row in raw.tolist()]) % ROWS


@program
class MarkedMethodReadsADict(Program):
    net = Vocabulary
    before = at(15, lambda self: self.model.words.update({number: 7 for number in range(0, 10_000, 2)}))


class Growing(Vocabulary):
    def __init__(self):
        super().__init__()
        self.words = {}

    @springtide.stateless
    def ids(self, raw):
        return (
            torch.tensor([[self.words.setdefault(one, len(self.words)) for one in row] for row in raw.tolist()]) % ROWS
        )


@program
class MarkedMethodGrowsADict(Program):
    net = Growing


# ---- what is fine ----


@program
class Plain(Program):
    pass


@program
class InPlaceOnOwnMemory(Program):
    def masked(self, raw):
        hashed = (raw * 31) % 1009
        hashed[hashed < 50] = 0
        hashed += 1
        return hashed % ROWS

    net = net(ids=masked)


@program
class FrozenAndUnfrozen(Program):
    def change(self):
        self.model.top.weight.requires_grad_(False)

    before = at(15, change)


class Rows(Dataset):
    """Samples as dicts."""

    def __init__(self, parts):
        self.parts = parts

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {name: part[index] for name, part in zip(("raw", "dense", "y"), self.parts, strict=True)}


@program
class DictOfInputs(Program):
    """forward() takes inputs out of a dict and adds a value for the loop."""

    class net(Net):
        def forward(self, batch):
            batch["hashed"] = self.ids(batch.pop("raw"))
            return self.top(torch.cat([self.bag(batch["hashed"]), self.features(batch["dense"])], 1)).squeeze(1)

    def dataset(self):
        return Rows(super().dataset().tensors)

    def loss(self, model, batch):
        score = model(batch)
        assert "raw" not in batch
        return functional.mse_loss(score, batch["y"]) + 0.001 * batch["hashed"].float().mean()
