"""Random programs: what they read, how they compute, and what the loop does meanwhile."""

import os
import random
import types
from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import springtide

ROWS, DIM, SAMPLES, BATCH, EPOCHS = 40, 4, 64, 8, 3
STEPS = SAMPLES // BATCH * EPOCHS
LATE = 6  # three forwards are recorded first
GLOBAL = 3
SHARED = {"number": 3, "real": 0.5}


@dataclass
class Settings:
    """A dataclass of the user's."""

    number: int = 3
    real: float = 0.5


class Counter:
    """A helper that counts."""

    def __init__(self):
        self.count = 0

    def tick(self):
        self.count += 1
        return self.count


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx, grad):
        return grad


class Inner(nn.Module):
    """A module below the model."""

    shared = 5

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor % 1009 + self.shared


def closing(number):
    """A closure, and a function that changes its variable."""

    def read():
        return number

    def write(other):
        nonlocal number
        number = other

    return read, write


class Model(nn.Module):
    """Runs a recipe."""

    shift = 3

    def __init__(self, recipe):
        super().__init__()
        self.recipe = recipe
        self.bag = nn.EmbeddingBag(ROWS, DIM, mode="sum")
        self.top = nn.Linear(DIM + 2, 1)
        self.norm = nn.BatchNorm1d(2, affine=False)
        self.register_buffer("edges", torch.linspace(0, 1, 6))
        self.register_buffer("gain", torch.ones(2))
        self.number, self.real = 3, 0.5
        self.items = {"number": 3, "deep": [{"real": 0.5}]}
        self.several = [3, 5, 7]
        self.settings = Settings()
        self.space = types.SimpleNamespace(number=3, real=0.5)
        self.array = np.linspace(0.1, 1, 6, dtype=np.float32)
        self.held = [torch.linspace(0.1, 1, 6)]
        self.inner = Inner(31)
        self.parts = nn.ModuleList([Inner(3), Inner(5)])
        self.counter = Counter()
        self.words = {number: number * 31 % 97 for number in range(512)}
        self.read, self.write = closing(3)
        self.last = None

    @springtide.stateless
    def looked_up(self, x):
        return torch.tensor([[self.words[one % 512] for one in row] for row in x.tolist()])

    def whole(self, place):
        """A whole number of a place."""
        return {
            "attribute": lambda: self.number,
            "dict": lambda: self.items["number"],
            "list": lambda: self.several[1],
            "dataclass": lambda: self.settings.number,
            "namespace": lambda: self.space.number,
            "class": lambda: self.shift,
            "global": lambda: GLOBAL,
            "shared": lambda: SHARED["number"],
            "closure": lambda: self.read(),
            "environment": lambda: int(os.environ.get("RANDOM_PROGRAM", "3")),
            "counter": lambda: self.counter.tick() // 7,
            "chance": lambda: int(random.random() < 0.2),
            "numpy chance": lambda: int(np.random.rand() < 0.2),
            "mode": lambda: int(torch.is_grad_enabled()),
        }[place]()

    def floating(self, place):
        """A real number of a place."""
        return {
            "attribute": lambda: self.real,
            "deep": lambda: self.items["deep"][0]["real"],
            "dataclass": lambda: self.settings.real,
            "namespace": lambda: self.space.real,
            "shared": lambda: SHARED["real"],
            "trained": lambda: float(self.top.bias.detach()),
        }[place]()

    def tensor(self, place):
        """A tensor of a place."""
        return {
            "buffer": lambda: self.edges,
            "array": lambda: torch.from_numpy(self.array),
            "held": lambda: self.held[0],
            "made": lambda: torch.linspace(0, 1, 6),
            "trained": lambda: self.top.weight.detach()[0].sort().values,
        }[place]()

    def hash(self, x, step):
        """One step over whole numbers."""
        kind, place = step
        number = self.whole(place) if place in WHOLES else 3
        match kind:
            case "multiply":
                return x * (number + 2) % 10_007
            case "add":
                return x + number
            case "inner":
                return self.inner(x)
            case "parts":
                return self.parts[number % 2](x)
            case "mask":
                own = x % 1009
                own[own < 10 * number] = 0
                return own
            case "count up":
                own = x % 1009
                own += number
                return own
            case "view":
                own = x % 1009
                own.view(-1)[number::3] = 7
                own[:, 0].mul_(2)
                return own
            case "branch":
                return x + 1 if (x % 1009).max().item() % 2 else x * 3
            case "unique":
                return torch.unique(x % 97, return_inverse=True)[1]
            case "order":
                return x.sort(1).values.flip(1)
            case "bucket":
                return x + torch.bucketize((x % 101).float() / 101, self.tensor(place))
            case "places":
                return x + torch.arange(x.shape[0])[:, None] * number
            case "numpy":
                return torch.from_numpy((x % 1009).numpy() * 2 + number)
            case "marked":
                return self.looked_up(x % 512)
            case "keep":
                self.last = x % 1009
                return self.last + number
            case "columns":
                return torch.stack([x[:, at] * (at + number) for at in range(x.size(1))], 1)
        raise AssertionError(kind)

    def compute(self, x, step):
        """One step over real numbers."""
        kind, place = step
        real = self.floating(place) if place in FLOATS else 0.5
        match kind:
            case "log":
                return torch.log1p(x.abs() * real)
            case "scale":
                return x * real
            case "tensor":
                return x * (self.tensor(place) if place in TENSORS else self.gain.repeat(3))[:2]
            case "mean":
                return x - x.mean(0)
            case "drop":
                return functional.dropout(x, 0.2, self.training)
            case "norm":
                return self.norm(x) if x.shape[0] > 1 else x
            case "noise":
                return x + torch.rand_like(x) * real
            case "clamp":
                return x.clone().clamp_(-1, 1).add_(real)
            case "gain":
                return x * self.gain
            case "still":
                with torch.no_grad():
                    return torch.tanh(x) * real
        raise AssertionError(kind)

    def forward(self, raw, dense):
        x, y = raw, dense
        for step in self.recipe.wholes:
            x = self.hash(x, step)
        for step in self.recipe.reals:
            y = self.compute(y, step)
        rows = self.bag(x % ROWS)
        if "through" in self.recipe.extras:
            rows = Through.apply(rows)
        if "hook" in self.recipe.extras and rows.requires_grad:
            rows.register_hook(lambda grad: grad * 0.5)
        out = self.top(torch.cat([rows, y], 1)).squeeze(1)
        return (out, x, self.last) if "outputs" in self.recipe.extras else out


class Data(Dataset):
    """Samples whose weights and source the loop may change."""

    def __init__(self):
        drawn = torch.Generator().manual_seed(3)
        self.raw = torch.randint(0, 10_000, (SAMPLES, 3), generator=drawn)
        self.dense = torch.rand(SAMPLES, 2, generator=drawn)
        self.y = torch.rand(SAMPLES, generator=drawn)
        self.list, self.array, self.tensor = [1.0] * SAMPLES, np.ones(SAMPLES), torch.ones(SAMPLES)
        self.source, self.words, self.grows = "raw", {}, False

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        raw = self.raw[index if self.source == "raw" else SAMPLES - 1 - index]
        if self.grows:
            raw = torch.tensor([self.words.setdefault(one % 31, len(self.words)) for one in raw.tolist()])
        weight = float(self.list[index]) * float(self.array[index]) * float(self.tensor[index])
        return raw, self.dense[index], self.y[index] * weight


def _global(program, value):
    globals()["GLOBAL"] = value


def _swap(program, value):
    program.model.edges.data = torch.linspace(0, value / 20, 6)


def _patch(model, value):
    own = type(model).hash
    model.hash = lambda x, step: own(model, x, step) + value


CHANGES = {
    "attribute": lambda p, v: setattr(p.model, "number", v),
    "real attribute": lambda p, v: setattr(p.model, "real", v / 7),
    "dict": lambda p, v: p.model.items.update(number=v),
    "deep": lambda p, v: p.model.items["deep"][0].update(real=v / 7),
    "list": lambda p, v: p.model.several.__setitem__(1, v),
    "dataclass": lambda p, v: setattr(p.model.settings, "number", v),
    "dataclass real": lambda p, v: setattr(p.model.settings, "real", v / 7),
    "dataclass replaced": lambda p, v: setattr(p.model, "settings", Settings(v, v / 7)),
    "namespace": lambda p, v: vars(p.model.space).update(number=v, real=v / 7),
    "class": lambda p, v: setattr(type(p.model), "shift", v),
    "inner class": lambda p, v: setattr(Inner, "shared", v),
    "global": _global,
    "shared": lambda p, v: SHARED.update(number=v, real=v / 7),
    "closure": lambda p, v: p.model.write(v),
    "environment": lambda p, v: os.environ.__setitem__("RANDOM_PROGRAM", str(v)),
    "buffer in place": lambda p, v: p.model.edges.mul_(v / 10),
    "buffer by data": lambda p, v: p.model.edges.data.mul_(v / 10),
    "buffer by numpy": lambda p, v: p.model.edges.detach().numpy().__imul__(v / 10),
    "buffer swapped": _swap,
    "buffer replaced": lambda p, v: setattr(p.model, "edges", torch.linspace(0, v / 10, 6)),
    "gain": lambda p, v: p.model.gain.data.fill_(v / 10),
    "array": lambda p, v: p.model.array.__imul__(np.float32(v / 10)),
    "held replaced": lambda p, v: p.model.held.__setitem__(0, torch.linspace(0.1, v, 6)),
    "held by numpy": lambda p, v: p.model.held[0].numpy().__imul__(v / 10),
    "inner replaced": lambda p, v: setattr(p.model, "inner", Inner(v)),
    "inner changed": lambda p, v: setattr(p.model.inner, "factor", v),
    "inner patched": lambda p, v: setattr(p.model.inner, "forward", lambda x: x * v % 1009),
    "part replaced": lambda p, v: p.model.parts.__setitem__(1, Inner(v)),
    "hook": lambda p, v: p.model.inner.register_forward_hook(lambda module, given, made: made + v),
    "method patched": lambda p, v: _patch(p.model, v),
    "words": lambda p, v: p.model.words.update(dict.fromkeys(range(0, 512, 2), v)),
    "eval of a part": lambda p, v: p.model.norm.eval(),
    "gradient of a buffer": lambda p, v: p.model.gain.requires_grad_(v % 2 == 0),
    "frozen": lambda p, v: p.model.top.weight.requires_grad_(v % 2 == 0),
    "data list": lambda p, v: p.data.list.__setitem__(slice(0, SAMPLES, 2), [v / 7] * (SAMPLES // 2)),
    "data array": lambda p, v: p.data.array.__setitem__(slice(0, SAMPLES, 2), v / 7),
    "data tensor": lambda p, v: p.data.tensor.data.__setitem__(slice(0, SAMPLES, 2), v / 7),
    "data source": lambda p, v: setattr(p.data, "source", "raw" if v % 2 else "other"),
    "data grows": lambda p, v: setattr(p.data, "grows", True),
    "write the batch": lambda p, v: p.how.add("in place"),
    "write the batch by data": lambda p, v: p.how.add("by data"),
    "write the batch by numpy": lambda p, v: p.how.add("by numpy"),
    "gradient of the batch": lambda p, v: p.how.add("gradient"),
    "call twice": lambda p, v: p.how.add("twice"),
    "call without gradients": lambda p, v: p.how.add("without gradients"),
    "evaluate": lambda p, v: p.how.add("evaluate"),
    "autocast": lambda p, v: p.how.add("autocast"),
    "plainly": lambda p, v: p.how.clear(),
}
WHOLES = (
    "attribute",
    "dict",
    "list",
    "dataclass",
    "namespace",
    "class",
    "global",
    "shared",
    "closure",
    "environment",
    "counter",
    "chance",
    "numpy chance",
    "mode",
)
FLOATS = ("attribute", "deep", "dataclass", "namespace", "shared", "trained")
TENSORS = ("buffer", "array", "held", "made", "trained")
CHANGED_BY = {
    "attribute": ("attribute", "real attribute"),
    "dict": ("dict",),
    "list": ("list",),
    "deep": ("deep",),
    "dataclass": ("dataclass", "dataclass real", "dataclass replaced"),
    "namespace": ("namespace",),
    "class": ("class",),
    "global": ("global",),
    "shared": ("shared",),
    "closure": ("closure",),
    "environment": ("environment",),
    "array": ("array",),
    "held": ("held replaced", "held by numpy"),
    "buffer": ("buffer in place", "buffer by data", "buffer by numpy", "buffer swapped", "buffer replaced"),
    "trained": ("frozen",),
    "mode": ("call without gradients",),
    "inner": ("inner replaced", "inner changed", "inner patched", "inner class", "hook"),
    "parts": ("part replaced", "inner class"),
    "marked": ("words",),
    "norm": ("eval of a part",),
    "gain": ("gain", "gradient of a buffer"),
    "drop": ("evaluate",),
    "log": ("gradient of the batch",),
}
"""What changes something that a step reads, by the name of the step or of the place."""
HASHES = (
    "multiply",
    "add",
    "inner",
    "parts",
    "mask",
    "count up",
    "view",
    "branch",
    "unique",
    "order",
    "places",
    "numpy",
    "marked",
    "keep",
    "columns",
)
COMPUTES = ("log", "scale", "tensor", "mean", "drop", "norm", "noise", "clamp", "gain", "still")
EXTRAS = ("through", "hook", "outputs", "penalty")


@dataclass
class Recipe:
    """A program."""

    wholes: list = field(default_factory=list)
    reals: list = field(default_factory=list)
    extras: list = field(default_factory=list)
    changes: list = field(default_factory=list)
    """(step, what is changed, a number)."""


@st.composite
def recipes(draw):
    """Draw a program. Most changes affect state it reads, and most come after the split."""
    hashes = st.tuples(st.sampled_from(HASHES), st.sampled_from(WHOLES))
    buckets = st.tuples(st.just("bucket"), st.sampled_from(TENSORS))
    computes = st.tuples(st.sampled_from(COMPUTES), st.sampled_from(FLOATS))
    gains = st.tuples(st.just("tensor"), st.sampled_from(TENSORS))
    wholes = draw(st.lists(st.one_of(hashes, hashes, hashes, buckets), min_size=1, max_size=6))
    reals = draw(st.lists(st.one_of(computes, computes, computes, gains), max_size=5))
    extras = draw(st.lists(st.sampled_from(EXTRAS), unique=True, max_size=2))
    read = sorted({what for step in wholes + reals for name in step for what in CHANGED_BY.get(name, ())})
    any_change = st.sampled_from(sorted(CHANGES))
    steps = st.one_of(st.integers(0, STEPS - 1), st.integers(LATE, STEPS - 1))
    change = st.one_of(any_change, st.sampled_from(read)) if read else any_change
    changes = st.lists(st.tuples(steps, change, st.integers(1, 12)), max_size=5)
    return Recipe(wholes, reals, extras, draw(changes))


class RandomProgram:
    """A recipe as a program that trains."""

    epochs, batch_size = EPOCHS, BATCH

    def __init__(self, recipe):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        globals()["GLOBAL"] = 3
        SHARED.update(number=3, real=0.5)
        Inner.shared = 5
        os.environ.pop("RANDOM_PROGRAM", None)
        self.recipe, self.how = recipe, set()
        Model.shift = 3
        self.model, self.data = Model(recipe), Data()

    def optimizer(self):
        return torch.optim.Adagrad(self.model.parameters(), lr=0.1)

    def before(self, number):
        for step, what, value in self.recipe.changes:
            if step == number:
                CHANGES[what](self, value)

    def loss(self, model, batch):
        raw, dense, y = batch
        how = self.how
        if "in place" in how:
            raw[:, 0] += 1
            dense.mul_(0.5)
        if "by data" in how:
            raw.data.add_(1)
        if "by numpy" in how:
            dense.numpy()[:] *= 0.5
        penalized = "gradient" in how and "penalty" in self.recipe.extras
        if "gradient" in how:
            dense.requires_grad_()
        if "without gradients" in how:
            with torch.no_grad():
                model(raw, dense)
        if "evaluate" in how:
            model.eval()
            model(raw, dense)
            model.train()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="autocast" in how):
            score = self.score(model(raw, dense))
            if "twice" in how:
                score = score + 0.5 * self.score(model(raw, dense))
        loss = functional.mse_loss(score.float(), y)
        if penalized:
            (grad,) = torch.autograd.grad(score.float().sum(), dense, create_graph=True, allow_unused=True)
            loss = loss + (grad.square().mean() if grad is not None else 0)
        return loss

    @staticmethod
    def score(made):
        """The score, plus a little of every other output of forward."""
        if isinstance(made, tuple):
            score, hashed, last = made
            return score + 1e-3 * (hashed % 7).float().mean() + (0 if last is None else 1e-3 * last.float().mean())
        return made

    def after(self, number):
        self.model.gain.grad = None

    def outside(self):
        return [torch.tensor(self.model.counter.count)]
